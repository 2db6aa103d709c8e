"""Reference, calls and probes of `train-loop`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, formula, worked

# The sum of the losses of one batch, and what it is divided by.
BATCH = {
    "targets": "tokens[:, :-1], tokens[:, 1:]",
    "target": "targets[1]",
    "padding": "target != pad_id, (target != pad_id).sum()",
    "log_p": "model(targets[0]).log_softmax(-1)",
    "part": "-(log_p.gather(-1, target[..., None])[..., 0] * padding[0]).sum(), torch.as_tensor(padding[1])",
}


def logits_of(tokens: Tensor, weights: list[Tensor], training: bool) -> Tensor:
    """The model of drive.py."""
    embedding, head = weights
    x = embedding[tokens].cumsum(1) / torch.arange(1, tokens.shape[1] + 1)[:, None]
    kept = torch.arange(x.shape[-1]) % 2 == 0
    return torch.matmul(torch.tanh(2 * x * kept if training else x), head.T)


def reference(
    case: Case,
    *,
    mean: str = "sums / counts.sum()",  # what each batch adds to the loss
    measured: str = "",
    mode: str = "True, False, True",  # train mode in training, in measuring, and after it
    backward: str = "share",
    zeroed: str = "zeros",
    gathered: str = "[a + b for a, b in zip(grads, new)]",
    clipped: str = "[grad * min(1.0, most / norm) for grad in grads]",
    steps: str = "accumulate",
    steps_by: str = "clip(grads)",
    updated: str = "[weight - 0.5 * grad for weight, grad in zip(weights, grads)]",  # the rate of drive.py
    losses: str = "[loss(parts)]",
    **choices: str,
) -> tuple[Any, ...]:
    """Losses and weights after training, or the measured loss and the mode after it."""
    what, embedding, head, batches, *rest = case.args
    trains, evaluates, left = formula(mode)

    def measure(batches: list[Tensor], weights: list[Tensor], training: bool) -> list[Any]:
        names = {"model": lambda tokens: logits_of(tokens, weights, training), "pad_id": rest[-1]}
        return [worked(BATCH, choices, tokens=tokens, **names) for tokens in batches]

    def shares(parts: list[Any], how: str = mean) -> Tensor:
        sums, counts = (torch.stack(part) for part in zip(*parts, strict=True))
        return torch.as_tensor(formula(how, sums=sums, counts=counts))

    def clip(grads: list[Tensor]) -> Any:
        norm = float(torch.cat([grad.reshape(-1) for grad in grads]).norm())
        return formula(clipped, grads=grads, norm=norm, most=rest[1], count=sum(n for _, n in parts))

    weights = [embedding.clone(), head.clone()]
    if what == "evaluate":
        return shares(measure(batches, weights, evaluates), measured or mean).sum(), left
    zeros = grads = [torch.zeros_like(weight) for weight in weights]
    noted, group = [], formula(steps, accumulate=rest[0])
    for first in range(0, len(batches), group):
        grads = formula(zeroed, zeros=zeros, grads=grads)
        with torch.enable_grad():
            leaves = [weight.detach().requires_grad_() for weight in weights]
            parts = measure(batches[first : first + group], leaves, trains)
            for share in shares(parts):
                loss = formula(backward, share=share, accumulate=rest[0])
                new = torch.autograd.grad(loss, leaves, retain_graph=True)
                grads = formula(gathered, grads=grads, new=new, clip=clip)
        grads = formula(steps_by, grads=grads, clip=clip)
        weights = formula(updated, weights=weights, grads=grads)
        noted += formula(losses, parts=parts, loss=lambda parts: shares(parts).sum().detach())
    return torch.stack(noted), *weights


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
