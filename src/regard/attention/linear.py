"""Kernelised attention: a sum over keys that needs no N x N table.

Softmax attention weighs key j for query i by exp(q_i . k_j). Any similarity that is a product of
features, sim(q, k) = phi(q) . phi(k), lets the sum be taken once for all queries:

    out_i = sum_j sim(q_i, k_j) v_j / sum_j sim(q_i, k_j) = phi(q_i) S / phi(q_i) . z
    S = sum_j phi(k_j) v_j^T,  z = sum_j phi(k_j)

(Katharopoulos et al. 2020, equations 5 and 18 to 20.) The causal form takes queries and keys in chunks:
similarities inside a chunk, and a running S and z for all that came before it. Time is O(N), and the
backward pass walks the chunks again rather than keep a state for each.

`attend_linear` is the whole of a sequence, `linear_step` one token of decoding, `linear_weights` a tile of
the weights that were never formed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention import linear_scan
from regard.attention.data import Data
from regard.attention.feature_maps import KERNELS, FeatureMap
from regard.attention.linear_scan import least_normaliser, row_scores, summing_dtype
from regard.attention.scores import no_autocast
from regard.attention.shapes import KEY_WORDS, QUERY_WORDS, check_attention, named
from regard.errors import ArgumentError, ShapeError


@dataclass(frozen=True, eq=False, repr=False)
class LinearState(Data):
    """All that linear attention keeps of the keys and values it has seen; its size does not grow.

    float32 where the keys are float16 or bfloat16: the sums run over the whole sequence.
    """

    S: Float[Tensor, "batch kv_head feature v_dim"]  # sum_j phi(k_j) v_j^T
    z: Float[Tensor, "batch kv_head feature"]  # sum_j phi(k_j)

    @classmethod
    def empty(
        cls,
        k: Float[Tensor, "batch kv_head key qk_dim"],
        v: Float[Tensor, "batch kv_head key v_dim"],
        kernel: FeatureMap,
    ) -> LinearState:
        """The state before the first key, of the sizes, dtype and device these keys and values need."""
        feature = kernel.dim(k.shape[-1])
        S = k.new_zeros((*k.shape[:2], feature, v.shape[-1]), dtype=summing_dtype(k.dtype))
        return cls(S, S.new_zeros(S.shape[:3]))

    def __repr__(self) -> str:
        return f"LinearState{named(('batch', 'kv_head', 'feature', 'v_dim'), self.S.shape)}"

    def select(self, batch: Int[Tensor, " chosen"]) -> LinearState:
        """The states of these batch entries, in this order, as beam search asks for them."""
        return LinearState(self.S[batch], self.z[batch])


@dataclass(frozen=True, eq=False, repr=False)
class LinearAttended(Data):
    """What linear attention gives: the output, each row's normaliser, and the state where asked for."""

    out: Float[Tensor, "batch head query v_dim"]
    # sum_j phi_query(q_i) . phi(k_j); 0: the row sees nothing, and its output is 0. No gradient.
    normaliser: Float[Tensor, "batch head query"]
    state: LinearState | None = None

    def __repr__(self) -> str:
        return f"LinearAttended{named(('batch', 'head', 'query', 'v_dim'), self.out.shape)}"


@dataclass(frozen=True, eq=False, repr=False)
class LinearRule(Data):
    """What stands in the place of a `ScoreRule` where a layer is linear: all that `linear_weights` needs."""

    kernel: FeatureMap
    causal: bool = False
    keys: Bool[Tensor, "batch key"] | None = None  # False: padding

    def __repr__(self) -> str:
        hidden = "" if self.keys is None else f", {int((~self.keys).sum())} keys hidden"
        return f"LinearRule({self.kernel!r}, causal={self.causal}{hidden})"


def attend_linear(
    q: Float[Tensor, "batch head query qk_dim"],
    k: Float[Tensor, "batch kv_head key qk_dim"],
    v: Float[Tensor, "batch kv_head key v_dim"],
    kernel: FeatureMap,
    *,
    causal: bool = False,
    visible: Bool[Tensor, "batch key"] | None = None,
    state: LinearState | None = None,
    chunk: int | None = None,
    return_state: bool = False,
) -> LinearAttended:
    """Averages of v weighted by phi(q) . phi(k), in time and memory linear in the length.

    With `causal`, the queries stand at the last positions of the keys, and each sees the keys up to its
    own. Every query also sees what `state` holds. `visible` hides padding, True = may look. `chunk` is the
    length inside which similarities are formed, the map's own unless given; it does not change the result.

    >>> from regard.attention import EluPlusOne
    >>> q = k = torch.zeros(1, 1, 3, 2)
    >>> v = torch.tensor([[[[0.0], [3.0], [6.0]]]])
    >>> attend_linear(q, k, v, EluPlusOne(), causal=True).out.flatten()
    tensor([0.0000, 1.5000, 3.0000])
    """
    _check(q, k, v, kernel, visible, state)
    n_query, n_key = q.shape[2], k.shape[2]
    chunk = kernel.chunk if chunk is None else chunk
    if chunk < 1:
        raise ArgumentError(f"chunk is {chunk}: it must be at least 1, or None for the map's own.")
    if causal and n_query > n_key:
        raise ShapeError(
            f"there are {n_query} queries and {n_key} keys: with causal, queries stand at the last positions "
            f"of the keys, so there are at most as many. Got q {named(QUERY_WORDS, q.shape)}, "
            f"k {named(KEY_WORDS, k.shape)}."
        )
    with no_autocast(q.device):
        sums: Any = None if state is None else torch.cat([state.S, state.z[..., None]], -1)
        before = n_key - n_query if causal else n_key
        if before or not causal:
            earlier = None if visible is None else visible[:, :before]
            sums = linear_scan.collect(k[:, :, :before], v[:, :, :before], earlier, sums, kernel)
        if causal:
            now = None if visible is None else visible[:, before:]
            out, normaliser, sums = linear_scan.causal(
                q, k[:, :, before:], v[:, :, before:], now, sums, kernel, chunk, return_state
            )
        else:
            out, normaliser = linear_scan.read(q, sums, kernel)
    after = LinearState(sums[..., :-1], sums[..., -1]) if return_state else None
    return LinearAttended(out, normaliser, after)


def linear_step(
    q: Float[Tensor, "batch head 1 qk_dim"],
    k: Float[Tensor, "batch kv_head 1 qk_dim"],
    v: Float[Tensor, "batch kv_head 1 v_dim"],
    state: LinearState | None,
    kernel: FeatureMap,
    *,
    visible: Bool[Tensor, "batch 1"] | None = None,
) -> tuple[Float[Tensor, "batch head 1 v_dim"], LinearState]:
    """One token of causal decoding: its output, and the state that includes it.

    Costs the same at every position. The state given is left as it was, so that a search may go back to it.
    """
    _check(q, k, v, kernel, visible, state)
    if q.shape[2] != 1 or k.shape[2] != 1:
        raise ShapeError(
            f"a step takes one token: there are {q.shape[2]} queries and {k.shape[2]} keys. "
            f"attend_linear(..., causal=True, return_state=True) takes many."
        )
    state = LinearState.empty(k, v, kernel) if state is None else state
    summing = state.S.dtype
    with no_autocast(q.device):
        keys, values = k.to(summing), v.to(summing)
        if visible is not None:
            seen = visible[:, None, :, None]
            keys, values = torch.where(seen, keys, 0), torch.where(seen, values, 0)
        features = kernel.phi(keys)
        if visible is not None:
            features = torch.where(seen, features, 0)
        state = LinearState(state.S + features.mT * values, state.z + features[:, :, 0])
        # The query heads of a group stand as rows before the one state they share.
        grouped = q.to(summing).unflatten(1, (k.shape[1], -1)).squeeze(3)
        asked = kernel.phi_query(grouped)
        floor = least_normaliser(kernel, grouped, state.z)
        normaliser = (asked @ state.z[..., None])[..., 0]
        guarded = normaliser.masked_fill(normaliser <= floor, math.inf)
        out = (asked @ state.S) / guarded[..., None]
    return out.flatten(1, 2)[:, :, None].to(v.dtype), state


def linear_weights(
    q: Float[Tensor, "batch head query qk_dim"],
    k: Float[Tensor, "batch kv_head key qk_dim"],
    normaliser: Float[Tensor, "batch head query"],
    kernel: FeatureMap,
    rows: slice = slice(None),
    cols: slice = slice(None),
    *,
    causal: bool = False,
    visible: Bool[Tensor, "batch key"] | None = None,
) -> Float[Tensor, "batch head rows cols"]:
    """Weights of `rows` x `cols`, as phi(q_i) . phi(k_j) / normaliser_i: costs its own area only.

    `normaliser` is the one `attend_linear` gave for the same q, k and kernel.
    """
    _check(q, k, None, kernel, visible, None)
    if normaliser.shape != q.shape[:3]:
        raise ShapeError(
            f"the normaliser has shape {tuple(normaliser.shape)}: it must have one number for each query. "
            f"Got q {named(QUERY_WORDS, q.shape)}."
        )
    summing = normaliser.dtype
    queries, keys = q[:, :, rows].to(summing), k[:, :, cols].to(summing)
    hidden = None
    if visible is not None:
        hidden = ~visible[:, None, None, None, cols]
        keys = keys.masked_fill(~visible[:, None, cols, None], 0)
    queries = queries.unflatten(1, (k.shape[1], -1))
    with no_autocast(q.device):
        table: Tensor = row_scores(kernel, queries.flatten(2, 3), keys).unflatten(2, queries.shape[2:4])
    if causal:
        positions = torch.arange(k.shape[2], device=q.device)
        later = positions[cols] > positions[k.shape[2] - q.shape[2] :][rows, None]
        hidden = later if hidden is None else hidden | later
    if hidden is not None:
        table = table.masked_fill(hidden, 0)
    below = normaliser[:, :, rows, None]
    return table.flatten(1, 2) / below.masked_fill(below == 0, math.inf)


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    kernel: FeatureMap,
    visible: Tensor | None,
    state: LinearState | None,
) -> None:
    """Raise unless all that was given fits together."""
    check_attention(q, k, v)
    if not isinstance(kernel, FeatureMap):
        raise ArgumentError(
            f"kernel is {kernel!r}: it must be a FeatureMap. feature_map('elu1') makes one; "
            f"the names are {', '.join(KERNELS)}."
        )
    feature = kernel.dim(q.shape[3])
    if visible is not None and (
        visible.dtype != torch.bool or visible.shape != (k.shape[0], k.shape[2]) or visible.device != k.device
    ):
        raise ShapeError(
            f"visible must be a bool tensor on {k.device}, one entry for each key, True = may look. "
            f"Got {visible.dtype} on {visible.device} of shape {tuple(visible.shape)}, "
            f"k {named(KEY_WORDS, k.shape)}."
        )
    if state is not None and v is not None:
        wanted = (*k.shape[:2], feature, v.shape[3])
        if tuple(state.S.shape) != wanted or state.z.shape != state.S.shape[:3]:
            raise ShapeError(
                f"the state is of another layer or kernel: S must be "
                f"{named(('batch', 'kv_head', 'feature', 'v_dim'), wanted)} and z the same without v_dim. "
                f"Got S {tuple(state.S.shape)}, z {tuple(state.z.shape)}."
            )
        if state.S.dtype != summing_dtype(k.dtype) or state.S.device != k.device:
            raise ShapeError(
                f"the state is {state.S.dtype} on {state.S.device}: keys of {k.dtype} on {k.device} need "
                f"{summing_dtype(k.dtype)} on {k.device}."
            )
