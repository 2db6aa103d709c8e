"""What a cache that forgets would lose of each head's attention, before anything is let go."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.shapes import whole_index
from regard.errors import ArgumentError, UnsupportedError
from regard.layers.eviction import Evict
from regard.tracing.layers import AnyLayer
from regard.tracing.traces import Trace


@torch.no_grad()
def lost_attention(
    trace: Trace, evict: Evict, *, at: int | None = None, batch: int = 0
) -> Float[Tensor, "layer head"]:
    """The share of each head's attention, of the tokens from `at` on, that is on keys `evict` lets go there.

    The first `at` tokens (half of them by default) are the prompt that the policy judges. Three sums of
    columns tell it, so it is O(N) for any trace of a decoder. NaN in cross-attention, and where there is no
    such head.

    >>> even = torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None]
    >>> lost_attention(Trace.from_weights(even), Evict("streaming", budget=1, sinks=0), at=2)
    tensor([[0.2917]])
    """
    layers = [layer for layer in trace.layers if layer.kind == "self" and layer.n_query == layer.n_key]
    if not layers:
        raise ArgumentError("a cache is of self-attention over one text: this trace has no such layer.")
    batch = whole_index("batch", batch, trace.n_batch)
    real = torch.ones(layers[0].n_key, dtype=torch.bool) if trace.real is None else trace.real[batch].cpu()
    first, n_real = int(real.int().argmax()), int(real.sum())
    at = n_real // 2 if at is None else at
    if not 1 <= at < n_real:
        raise ArgumentError(
            f"at is where the prompt ends: at least 1 and below the {n_real} tokens there are. Got {at}."
        )
    shares = torch.full((len(trace.layers), max(layer.n_head for layer in trace.layers)), torch.nan)
    for index, layer in enumerate(trace.layers):
        if layer in layers and layer.n_key == len(real):
            if layer.visibility is not None and layer.visibility.everything:
                raise UnsupportedError(f"{layer.name} sees the future: only a decoder has a cache.")
            shares[index, : layer.n_head] = _share(layer, evict, batch, first, first + at, first + n_real)
    return shares


def _share(layer: AnyLayer, evict: Evict, batch: int, first: int, at: int, stop: int) -> Tensor:
    """The share lost of the attention of queries `at` to `stop`, for each head."""
    n_kv_head = layer.n_kv_head
    counted = evict.counted(at - first)
    prompt = layer.column_sums(batch, rows=slice(first + counted.start, first + counted.stop))[:, first:at]
    kept = evict.kept(prompt.unflatten(0, (n_kv_head, -1)).sum(1)[None])[0]
    gone = torch.ones(n_kv_head, at - first, dtype=torch.bool, device=kept.device).scatter(1, kept, False)
    later = layer.column_sums(batch, rows=slice(at, stop))
    lost = (later[:, first:at] * gone.repeat_interleave(layer.n_head // n_kv_head, 0)).sum(-1)
    return (lost / later.sum(-1)).cpu()
