"""What latent keys and values save (DeepSeek-AI 2024, 2.1): a cache that does not grow with the heads.

Of each token multi-head attention keeps 2 h d numbers, grouped 2 g d, and latent attention c + r for all
heads: 40 that are latent and 8 that turn, where a head's keys have 16. Keys need not be made from what is
kept: q . (U c) = (U^T q) . c, so that the query is moved instead.
"""

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.errors import plural
from regard.lab.spec import Lab
from regard.layers import LatentAttention, LayerCache, MultiHeadAttention

CLAIM = """Latent attention keeps as much of a token whatever its heads, where multi-head attention keeps more
with every head; and keys and values need never be made from what is kept."""
PREDICTION = """The tensors of the cache have exactly 2 h d, 2 g d and c + r numbers a token for h heads, g
groups and latent vectors; naive and absorbed outputs are equal to rounding; absorbed, the next token takes
less than half of the operations."""

MODEL, DIM, GROUPS, LATENT, ROTARY = 64, 16, 2, 40, 8
FLOAT = 4  # bytes


def _shared(n_head: int, n_kv_head: int) -> MultiHeadAttention:
    return MultiHeadAttention(MODEL, n_head, n_kv_head=n_kv_head, qk_dim=DIM, v_dim=DIM, causal=True)


def _latent(n_head: int) -> LatentAttention:
    return LatentAttention(MODEL, n_head, latent_dim=LATENT, rotary_dim=ROTARY, qk_dim=DIM, v_dim=DIM)


@torch.no_grad()
def _kept(layer: nn.Module, n_token: int) -> int:
    """Bytes of the tensors that a cache holds after so many tokens."""
    cache = LayerCache(block=n_token)
    layer(torch.randn(1, n_token, MODEL), cache=cache)
    return sum(tensor.nbytes for tensor in (cache.k, cache.v) if tensor is not None)


@torch.no_grad()
def _step(layer: LatentAttention, x: Tensor, *, absorbed: bool) -> tuple[Tensor, int]:
    """The output of the last token after those before it are cached, and the operations it took."""
    cache = LayerCache()
    layer(x[:, :-1], cache=cache, absorbed=False)
    with FlopCounterMode(display=False) as counter:
        out = layer(x[:, -1:], cache=cache, absorbed=absorbed)
    return out, counter.get_total_flops()


def run(lab: Lab) -> None:
    heads = (1, 2, 4, 8) if lab.quick else (1, 2, 4, 8, 16, 32, 64)
    lengths = (16, 64, 256) if lab.quick else (16, 64, 256, 1024, 4096)
    n_token = lengths[-1]
    kept: dict[str, list[float]] = {"multi-head": [], f"{GROUPS} groups": [], "latent": []}
    for n_head in heads:
        n_group = min(GROUPS, n_head)
        numbers = (2 * n_head * DIM, 2 * n_group * DIM, LATENT + ROTARY)  # of a token
        layers = (_shared(n_head, n_head), _shared(n_head, n_group), _latent(n_head))
        for name, number, layer in zip(kept, numbers, layers, strict=True):
            measured = lab.exact(f"bytes, {plural(n_head, 'head')}, {name}", _kept(layer, n_token))
            kept[name].append(measured)
            lab.equal(f"{measured.name}, as the formula says", measured, number * FLOAT * n_token)
    lab.draw.lines(f"Cache of {n_token} tokens", heads, kept, "heads", "bytes", log="xy")
    latent = _latent(heads[-1]).double()
    work: dict[str, list[int]] = {"naive": [], "absorbed": []}
    gaps = []
    for length in lengths:
        x = torch.randn(1, length + 1, MODEL, dtype=torch.float64)
        (naive, n_naive), (absorbed, n_absorbed) = (_step(latent, x, absorbed=how) for how in (False, True))
        work["naive"].append(n_naive)
        work["absorbed"].append(n_absorbed)
        gaps.append(float((naive - absorbed).abs().max() / naive.abs().max()))
    cached, differ = "tokens in the cache", "largest difference of an output"
    lab.draw.lines("Operations of the next token", lengths, work, cached, "operations", log="xy")
    lab.draw.lines("Naive against absorbed", lengths, {"float64": gaps}, cached, differ, log="x")
    gap = lab.exact("largest difference of naive and absorbed, relative", max(gaps))
    ratio = lab.exact("operations, absorbed over naive", work["absorbed"][-1] / work["naive"][-1])
    lab.below("both forms give the same numbers", gap, 1e-12)
    lab.below("absorbed, the next token costs less than half", ratio, 0.5)
