"""What latent keys and values save (DeepSeek-AI 2024, 2.1): a cache that does not grow with the heads.

Of each token multi-head attention keeps 2 h d numbers, grouped 2 g d, and latent attention c + r for all
heads. Keys need not be made from what is kept: q . (U c) = (U^T q) . c, so that the query is moved instead.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.lab.drawing import draw, finish, panels
from regard.lab.spec import Check, Experiment, Measurement, Result, below, equal
from regard.layers.attention import MultiHeadAttention
from regard.layers.cache import LayerCache
from regard.layers.latent import LatentAttention

MODEL, DIM, GROUPS, LATENT, ROTARY = 64, 16, 2, 40, 8
FLOAT = 4  # bytes


def _layers(n_head: int) -> dict[str, tuple[nn.Module, int]]:
    """Layers of that many heads, and how many numbers each should keep of a token."""

    def shared(n_kv_head: int) -> tuple[nn.Module, int]:
        layer = MultiHeadAttention(MODEL, n_head, n_kv_head=n_kv_head, qk_dim=DIM, v_dim=DIM, causal=True)
        return layer, 2 * n_kv_head * DIM

    return {
        "multi-head": shared(n_head),
        f"{GROUPS} groups": shared(min(GROUPS, n_head)),
        "latent": (_latent(n_head), LATENT + ROTARY),
    }


def _latent(n_head: int) -> LatentAttention:
    return LatentAttention(MODEL, n_head, latent_dim=LATENT, rotary_dim=ROTARY, qk_dim=DIM, v_dim=DIM)


@torch.no_grad()
def _kept(layer: nn.Module, n_token: int) -> int:
    """Bytes of the tensors that a cache holds after so many tokens."""
    cache = LayerCache(block=n_token)
    layer(torch.randn(1, n_token, MODEL), cache=cache)
    held = [tensor for tensor in (cache.k, cache.v) if tensor is not None]
    return sum(tensor.numel() * tensor.element_size() for tensor in held)


@torch.no_grad()
def _step(layer: LatentAttention, x: Tensor, *, absorbed: bool) -> tuple[Tensor, int]:
    """The output of the last token after those before it are cached, and the operations it took."""
    cache = LayerCache()
    layer(x[:, :-1], cache=cache, absorbed=False)
    with FlopCounterMode(display=False) as counter:
        out = layer(x[:, -1:], cache=cache, absorbed=absorbed)
    return out, counter.get_total_flops()


def run(quick: bool, seed: int) -> Result:
    heads = (1, 2, 4, 8) if quick else (1, 2, 4, 8, 16, 32, 64)
    lengths = (16, 64, 256) if quick else (16, 64, 256, 1024, 4096)
    n_token = lengths[-1]
    figure, (bytes_ax, work_ax, gap_ax) = panels(
        f"Cache of {n_token} tokens", "Operations of the next token", "Naive against absorbed"
    )
    checks: list[Check] = []
    measured: list[Measurement] = []
    counted: dict[str, list[int]] = {}
    for n_head in heads:
        for name, (layer, numbers) in _layers(n_head).items():
            counted.setdefault(name, []).append(_kept(layer, n_token))
            what = f"bytes, {n_head} heads, {name}"
            measured.append(Measurement.exact(what, counted[name][-1]))
            checks.append(equal(f"{what}, as the formula says", counted[name][-1], numbers * FLOAT * n_token))
    for index, (name, kept) in enumerate(counted.items()):
        draw(bytes_ax, heads, kept, name, index)
    finish(bytes_ax, "heads", "bytes", doublings=heads, log_y=True)
    layer = _latent(heads[-1]).double()
    work: dict[str, list[int]] = {"naive": [], "absorbed": []}
    gaps = []
    for length in lengths:
        x = torch.randn(1, length + 1, MODEL, dtype=torch.float64)
        naive, n_naive = _step(layer, x, absorbed=False)
        absorbed, n_absorbed = _step(layer, x, absorbed=True)
        work["naive"].append(n_naive)
        work["absorbed"].append(n_absorbed)
        gaps.append(float((naive - absorbed).abs().max() / naive.abs().max()))
    for index, (name, operations) in enumerate(work.items()):
        draw(work_ax, lengths, operations, name, index)
    finish(work_ax, "tokens in the cache", "operations", doublings=lengths, log_y=True)
    draw(gap_ax, lengths, gaps, "float64", 0)
    finish(gap_ax, "tokens in the cache", "largest difference of an output", doublings=lengths)
    gap = Measurement.exact("largest difference of naive and absorbed, relative", max(gaps))
    ratio = Measurement.exact("operations, absorbed over naive", work["absorbed"][-1] / work["naive"][-1])
    checks += [
        below("both forms give the same numbers", gap, 1e-12),
        below("absorbed, the next token costs less than half", ratio, 0.5),
    ]
    most, least = counted["multi-head"][-1], counted["latent"][-1]
    return Result(
        [*measured, gap, ratio],
        checks,
        figure,
        f"with {heads[-1]} heads {n_token} tokens keep {most:,} bytes multi-head and {least:,} latent, "
        f"{most / least:.1f} times less; naive and absorbed differ by {gap.value:.0e}, and absorbed the next "
        f"token takes {ratio.value:.0%} of the operations",
        notes=(
            f"Heads of {DIM} numbers, latent vectors of {LATENT} and {ROTARY} that turn, in float32. "
            f"Below {(LATENT + ROTARY) / (2 * DIM):.1f} heads the latent cache is the larger one.",
        ),
    )


EXPERIMENT = Experiment(
    "latent",
    "Latent attention keeps as much of a token whatever its heads, where multi-head attention keeps more "
    "with every head; and keys and values need never be made from what is kept.",
    "The tensors of the cache have exactly 2 h d, 2 g d and c + r numbers a token for h heads, g groups and "
    "latent vectors; naive and absorbed outputs are equal to rounding; absorbed, the next token takes less "
    "than half of the operations.",
    run,
)
