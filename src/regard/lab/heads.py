"""One head against several at equal parameters, and the reshape that only looks like splitting heads."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.softmax import attend
from regard.lab.drawing import bars, draw_losses, finish, panels
from regard.lab.learning import Lookup
from regard.lab.spec import Experiment, Measurement, Result, above, below, equal
from regard.layers.attention import MultiHeadAttention

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

    def run(x: Tensor) -> Tensor:
        if split == "transpose":
            whole: Tensor = layer(x)
            return whole
        q, k, v = (reshaped(project(x), 4) for project in (layer.query, layer.key, layer.value))
        out = attend(q, k, v).out
        merged: Tensor = layer.out(out.reshape(*x.shape[:2], -1))
        return merged

    expected = run(x)[:, order]
    return float((run(x[:, order]) - expected).norm() / expected.norm())


def run(quick: bool, seed: int) -> Result:
    n_step = 160 if quick else 1500
    counts = (1, 2) if quick else (1, 2, 4, 8)
    figure, (loss_ax, right_ax, move_ax) = panels(
        "Loss while training", "Both answers right", "Permuted input: error of the output"
    )
    shares, n_parameters = [], []
    for index, n_head in enumerate(counts):
        model = Lookup(DIM, n_name=6, n_pair=5, n_value=6, n_asked=2, n_head=n_head)
        draw_losses(loss_ax, model.taught(n_step), f"{n_head} head{'s' if n_head > 1 else ''}", index)
        shares.append(model.share_right(f"both right, {n_head} heads"))
        n_parameters.append(sum(weight.numel() for weight in model.attention.parameters()))
    finish(loss_ax, "step", "loss")
    bars(right_ax, [str(n_head) for n_head in counts], shares)
    finish(right_ax, "heads", "share", legend=False)
    moved = {split: _moved_with_the_input(split) for split in ("transpose", "reshape")}
    bars(move_ax, ["split, then\ntranspose", "reshape\nalone"], list(moved.values()))
    finish(move_ax, "", "relative error", legend=False)
    error = {
        name: Measurement.exact(f"error of permuted outputs, {name}", value) for name, value in moved.items()
    }
    checks = (
        equal("all have the same number of parameters", len(set(n_parameters)), 1),
        above("two heads answer both more often than one", shares[1], shares[0]),
        above("two heads answer most", shares[1], 0.7),
        below("split heads move with their inputs", error["transpose"], 1e-12),
        above("reshaped heads do not", error["reshape"], 0.1),
    )
    return Result(
        (*shares, *error.values()),
        checks,
        figure,
        f"with {n_parameters[0]} parameters each, one head answers both questions {shares[0].value:.0%} of "
        f"the time and two heads {shares[1].value:.0%}; a reshape in place of the transpose changes permuted "
        f"outputs by {moved['reshape']:.0%}",
        notes=("One head averages the two values it is asked for, and cannot say which is which.",),
    )


EXPERIMENT = Experiment(
    "heads",
    "Two look-ups at once need two heads: one head gives one average. And splitting heads needs the "
    "transpose: a reshape alone gives each head numbers of other positions.",
    "At equal parameters two heads answer both questions surely more often than one, and above 70 %; "
    "attention moves with its permuted inputs exactly, and with the reshape it does not.",
    run,
)
