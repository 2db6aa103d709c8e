"""Linear attention against fused softmax, against a C++ peer, and against itself at other lengths.

Five questions: how much faster the chunked causal form is at length, forwards and in training; whether it
keeps up with the C++ extension of pytorch-fast-transformers; what it holds in memory; whether a decoding step
costs the same at every position; and from which length on each feature map pays.

The peer is measured where it can be imported. Build it into a folder of its own and put that on PYTHONPATH:

    pip install --no-deps --no-build-isolation --target FOLDER pytorch-fast-transformers

Where `nvcc` is on the PATH but no CUDA toolkit is installed, its setup fails: run it with nvcc off the PATH.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from timing import (
    Case,
    Goal,
    Options,
    PlainTable,
    RatioTable,
    Row,
    Timing,
    interleaved,
    parse_options,
    peak_memory,
    readable_bytes,
    readable_seconds,
    report,
)
from torch import Tensor

from regard.attention import FeatureMap, attend_linear, feature_map, linear_step

HEAD, QK_DIM = 8, 64
FEATURE_MAPS = ("elu1", "relu", "favor", "quadratic")
SOFTMAX, LINEAR, PEER = "fused softmax", "linear, elu + 1", "fast-transformers"


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def inputs(length: int, *, grad: bool = False) -> list[Tensor]:
    source = torch.Generator().manual_seed(length)
    return [torch.randn(1, HEAD, length, QK_DIM, generator=source).requires_grad_(grad) for _ in range(3)]


def feature_map_named(name: str) -> FeatureMap:
    return feature_map(name, qk_dim=QK_DIM)


def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attend_with(phi: FeatureMap) -> Attend:
    return lambda q, k, v: attend_linear(q, k, v, phi, causal=True).out


linear = attend_with(feature_map_named("elu1"))


def peer() -> Attend | str:
    """The peer's causal linear attention, as its own layer computes it; or why it is missing."""
    try:
        product = importlib.import_module("fast_transformers.causal_product").causal_dot_product
    except ImportError as error:
        return str(error)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        asked, features = F.elu(q) + 1, F.elu(k) + 1
        below = torch.einsum("nhli,nhli->nhl", asked, features.cumsum(2)) + 1e-6
        made: Tensor = product(asked, features, v) / below[..., None]
        return made

    return attend


def trained(attend: Attend, length: int) -> Case:
    """A forward and a backward pass of attention."""
    q, k, v = inputs(length, grad=True)
    direction = torch.randn(1, HEAD, length, QK_DIM)
    return lambda: torch.autograd.grad(attend(q, k, v), (q, k, v), direction)


def run(attend: Attend, length: int) -> Case:
    """A forward pass of attention, without gradients."""
    q, k, v = inputs(length)

    def forward() -> Tensor:
        with torch.no_grad():
            return attend(q, k, v)

    return forward


def speed(length: int, options: Options) -> list[RatioTable]:
    """Causal attention at one length: all contenders in one interleaved run."""
    contenders: dict[str, Attend] = {SOFTMAX: softmax, LINEAR: linear}
    found = peer()
    if isinstance(found, str):
        note = f"pytorch-fast-transformers is not measured: {found}."
    else:
        contenders[PEER] = found
        q, k, v = inputs(min(length, 2048))
        apart = (found(q, k, v) - linear(q, k, v)).abs().max().item()
        note = f"The peer's outputs and ours differ by at most {apart:.1e}."
    softmax_rows, peer_rows = [], []
    for setting, make in (("forward", run), ("forward and backward", trained)):
        timings = interleaved(
            {name: make(attend, length) for name, attend in contenders.items()}, options.rounds
        )
        label = f"N {length}, {setting}"
        # The goal against softmax is for the forward pass; training is reported beside it.
        softmax_rows.append(Row(label, timings, Goal(LINEAR, SOFTMAX, 1 / 15) if make is run else None))
        ours = {name: timing for name, timing in timings.items() if name != SOFTMAX}
        peer_rows.append(Row(label, ours, Goal(LINEAR, PEER, 1.0)))
    tables = [RatioTable(f"Causal linear attention, {HEAD} heads of {QK_DIM}", SOFTMAX, softmax_rows, note)]
    if PEER in contenders:
        tables.append(RatioTable("Against the C++ extension", PEER, peer_rows))
    return tables


def memory_case(name: str, length: int) -> Case:
    """For a child process: training attention called `name`, warmed up on something tiny."""
    attend = softmax if name == SOFTMAX else linear
    trained(attend, 64)()
    return trained(attend, length)


def memory(lengths: Sequence[int]) -> PlainTable:
    """Peak memory that a forward and a backward pass add."""
    lines = [["N", SOFTMAX, LINEAR, "ratio", "goal"]]
    for length in lengths:
        fused, ours = peak_memory(memory_case, SOFTMAX, length), peak_memory(memory_case, LINEAR, length)
        ratio = ours / max(1, fused)
        verdict = f"{'met' if ratio <= 1.2 else 'missed'} (1.20)"
        lines.append([str(length), readable_bytes(fused), readable_bytes(ours), f"{ratio:.2f}", verdict])
    return PlainTable(
        "Peak memory of a forward and a backward pass, inputs not counted",
        lines,
        "Three gradients and the output are most of it: both grow as N.",
    )


def decoding(positions: Sequence[int], options: Options) -> PlainTable:
    """One token after so many: the step from a running state, and softmax over cached keys."""
    phi = feature_map_named("elu1")
    cases: dict[str, Case] = {}

    def step_at(length: int) -> Case:
        q, k, v = inputs(length)
        state = attend_linear(q, k, v, phi, causal=True, return_state=True).state
        token = [x[:, :, -1:] for x in (q, k, v)]

        def step() -> object:
            with torch.no_grad():
                return linear_step(token[0], token[1], token[2], state, phi)

        return step

    def cached_at(length: int) -> Case:
        q, k, v = inputs(length)
        last = q[:, :, -1:].contiguous()
        return lambda: F.scaled_dot_product_attention(last, k, v)

    for position in positions:
        cases[f"linear {position}"] = step_at(position)
        cases[f"softmax {position}"] = cached_at(position)
    timings = interleaved(cases, options.rounds, round_seconds=0.05)
    first = timings[f"linear {positions[0]}"]
    lines = [["position", "linear step", "to the first", "softmax over cached keys"]]
    for position in positions:
        ours = timings[f"linear {position}"]
        lines.append(
            [str(position), str(ours), f"{ours.over(first):.2f} ×", str(timings[f"softmax {position}"])]
        )
    return PlainTable("Decoding, one token", lines, "The state has the same size at every position.")


def crossovers(lengths: Sequence[int], options: Options) -> list[PlainTable]:
    """Time of each feature map over fused causal softmax at each length, and where the two are level."""
    maps = {name: feature_map_named(name) for name in FEATURE_MAPS}
    measured: dict[int, Mapping[str, Timing]] = {}
    for length in lengths:
        cases = {SOFTMAX: run(softmax, length)}
        for name, phi in maps.items():
            cases[name] = run(attend_with(phi), length)
        measured[length] = interleaved(cases, options.rounds)
    lines = [["N", SOFTMAX, *FEATURE_MAPS]]
    for length, timings in measured.items():
        ratios = [f"{timings[name].over(timings[SOFTMAX]):.2f} ×" for name in FEATURE_MAPS]
        lines.append([str(length), readable_seconds(timings[SOFTMAX].median), *ratios])
    level = [["feature map", "features", "faster than softmax from N"]]
    for name, phi in maps.items():
        ratios_at = [(n, timings[name].over(timings[SOFTMAX])) for n, timings in measured.items()]
        level.append([name, str(phi.dim(QK_DIM)), level_at(ratios_at)])
    return [
        PlainTable("Causal linear attention over fused softmax, by length", lines),
        PlainTable("Where each feature map pays", level, "Interpolated between the lengths measured."),
    ]


def level_at(ratios: Sequence[tuple[int, float]]) -> str:
    """The length from which on the ratio stays below 1, on a straight line between logarithms."""
    above = [index for index, (_, ratio) in enumerate(ratios) if ratio >= 1]
    if not above:
        return f"below {ratios[0][0]}"
    last = above[-1]
    if last == len(ratios) - 1:
        return f"above {ratios[-1][0]}"
    (low, over), (high, under) = ratios[last], ratios[last + 1]
    share = math.log(over) / (math.log(over) - math.log(under))
    return f"about {round(low * (high / low) ** share, -2 if low >= 1000 else -1):.0f}"


def main() -> None:
    options = parse_options(__doc__)
    length = 1024 if options.quick else 16384
    lengths = (256, 512, 1024) if options.quick else (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
    report(
        "Linear attention",
        [
            *speed(length, options),
            memory((1024, 2048) if options.quick else (4096, 8192, 16384)),
            decoding((64, 256, 1024) if options.quick else (1024, 4096, 16384), options),
            *crossovers(lengths, options),
        ],
        options,
    )


if __name__ == "__main__":
    main()
