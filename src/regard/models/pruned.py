"""Attention some of whose heads were removed: their weights are gone, and so is a key head nobody uses.

A head keeps its number: `kept_heads` counts heads as the whole layer had them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.attention import softmax as attention
from regard.attention.feature_maps import feature_map
from regard.attention.scores import Bias, ScoreRule
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, LoadError, UnsupportedError
from regard.layers.attention import MultiHeadAttention, Record, reported
from regard.layers.block import BlockConfig
from regard.layers.cache import LayerCache
from regard.layers.norms import RMSNorm

if TYPE_CHECKING:
    from regard.models.transformer import Transformer

MODEL_TYPE = "regard_pruned"  # in config.json: no published format can say which heads a layer has


class PrunedAttention(MultiHeadAttention):
    """Multi-head attention with only the heads `kept`, of those `config` has.

    Where key heads are left with different numbers of query heads, there is one `attend` for each number.
    A layer without heads adds its output bias, if it has one, and nothing else.
    """

    def __init__(self, config: BlockConfig, kept: Sequence[int], *, causal: bool) -> None:
        nn.Module.__init__(self)  # the parent's sizes are even
        n_kv_before = config.n_kv_head or config.n_head
        key_head_of = [head * n_kv_before // config.n_head for head in kept]
        kept_kv = sorted(set(key_head_of))
        self.kept, self.kept_kv, self.n_head_before = tuple(kept), tuple(kept_kv), config.n_head
        self.kv_head_of = tuple(kept_kv.index(head) for head in key_head_of)
        self.model_dim = self.memory_dim = config.model_dim
        self.n_head, self.n_kv_head = len(kept), len(kept_kv)
        self.qk_dim = config.qk_dim or config.model_dim // config.n_head
        self.v_dim = config.v_dim or config.model_dim // config.n_head
        self.dropout = config.dropout if config.kernel is None else 0.0
        window = config.window if causal else None
        self.rule = ScoreRule(config.scale, Visibility(causal=causal, window=window), softcap=config.softcap)
        self.kernel = None if config.kernel is None else feature_map(config.kernel, qk_dim=self.qk_dim)
        self.groups = _groups(self.kv_head_of)
        if self.kernel is not None and len(self.groups) > 1:
            raise UnsupportedError(
                "linear attention is pruned by whole groups only: each key head must keep equally many. "
                f"Got heads {self.kept} of {config.n_head} over {n_kv_before} key heads."
            )
        out_bias = config.attention_bias if config.out_bias is None else config.out_bias
        self.query = _linear(config.model_dim, self.n_head * self.qk_dim, config.attention_bias)
        self.key = _linear(config.model_dim, self.n_kv_head * self.qk_dim, config.attention_bias)
        self.value = _linear(config.model_dim, self.n_kv_head * self.v_dim, config.attention_bias)
        self.out = _linear(self.n_head * self.v_dim, config.model_dim, out_bias)
        self.query_norm = RMSNorm(self.qk_dim, eps=config.norm_eps) if config.qk_norm else None
        self.key_norm = RMSNorm(self.qk_dim, eps=config.norm_eps) if config.qk_norm else None
        self.gate = self.sinks = self.slopes = None
        if config.sinks or config.alibi or config.output_gate:
            raise UnsupportedError("heads with sinks, ALiBi or an output gate are not pruned.")

    def forward(self, x: Tensor, memory: Tensor | None = None, **given: Any) -> Any:
        """As the parent's; `bias` is of all heads the layer once had."""
        if self.kept:
            return super().forward(x, memory, **given)
        source, weights = x if memory is None else memory, given.get("return_weights", False)
        return self._nothing(x, source, given.get("cache"), memory is not None, weights)

    def _rule(self, visible: Visibility | None, bias: Bias | None, start: int) -> ScoreRule:
        return super()._rule(visible, None if bias is None else bias.part(None, self.kept), start)

    def _nothing(
        self, x: Tensor, source: Tensor, cache: LayerCache | None, cross: bool, return_weights: bool
    ) -> Tensor | tuple[Tensor, Tensor]:
        """What no heads give; the cache still counts its positions."""
        batch, n_query, n_key = x.shape[0], x.shape[1], source.shape[1]
        if cache is not None and not (cross and cache.length):
            empty = x.new_empty(batch, 0, n_key, self.qk_dim)
            n_key = cache.append(empty, x.new_empty(batch, 0, n_key, self.v_dim))[0].shape[2]
        out: Tensor = self.out(x.new_zeros(batch, n_query, 0))
        return (out, x.new_zeros(batch, 0, n_query, n_key)) if return_weights else out

    def _softmax(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visible: Visibility | None,
        bias: Bias | None,
        cache: LayerCache | None,
        cross: bool,
        record: Record | None,
        name: str,
        return_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        if len(self.groups) == 1:
            return super()._softmax(q, k, v, visible, bias, cache, cross, record, name, return_weights)
        start = 0
        if cache is not None and not (cross and cache.length):
            k, v, start = cache.append(k, v)
        rule = self._rule(visible, bias, start)
        dropout = self.dropout if self.training else 0.0
        device = q.device
        outs, lses, order = [], [], []
        for heads, kv_heads in self.groups:
            at, kv_at = torch.tensor(heads, device=device), torch.tensor(kv_heads, device=device)
            part = rule if rule.bias is None else replace(rule, bias=rule.bias.part(None, heads))
            attended = attend(
                q.index_select(1, at),
                k.index_select(1, kv_at),
                v.index_select(1, kv_at),
                part,
                dropout=dropout,
            )
            outs.append(attended.out)
            lses.append(attended.lse)
            order += heads
        back = torch.tensor(order, device=device).argsort()
        out, lse = torch.cat(outs, dim=1).index_select(1, back), torch.cat(lses, dim=1).index_select(1, back)
        if record is None and not return_weights:
            return out, None
        # Whoever looks at single heads wants even groups: here each has a key head of its own.
        shared = torch.tensor(self.kv_head_of, device=device)
        k, v = k.index_select(1, shared), v.index_select(1, shared)
        out = reported(record, name, q, k, v, out, lse, rule)
        return out, attention.weights(q, k, rule) if return_weights else None

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kept={self.kept} of {self.n_head_before}"


def _groups(kv_head_of: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Query heads and key heads for each size of group, so that each makes one even attention."""
    by_kv: dict[int, list[int]] = {}
    for head, kv_head in enumerate(kv_head_of):
        by_kv.setdefault(kv_head, []).append(head)
    sizes = sorted({len(heads) for heads in by_kv.values()})
    return [
        (
            [head for heads in by_kv.values() if len(heads) == size for head in heads],
            [kv_head for kv_head, heads in by_kv.items() if len(heads) == size],
        )
        for size in sizes
    ]


def _linear(n_in: int, n_out: int, bias: bool) -> nn.Linear:
    """A linear layer, which may have no inputs or no outputs: there is then nothing to initialise."""
    if n_in and n_out:
        return nn.Linear(n_in, n_out, bias)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        layer = nn.Linear(n_in, n_out, bias=False)
    if bias:
        layer.bias = nn.Parameter(torch.zeros(n_out))
    return layer


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
        side, index, kind = name.split(".")
        stack = model.decoder if side == "decoder" else model.encoder
        assert stack is not None  # attention_names comes from the stacks there are
        causal = side == "decoder" and kind == "self"
        attribute = "attention" if kind == "self" else "cross"
        block = config.decoder_block(int(index)) if causal else config.block
        setattr(stack.blocks[int(index)], attribute, PrunedAttention(block, kept, causal=causal))


def stated_kept_heads(
    config: Mapping[str, Any], source: str
) -> tuple[Mapping[str, Any], tuple[tuple[int, ...], ...] | None]:
    """What a config.json says: its family's part, and which heads are left (None: all)."""
    if config.get("model_type") != MODEL_TYPE:
        return config, None
    inner, kept = config.get("family_config"), config.get("kept_heads")
    fits = isinstance(inner, dict) and isinstance(kept, list)
    if not fits or not all(isinstance(heads, list) for heads in kept or ()):
        raise LoadError(
            f"{source}: config.json of a pruned model must have family_config, an object, and kept_heads, a "
            "list of heads for each attention layer."
        )
    assert isinstance(inner, dict)
    assert isinstance(kept, list)
    return inner, tuple(tuple(heads) for heads in kept)
