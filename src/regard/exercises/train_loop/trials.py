"""Reference, calls and probes of `train-loop`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial

RATE = 0.5  # of the optimizer in drive.py


def logits_of(tokens: Tensor, weights: list[Tensor], training: bool) -> Tensor:
    """The model of drive.py."""
    embedding, head = weights
    x = embedding[tokens].cumsum(1) / torch.arange(1, tokens.shape[1] + 1)[:, None]
    kept = torch.arange(x.shape[-1]) % 2 == 0
    return torch.matmul(torch.tanh(2 * x * kept if training else x), head.T)


def reference(
    case: Case,
    *,
    zeroed: str = "each update",
    targets: str = "the next tokens",
    padding: str = "left out",
    mean: str = "of all targets",
    clipped: str = "the whole norm",
    steps: str = "each update",
    mode: str = "as it should be",
    losses: str = "of the updates",
) -> tuple[Any, ...]:
    """Losses and weights after training, or the measured loss and the mode after it."""
    what, embedding, head, batches, *rest = case.args
    pad_id = rest[-1]

    def summed(tokens: Tensor, weights: list[Tensor], training: bool) -> tuple[Tensor, Tensor]:
        """The sum of the losses of one batch, and what it is divided by."""
        given, target = {
            "the inputs": (tokens[:, :-1], tokens[:, :-1]),
            "the tokens before": (tokens[:, 1:], tokens[:, :-1]),
            "rolled": (tokens, tokens.roll(-1, 1)),
        }.get(targets, (tokens[:, :-1], tokens[:, 1:]))
        logs = logits_of(given, weights, training).log_softmax(-1)
        picked = -logs.gather(-1, target[..., None])[..., 0]
        real = torch.ones_like(target, dtype=torch.bool) if padding == "counted" else target != pad_id
        count = torch.tensor(target.numel()) if padding == "in the count" else real.sum()
        return (picked * real).sum(), count

    weights = [embedding.clone(), head.clone()]
    if what == "evaluate":
        parts = [summed(tokens, weights, mode == "evaluates as it was") for tokens in batches]
        how = "of means" if mean == "of means when measured" else mean
        return average(parts, how), mode != "left in eval"
    accumulate, max_norm, _ = rest
    grads, noted = [torch.zeros_like(weight) for weight in weights], []
    group = 1 if steps == "each batch" else accumulate
    for first in range(0, len(batches), group):
        inner = batches[first : first + group]
        with torch.enable_grad():
            leaves = [weight.detach().requires_grad_() for weight in weights]
            parts = [summed(tokens, leaves, mode != "trains as it was") for tokens in inner]
            loss, last = average(parts, mean), average(parts[-1:], mean)
            alone = parts[-1][0] / sum(count for _, count in parts)
            new = torch.autograd.grad(alone if zeroed == "each batch" else loss, leaves, retain_graph=True)
            count = sum(n for _, n in parts)
            if clipped in ("after each batch", "each batch alone"):
                new = tuple(torch.zeros_like(leaf) for leaf in leaves)
                for total, _ in parts:
                    more = list(torch.autograd.grad(total / count, leaves, retain_graph=True))
                    more = clip(more, max_norm, clipped) if clipped == "each batch alone" else more
                    new = tuple(a + b for a, b in zip(new, more, strict=True))
                    new = new if clipped == "each batch alone" else tuple(clip(list(new), max_norm, clipped))
            if mean == "over accumulate too":
                new = tuple(grad / accumulate for grad in new)
        grads = [old + more for old, more in zip(grads, new, strict=True)] if zeroed == "never" else list(new)
        if clipped == "before the division":
            grads = [grad / count for grad in clip([grad * count for grad in grads], max_norm, clipped)]
        elif clipped != "each batch alone":
            grads = clip(grads, max_norm, clipped)
        if steps != "never":
            weights = [weight - RATE * grad for weight, grad in zip(weights, grads, strict=True)]
        singles = [average([part], mean) for part in parts] if losses == "of each batch" else []
        noted += singles or [last if losses == "of the last batch" else loss]
    return torch.stack([loss.detach() for loss in noted]), *(weight.detach() for weight in weights)


def average(parts: list[tuple[Tensor, Tensor]], mean: str) -> Tensor:
    """One loss of the sums and counts of several batches."""
    whole = torch.stack([total for total, _ in parts]).sum()
    if mean == "not divided":
        return whole
    if mean in ("of all targets", "of means when measured", "over accumulate too"):
        return whole / sum(count for _, count in parts)
    means = torch.stack([total / count for total, count in parts])
    return means.sum() if mean == "summed" else means.mean()


def clip(grads: list[Tensor], most: float, how: str) -> list[Tensor]:
    """The gradients, clipped."""
    if how == "never":
        return grads
    if how == "numbers":
        return [grad.clamp(-most, most) for grad in grads]
    if how == "parameters":
        return [grad * min(1.0, most / float(grad.norm())) for grad in grads]
    norm = float(torch.cat([grad.reshape(-1) for grad in grads]).norm())
    return [grad * (most / norm if how == "always" else min(1.0, most / norm)) for grad in grads]


def call(draw: Draw, what: str, *rest: Any, pad_id: int = 0, padded: bool = True) -> Case:
    """Batches whose sequences end at different places; the first target of all is real."""
    vocab, batches = draw["vocab"], []
    for number in range(draw["batches"]):
        tokens = (pad_id + draw.integers(1, vocab - 1, "batch", "position")) % vocab
        lengths = draw.integers(2, draw["position"], "batch")
        lengths[0] = draw["position"] if number % 2 else 2
        if padded:
            tokens[torch.arange(draw["position"]) >= lengths[:, None]] = pad_id
        batches.append(tokens)
    weights = draw.normal("vocab", "dim"), draw.normal("vocab", "dim")
    return Case((what, *weights, batches, *rest, pad_id))


def training(accumulate: int, max_norm: float, **options: Any) -> Any:
    return lambda draw: call(draw, "train", accumulate, max_norm, **options)


def measuring(**options: Any) -> Any:
    return lambda draw: call(draw, "evaluate", **options)


def again_and_again(draw: Draw) -> tuple[Case, ...]:
    case = call(draw, "train", 1, 1.0)
    what, embedding, head, batches, *rest = case.args
    return (case.with_args(what, embedding, head, batches[:1] * 20, *rest),)


def goes_down(results: list[Any]) -> str | None:
    first, last = float(results[0][0][0]), float(results[0][0][-1])
    if last < 0.8 * first:
        return None
    return (
        f"the same batch twenty times: the loss must go down, and yours goes from {first:.4g} to {last:.4g}."
    )


SIZES = {"batches": 4, "batch": 3, "position": 5, "vocab": 7, "dim": 6}

TRIALS = (
    Trial("plain steps", training(1, 1e3, padded=False), SIZES, grad=False),
    Trial("padding", training(1, 1e3), SIZES, grad=False),
    Trial("padding of another id", training(1, 1e3, pad_id=5), SIZES, grad=False),
    Trial("accumulated", training(2, 1e3, padded=False), SIZES, grad=False),
    Trial("accumulated, with padding", training(3, 1e3), {**SIZES, "batches": 6}, grad=False),
    Trial("clipped", training(1, 0.1), SIZES, grad=False),
    Trial("accumulated and clipped", training(2, 0.1), SIZES, grad=False),
    Trial("a batch of one", training(2, 0.2), {**SIZES, "batch": 1}, grad=False),
    Trial("measured", measuring(), SIZES, grad=False),
    Trial("measured on one batch", measuring(pad_id=3), {**SIZES, "batches": 1}, grad=False),
)

PROBES = (Probe("the loss goes down", again_and_again, SIZES, goes_down),)
