"""The loop of `train-loop`, its batches, and the judge of its losses."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Draw, View
from regard.exercises.train_loop.drive import drive


def trained(formulas: View, *args: Any) -> Any:
    """What the drive gives of a loop whose steps are formulas."""
    trains, evaluates, left = formulas.mode

    def shares(parts: list[Any], mean: Any = formulas.mean) -> Tensor:
        return torch.as_tensor(mean(*(torch.stack(part) for part in zip(*parts, strict=True))))

    def evaluate_lm(model: Any, batches: list[Tensor], pad_id: int) -> Tensor:
        was = model.training
        model.train(evaluates(was))
        parts = [formulas.of_batch(tokens, model, pad_id) for tokens in batches]
        model.train(left(was))
        return shares(parts, formulas.measured).sum().detach()

    def train_lm(
        model: Any, optimizer: Any, batches: list[Tensor], accumulate: int, most: float, pad_id: int
    ) -> list[Tensor]:
        def clip(grads: Sequence[Tensor]) -> Any:
            norm = float(torch.cat([grad.reshape(-1) for grad in grads]).norm())
            return formulas.clipped(grads, norm, most, sum(n for _, n in parts))

        model.train(trains(model.training))
        parameters, noted, group = list(model.parameters()), [], formulas.steps(accumulate)
        zeros = grads = [torch.zeros_like(parameter) for parameter in parameters]
        for at in range(0, len(batches), group):
            parts = [formulas.of_batch(tokens, model, pad_id) for tokens in batches[at : at + group]]
            grads = formulas.zeroed(zeros, grads)
            for share in shares(parts):
                loss = formulas.backward(share, accumulate)
                new = torch.autograd.grad(loss, parameters, retain_graph=True)
                grads = formulas.gathered(grads, new, clip)
            grads = formulas.steps_by(grads, clip)
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter.grad = grad
            formulas.updated(optimizer)
            noted += formulas.losses(parts, lambda parts: shares(parts).sum().detach())
        return noted

    with torch.enable_grad():
        return drive(SimpleNamespace(evaluate_lm=evaluate_lm, train_lm=train_lm), *args)


def tokens_of(
    draw: Draw, at: int, batch: int, position: int, vocab: int, pad_id: int, padded: bool
) -> Tensor:
    """A batch whose sequences end at different places; the first target of all is real."""
    tokens = (pad_id + draw.integers(1, vocab - 1, batch, position)) % vocab
    lengths = draw.integers(2, position, batch)
    lengths[0] = position if at % 2 else 2
    if padded:
        tokens[torch.arange(position) >= lengths[:, None]] = pad_id
    return tokens


def goes_down(results: list[Any]) -> str | None:
    """Whether the last loss is well below the first."""
    first, last = float(results[0][0][0]), float(results[0][0][-1])
    if last < 0.8 * first:
        return None
    return (
        f"the same batch twenty times: the loss must go down, and yours goes from {first:.4g} to {last:.4g}."
    )
