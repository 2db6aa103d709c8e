"""Reference, calls and probes of `train-loop`."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, formula, worked
from regard.exercises.train_loop.drive import drive

# The sum of the losses of one batch, and what it is divided by.
BATCH = {
    "targets": "tokens[:, :-1], tokens[:, 1:]",
    "target": "targets[1]",
    "padding": "target != pad_id, (target != pad_id).sum()",
    "log_p": "model(targets[0]).log_softmax(-1)",
    "part": "-(log_p.gather(-1, target[..., None])[..., 0] * padding[0]).sum(), torch.as_tensor(padding[1])",
}


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
    updated: str = "optimizer.step()",
    losses: str = "[loss(parts)]",
    **choices: str,
) -> Any:
    """Losses and weights after training, or the measured loss and the mode after it."""
    trains, evaluates, left = formula(mode)

    def shares(parts: list[Any], how: str = mean) -> Tensor:
        sums, counts = (torch.stack(part) for part in zip(*parts, strict=True))
        return torch.as_tensor(formula(how, sums=sums, counts=counts))

    def evaluate_lm(model: Any, batches: list[Tensor], pad_id: int) -> Tensor:
        model.train(evaluates)
        parts = [worked(BATCH, choices, tokens=tokens, model=model, pad_id=pad_id) for tokens in batches]
        model.train(left)
        return shares(parts, measured or mean).sum().detach()

    def train_lm(
        model: Any, optimizer: Any, batches: list[Tensor], accumulate: int, most: float, pad_id: int
    ) -> list[Tensor]:
        def clip(grads: Sequence[Tensor]) -> Any:
            norm = float(torch.cat([grad.reshape(-1) for grad in grads]).norm())
            return formula(clipped, grads=grads, norm=norm, most=most, count=sum(n for _, n in parts))

        model.train(trains)
        parameters, noted, group = list(model.parameters()), [], formula(steps, accumulate=accumulate)
        zeros = grads = [torch.zeros_like(parameter) for parameter in parameters]
        for at in range(0, len(batches), group):
            names = {"model": model, "pad_id": pad_id}
            parts = [worked(BATCH, choices, tokens=tokens, **names) for tokens in batches[at : at + group]]
            grads = formula(zeroed, zeros=zeros, grads=grads)
            for share in shares(parts):
                loss = formula(backward, share=share, accumulate=accumulate)
                new = torch.autograd.grad(loss, parameters, retain_graph=True)
                grads = formula(gathered, grads=grads, new=new, clip=clip)
            grads = formula(steps_by, grads=grads, clip=clip)
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter.grad = grad
            formula(updated, optimizer=optimizer)
            noted += formula(losses, parts=parts, loss=lambda parts: shares(parts).sum().detach())
        return noted

    with torch.enable_grad():
        return drive(SimpleNamespace(evaluate_lm=evaluate_lm, train_lm=train_lm), *case.args)


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


def trial(name: str, what: str, *rest: int | float, sizes: dict[str, int] = SIZES, **options: Any) -> Trial:
    """Training with (accumulate, max_norm), or measuring."""
    return Trial(name, lambda draw: call(draw, what, *rest, **options), sizes, grad=False)


TRIALS = (
    trial("plain steps", "train", 1, 1e3, padded=False),
    trial("padding", "train", 1, 1e3),
    trial("padding of another id", "train", 1, 1e3, pad_id=5),
    trial("accumulated", "train", 2, 1e3, padded=False),
    trial("accumulated, with padding", "train", 3, 1e3, sizes={**SIZES, "batches": 6}),
    trial("clipped", "train", 1, 0.1),
    trial("accumulated and clipped", "train", 2, 0.1),
    trial("a batch of one", "train", 2, 0.2, sizes={**SIZES, "batch": 1}),
    trial("measured", "evaluate"),
    trial("measured on one batch", "evaluate", pad_id=3, sizes={**SIZES, "batches": 1}),
)

PROBES = (Probe("the loss goes down", again_and_again, SIZES, goes_down),)
