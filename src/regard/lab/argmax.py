"""Hard attention: no gradient to queries and keys, and what that does to training."""

import torch
from torch import Tensor, nn

from regard.attention import attend, attend_hard
from regard.lab.learning import answered, train
from regard.lab.spec import Lab, Measurement

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
    to_q, to_k, to_v = torch.autograd.grad(out, (q, k, v), torch.randn_like(out), materialize_grads=True)
    wins = torch.zeros(5, 2, 11, dtype=torch.bool).scatter_(2, (q @ k.mT).argmax(-1), True)
    parts = {"queries": to_q, "keys": to_k, "winning values": to_v[wins], "other values": to_v[~wins]}
    return {name: float(gradient.norm()) for name, gradient in parts.items()}


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

    losses = train(weights, loss, 100 if lab.quick else 600, rate=0.02, clip=False)
    moved = sum(float((now.detach() - then).norm()) for now, then in zip(weights, before, strict=True))
    return losses, moved, answered(lab, f"answered, {way}", answer, _examples(1000, turn))


def run(lab: Lab) -> None:
    turn = torch.linalg.qr(torch.randn(DIM, DIM)).Q
    norms = {way: _gradients(way) for way in WAYS}
    hard = {name: lab.exact(f"argmax: gradient to {name}", norm) for name, norm in norms["argmax"].items()}
    losses, moved, shares = ({}, {}, {})
    for way in WAYS:
        losses[way], moved[way], shares[way] = _trained(lab, way, turn)
    bars = {way: list(of_way.values()) for way, of_way in norms.items()}
    lab.draw.grouped_bars("Gradient norms", list(hard), bars, "norm")
    lab.draw.losses("Loss while training", losses)
    lab.draw.bars("Questions answered", shares, "share")
    lab.draw.chance(1 / N_KEY)
    lab.equal("argmax gives queries no gradient", hard["queries"], 0.0)
    lab.equal("argmax gives keys no gradient", hard["keys"], 0.0)
    lab.equal("argmax gives the losing values no gradient", hard["other values"], 0.0)
    lab.above("argmax gives the winning values one", hard["winning values"], 0.0)
    lab.equal("training with argmax moves no weight", moved["argmax"], 0.0)
    soft, argmax, through = shares.values()
    lab.above("trained with softmax it answers", soft, 0.8)
    lab.above("straight-through training beats argmax", through, argmax)
    lab.above("softmax training beats argmax", soft, argmax)
