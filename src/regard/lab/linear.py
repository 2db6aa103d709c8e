"""Kernels in the place of the softmax: cost against length, exactness, and what they cost in quality."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import feature_maps, scores, visibility
from regard.attention import linear as linear_attention
from regard.attention import softmax as attention
from regard.lab.drawing import bars, draw, finish, panels
from regard.lab.spec import Check, Experiment, Measurement, Result, above, below, near
from regard.layers import attention as layers

DIM = 16
N_NAME, N_PAIR, N_VALUE = 24, 16, 6
CAUSAL = scores.ScoreRule(visible=visibility.Visibility(causal=True))


class Largest(TorchDispatchMode):
    """Notes the bytes of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.n_byte = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else (out,):
            if isinstance(each, Tensor):
                self.n_byte = max(self.n_byte, each.numel() * each.element_size())
        return out


def _ways(kernels: tuple[str, ...]) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    ways: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        "softmax": lambda q, k, v: attention.attend(q, k, v, CAUSAL, path="plain").out
    }
    for name in kernels:
        kernel = feature_maps.feature_map(name, qk_dim=DIM, n_feature=32)

        def attend(q: Tensor, k: Tensor, v: Tensor, kernel: Any = kernel) -> Tensor:
            # One chunk length for all, so that each is compared at the same number of chunks.
            return linear_attention.attend_linear(q, k, v, kernel, causal=True, chunk=64).out

        ways[name] = attend
    return ways


@torch.no_grad()
def _counted(way: Callable[[Tensor, Tensor, Tensor], Tensor], n: int) -> tuple[int, int, float]:
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
    table = (scores.ScoreRule(scale=1.0).scores(q, k) + c).square().tril()
    expected = table / table.sum(-1, keepdim=True) @ v
    kernel = feature_maps.Quadratic(c)
    features = (kernel.phi(q) @ kernel.phi(k).mT - (q @ k.mT + c).square()).abs().max()
    got = linear_attention.attend_linear(q, k, v, kernel, causal=True, chunk=4).out
    return max(float((got - expected).abs().max()), float(features))


class Lookup(nn.Module):
    """Says the value that stands beside the name it is asked for."""

    def __init__(self, kernel: str | None) -> None:
        super().__init__()
        self.name, self.asked = nn.Embedding(N_NAME, DIM), nn.Embedding(N_NAME, DIM)
        self.value = nn.Embedding(N_VALUE, DIM)
        self.attention = layers.MultiHeadAttention(DIM, 1, kernel=kernel)
        self.answer = nn.Linear(DIM, N_VALUE)

    def forward(self, names: Tensor, values: Tensor, asked: Tensor) -> Tensor:
        memory = self.name(names) + self.value(values)
        said: Tensor = self.answer(self.attention(self.asked(asked)[:, None], memory)[:, 0])
        return said


def _examples(n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    names = torch.rand(n, N_NAME).argsort(-1)[:, :N_PAIR]
    values = torch.randint(N_VALUE, (n, N_PAIR))
    place = torch.randint(N_PAIR, (n, 1))
    return names, values, names.gather(1, place)[:, 0], values.gather(1, place)[:, 0]


def _quality(kernel: str | None, n_step: int) -> Measurement:
    model = Lookup(kernel)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(n_step):
        *given, right = _examples(64)
        loss = nn.functional.cross_entropy(model(*given), right)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    with torch.no_grad():
        *given, right = _examples(1000)
        n_right = int((model(*given).argmax(-1) == right).sum())
    return Measurement.share(f"answered, {kernel or 'softmax'}", n_right, 1000)


def run(quick: bool, seed: int) -> Result:
    kernels = ("elu1", "quadratic") if quick else feature_maps.KERNELS
    lengths = (256, 512, 1024) if quick else (256, 512, 1024, 2048, 4096)
    figure, (work_ax, memory_ax, time_ax, quality_ax) = panels(
        "Operations", "Largest tensor", "Time", "A look-up task", width=3.9
    )
    checks: list[Check] = []
    measured: list[Measurement] = []
    for index, (name, way) in enumerate(_ways(kernels).items()):
        work, held, seconds = zip(*(_counted(way, n) for n in lengths), strict=True)
        for ax, values in ((work_ax, work), (memory_ax, held), (time_ax, seconds)):
            draw(ax, lengths, [float(each) for each in values], name, index)
        power = 2 if name == "softmax" else 1
        doublings = math.log2(lengths[-1] / lengths[-2])
        grown = Measurement.exact(
            f"power of length, operations, {name}", math.log2(work[-1] / work[-2]) / doublings
        )
        kept = Measurement.exact(
            f"power of length, largest tensor, {name}", math.log2(held[-1] / held[-2]) / doublings
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
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(lengths, [str(each) for each in lengths])
        finish(ax, "length N", label, legend=ax is work_ax)
    exact = Measurement.exact("quadratic: largest difference from (q . k + c)^2", _exactness())
    checks.append(below("the quadratic map is exact", exact, 1e-10))
    n_step = 160 if quick else 1200
    names = (None, *kernels)
    shares = {name or "softmax": _quality(name, n_step) for name in names}
    bars(quality_ax, list(shares), list(shares.values()))
    finish(quality_ax, "", "share answered", legend=False)
    checks.append(above("softmax looks up more than elu1", shares["softmax"], shares["elu1"]))
    gaps = ", ".join(f"{name} {each.value:.0%}" for name, each in shares.items())
    return Result(
        (*measured, exact, *shares.values()),
        tuple(checks),
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
