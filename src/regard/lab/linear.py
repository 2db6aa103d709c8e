"""Kernels in the place of the softmax: cost against length, exactness, and what they cost in quality."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from regard.attention.feature_maps import KERNELS, Quadratic, feature_map
from regard.attention.linear import attend_linear
from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.lab.drawing import bars, draw, finish, panels
from regard.lab.learning import Lookup
from regard.lab.spec import Check, Experiment, Measurement, Result, above, below, near

DIM = 16
N_NAME, N_PAIR = 24, 16
CAUSAL = ScoreRule(visible=Visibility(causal=True))

Way = Callable[[Tensor, Tensor, Tensor], Tensor]


class Largest(TorchDispatchMode):
    """Notes the bytes of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.n_byte = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for made in out if isinstance(out, tuple | list) else (out,):
            if isinstance(made, Tensor):
                self.n_byte = max(self.n_byte, made.nbytes)
        return out


def _ways(kernels: tuple[str, ...]) -> dict[str, Way]:
    # One chunk length for all kernels, so that they are compared at the same number of chunks.
    maps = {name: feature_map(name, qk_dim=DIM, n_feature=32) for name in kernels}
    return {
        "softmax": lambda q, k, v: attend(q, k, v, CAUSAL, path="plain").out,
        **{
            name: lambda q, k, v, kernel=kernel: attend_linear(q, k, v, kernel, causal=True, chunk=64).out  # type: ignore[misc]
            for name, kernel in maps.items()
        },
    }


@torch.no_grad()
def _counted(way: Way, n: int) -> tuple[int, int, float]:
    """Operations, bytes of the largest tensor, and seconds."""
    q, k, v = (torch.randn(1, 1, n, DIM) for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        way(q, k, v)
    with Largest() as largest:
        way(q, k, v)
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        way(q, k, v)
        taken.append(time.perf_counter() - start)
    return counter.get_total_flops(), largest.n_byte, min(taken)


@torch.no_grad()
def _exactness() -> float:
    """The largest difference of the quadratic map's attention from weights (q . k + c)^2, normalised."""
    c = 0.7
    q, k, v = (torch.randn(2, 3, 19, 5, dtype=torch.float64) for _ in range(3))
    table = (ScoreRule(scale=1.0).scores(q, k) + c).square().tril()
    expected = table / table.sum(-1, keepdim=True) @ v
    kernel = Quadratic(c)
    features = (kernel.phi(q) @ kernel.phi(k).mT - (q @ k.mT + c).square()).abs().max()
    got = attend_linear(q, k, v, kernel, causal=True, chunk=4).out
    return max(float((got - expected).abs().max()), float(features))


def run(quick: bool, seed: int) -> Result:
    kernels = ("elu1", "quadratic") if quick else KERNELS
    lengths = (256, 512, 1024) if quick else (256, 512, 1024, 2048, 4096)
    figure, (work_ax, memory_ax, time_ax, quality_ax) = panels(
        "Operations", "Largest tensor", "Time", "A look-up task", width=3.9
    )
    checks: list[Check] = []
    measured: list[Measurement] = []
    for index, (name, way) in enumerate(_ways(kernels).items()):
        work, held, seconds = zip(*(_counted(way, n) for n in lengths), strict=True)
        for ax, values in ((work_ax, work), (memory_ax, held), (time_ax, seconds)):
            draw(ax, lengths, values, name, index)
        power = 2 if name == "softmax" else 1
        grown, kept = (
            Measurement.exact(f"power of length, {what}, {name}", math.log2(values[-1] / values[-2]))
            for what, values in (("operations", work), ("largest tensor", held))
        )
        measured += [grown, kept]
        checks.append(
            near(f"{name}: operations grow with length to the power {power}", grown, power, slack=0.05)
        )
        if name == "softmax":
            checks.append(near("softmax: the largest tensor grows with its square", kept, 2.0, slack=0.01))
        else:
            checks.append(below(f"{name}: the largest tensor grows no faster than length", kept, 1.01))
    for ax, label in ((work_ax, "operations"), (memory_ax, "bytes"), (time_ax, "seconds")):
        finish(ax, "length N", label, legend=ax is work_ax, doublings=lengths, log_y=True)
    exact = Measurement.exact("quadratic: largest difference from (q . k + c)^2", _exactness())
    checks.append(below("the quadratic map is exact", exact, 1e-10))
    shares = {}
    for kernel in (None, *kernels):
        model = Lookup(DIM, n_name=N_NAME, n_pair=N_PAIR, n_value=6, kernel=kernel)
        model.taught(160 if quick else 1200, clip=True)
        shares[kernel or "softmax"] = model.share_right(f"answered, {kernel or 'softmax'}")
    bars(quality_ax, list(shares), list(shares.values()))
    finish(quality_ax, "", "share answered", legend=False)
    checks.append(above("softmax looks up more than elu1", shares["softmax"], shares["elu1"]))
    gaps = ", ".join(f"{name} {share.value:.0%}" for name, share in shares.items())
    return Result(
        (*measured, exact, *shares.values()),
        checks,
        figure,
        f"operations of softmax grow as N^{measured[0].value:.2f}, of elu1 as N^{measured[2].value:.2f}; the "
        f"quadratic map differs from its definition by {exact.value:.0e}; a look-up task is answered {gaps}",
        notes=(
            f"Times, the best of three, are shown; counts decide. The look-up: {N_PAIR} of {N_NAME} names, "
            f"{DIM} numbers a key.",
        ),
    )


EXPERIMENT = Experiment(
    "linear",
    "A kernel phi(q) . phi(k) makes attention linear in length; the quadratic map is exactly (q.k + c)^2; "
    "and simple kernels separate keys worse than softmax does.",
    "Operations grow with the power 2 of the length for softmax and 1 for every kernel, the largest tensor "
    "likewise; the quadratic map is exact to rounding; after equal training softmax answers surely more "
    "than elu1.",
    run,
)
