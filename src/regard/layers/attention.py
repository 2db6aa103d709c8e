"""Attention as a layer: multi-head, and additive."""

from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import feature_maps
from regard.attention import softmax as attention
from regard.attention.delta import DeltaState
from regard.attention.feature_maps import FeatureMap
from regard.attention.linear import LinearRule, Rule, attend_linear, linear_weights
from regard.attention.scores import Bias, ScoreRule, SlopeBias, alibi_slopes
from regard.attention.shapes import Heads, Vectors, check_divides, check_dropout, check_rank, check_sizes
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.errors import ShapeError, UnsupportedError
from regard.layers.cache import LayerCache
from regard.layers.positions import RotaryCosSin


@runtime_checkable  # so that tests can check signatures that name it
class Record(Protocol):
    """A callback given what an attention layer used and gave; what it returns takes the output's place.

    `out` is (batch, head, query, v_dim), before the projection. A linear layer gives a `LinearRule`,
    and its normaliser in the place of the log-sum-exp. A decoder that goes step by step reports every step.
    """

    def __call__(
        self, name: str, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, rule: Rule
    ) -> Tensor | None: ...


def reported(
    record: Record | None, name: str, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, rule: Rule
) -> Tensor:
    """The output of a layer that reports to `record`: its own, or what the callback puts in its place."""
    changed = None if record is None else record(name, q, k, v, out, lse, rule)
    return out if changed is None else changed


def split_heads(x: Float[Tensor, "batch position merged"], n_head: int) -> Heads:
    """Split the last dimension into heads; neighbouring dimensions go to the same head.

    Args:
        x: ``(batch, position, n_head * dim)``.
        n_head: Number of heads.

    Returns:
        ``(batch, n_head, position, dim)``.
    """
    return rearrange(x, "batch position (head dim) -> batch head position dim", head=n_head)


def merge_heads(x: Heads) -> Float[Tensor, "batch position merged"]:
    """Merge heads into one dimension, as the inverse of `split_heads`.

    Args:
        x: ``(batch, head, position, dim)``.

    Returns:
        ``(batch, position, head * dim)``.
    """
    return rearrange(x, "batch head position dim -> batch position (head dim)")


def rule_at(rule: ScoreRule, visible: Visibility | None, start: int) -> ScoreRule:
    """A layer's rule for queries that start at this position, combined with who else is `visible`."""
    both = replace(rule.visible, start=start) if start else rule.visible
    if visible is not None:
        both = both & (replace(visible, start=start) if start and not visible.start else visible)
    return replace(rule, visible=both)


class MultiHeadAttention(nn.Module):
    """Multi-head attention: several heads in parallel, each with its own projections (Vaswani et al. 2017).

    `layer(x)` is self-attention, `layer(x, memory)` cross-attention. The size of a head need not be
    `model_dim / n_head`: the output projection always returns `model_dim`. With a `feature_map` the layer is
    linear: time and memory are O(N), and a state of fixed size takes the place of cached keys and values.

    Example:
        >>> layer = MultiHeadAttention(model_dim=8, n_head=4, n_kv_head=2, v_dim=6)
        >>> layer(torch.randn(1, 3, 8)).shape
        torch.Size([1, 3, 8])
    """

    def __init__(
        self,
        model_dim: int,
        n_head: int,
        *,
        n_kv_head: int | None = None,
        qk_dim: int | None = None,
        v_dim: int | None = None,
        memory_dim: int | None = None,
        bias: bool = False,
        out_bias: bool | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
        causal: bool = False,
        window: int | None = None,
        feature_map: str | FeatureMap | None = None,
        softcap: float | None = None,
        qk_norm: float | None = None,
        sinks: bool = False,
        alibi: bool = False,
        output_gate: bool = False,
    ) -> None:
        """Create the layer with freshly initialised projections.

        Args:
            model_dim: Size of the input and output vectors.
            n_head: Number of query heads.
            n_kv_head: Number of key and value heads; it must divide `n_head`. Fewer than `n_head` is
                grouped-query attention (Ainslie et al. 2023), 1 is multi-query (Shazeer 2019).
                Default: `n_head`.
            qk_dim: Size of a head's queries and keys. Default: `model_dim / n_head`.
            v_dim: Size of a head's values. Default: `model_dim / n_head`.
            memory_dim: Size of the vectors of `memory` in cross-attention. Default: `model_dim`.
            bias: Whether the projections (query, key, value, gate) have a bias.
            out_bias: Whether the output projection has a bias. Default: the same as `bias`.
            scale: Factor of the dot products. Default: 1 / sqrt(qk_dim).
            dropout: Dropout probability of the attention weights, in training mode.
            causal: Whether a query sees only keys up to its own position.
            window: A query sees only keys less than this many positions away, itself included.
                Default: any distance.
            feature_map: Makes the attention linear: a name (elu1, relu, quadratic, favor) or a `FeatureMap`.
                Default: softmax attention.
            softcap: Scores become cap * tanh(score / cap) (Gemma 2). Default: scores are not capped.
            qk_norm: Epsilon of an RMS norm on each head's queries and keys, applied before they are rotated.
                Default: no norm.
            sinks: Whether each head learns the score of a sink, which takes part in the softmax and has no
                value (gpt-oss).
            alibi: Whether scores are lowered in proportion to distance (ALiBi, Press et al. 2022).
            output_gate: Whether the heads' outputs are multiplied by a sigmoid of the layer's input
                (Qiu et al. 2025).

        Raises:
            ShapeError: If a size is below 1, or `n_head` is not a multiple of `n_kv_head`, or `model_dim` is
                not a multiple of `n_head` where a head's size is left to the default.
            ArgumentError: If `dropout`, `window`, `softcap` or `scale` is out of range, or the feature map's
                name is unknown.
            UnsupportedError: If `feature_map` is combined with an option that needs scores: dropout, scale,
                window, softcap, sinks or alibi.
        """
        super().__init__()
        n_kv_head = n_head if n_kv_head is None else n_kv_head
        qk_dim, v_dim = head_dims(model_dim, n_head, qk_dim, v_dim)
        self._check_heads(n_head, n_kv_head)
        memory_dim = model_dim if memory_dim is None else memory_dim
        check_sizes(model_dim=model_dim, memory_dim=memory_dim, qk_dim=qk_dim, v_dim=v_dim)
        check_dropout(dropout)
        self.model_dim, self.memory_dim = model_dim, memory_dim
        self.n_head, self.n_kv_head, self.qk_dim, self.v_dim = n_head, n_kv_head, qk_dim, v_dim
        self.dropout = dropout
        self.rule = ScoreRule(scale, Visibility(causal=causal, window=window), softcap=softcap)
        if isinstance(feature_map, str):
            feature_map = feature_maps.feature_map(feature_map, qk_dim=qk_dim)
        self.feature_map = feature_map
        if feature_map is not None and (dropout or sinks or alibi or {scale, window, softcap} != {None}):
            raise UnsupportedError(
                "linear attention forms no scores: with a feature map no dropout, scale, window, softcap, "
                f"sinks or alibi. Got {dropout=}, {scale=}, {window=}, {softcap=}, {sinks=}, {alibi=}."
            )
        self.query = nn.Linear(model_dim, n_head * qk_dim, bias)
        self.key = nn.Linear(memory_dim, n_kv_head * qk_dim, bias)
        self.value = nn.Linear(memory_dim, n_kv_head * v_dim, bias)
        self.out = nn.Linear(n_head * v_dim, model_dim, bias if out_bias is None else out_bias)
        self.query_norm = None if qk_norm is None else nn.RMSNorm(qk_dim, eps=qk_norm)
        self.key_norm = None if qk_norm is None else nn.RMSNorm(qk_dim, eps=qk_norm)
        self.sinks = nn.Parameter(torch.zeros(n_head)) if sinks else None
        self.gate = nn.Linear(model_dim, n_head * v_dim, bias) if output_gate else None
        self.slopes: Tensor | None
        self.register_buffer("slopes", alibi_slopes(n_head) if alibi else None, persistent=False)

    def forward(
        self,
        x: Vectors,
        memory: Float[Tensor, "batch key memory_dim"] | None = None,
        *,
        visible: Visibility | None = None,
        bias: Bias | None = None,
        rotary: RotaryCosSin | None = None,
        cache: LayerCache | None = None,
        record: Record | None = None,
        name: str = "attention",
        return_weights: bool = False,
    ) -> Vectors | tuple[Vectors, Float[Tensor, "batch head position key"]]:
        """Attend from `x` to itself, or to `memory` where it is given.

        Args:
            x: Inputs, ``(batch, position, model_dim)``.
            memory: What to attend to in cross-attention, ``(batch, key, memory_dim)``. Default: `x`.
            visible: Which keys each query may look at, combined with the layer's own causality and window.
            bias: Added to the scores. Default: nothing.
            rotary: Cosines and sines of the positions of `x`, which rotate queries and keys.
                Default: no rotation.
            cache: Keys and values of earlier positions. The new ones are appended, and the queries are at the
                positions that follow. In cross-attention it is filled once, from `memory`.
            record: Callback that is given what the attention used and computed, and may replace its output.
            name: Name of the layer in calls of `record`.
            return_weights: Whether to return the attention weights too.

        Returns:
            The outputs, ``(batch, position, model_dim)``. With `return_weights`, also the weights before
            dropout, ``(batch, head, position, key)``; a linear layer with a cache returns those of the new
            keys only.

        Raises:
            ShapeError: If `x` or `memory` has another shape, dtype or device than the layer expects, or does
                not fit the cache.
            UnsupportedError: If the layer has ALiBi and a `bias` is given, or if it is linear and a `bias`, a
                window or a mask of single query-key pairs is given.
        """
        check_input("x", x, self.model_dim, self.query.weight)
        if memory is not None:
            check_input("memory", memory, self.memory_dim, self.key.weight)
        q = split_heads(self.query(x), self.n_head)
        q = q if self.query_norm is None else self.query_norm(q)
        remembered = memory is not None and cache is not None and cache.length > 0  # it does not change
        if cache is not None and remembered:
            k, v = cache.k, cache.v
            if k is None or v is None:  # it holds their sum
                k, v = (q.new_empty(len(q), self.n_kv_head, 0, dim) for dim in (self.qk_dim, self.v_dim))
        else:
            source = x if memory is None else memory
            k, v = (split_heads(project(source), self.n_kv_head) for project in (self.key, self.value))
            k = k if self.key_norm is None else self.key_norm(k)
            k = k if rotary is None else rotary(k)
        q = q if rotary is None else rotary(q)
        start, rule = 0, None
        if self.feature_map is None:
            if cache is not None and not remembered:
                k, v, start = cache.append(k, v)
            k, v = self._spread(k, v)
            rule = self._rule(visible, bias, start)
            out, lse = attend(q, k, v, rule, dropout=self.dropout if self.training else 0.0)
            heads = reported(record, name, q, k, v, out, lse, rule)
        else:
            start = 0 if cache is None or memory is not None else cache.length
            k, v = self._spread(k, v)
            looks = self._linear_rule(self.feature_map, k, visible, bias, start)
            state, keep = (None, False) if cache is None else (cache.state, True)
            if isinstance(state, DeltaState):
                raise UnsupportedError("this cache holds the state of a layer with the delta rule.")
            made = attend_linear(
                q,
                k,
                v,
                self.feature_map,
                causal=looks.causal,
                key_mask=looks.key_mask,
                state=state,
                return_state=keep,
            )
            if cache is not None and made.state is not None:
                cache.append_state(made.state, k.shape[2])
            heads, lse = reported(record, name, q, k, v, made.out, made.normaliser, looks), made.normaliser
        merged = merge_heads(heads)
        projected: Tensor = self.out(merged if self.gate is None else merged * torch.sigmoid(self.gate(x)))
        if not return_weights:
            return projected
        if rule is not None:
            return projected, attention.weights(q, k, rule)
        return projected, linear_weights(
            q, k, lse, looks.feature_map, causal=looks.causal, key_mask=looks.key_mask
        )

    def _check_heads(self, n_head: int, n_kv_head: int) -> None:
        check_divides("n_head", n_head, "n_kv_head", n_kv_head)
        check_sizes(n_head=n_head)

    def _spread(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values in even groups, as attention wants them."""
        return k, v

    def _linear_rule(
        self, feature_map: FeatureMap, k: Tensor, visible: Visibility | None, bias: Bias | None, start: int
    ) -> LinearRule:
        """What `_rule` is to a layer with a feature map."""
        if bias is not None or (visible is not None and (visible.by_pair or visible.window is not None)):
            raise UnsupportedError("linear attention hides keys and the future only: no bias, no pairs.")
        causal = self.rule.visible.causal or (visible is not None and visible.causal)
        stop = start + k.shape[2]
        keys = None if visible is None else visible.combined_key_mask(stop)
        keys = None if keys is None else keys.expand(k.shape[0], -1)[:, start:stop]
        return LinearRule(feature_map, causal, keys)

    def _rule(self, visible: Visibility | None, bias: Bias | None, start: int) -> ScoreRule:
        """The layer's rule for queries that start at this position."""
        if self.slopes is not None:
            if bias is not None:
                raise UnsupportedError("this layer has ALiBi, a bias of its own: it takes no other.")
            bias = SlopeBias(self.slopes)
        return replace(rule_at(self.rule, visible, start), bias=bias, sink=self.sinks)

    def extra_repr(self) -> str:
        return f"n_head={self.n_head}, n_kv_head={self.n_kv_head}, qk_dim={self.qk_dim}, v_dim={self.v_dim}"


class AdditiveAttention(nn.Module):
    """Additive attention: scores are w . tanh(W_q q + W_k k) (Bahdanau et al. 2015).

    It is computed by the same function as all other softmax attention, with one head. The values are not
    projected.
    """

    def __init__(
        self, query_dim: int, key_dim: int, hidden_dim: int, *, bias: bool = False, dropout: float = 0.0
    ) -> None:
        """Create the layer with freshly initialised projections.

        Args:
            query_dim: Size of the queries.
            key_dim: Size of the keys.
            hidden_dim: Size to which both are projected, and of the vector w.
            bias: Whether the two projections have a bias.
            dropout: Dropout probability of the attention weights, in training mode.

        Raises:
            ShapeError: If a size is below 1.
            ArgumentError: If `dropout` is not at least 0 and below 1.
        """
        super().__init__()
        check_sizes(query_dim=query_dim, key_dim=key_dim, hidden_dim=hidden_dim)
        check_dropout(dropout)
        self.dropout = dropout
        self.query = nn.Linear(query_dim, hidden_dim, bias)
        self.key = nn.Linear(key_dim, hidden_dim, bias)
        bound = hidden_dim**-0.5
        self.score = nn.Parameter(nn.init.uniform_(torch.empty(hidden_dim), -bound, bound))

    def forward(
        self,
        queries: Float[Tensor, "batch query query_dim"],
        keys: Float[Tensor, "batch key key_dim"],
        values: Float[Tensor, "batch key v_dim"],
        *,
        visible: Visibility | None = None,
        record: Record | None = None,
        name: str = "attention",
        projected_keys: Float[Tensor, "batch 1 key hidden"] | None = None,
    ) -> Float[Tensor, "batch query v_dim"]:
        """Compute the context of each query: the weighted sum of the values.

        Args:
            queries: ``(batch, query, query_dim)``.
            keys: ``(batch, key, key_dim)``.
            values: ``(batch, key, v_dim)``.
            visible: Which keys each query may look at. Default: all.
            record: Callback that is given what the attention used and computed, and may replace its output.
            name: Name of the layer in calls of `record`.
            projected_keys: What `project_keys(keys)` returned, ``(batch, 1, key, hidden_dim)``, so that a
                decoder need not project the same keys at every step. Default: projected here.

        Returns:
            ``(batch, query, v_dim)``.

        Raises:
            ShapeError: If an input has another shape, dtype or device than the layer expects.
        """
        q = _as_one_head("queries", queries, self.query)
        k = self.project_keys(keys) if projected_keys is None else projected_keys
        check_rank("values", values, ("batch", "key", "v_dim"))
        v = values[:, None]
        if torch.is_autocast_enabled(v.device.type):  # which made the projections half, the values not
            v = v.to(q.dtype)
        rule = self.rule(visible)
        out, lse = attend(q, k, v, rule, dropout=self.dropout if self.training else 0.0)
        return reported(record, name, q, k, v, out, lse, rule)[:, 0]

    def project_keys(self, keys: Float[Tensor, "batch key key_dim"]) -> Float[Tensor, "batch 1 key hidden"]:
        """Return W_k k as a single head, ``(batch, 1, key, hidden_dim)``."""
        return _as_one_head("keys", keys, self.key)

    def rule(self, visible: Visibility | None = None) -> ScoreRule:
        """Return the score rule, for queries and keys that are already projected."""
        return ScoreRule(additive=self.score, visible=visible or Visibility())

    def weights(
        self,
        queries: Float[Tensor, "batch query query_dim"],
        keys: Float[Tensor, "batch key key_dim"],
        visible: Visibility | None = None,
    ) -> Float[Tensor, "batch query key"]:
        """Compute all attention weights, ``(batch, query, key)``, without dropout."""
        q, k = _as_one_head("queries", queries, self.query), self.project_keys(keys)
        return attention.weights(q, k, self.rule(visible))[:, 0]


def _as_one_head(name: str, x: Tensor, linear: nn.Linear) -> Tensor:
    check_input(name, x, linear.in_features, linear.weight)
    projected: Tensor = linear(x)
    return projected[:, None]


def head_dims(model_dim: int, n_head: int, qk_dim: int | None, v_dim: int | None) -> tuple[int, int]:
    """The sizes of a head's queries and values: model_dim / n_head, unless given."""
    if qk_dim is None or v_dim is None:
        check_divides("model_dim", model_dim, "n_head", n_head)
    usual = model_dim // max(1, n_head)
    return usual if qk_dim is None else qk_dim, usual if v_dim is None else v_dim


def check_input(name: str, x: Tensor, dim: int, weight: Tensor) -> None:
    """Raise unless `x` is (batch, position, dim), of the dtype and on the device of the layer's weights."""
    if x.dim() != 3 or x.shape[-1] != dim:
        raise ShapeError(f"{name} must be (batch, position, {dim}) here. Got shape {tuple(x.shape)}.")
    if not isinstance(weight, Tensor):  # quantised: a function that unpacks it
        return
    if x.device != weight.device:
        raise ShapeError(f"{name} is on {x.device}, the layer's weights on {weight.device}: move one.")
    if x.dtype != weight.dtype and not (x.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
        raise ShapeError(f"{name} has dtype {x.dtype}, the layer's weights have {weight.dtype}: convert one.")
