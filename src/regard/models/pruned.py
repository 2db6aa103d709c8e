"""Attention some of whose heads were removed: their weights are gone, and so is a key head nobody uses.

A head keeps its number: `kept_heads` counts heads as the whole layer had them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.attention.scores import Bias, ScoreRule
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, LoadError, UnsupportedError
from regard.layers.attention import MultiHeadAttention
from regard.layers.block import BlockConfig, attention_options
from regard.layers.cache import LayerCache
from regard.layers.layer_id import LayerId
from regard.models.mechanisms import why_not

if TYPE_CHECKING:
    from regard.models.transformer import Transformer

MODEL_TYPE = "regard_pruned"  # in config.json: no published format can say which heads a layer has


class PrunedAttention(MultiHeadAttention):
    """Multi-head attention with only the heads `kept`, of those `config` has.

    Where key heads are left with different numbers of query heads, each query head is given a copy of its
    key head when it looks. A layer without heads adds its output bias, if it has one, and nothing else.
    """

    def __init__(self, config: BlockConfig, kept: Sequence[int], *, causal: bool) -> None:
        reason = why_not(config, "pruning")
        if reason is not None:
            raise UnsupportedError(f"{reason}.")
        key_head_of = [head * (config.n_kv_head or config.n_head) // config.n_head for head in kept]
        kept_kv = sorted(set(key_head_of))
        options = attention_options(config, causal=causal) | {"n_head": len(kept), "n_kv_head": len(kept_kv)}
        for dim in ("qk_dim", "v_dim"):
            options[dim] = options[dim] or config.model_dim // config.n_head
        with warnings.catch_warnings():  # a layer without heads has nothing to initialise
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")
            super().__init__(**options)
        self.kept, self.kept_kv, self.n_head_before = tuple(kept), tuple(kept_kv), config.n_head
        kv_head_of = [kept_kv.index(head) for head in key_head_of]
        even = sorted(list(range(len(kept_kv))) * (len(kept) // max(1, len(kept_kv))))
        self.kv_head_of = None if kv_head_of == even else kv_head_of

    def _check_heads(self, n_head: int, n_kv_head: int) -> None:
        """Any heads may be left."""

    def _spread(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.kv_head_of is None:
            return k, v
        index = torch.tensor(self.kv_head_of, device=k.device)
        return k.index_select(1, index), v.index_select(1, index)

    def forward(self, x: Tensor, memory: Tensor | None = None, **given: Any) -> Any:
        """As the parent's; `bias` is of all heads the layer once had."""
        if self.kept:
            return super().forward(x, memory, **given)
        batch, n_query, n_key = x.shape[0], x.shape[1], (x if memory is None else memory).shape[1]
        cache: LayerCache | None = given.get("cache")
        if cache is not None and not (memory is not None and cache.length):  # it still counts its positions
            empty = x.new_empty(batch, 0, n_key, self.qk_dim)
            n_key = cache.append(empty, x.new_empty(batch, 0, n_key, self.v_dim))[0].shape[2]
        out: Tensor = self.out(x.new_zeros(batch, n_query, 0))
        return (out, x.new_zeros(batch, 0, n_query, n_key)) if given.get("return_weights") else out

    def _rule(self, visible: Visibility | None, bias: Bias | None, start: int) -> ScoreRule:
        return super()._rule(visible, None if bias is None else bias.part(self.kept, None), start)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kept={self.kept} of {self.n_head_before}"


def check_kept_heads(kept: Sequence[Sequence[int]], n_attention: int, n_head: int) -> None:
    """Raise unless `kept` lists, for each attention layer, some of its heads, in order."""
    if len(kept) != n_attention:
        raise ArgumentError(
            f"kept_heads has one entry for each of the {n_attention} attention layers. Got {len(kept)}."
        )
    for index, heads in enumerate(kept):
        whole = all(type(head) is int and 0 <= head < n_head for head in heads)
        if not whole or list(heads) != sorted(set(heads)):
            raise ArgumentError(
                f"kept_heads of layer {index} must be different heads from 0 to {n_head - 1}, in order. "
                f"Got {tuple(heads)}."
            )


def fit_pruned(model: Transformer) -> None:
    """Give a freshly built model the smaller attention layers its config asks for."""
    config = model.config
    if config.kept_heads is None:
        return
    for name, kept in zip(model.attention_names, config.kept_heads, strict=True):
        if len(kept) == config.block.n_head:
            continue
        layer = LayerId.parse(name)
        stack = model.decoder if layer.stack == "decoder" else model.encoder
        assert stack is not None  # attention_names comes from the stacks there are
        assert layer.index is not None
        causal = layer.stack == "decoder" and layer.kind == "self"
        attribute = "attention" if layer.kind == "self" else "cross"
        block = config.decoder_block(layer.index) if causal else config.block
        setattr(stack.blocks[layer.index], attribute, PrunedAttention(block, kept, causal=causal))


def stated_kept_heads(
    config: Mapping[str, Any], source: str
) -> tuple[Mapping[str, Any], tuple[tuple[int, ...], ...] | None]:
    """What a config.json says: its family's part, and which heads are left (None: all)."""
    if config.get("model_type") != MODEL_TYPE:
        return config, None
    match config:
        case {"family_config": dict(inner), "kept_heads": [*kept]} if all(
            isinstance(heads, list) for heads in kept
        ):
            return inner, tuple(tuple(heads) for heads in kept)
    raise LoadError(
        f"{source}: config.json of a pruned model must have family_config, an object, and kept_heads, a "
        "list of heads for each attention layer."
    )
