"""How much all queries look at each key: the sums of the columns of weights, in O(N) memory.

A column's sum is sum_i exp(score_ij - lse_i). With queries and keys exchanged, and -lse as one more
dimension, its logarithm is the log-sum-exp of a row: one more call of `attend`, fused where that is.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from regard.attention.scores import ScoreRule
from regard.attention.shapes import check_attention, whole_slice
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility

_BLOCK = 1 << 20  # weights worked on at once, where no exchange can do it


def column_sums(
    q: Float[Tensor, "batch head query qk_dim"],
    k: Float[Tensor, "batch kv_head key qk_dim"],
    lse: Float[Tensor, "batch head query"],
    rule: ScoreRule,
    rows: slice | None = None,
) -> Float[Tensor, "batch head key"]:
    """The sum of each key's weights over all queries, or over `rows` of them; at least in float32.

    `lse` is what `attend(q, k, v, rule)` returned. All sums of a head together are its number of queries
    that see something, less what a sink takes.

    >>> q = k = torch.zeros(1, 1, 3, 2)
    >>> rule = ScoreRule(visible=Visibility(causal=True))
    >>> column_sums(q, k, attend(q, k, k, rule).lse, rule)[0, 0]
    tensor([1.8333, 0.8333, 0.3333])
    """
    check_attention(q, k)
    rule.check(q, k)
    rows = whole_slice("rows", rows, q.shape[2])
    n_query, n_key = rows.stop - rows.start, k.shape[2]
    # The last keys may be in the future of all these queries.
    n_seen = min(n_key, rule.visible.start + rows.stop) if rule.visible.causal else n_key
    exchanged = _exchanged(rule, rows, n_seen)
    if exchanged is None:
        return _by_strips(q, k, lse, rule, rows)
    dtype = torch.promote_types(q.dtype, torch.float32)
    keys = rule.visible.visible_keys(n_key)
    wide_q = q[:, :, rows].to(dtype) * rule.scale_for(q.shape[3])
    # A row that sees nothing is hidden everywhere: any finite number serves in the place of its -inf.
    taken = lse[:, :, rows].to(dtype)
    wide_q = torch.cat([wide_q, -taken.masked_fill(taken == -math.inf, 0.0)[..., None]], -1)
    wide_k = F.pad(k[:, :, :n_seen].to(dtype), (0, 1), value=1.0)
    if keys is not None:  # what is hidden may be anything
        wide_k = wide_k.masked_fill(~keys[:, None, :n_seen, None], 0.0)
    wide_k = wide_k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    if not n_query or not n_seen:
        return wide_q.new_zeros(*q.shape[:2], n_key)
    backwards_q, backwards_k = wide_q.flip(2), wide_k.flip(2)
    sums = attend(backwards_k, backwards_q, backwards_q, exchanged).lse.exp().flip(2)
    if keys is not None:
        sums = torch.where(keys[:, None, :n_seen], sums, 0.0)
    return F.pad(sums, (0, n_key - n_seen))


def _exchanged(rule: ScoreRule, rows: slice, n_key: int) -> ScoreRule | None:
    """The rule of the first `n_key` keys looking at `rows`, both backwards; None where there is none.

    Backwards, the past is the past again, and distances stay what they were.
    """
    visible, n_query = rule.visible, rows.stop - rows.start
    start = n_query - n_key + visible.start + rows.start
    by_distance = visible.causal or visible.window is not None or rule.bias is not None
    if rule.softcap is not None or rule.additive is not None or (by_distance and start < 0):
        return None
    if visible.lengths is not None and visible.lengths.dim() == 2:
        return None
    bias = None if rule.bias is None else rule.bias.exchanged(rows, n_key)
    if rule.bias is not None and bias is None:
        return None
    looked_at = Visibility(
        causal=visible.causal,
        start=max(0, start),
        window=visible.window,
        query_segment=None if visible.key_segment is None else visible.key_segment[:, :n_key].flip(1),
        key_segment=None if visible.query_segment is None else visible.query_segment[:, rows].flip(1),
        dense=None if visible.dense is None else visible.dense[:, :, rows, :n_key].mT.flip(2, 3),
    )
    return replace(rule, scale=1.0, visible=looked_at, bias=bias, sink=None)  # lse has it


def _by_strips(q: Tensor, k: Tensor, lse: Tensor, rule: ScoreRule, rows: slice) -> Tensor:
    """The same, from all weights of a few rows at a time."""
    sums = q.new_zeros(*q.shape[:2], k.shape[2], dtype=torch.promote_types(q.dtype, torch.float32))
    per_row = q.shape[0] * q.shape[1] * k.shape[2] * (1 if rule.additive is None else q.shape[3])
    step = max(1, _BLOCK // max(1, per_row))
    for first in range(rows.start, rows.stop, step):
        strip = slice(first, min(first + step, rows.stop))
        scores = rule.scores(q, k, strip)
        row_lse = lse[:, :, strip, None].clamp_min(torch.finfo(lse.dtype).min)
        weights = torch.where(scores == -math.inf, 0.0, torch.exp(scores - row_lse))
        sums = sums + weights.sum(2)
    return sums
