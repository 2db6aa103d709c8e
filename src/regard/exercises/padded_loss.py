"""Exercise: cross-entropy over the real tokens of a padded batch."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.exercises.spec import Case, Convention, Draw, Exercise, Impossible, Mistake, Probe, Right, Trial

TASK = """
The mean cross-entropy of a padded batch, in which padding counts for nothing:

    loss = - (sum over real tokens of log softmax(logits[b, t])[labels[b, t]]) / (number of real tokens)

A token is real where its label is not `pad_id`.

- `padded_cross_entropy(logits, labels, pad_id)`: logits (batch, steps, vocab), labels (batch, steps) of whole
  numbers below vocab. `pad_id` is one of them, and may be any of them.
- Returns a tensor with one number. It is one mean over all real tokens of the batch, not a mean of means.
- A batch without any real token gives 0. Large logits are no problem.
"""

STARTER = '''import torch


def padded_cross_entropy(logits, labels, pad_id):
    """logits (batch, steps, vocab), labels (batch, steps) -> mean loss over labels that are not pad_id."""
    raise NotImplementedError
'''

STEPS = """import torch

def padded_cross_entropy(logits, labels, pad_id):
    log_p = torch.log_softmax(logits, dim=-1)
    picked = log_p.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    losses = -picked
    real = labels != pad_id
    total = (losses * real).sum()
    count = real.sum()
    return total / count.clamp(min=1)
"""

IGNORE = """import torch
import torch.nn.functional as F

def padded_cross_entropy(logits, labels, pad_id):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=pad_id)
"""

SELECT = """import torch
from torch import nn

def padded_cross_entropy(logits, labels, pad_id):
    keep = labels.ne(pad_id)
    if not keep.any():
        return logits.sum() * 0.0
    return nn.CrossEntropyLoss()(logits[keep], labels[keep])
"""

LOOP = """import torch

def padded_cross_entropy(logits, labels, pad_id):
    total, n = logits.new_zeros(()), 0
    for b in range(labels.shape[0]):
        for t in range(labels.shape[1]):
            if labels[b, t] != pad_id:
                total = total + torch.logsumexp(logits[b, t], dim=0) - logits[b, t, labels[b, t]]
                n += 1
    return total / n if n else total
"""

WEIGHTS = """import torch

def padded_cross_entropy(logits, labels, pad_id):
    # per-token losses want the vocabulary on axis 1
    loss = torch.nn.functional.cross_entropy(logits.permute(0, 2, 1), labels, reduction="none")
    mask = (labels.reshape(-1) != pad_id).float()
    return (loss.reshape(-1) * mask).sum() / torch.clamp(mask.sum(), min=1.0)
"""

# A loss in float32 for half-precision logits, as a mask made by .float() gives it, is as good.
DRIVE = """
def drive(answer, logits, labels, pad_id):
    loss = answer(logits, labels, pad_id)
    return loss.to(logits.dtype) if isinstance(loss, torch.Tensor) and loss.is_floating_point() else loss
"""


def reference(case: Case, *, no_token: str = "zero") -> Tensor:
    """Log-sum-exp minus the label's logit, averaged over what is real."""
    logits, labels, pad_id = case.args
    real: Tensor = labels != pad_id
    losses: Tensor = logits.logsumexp(-1) - logits.gather(-1, labels[..., None])[..., 0]
    if no_token == "nan" and not bool(real.any()):
        return torch.full_like(losses.sum(), torch.nan)
    total: Tensor = torch.where(real, losses, 0.0).sum()
    return total / real.sum().clamp(min=1)


def padded(draw: Draw, pad_id: int, scale: float = 1.0, shift: float = 0.0) -> Case:
    """Labels that are real up to a length of their own, the first sequence to its end."""
    vocab, steps = draw["vocab"], draw["steps"]
    if vocab < 2:
        raise Impossible
    pad_id %= vocab
    labels = (pad_id + draw.integers(1, vocab - 1, "batch", "steps")) % vocab  # any but pad_id
    lens = draw.integers(1, max(1, steps - 1), "batch")
    if draw["batch"] > 1:
        lens[0] = steps
    labels[torch.arange(steps) >= lens[:, None]] = pad_id
    return Case((draw.normal("batch", "steps", "vocab", scale=scale) + shift, labels, pad_id))


def first_id(draw: Draw) -> Case:
    return padded(draw, 0)


def last_id(draw: Draw) -> Case:
    return padded(draw, -1)


def middle_id(draw: Draw) -> Case:
    return padded(draw, 2)


def no_padding(draw: Draw) -> Case:
    case = padded(draw, 1)
    logits, labels, pad_id = case.args
    return case.with_args(logits, labels.where(labels != pad_id, torch.tensor(0)), pad_id)


def one_token(draw: Draw) -> Case:
    """Only the first label of the last sequence is real."""
    case = padded(draw, 1)
    logits, labels, pad_id = case.args
    alone = torch.full_like(labels, pad_id)
    alone[-1, 0] = labels[-1, 0]
    return case.with_args(logits, alone, pad_id)


def only_padding(draw: Draw) -> Case:
    case = padded(draw, 1)
    return case.with_args(case.args[0], torch.full_like(case.args[1], case.args[2]), case.args[2])


def large(draw: Draw) -> Case:
    return padded(draw, 0, scale=60.0, shift=200.0)


def padding_changed(draw: Draw) -> tuple[Case, ...]:
    base = first_id(draw)
    logits, labels, pad_id = base.args
    return base, base.with_args(
        torch.where((labels == pad_id)[..., None], logits * 3 + 1, logits), labels, pad_id
    )


def padded_further(draw: Draw) -> tuple[Case, ...]:
    base = first_id(draw)
    logits, labels, pad_id = base.args
    more = torch.full((draw["batch"], 3), pad_id)
    wider = torch.cat([logits, draw.normal("batch", 3, "vocab")], dim=1)
    return base, base.with_args(wider, torch.cat([labels, more], dim=1), pad_id)


SIZES = {"batch": 3, "steps": 5, "vocab": 7}
MEAN = "return total / count.clamp(min=1)"
REAL = "real = labels != pad_id"
LOG = "log_p = torch.log_softmax(logits, dim=-1)"
DIVISOR = "Look at what the sum of losses is divided by."

EXERCISE = Exercise(
    id="padded-loss",
    title="Cross-entropy without padding",
    names=("padded_cross_entropy",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    drive=DRIVE,
    right=(
        Right("gather and mask", STEPS),
        Right("ignore_index", IGNORE),
        Right("real tokens picked out", SELECT),
        Right("loops", LOOP),
        Right("token losses times a mask", WEIGHTS),
    ),
    conventions=(
        Convention(
            "no_token",
            {
                "zero": "a batch without a real token has loss 0.",
                "nan": "a batch without a real token has loss NaN, 0 / 0; we give 0.",
            },
        ),
    ),
    trials=(
        Trial("padding is id 0", first_id, SIZES, variants=True),
        Trial("padding is the last id", last_id, SIZES, variants=True),
        Trial("padding is an id between", middle_id, {"batch": 2, "steps": 7, "vocab": 5}),
        Trial("no padding", no_padding, {"batch": 2, "steps": 3, "vocab": 5}),
        Trial("batch of one", first_id, {"batch": 1, "steps": 5, "vocab": 3}),
        Trial("as many steps as words", first_id, {"batch": 5, "steps": 7, "vocab": 7}),
        Trial("one step", no_padding, {"batch": 3, "steps": 1, "vocab": 5}),
        Trial("one real token", one_token, SIZES),
        Trial("nothing but padding", only_padding, SIZES, grad=False),
        Trial(
            "large logits",
            large,
            SIZES,
            grad=False,
            kind="fragile",
            says="The log of a softmax that came out as 0 is infinite: use log_softmax or logsumexp.",
        ),
    ),
    probes=(
        Probe(
            "padding has no say",
            padding_changed,
            SIZES,
            says="the logits of padding were changed: the loss may not move.",
        ),
        Probe(
            "more padding has no say",
            padded_further,
            SIZES,
            says="the batch was padded further: the loss may not move.",
        ),
    ),
    hints=(
        "The loss is not the mean over the real tokens.",
        "Take one sequence without padding: is it right? Then add padding: it must not move.",
        "Padding must leave both the sum of the losses and the number it is divided by.",
        "Losses of all tokens, times (labels != pad_id), summed, divided by how many are real.",
    ),
    mistakes=(
        Mistake(
            "padding is counted",
            (
                "The loss moves when the logits of padding change.",
                "Look for the mask.",
                "The mean runs over all positions.",
                "Leave out positions whose label is pad_id, above and below.",
            ),
            edits=((REAL, "real = torch.ones_like(labels)"),),
        ),
        Mistake(
            "divided by all positions, padding too",
            (
                "The loss shrinks when more padding is added.",
                DIVISOR,
                "The losses of padding are gone from the sum, but still counted below.",
                "Divide by the number of real tokens.",
            ),
            edits=((MEAN, "return total / labels.numel()"),),
        ),
        Mistake(
            "a mean of the sequences' means",
            (
                "Tokens of short sequences weigh more than those of long ones.",
                DIVISOR,
                "Each sequence is averaged first, then the averages.",
                "One sum over the whole batch, divided once.",
            ),
            edits=((MEAN, "return ((losses * real).sum(1) / real.sum(1).clamp(min=1)).mean()"),),
        ),
        Mistake(
            "the sum instead of the mean",
            (
                "The loss grows with the number of tokens.",
                DIVISOR,
                "Nothing is divided.",
                "Divide by the number of real tokens.",
            ),
            edits=((MEAN, "return total"),),
        ),
        Mistake(
            "divided by the number of sequences",
            (
                "The loss grows with the length of the sequences.",
                DIVISOR,
                "The batch size is not the number of real tokens.",
                "Divide by the number of real tokens.",
            ),
            edits=((MEAN, "return total / labels.shape[0]"),),
        ),
        Mistake(
            "padding is taken to be id 0",
            (
                "Right for pad_id = 0 only.",
                "Look at the comparison that finds padding.",
                "pad_id is not used.",
                "Compare the labels with pad_id.",
            ),
            edits=((REAL, "real = labels > 0"),),
        ),
        Mistake(
            "the mask is upside down",
            (
                "Only padding is counted.",
                "Look at the comparison that finds padding.",
                "It is true where the label is pad_id.",
                "real = labels != pad_id.",
            ),
            edits=((REAL, "real = labels == pad_id"),),
        ),
        Mistake(
            "softmax twice",
            (
                "The loss hardly depends on the logits.",
                "Look at what goes into the log-softmax.",
                "Probabilities are taken for logits.",
                "Give the raw logits to log_softmax or cross_entropy.",
            ),
            edits=((LOG, "log_p = torch.log_softmax(torch.softmax(logits, dim=-1), dim=-1)"),),
        ),
        Mistake(
            "no logarithm",
            (
                "The loss lies between -1 and 0.",
                "Look at the softmax.",
                "Cross-entropy takes the logarithm of the probability.",
                "Use log_softmax.",
            ),
            edits=((LOG, "log_p = torch.softmax(logits, dim=-1)"),),
        ),
        Mistake(
            "no softmax",
            (
                "The loss may be negative, and moves when a constant is added to all logits.",
                "Look at what is gathered.",
                "The logits themselves are taken for log-probabilities.",
                "Use log_softmax over the vocabulary.",
            ),
            edits=((LOG, "log_p = logits"),),
        ),
        Mistake(
            "softmax over the steps instead of the vocabulary",
            (
                "The log-probabilities of a token's words do not sum to 1.",
                "Look at the axis of the softmax.",
                "Axis 1 runs over the steps.",
                "Take it over the last axis.",
            ),
            edits=((LOG, "log_p = torch.log_softmax(logits, dim=1)"),),
        ),
        Mistake(
            "the sign is wrong",
            (
                "The loss is negative: training would make it worse.",
                "Look at the sign.",
                "A log-probability is negative; its negative is the loss.",
                "Put a minus in front.",
            ),
            edits=(("losses = -picked", "losses = picked"),),
        ),
        Mistake(
            "the labels are shifted by one",
            (
                "Each step is compared with the next step's label.",
                "Look for a slice like [:, 1:].",
                "The labels are given for each step already.",
                "Use logits[b, t] with labels[b, t].",
            ),
            edits=((LOG, "labels = labels.roll(-1, dims=1)\n    " + LOG),),
        ),
        Mistake(
            "the padding word is taken out of the vocabulary",
            (
                "The loss is too small: one word less shares the probability.",
                "Look at what is hidden.",
                "Hiding the logit of pad_id changes every real token's softmax; padding is a matter "
                "of labels.",
                "Leave the logits, and mask the losses.",
            ),
            edits=(
                (
                    LOG,
                    "hide = torch.arange(logits.shape[-1], device=logits.device) == pad_id\n"
                    "    log_p = torch.log_softmax(logits.masked_fill(hide, -1e4), dim=-1)",
                ),
                ("losses = -picked", "losses = -picked.masked_fill(labels == pad_id, 0.0)"),
            ),
        ),
        Mistake(
            "the loss in bits",
            (
                "The loss is too large by a factor of 1.44.",
                "Look at the logarithm.",
                "It is taken to the base 2.",
                "Use the natural logarithm.",
            ),
            edits=(("losses = -picked", "losses = -picked / 0.6931471805599453"),),
        ),
        Mistake(
            "the logarithm of a softmax that came out as 0",
            (
                "Right for small logits, infinite for large ones.",
                "Look at log and softmax.",
                "A probability below 1e-38 is 0 in float32, and its logarithm is minus infinity.",
                "Use log_softmax, which never forms the probability.",
            ),
            edits=((LOG, "log_p = torch.log(torch.softmax(logits, dim=-1))"),),
        ),
        Mistake(
            "the gradient is cut",
            (
                "The number is right, and nothing can be trained with it.",
                "Look for .item(), float(), detach or no_grad.",
                "A plain number has no history.",
                "Return the tensor.",
            ),
            edits=((MEAN, "return (total / count.clamp(min=1)).detach()"),),
        ),
    ),
)
