"""Kernelised attention: a sum over keys that needs no N x N table.

Softmax attention weighs key j for query i by exp(q_i . k_j). Any similarity that is a product of
features, sim(q, k) = phi(q) . phi(k), lets the sum be taken once for all queries:

    out_i = sum_j sim(q_i, k_j) v_j / sum_j sim(q_i, k_j) = phi(q_i) S / phi(q_i) . z
    S = sum_j phi(k_j) v_j^T,  z = sum_j phi(k_j)

(Katharopoulos et al. 2020, equations 5 and 18 to 20.) The causal form takes queries and keys in chunks:
similarities inside a chunk, and a running S and z for all that came before it. Time is O(N). For a backward
pass a chunk keeps its inputs and the sums before it alone, and is computed again.

`attend_linear` is the whole of a sequence, `linear_step` one token of decoding, `linear_weights` a tile of
the weights that were never formed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from regard.attention.data import Data
from regard.attention.feature_maps import FEATURE_MAPS, FeatureMap
from regard.attention.scores import ScoreRule, no_autocast
from regard.attention.shapes import KEY_WORDS, QUERY_WORDS, Keys, Queries, Values, check_attention, named
from regard.attention.torch_ops import all_finite, needs_graph
from regard.errors import ArgumentError, ShapeError


@dataclass(frozen=True, eq=False, repr=False)
class LinearState(Data):
    """All that linear attention keeps of the keys and values it has seen; its size does not grow.

    float32 where the keys are float16 or bfloat16: the sums run over the whole sequence.

    Attributes:
        S: ``(batch, kv_head, feature, v_dim)``, the sum of phi(k_j) v_j^T.
        z: ``(batch, kv_head, feature)``, the sum of phi(k_j).
    """

    S: Float[Tensor, "batch kv_head feature v_dim"]  # sum_j phi(k_j) v_j^T
    z: Float[Tensor, "batch kv_head feature"]  # sum_j phi(k_j)

    def select(self, batch: Int[Tensor, " chosen"]) -> LinearState:
        """Return the states of these batch entries, in this order, as beam search asks for them."""
        return LinearState(self.S[batch], self.z[batch])


@dataclass(frozen=True, eq=False, repr=False)
class LinearAttended(Data):
    """What linear attention returns.

    Attributes:
        out: ``(batch, head, query, v_dim)``.
        normaliser: ``(batch, head, query)``, the sum of phi_query(q_i) . phi(k_j) over keys, without
            gradient; 0: the row sees nothing, and its output is 0.
        state: The sums over all keys, where asked for.
    """

    out: Float[Tensor, "batch head query v_dim"]
    # sum_j phi_query(q_i) . phi(k_j); 0: the row sees nothing, and its output is 0. No gradient.
    normaliser: Float[Tensor, "batch head query"]
    state: LinearState | None = None


@dataclass(frozen=True, eq=False, repr=False)
class LinearRule(Data):
    """What stands in the place of a `ScoreRule` where a layer is linear: all that `linear_weights` needs."""

    feature_map: FeatureMap
    causal: bool = False
    key_mask: Bool[Tensor, "batch key"] | None = None  # False: padding


Rule = ScoreRule | LinearRule


def attend_linear(
    q: Queries,
    k: Keys,
    v: Values,
    feature_map: FeatureMap,
    *,
    causal: bool = False,
    key_mask: Bool[Tensor, "batch key"] | None = None,
    state: LinearState | None = None,
    chunk: int | None = None,
    return_state: bool = False,
) -> LinearAttended:
    """Average the values weighted by phi(q) . phi(k), in time and memory linear in the length.

    Args:
        q: Queries, ``(batch, head, query, qk_dim)``.
        k: Keys, ``(batch, kv_head, key, qk_dim)``.
        v: Values, ``(batch, kv_head, key, v_dim)``.
        feature_map: phi.
        causal: The queries are at the last positions of the keys, and each sees the keys up to its own.
        key_mask: ``(batch, key)``, False where a key is padding.
        state: Sums over earlier keys, which every query sees too.
        chunk: The length inside which similarities are formed; any gives the same. Default: by map and heads.
        return_state: Whether the sums over all keys are returned.

    Returns:
        Output, normaliser and, where asked for, the state.

    Raises:
        ShapeError: If the inputs do not fit together.
        ArgumentError: If `chunk` is below 1 or `feature_map` is not a map.

    Example:
        >>> from regard.attention import EluPlusOne
        >>> q = k = torch.zeros(1, 1, 3, 2)
        >>> v = torch.tensor([[[[0.0], [3.0], [6.0]]]])
        >>> attend_linear(q, k, v, EluPlusOne(), causal=True).out.flatten()
        tensor([0.0000, 1.5000, 3.0000])
    """
    _check(q, k, v, feature_map, key_mask, state)
    n_query, n_key, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    if chunk is None:  # few heads leave room for longer chunks, of which there are fewer
        chunk = feature_map.chunk * (2 if k.shape[0] * k.shape[1] <= 16 else 1)
    if chunk < 1:
        raise ArgumentError(f"chunk is {chunk}: it must be at least 1, or None for the map's own.")
    if causal and n_query > n_key:
        raise ShapeError(
            f"there are {n_query} queries and {n_key} keys: with causal, queries stand at the last positions "
            f"of the keys, so there are at most as many. Got q {named(QUERY_WORDS, q.shape)}, "
            f"k {named(KEY_WORDS, k.shape)}."
        )
    finite = nonfinite_rows = None
    if not all_finite(q):  # they are 0 and pass no gradient: padding must not
        finite = q.isfinite().all(-1)
        q = torch.where(finite[..., None], q, 0.0)
    if causal and not all_finite(v):  # 0 times NaN is NaN: it would reach back through its weight of 0
        bad = ~v.isfinite() if key_mask is None else ~v.isfinite() & key_mask[:, None, :, None]
        v, nonfinite_rows = v.masked_fill(bad, 0), bad.cumsum(2) > 0
    before = n_key - n_query if causal else n_key  # positions that all queries see
    earlier, now = (
        (k[:, :, part], v[:, :, part], None if key_mask is None else key_mask[:, part])
        for part in (slice(before), slice(before, None))
    )
    sums: Any = _joined(state)
    with no_autocast(q.device):
        if before or not causal:
            for part in _chunks(chunk, *earlier):
                sums = _run(_accumulate, feature_map, *part, sums)
        made, stop = [], 0
        for part in _chunks(chunk, q, *(now if causal else (None, None, None))):
            stop += chunk
            *rows, sums = _run(_attend_chunk, feature_map, *part, sums, return_state or stop < n_query)
            made.append(rows)
    out, normaliser = (torch.cat(rows, 2) for rows in zip(*made, strict=True))
    out = out.to(q.dtype)
    after = _state(sums) if return_state else None
    if nonfinite_rows is not None:
        out = out.masked_fill(nonfinite_rows[:, :, before:].repeat_interleave(group, 1), math.nan)
        after = after and LinearState(after.S.masked_fill(nonfinite_rows[:, :, -1:], math.nan), after.z)
    if finite is not None:
        out = torch.where(finite[..., None], out, math.nan)
        normaliser = torch.where(finite, normaliser, math.nan)
    return LinearAttended(out, normaliser, after)


def linear_step(
    q: Float[Tensor, "batch head 1 qk_dim"],
    k: Float[Tensor, "batch kv_head 1 qk_dim"],
    v: Float[Tensor, "batch kv_head 1 v_dim"],
    state: LinearState | None,
    feature_map: FeatureMap,
    *,
    key_mask: Bool[Tensor, "batch 1"] | None = None,
) -> tuple[Float[Tensor, "batch head 1 v_dim"], LinearState]:
    """Decode one token of causal linear attention; it costs the same at every position.

    Args:
        q: Query, ``(batch, head, 1, qk_dim)``.
        k: Key, ``(batch, kv_head, 1, qk_dim)``.
        v: Value, ``(batch, kv_head, 1, v_dim)``.
        state: Sums over the tokens before; None: there are none. It is left as it was, so that a search may
            return to it.
        feature_map: phi.
        key_mask: ``(batch, 1)``, False where the token is padding.

    Returns:
        The output, ``(batch, head, 1, v_dim)``, and the state that includes this token.

    Raises:
        ShapeError: If the inputs do not fit together, or are of more than one token.
    """
    _check(q, k, v, feature_map, key_mask, state)
    if q.shape[2] != 1 or k.shape[2] != 1:
        raise ShapeError(
            f"a step takes one token: there are {q.shape[2]} queries and {k.shape[2]} keys. "
            f"attend_linear(..., causal=True, return_state=True) takes many."
        )
    with no_autocast(q.device):
        out, _, sums = _attend_chunk(feature_map, q, k, v, key_mask, _joined(state), True)
    return out.to(v.dtype), _state(sums)


def linear_weights(
    q: Queries,
    k: Keys,
    normaliser: Float[Tensor, "batch head query"],
    feature_map: FeatureMap,
    rows: slice = slice(None),
    cols: slice = slice(None),
    *,
    causal: bool = False,
    key_mask: Bool[Tensor, "batch key"] | None = None,
) -> Float[Tensor, "batch head rows cols"]:
    """Compute the weights of `rows` x `cols`, phi(q_i) . phi(k_j) / normaliser_i, at the cost of their area.

    Args:
        q: Queries, ``(batch, head, query, qk_dim)``.
        k: Keys, ``(batch, kv_head, key, qk_dim)``.
        normaliser: ``(batch, head, query)``, what `attend_linear` returned for the same q, k and feature map.
        feature_map: phi.
        rows: Which queries.
        cols: Which keys.
        causal: As `attend_linear` was given.
        key_mask: As `attend_linear` was given.

    Returns:
        ``(batch, head, rows, cols)``.

    Raises:
        ShapeError: If the inputs do not fit together.
    """
    _check(q, k, None, feature_map, key_mask, None)
    if normaliser.shape != q.shape[:3]:
        raise ShapeError(
            f"the normaliser has shape {tuple(normaliser.shape)}: it must have one number for each query. "
            f"Got q {named(QUERY_WORDS, q.shape)}."
        )
    queries, keys = _grouped(q[:, :, rows], k), k[:, :, cols].to(normaliser.dtype)
    seen = (
        torch.ones_like(keys[:, :1, :, 0], dtype=torch.bool) if key_mask is None else key_mask[:, None, cols]
    )
    keys = keys.masked_fill(~seen[..., None], 0)
    with no_autocast(q.device):
        if feature_map.direct:
            table = feature_map.similarity(queries, keys)
        else:
            table = feature_map.phi_query(queries) @ feature_map.phi(keys).mT
    table = _by_head(table, q)
    if causal:
        positions = torch.arange(k.shape[2], device=q.device)
        table = table.masked_fill(positions[cols] > positions[k.shape[2] - q.shape[2] :][rows, None], 0)
    below = normaliser[:, :, rows, None]
    return table.masked_fill(~seen[:, :, None], 0) / below.masked_fill(below == 0, math.inf)


def _accumulate(
    feature_map: FeatureMap, k: Tensor, v: Tensor, key_mask: Tensor | None, sums: Tensor | None
) -> Tensor:
    """The sums, S with z as a last column, after these keys and values."""
    keys, values = _keys(k, v, key_mask)
    added = feature_map.phi(keys).mT @ values
    return added if sums is None else sums + added


def _attend_chunk(
    feature_map: FeatureMap,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    key_mask: Tensor | None,
    sums: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Outputs and normalisers of queries that see the sums and, of as many keys, those up to their own.

    Then the sums after these keys, where they are to be kept; without keys the sums stay as they are.
    """
    shared: Any = sums if k is None else k
    rows = _grouped(q, shared)
    # Rounding, or subnormal numbers, are taken as 0.
    floor: Tensor | float = torch.finfo(rows.dtype).tiny / torch.finfo(rows.dtype).eps
    totals: Any = None
    asked: Any = None
    features: Any = None
    if sums is not None or not feature_map.direct:
        asked = feature_map.phi_query(rows)
    if sums is not None:
        totals = asked @ sums
        floor = floor + feature_map.rounding(rows, sums[..., -1])
    if k is not None and v is not None:
        keys, values = _keys(k, v, key_mask)
        if keep or not feature_map.direct:
            features = feature_map.phi(keys)
        table = feature_map.similarity(rows, keys) if feature_map.direct else asked @ features.mT
        table.unflatten(2, (q.shape[1] // k.shape[1], q.shape[2])).tril_()
        totals = table @ values if totals is None else totals + table @ values
        if keep:
            added = features.mT @ values
            sums = added if sums is None else sums + added
    below = totals[..., -1:]
    nothing = below <= (floor[..., None] if isinstance(floor, Tensor) else floor)
    # Divided by infinity, a row that sees nothing is 0, while NaN stays NaN.
    out = totals[..., :-1] / below.masked_fill(nothing, math.inf)
    normaliser = below.detach().masked_fill(nothing, 0)
    return _by_head(out, q), _by_head(normaliser, q)[..., 0], sums


def _keys(k: Tensor, v: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Keys, and values with a column of ones for z; where hidden, both are 0, whatever they held."""
    keys, values = k.to(_summing(k)), F.pad(v.to(_summing(k)), (0, 1), value=1.0)
    if key_mask is None:
        return keys, values
    hidden = ~key_mask[:, None, :, None]
    return keys.masked_fill(hidden, 0), values.masked_fill(hidden, 0)


def _grouped(q: Tensor, shared: Tensor) -> Tensor:
    """Queries of a group of heads, one after the other, before what they share; in the dtype of sums."""
    grouped: Tensor = q.to(_summing(q)).unflatten(1, (shared.shape[1], -1))
    return grouped.flatten(2, 3)


def _by_head(rows: Tensor, q: Tensor) -> Tensor:
    """What such rows gave, laid out as the queries are."""
    cut: Tensor = rows.unflatten(2, (q.shape[1] // rows.shape[1], -1))
    return cut.flatten(1, 2)


def _run(function: Callable[..., Any], *given: Any) -> Any:
    """function(*given), of which only what was given is kept for a backward pass."""
    tensors = [value for value in given if isinstance(value, Tensor)]
    if needs_graph(*tensors):
        return checkpoint(function, *given, use_reentrant=False, preserve_rng_state=False)
    return function(*given)


def _chunks(size: int, *tensors: Tensor | None) -> Iterable[tuple[Tensor | None, ...]]:
    """The chunks of (batch, head, position, D), of (batch, position) and of None.

    Split, because the gradients of slices would each fill a tensor of the whole length.
    """
    cut = [repeat(None) if x is None else x.split(size, 1 if x.dim() == 2 else 2) for x in tensors]
    return zip(*cut, strict=False)


def _joined(state: LinearState | None) -> Tensor | None:
    """S with z as a last column."""
    return None if state is None else torch.cat([state.S, state.z[..., None]], -1)


def _state(sums: Any) -> LinearState:
    return LinearState(sums[..., :-1], sums[..., -1])


def _summing(x: Tensor) -> torch.dtype:
    """The dtype sums over a sequence are kept in."""
    return torch.promote_types(x.dtype, torch.float32)


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    feature_map: FeatureMap,
    key_mask: Tensor | None,
    state: LinearState | None,
) -> None:
    """Raise unless all that was given fits together."""
    check_attention(q, k, v)
    if not isinstance(feature_map, FeatureMap):
        raise ArgumentError(
            f"feature_map is {feature_map!r}: it must be a FeatureMap. feature_map('elu1') makes one; "
            f"the names are {', '.join(FEATURE_MAPS)}."
        )
    feature = feature_map.dim(q.shape[3])
    wanted_flags = torch.bool, (k.shape[0], k.shape[2]), k.device
    if key_mask is not None and (key_mask.dtype, tuple(key_mask.shape), key_mask.device) != wanted_flags:
        raise ShapeError(
            f"key_mask must be a bool tensor on {k.device}, one entry for each key, True = may look. "
            f"Got {key_mask.dtype} on {key_mask.device} of shape {tuple(key_mask.shape)}, "
            f"k {named(KEY_WORDS, k.shape)}."
        )
    if state is not None and v is not None:
        wanted, words = (*k.shape[:2], feature, v.shape[3]), ("batch", "kv_head", "feature", "v_dim")
        S, z, dtype = state.S, state.z, _summing(k)
        if (tuple(S.shape), S.dtype, S.device) != (wanted, dtype, k.device) or z.shape != S.shape[:3]:
            raise ShapeError(
                f"the state is of another layer or feature map: S must be "
                f"{named(words, wanted)} of {dtype} on {k.device}, and z the same without v_dim. "
                f"Got S {tuple(S.shape)} of {S.dtype} on {S.device}, z {tuple(z.shape)}."
            )
