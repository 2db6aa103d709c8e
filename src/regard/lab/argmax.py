"""Hard attention: no gradient to queries and keys, and what that does to training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.attention import softmax as attention
from regard.lab.drawing import bars, draw, finish, panels
from regard.lab.spec import Check, Experiment, Measurement, Result, above, equal

WAYS = ("softmax", "argmax", "straight-through")
DIM, N_KEY, N_CLASS = 12, 8, 8


def _look(way: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if way == "softmax":
        return attention.attend(q, k, v).out
    return attention.attend_hard(q, k, v, straight_through=way == "straight-through")


def _gradients(way: str) -> tuple[float, float, float, float]:
    """Norms of the gradients to queries, keys, the winning values and all others."""
    q, k, v = (torch.randn(5, 2, n, 7, dtype=torch.float64, requires_grad=True) for n in (3, 11, 11))
    out = _look(way, q, k, v)
    out.backward(torch.randn_like(out))
    nothing = torch.zeros(())
    to_q, to_k = (nothing if each.grad is None else each.grad for each in (q, k))
    wins = torch.zeros(5, 2, 11, dtype=torch.bool)
    winner = (q @ k.mT).argmax(-1)
    wins.scatter_(2, winner, True)
    assert v.grad is not None
    return (
        float(to_q.norm()),
        float(to_k.norm()),
        float(v.grad[wins].norm()),
        float(v.grad[~wins].norm()),
    )


def _examples(n: int, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, a question that is one of the keys turned, and which one it was."""
    keys = nn.functional.normalize(torch.randn(n, N_KEY, DIM), dim=-1)
    answer = torch.randint(N_KEY, (n,))
    asked = keys[torch.arange(n), answer] @ turn
    return keys, asked, answer


def _trained(way: str, n_step: int, turn: Tensor) -> tuple[list[float], float, int, int]:
    """Losses, how far the weights moved, and how many of how many new questions they then answer."""
    query, key = (nn.Linear(DIM, DIM, bias=False) for _ in range(2))
    optimiser = torch.optim.Adam([*query.parameters(), *key.parameters()], lr=0.02)
    values = torch.eye(N_CLASS)  # each place holds its own class
    before = [each.detach().clone() for each in (query.weight, key.weight)]

    def answer(keys: Tensor, asked: Tensor, way: str) -> Tensor:
        q, k = 8.0 * query(asked)[:, None, None], key(keys)[:, None]
        v = values.expand(len(keys), 1, N_KEY, N_CLASS)
        return _look(way, q, k, v)[:, 0, 0]

    losses = []
    for _ in range(n_step):
        keys, asked, right = _examples(64, turn)
        said = answer(keys, asked, way)
        loss = nn.functional.mse_loss(said, values[right])
        optimiser.zero_grad()
        if loss.requires_grad:  # argmax leaves nothing to follow
            loss.backward()
            optimiser.step()
        losses.append(loss.item())
    with torch.no_grad():
        keys, asked, right = _examples(1000, turn)
        n_right = int((answer(keys, asked, way).argmax(-1) == right).sum())
    moved = sum(
        float((a - b).norm().detach()) for a, b in zip((query.weight, key.weight), before, strict=True)
    )
    return losses, moved, n_right, 1000


def run(quick: bool, seed: int) -> Result:
    n_step = 100 if quick else 600
    turn = torch.linalg.qr(torch.randn(DIM, DIM)).Q
    checks: list[Check] = []
    measured: list[Measurement] = []
    figure, (gradient_ax, loss_ax, right_ax) = panels(
        "Gradient norms", "Loss while training", "Questions answered"
    )
    names = ("queries", "keys", "winning values", "other values")
    norms = {way: _gradients(way) for way in WAYS}
    for index, way in enumerate(WAYS):
        places = [place + 0.26 * (index - 1) for place in range(4)]
        gradient_ax.bar(
            places, norms[way], width=0.24, color=("#0072b2", "#d55e00", "#1b7837")[index], label=way
        )
    gradient_ax.set_xticks(range(4), names, fontsize=8)
    finish(gradient_ax, "", "norm")
    hard = norms["argmax"]
    for name, value in zip(names, hard, strict=True):
        measured.append(Measurement.exact(f"argmax: gradient to {name}", value))
    checks += [
        equal("argmax gives queries no gradient", hard[0], 0.0),
        equal("argmax gives keys no gradient", hard[1], 0.0),
        equal("argmax gives the losing values no gradient", hard[3], 0.0),
        above("argmax gives the winning values one", measured[2], 0.0),
    ]
    shares, moved = {}, {}
    for index, way in enumerate(WAYS):
        losses, moved[way], n_right, n = _trained(way, n_step, turn)
        shares[way] = Measurement.share(f"answered, {way}", n_right, n)
        window = max(1, n_step // 30)
        smooth = [sum(losses[i : i + window]) / window for i in range(0, n_step - window + 1, window)]
        draw(loss_ax, [i * window for i in range(len(smooth))], smooth, way, index)
    finish(loss_ax, "step", "loss")
    loss_ax.set_ylim(bottom=0)
    bars(right_ax, WAYS, list(shares.values()))
    right_ax.axhline(1 / N_KEY, color="#8c8c8c", linestyle=":", linewidth=1)
    right_ax.annotate("chance", (2.3, 1 / N_KEY), fontsize=7, va="bottom", ha="right")
    finish(right_ax, "", "share", legend=False)
    checks += [
        equal("training with argmax moves no weight", moved["argmax"], 0.0),
        above("trained with softmax it answers", shares["softmax"], 0.8),
        above("straight-through training beats argmax", shares["straight-through"], shares["argmax"]),
        above("softmax training beats argmax", shares["softmax"], shares["argmax"]),
    ]
    return Result(
        (*measured, *shares.values()),
        tuple(checks),
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
