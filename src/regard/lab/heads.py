"""One head against several at equal parameters, and the reshape that only looks like splitting heads."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.softmax import attend
from regard.lab.learning import Lookup, teach
from regard.lab.spec import Lab
from regard.layers.attention import MultiHeadAttention

CLAIM = """Two look-ups at once need two heads: one head gives one average. And splitting heads needs the
transpose: a reshape alone gives each head numbers of other positions."""
PREDICTION = """At equal parameters two heads answer both questions surely more often than one, and above 70
%; attention moves with its permuted inputs exactly, and with the reshape it does not."""

DIM = 24


def reshaped(x: Tensor, n_head: int) -> Tensor:
    """The mistake: it has the right shape, but a head's rows are other positions' numbers."""
    return x.reshape(x.shape[0], n_head, x.shape[1], x.shape[2] // n_head)


@torch.no_grad()
def _moved_with_the_input(split: str) -> float:
    """How far attention is from giving permuted outputs for permuted inputs, relative to its size."""
    layer = MultiHeadAttention(DIM, 4).double()
    x = torch.randn(3, 7, DIM, dtype=torch.float64)
    order = torch.randperm(7)

    def out(x: Tensor) -> Tensor:
        if split == "transpose":
            whole: Tensor = layer(x)
            return whole
        q, k, v = (reshaped(project(x), 4) for project in (layer.query, layer.key, layer.value))
        merged: Tensor = layer.out(attend(q, k, v).out.reshape(*x.shape[:2], -1))
        return merged

    expected = out(x)[:, order]
    return float((out(x[:, order]) - expected).norm() / expected.norm())


def run(lab: Lab) -> str:
    losses, shares, n_parameters = {}, {}, set()
    for n_head in (1, 2) if lab.quick else (1, 2, 4, 8):
        model = Lookup(DIM, n_name=6, n_pair=5, n_value=6, n_asked=2, n_head=n_head)
        label = f"{n_head} head{'s' if n_head > 1 else ''}"
        losses[label] = teach(model, model.examples, 160 if lab.quick else 1500, clip=False)
        shares[label] = model.share_right(lab, f"both right, {n_head} heads")
        n_parameters.add(sum(weight.numel() for weight in model.attention.parameters()))
    transpose, reshape = (
        lab.exact(f"error of permuted outputs, {split}", _moved_with_the_input(split))
        for split in ("transpose", "reshape")
    )
    lab.draw.losses("Loss while training", losses)
    lab.draw.bars("Both answers right", shares, "share")
    errors = {"split, then\ntranspose": transpose, "reshape\nalone": reshape}
    lab.draw.bars("Permuted input: error of the output", errors, "relative error")
    one, two = shares["1 head"], shares["2 heads"]
    lab.equal("all have the same number of parameters", len(n_parameters), 1)
    lab.above("two heads answer both more often than one", two, one)
    lab.above("two heads answer most", two, 0.7)
    lab.below("split heads move with their inputs", transpose, 1e-12)
    lab.above("reshaped heads do not", reshape, 0.1)
    lab.notes += ["One head averages the two values it is asked for, and cannot say which is which."]
    return (
        f"with {max(n_parameters)} parameters each, one head answers both questions {one:.0%} of the time "
        f"and two heads {two:.0%}; a reshape in place of the transpose changes permuted outputs by "
        f"{reshape:.0%}"
    )
