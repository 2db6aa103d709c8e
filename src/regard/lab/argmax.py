"""Hard attention: no gradient to queries and keys, and what that does to training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.attention.softmax import attend, attend_hard
from regard.lab.drawing import bars, draw_losses, finish, grouped_bars, level, panels
from regard.lab.learning import share_right, train
from regard.lab.spec import Experiment, Measurement, Result, above, equal

WAYS = ("softmax", "argmax", "straight-through")
DIM, N_KEY, N_CLASS = 12, 8, 8


def _look(way: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if way == "softmax":
        return attend(q, k, v).out
    return attend_hard(q, k, v, straight_through=way == "straight-through")


def _gradients(way: str) -> tuple[float, float, float, float]:
    """Norms of the gradients to queries, keys, the winning values and all others."""
    q, k, v = (torch.randn(5, 2, n, 7, dtype=torch.float64, requires_grad=True) for n in (3, 11, 11))
    out = _look(way, q, k, v)
    out.backward(torch.randn_like(out))
    to_q, to_k = (0.0 if given.grad is None else float(given.grad.norm()) for given in (q, k))
    wins = torch.zeros(5, 2, 11, dtype=torch.bool)
    wins.scatter_(2, (q @ k.mT).argmax(-1), True)
    assert v.grad is not None
    return to_q, to_k, float(v.grad[wins].norm()), float(v.grad[~wins].norm())


def _examples(n: int, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, a question that is one of the keys turned, and which one it was."""
    keys = nn.functional.normalize(torch.randn(n, N_KEY, DIM), dim=-1)
    answer = torch.randint(N_KEY, (n,))
    return keys, keys[torch.arange(n), answer] @ turn, answer


def _trained(way: str, n_step: int, turn: Tensor) -> tuple[list[float], float, Measurement]:
    """Losses, how far the weights moved, and the share of new questions they then answer."""
    query, key = (nn.Linear(DIM, DIM, bias=False) for _ in range(2))
    values = torch.eye(N_CLASS)  # each place holds its own class
    weights = (query.weight, key.weight)
    before = [weight.detach().clone() for weight in weights]

    def answer(keys: Tensor, asked: Tensor) -> Tensor:
        q, k = 8.0 * query(asked)[:, None, None], key(keys)[:, None]
        return _look(way, q, k, values.expand(len(keys), 1, N_KEY, N_CLASS))[:, 0, 0]

    def loss() -> Tensor:
        *given, right = _examples(64, turn)
        return nn.functional.mse_loss(answer(*given), values[right])

    losses = train(weights, loss, n_step, rate=0.02)
    with torch.no_grad():
        *given, right = _examples(1000, turn)
        share = share_right(f"answered, {way}", answer(*given), right)
        moved = sum(float((now - then).norm()) for now, then in zip(weights, before, strict=True))
    return losses, moved, share


def run(quick: bool, seed: int) -> Result:
    n_step = 100 if quick else 600
    turn = torch.linalg.qr(torch.randn(DIM, DIM)).Q
    figure, (gradient_ax, loss_ax, right_ax) = panels(
        "Gradient norms", "Loss while training", "Questions answered"
    )
    names = ("queries", "keys", "winning values", "other values")
    norms = {way: _gradients(way) for way in WAYS}
    grouped_bars(gradient_ax, names, norms)
    finish(gradient_ax, "", "norm")
    hard = [
        Measurement.exact(f"argmax: gradient to {name}", norm)
        for name, norm in zip(names, norms["argmax"], strict=True)
    ]
    shares, moved = {}, {}
    for index, way in enumerate(WAYS):
        losses, moved[way], shares[way] = _trained(way, n_step, turn)
        draw_losses(loss_ax, losses, way, index)
    finish(loss_ax, "step", "loss")
    bars(right_ax, WAYS, list(shares.values()))
    level(right_ax, 1 / N_KEY, "chance", 2.3)
    finish(right_ax, "", "share", legend=False)
    checks = (
        equal("argmax gives queries no gradient", hard[0].value, 0.0),
        equal("argmax gives keys no gradient", hard[1].value, 0.0),
        equal("argmax gives the losing values no gradient", hard[3].value, 0.0),
        above("argmax gives the winning values one", hard[2], 0.0),
        equal("training with argmax moves no weight", moved["argmax"], 0.0),
        above("trained with softmax it answers", shares["softmax"], 0.8),
        above("straight-through training beats argmax", shares["straight-through"], shares["argmax"]),
        above("softmax training beats argmax", shares["softmax"], shares["argmax"]),
    )
    return Result(
        (*hard, *shares.values()),
        checks,
        figure,
        "argmax sends no gradient to queries or keys, its weights stay where they were drawn, and it "
        f"answers {shares['argmax'].value:.0%} of the questions, against {shares['softmax'].value:.0%} with "
        f"softmax and {shares['straight-through'].value:.0%} straight-through (chance {1 / N_KEY:.0%})",
    )


EXPERIMENT = Experiment(
    "argmax",
    "Hard attention gives no gradient to queries and keys, only to the winning value, so it cannot learn "
    "where to look; softmax can, and so can the straight-through estimate.",
    "Gradients to queries, keys and losing values are exactly 0. On a look-up task training with argmax "
    "moves no weight, softmax answers more than 80 %, and straight-through more than argmax.",
    run,
)
