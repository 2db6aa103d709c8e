"""Kernels in the place of the softmax: cost against length, exactness, and what they cost in quality.

Counts decide; times, the best of three, are shown. The look-up is of one of 16 names, with 16 numbers a key.
"""

import math
import timeit
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import Quadratic, ScoreRule, Visibility, attend, attend_linear, feature_map
from regard.attention.feature_maps import FEATURE_MAPS
from regard.lab.learning import Lookup, answered, teach
from regard.lab.spec import Lab

CLAIM = """A feature map phi(q) . phi(k) makes attention linear in length; the quadratic map is exactly (q.k +
c)^2; and simple maps separate keys worse than softmax does."""
PREDICTION = """Operations grow with the power 2 of the length for softmax and 1 for every feature map, the
largest tensor likewise; the quadratic map is exact to rounding; after equal training softmax answers surely
more than elu1."""

DIM = 16
CAUSAL = ScoreRule(visible=Visibility(causal=True))
UNITS = {"operations": "operations", "largest tensor": "bytes", "time": "seconds"}


class LargestTensor(TorchDispatchMode):
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


@torch.no_grad()
def _counted(phi: Any, n: int) -> tuple[int, int, float]:
    """Operations, bytes of the largest tensor, and seconds; without a feature map, of softmax."""
    q, k, v = (torch.randn(1, 1, n, DIM) for _ in range(3))

    def call() -> None:
        if phi is None:
            attend(q, k, v, CAUSAL, path="plain")
        else:  # chunks of one length, so that maps are compared at the same number of them
            attend_linear(q, k, v, phi, causal=True, chunk=64)

    with FlopCounterMode(display=False) as counter:
        call()
    with LargestTensor() as largest:
        call()
    return counter.get_total_flops(), largest.n_byte, min(timeit.repeat(call, number=1, repeat=3))


@torch.no_grad()
def _exactness() -> float:
    """The largest difference of the quadratic map's attention from weights (q . k + c)^2, normalised."""
    c = 0.7
    q, k, v = (torch.randn(2, 3, 19, 5, dtype=torch.float64) for _ in range(3))
    table = (ScoreRule(scale=1.0).scores(q, k) + c).square().tril()
    expected = table / table.sum(-1, keepdim=True) @ v
    quadratic = Quadratic(c)
    features = (quadratic.phi(q) @ quadratic.phi(k).mT - (q @ k.mT + c).square()).abs().max()
    out = attend_linear(q, k, v, quadratic, causal=True, chunk=4).out
    return max(float((out - expected).abs().max()), float(features))


def run(lab: Lab) -> None:
    names = ("elu1", "quadratic") if lab.quick else FEATURE_MAPS
    lengths = (512, 1024, 2048) if lab.quick else (256, 512, 1024, 2048, 4096)
    maps = {"softmax": None, **{name: feature_map(name, qk_dim=DIM, n_feature=32) for name in names}}
    counts = {}
    for name, phi in maps.items():
        counts[name] = work, held, _ = list(zip(*(_counted(phi, n) for n in lengths), strict=True))
        grown = lab.exact(f"power of length, operations, {name}", math.log2(work[-1] / work[-2]))
        kept = lab.exact(f"power of length, largest tensor, {name}", math.log2(held[-1] / held[-2]))
        power = 1 if phi else 2
        lab.near(f"{name}: operations grow with length to the power {power}", grown, power, slack=0.05)
        if phi:
            lab.below(f"{name}: the largest tensor grows no faster than length", kept, 1.01)
        else:
            lab.near("softmax: the largest tensor grows with its square", kept, 2.0, slack=0.01)
    for index, (what, unit) in enumerate(UNITS.items()):
        lines = {name: of_map[index] for name, of_map in counts.items()}
        lab.draw.lines(what.capitalize(), lengths, lines, "length N", unit, log="xy")
    exact = lab.exact("quadratic: largest difference from (q . k + c)^2", _exactness())
    lab.below("the quadratic map is exact", exact, 1e-10)
    shares = {}
    for name in maps:
        model = Lookup(DIM, 24, 16, n_value=6, n_head=1, feature_map=name if maps[name] else None)
        teach(model, model.examples, 160 if lab.quick else 1200)
        shares[name] = answered(lab, f"answered, {name}", model, model.examples(1000))
    lab.draw.bars("A look-up task", shares, "share answered")
    lab.above("softmax looks up more than elu1", shares["softmax"], shares["elu1"])
