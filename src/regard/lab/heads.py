"""One head against several at equal parameters, and the reshape that only looks like splitting heads.

One head averages the two values it is asked for, and cannot say which is which.
"""

import torch
from torch import Tensor

from regard.attention import attend
from regard.errors import plural
from regard.lab.learning import Lookup, answered, teach
from regard.lab.spec import Lab
from regard.layers import MultiHeadAttention

CLAIM = """Two look-ups at once need two heads: one head gives one average. And splitting heads needs the
transpose: a reshape alone gives each head numbers of other positions."""
PREDICTION = """At equal parameters two heads answer both questions surely more often than one, and above 70
%; attention moves with its permuted inputs exactly, and with the reshape it does not."""

DIM = 24


@torch.no_grad()
def _moved_with_the_input(split: str) -> float:
    """How far attention is from giving permuted outputs for permuted inputs, relative to its size."""
    layer = MultiHeadAttention(DIM, 4).double()
    x = torch.randn(3, 7, DIM, dtype=torch.float64)
    order = torch.randperm(7)

    def reshaped(x: Tensor) -> Tensor:
        """The mistake: heads have the right shape, but their rows are other positions' numbers."""
        q, k, v = (part(x).reshape(3, 4, 7, DIM // 4) for part in (layer.query, layer.key, layer.value))
        merged: Tensor = layer.out(attend(q, k, v).out.reshape(x.shape))
        return merged

    out = layer if split == "transpose" else reshaped
    expected = out(x)[:, order]
    return float((out(x[:, order]) - expected).norm() / expected.norm())


def run(lab: Lab) -> None:
    losses, shares, n_parameters = {}, {}, set()
    for n_head in (1, 2) if lab.quick else (1, 2, 4, 8):
        model = Lookup(DIM, n_name=6, n_pair=5, n_value=6, n_asked=2, n_head=n_head)
        label = plural(n_head, "head")
        losses[label] = teach(model, model.examples, 160 if lab.quick else 1500, clip=False)
        shares[label] = answered(lab, f"both right, {plural(n_head, 'head')}", model, model.examples(1000))
        n_parameters.add(sum(weight.numel() for weight in model.attention.parameters()))
    transpose, reshape = (
        lab.exact(f"error of permuted outputs, {split}", _moved_with_the_input(split))
        for split in ("transpose", "reshape")
    )
    lab.draw.losses("Loss while training", losses)
    lab.draw.bars("Both answers right", shares, "share")
    errors = {"split, then\ntranspose": transpose, "reshape\nalone": reshape}
    lab.draw.bars("Permuted input: error of the output", errors, "relative error")
    lab.equal("all have the same number of parameters", len(n_parameters), 1)
    lab.above("two heads answer both more often than one", shares["2 heads"], shares["1 head"])
    lab.above("two heads answer most", shares["2 heads"], 0.7)
    lab.below("split heads move with their inputs", transpose, 1e-12)
    lab.above("reshaped heads do not", reshape, 0.1)
