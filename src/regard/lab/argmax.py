"""Hard attention: no gradient to queries and keys, and what that does to training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.attention.softmax import attend, attend_hard
from regard.lab.learning import train
from regard.lab.measurement import Measurement
from regard.lab.spec import Lab

CLAIM = """Hard attention gives no gradient to queries and keys, only to the winning value, so it cannot learn
where to look; softmax can, and so can the straight-through estimate."""
PREDICTION = """Gradients to queries, keys and losing values are exactly 0. On a look-up task training with
argmax moves no weight, softmax answers more than 80 %, and straight-through more than argmax."""

WAYS = ("softmax", "argmax", "straight-through")
DIM, N_KEY, N_CLASS = 12, 8, 8


def _look(way: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if way == "softmax":
        return attend(q, k, v).out
    return attend_hard(q, k, v, straight_through=way == "straight-through")


def _gradients(way: str) -> dict[str, float]:
    """Norms of the gradients that arrive."""
    q, k, v = (torch.randn(5, 2, n, 7, dtype=torch.float64, requires_grad=True) for n in (3, 11, 11))
    out = _look(way, q, k, v)
    out.backward(torch.randn_like(out))
    to_q, to_k = (0.0 if x.grad is None else float(x.grad.norm()) for x in (q, k))
    wins = torch.zeros(5, 2, 11, dtype=torch.bool)
    wins.scatter_(2, (q @ k.mT).argmax(-1), True)
    assert v.grad is not None
    to_winners, to_others = float(v.grad[wins].norm()), float(v.grad[~wins].norm())
    return {"queries": to_q, "keys": to_k, "winning values": to_winners, "other values": to_others}


def _examples(n: int, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, a question that is one of the keys turned, and which one it was."""
    keys = nn.functional.normalize(torch.randn(n, N_KEY, DIM), dim=-1)
    answer = torch.randint(N_KEY, (n,))
    return keys, keys[torch.arange(n), answer] @ turn, answer


def _trained(lab: Lab, way: str, turn: Tensor) -> tuple[list[float], float, Measurement]:
    """Losses, how far the weights moved, and the share of new questions they then answer."""
    query, key = (nn.Linear(DIM, DIM, bias=False) for _ in range(2))
    values = torch.eye(N_CLASS)  # each place holds its own class
    weights = (query.weight, key.weight)
    before = [weight.detach().clone() for weight in weights]

    def answer(keys: Tensor, asked: Tensor) -> Tensor:
        q, k = 8.0 * query(asked)[:, None, None], key(keys)[:, None]
        return _look(way, q, k, values.expand(len(keys), 1, N_KEY, N_CLASS))[:, 0, 0]

    def loss() -> Tensor:
        *read, right = _examples(64, turn)
        return nn.functional.mse_loss(answer(*read), values[right])

    losses = train(weights, loss, 100 if lab.quick else 600, rate=0.02)
    *read, right = _examples(1000, turn)
    moved = sum(float((now.detach() - then).norm()) for now, then in zip(weights, before, strict=True))
    return losses, moved, lab.share_right(f"answered, {way}", answer(*read), right)


def run(lab: Lab) -> str:
    turn = torch.linalg.qr(torch.randn(DIM, DIM)).Q
    norms = {way: _gradients(way) for way in WAYS}
    hard = {name: lab.exact(f"argmax: gradient to {name}", norm) for name, norm in norms["argmax"].items()}
    trained = {way: _trained(lab, way, turn) for way in WAYS}
    soft, argmax, through = (trained[way][2] for way in WAYS)
    bars = {way: list(of_way.values()) for way, of_way in norms.items()}
    lab.draw.grouped_bars("Gradient norms", list(hard), bars, "norm")
    lab.draw.losses("Loss while training", {way: losses for way, (losses, _, _) in trained.items()})
    lab.draw.bars("Questions answered", {way: share for way, (_, _, share) in trained.items()}, "share")
    lab.draw.chance(1 / N_KEY)
    lab.equal("argmax gives queries no gradient", hard["queries"], 0.0)
    lab.equal("argmax gives keys no gradient", hard["keys"], 0.0)
    lab.equal("argmax gives the losing values no gradient", hard["other values"], 0.0)
    lab.above("argmax gives the winning values one", hard["winning values"], 0.0)
    lab.equal("training with argmax moves no weight", trained["argmax"][1], 0.0)
    lab.above("trained with softmax it answers", soft, 0.8)
    lab.above("straight-through training beats argmax", through, argmax)
    lab.above("softmax training beats argmax", soft, argmax)
    return (
        "argmax sends no gradient to queries or keys, its weights stay where they were drawn, and it "
        f"answers {argmax:.0%} of the questions, against {soft:.0%} with softmax and {through:.0%} "
        f"straight-through (chance {1 / N_KEY:.0%})"
    )
