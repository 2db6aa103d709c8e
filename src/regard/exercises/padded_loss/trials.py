"""Reference, calls and probes of `padded-loss`."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Impossible, Probe, Trial, changed, worked

FORMULAS = {
    "aligned": "logits, labels",
    "outputs": "aligned[0]",
    "target": "aligned[1]",
    "log_p": "outputs.log_softmax(-1)",
    "real": "target != pad_id",
    "losses": "torch.where(real, -log_p.gather(-1, target[..., None])[..., 0], 0.0)",
    "over": "losses.sum() / real.sum().clamp(min=1)",
    "no_token": "over",
    "times": "no_token",
}


def reference(case: Case, **choices: str) -> Tensor:
    """The mean of the negative log-probabilities of what is real."""
    logits, labels, pad_id = case.args
    loss: Tensor = worked(FORMULAS, choices, logits=logits, labels=labels, pad_id=pad_id, math=math)
    return loss


def padded(draw: Draw, pad_id: int = 0, n_real: str = "some", scale: float = 1.0, shift: float = 0.0) -> Case:
    """Labels that are real up to a length of their own, the first sequence to its end; or all, one, none."""
    vocab, steps = draw["vocab"], draw["steps"]
    if vocab < 2:
        raise Impossible
    pad_id %= vocab
    labels = (pad_id + draw.integers(1, vocab - 1, "batch", "steps")) % vocab  # any but pad_id
    lens = draw.integers(1, max(1, steps - 1), "batch")
    if draw["batch"] > 1:
        lens[0] = steps
    if n_real != "some":
        lens.fill_(steps if n_real == "all" else 0)
    if n_real == "one":  # the first label of the last sequence
        lens[-1] = 1
    labels[torch.arange(steps) >= lens[:, None]] = pad_id
    return Case((draw.normal("batch", "steps", "vocab", scale=scale, mean=shift), labels, pad_id))


def change_padding(case: Case, draw: Draw) -> None:
    logits, labels, pad_id = case.args
    logits[labels == pad_id] *= -2.0


def padded_further(draw: Draw) -> tuple[Case, ...]:
    base = padded(draw)
    logits, labels, pad_id = base.args
    more = torch.full((draw["batch"], 3), pad_id)
    wider = torch.cat([logits, draw.normal("batch", 3, "vocab")], dim=1)
    return base, base.with_args(wider, torch.cat([labels, more], dim=1), pad_id)


SIZES = {"batch": 3, "steps": 5, "vocab": 7}
INFINITE = "The log of a softmax that came out as 0 is infinite: use log_softmax or logsumexp."
CHANGED = "the logits of padding were changed: the loss may not move."
FURTHER = "the batch was padded further: the loss may not move."
large = partial(padded, scale=60.0, shift=200.0)

TRIALS = (
    Trial("padding is id 0", padded, SIZES, variants=True),
    Trial("padding is the last id", partial(padded, pad_id=-1), SIZES, variants=True),
    Trial("padding is an id between", partial(padded, pad_id=2), {"batch": 2, "steps": 7, "vocab": 5}),
    Trial("no padding", partial(padded, pad_id=1, n_real="all"), {"batch": 2, "steps": 3, "vocab": 5}),
    Trial("batch of one", padded, {"batch": 1, "steps": 5, "vocab": 3}),
    Trial("as many steps as words", padded, {"batch": 5, "steps": 7, "vocab": 7}),
    Trial("one step", partial(padded, pad_id=1, n_real="all"), {"batch": 3, "steps": 1, "vocab": 5}),
    Trial("one real token", partial(padded, pad_id=1, n_real="one"), SIZES),
    Trial("nothing but padding", partial(padded, pad_id=1, n_real="none"), SIZES, grad=False),
    Trial("large logits", large, SIZES, grad=False, kind="fragile", says=INFINITE),
)

PROBES = (
    Probe("padding has no say", changed(padded, change_padding), SIZES, says=CHANGED),
    Probe("more padding has no say", padded_further, SIZES, says=FURTHER),
)
