"""The one door to softmax attention.

    attend(q, k, v, rule) -> out, lse        out_i = sum_j exp(score_ij - lse_i) v_j

Three paths compute the same numbers:

    plain   all scores at once; readable, differentiable twice, the oracle of the other two
    tiled   a few rows of scores at a time, forward and backward: never query x key, any rule
    fused   PyTorch's flash kernels, which return the log-sum-exp that gives back any weight
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from regard.attention import kernels
from regard.attention.data import short
from regard.attention.scores import ScoreRule, no_autocast
from regard.attention.shapes import (
    Keys,
    Queries,
    Values,
    check_attention,
    check_dropout,
    check_rank,
    check_same_kind,
    row_blocks,
)
from regard.attention.torch_ops import all_finite, needs_graph, values_unknown
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, UnsupportedError

Path = Literal["plain", "tiled", "fused"]

_DEFAULT = ScoreRule()  # made once: torch.compile cannot trace its making
# Up to this many scores the whole table is cheaper than recomputing its rows in the backward pass.
_PLAIN_UP_TO = 1 << 20


class Attended(NamedTuple):
    """What attention returns.

    Attributes:
        out: ``(batch, head, query, v_dim)``.
        lse: ``(batch, head, query)``, the natural log of each row's sum of exp(score); -inf: it sees no key.
    """

    out: Float[Tensor, "batch head query v_dim"]
    lse: Float[Tensor, "batch head query"]  # natural log of the row's sum of exp(score); -inf: sees no key

    def __repr__(self) -> str:
        return f"Attended(out={short(self.out)}, lse={short(self.lse)})"


def attend(
    q: Queries,
    k: Keys,
    v: Values,
    rule: ScoreRule | None = None,
    *,
    dropout: float = 0.0,
    path: Path | None = None,
) -> Attended:
    """Average the values, weighted by softmax over each query's scores, and return the row log-sum-exp too.

    A row that sees nothing has output 0 and lse -inf; in any other, lse includes the rule's sink, which has
    no value. What is masked may hold NaN or inf: it reaches neither output nor gradient. A query that is
    itself not finite, or sees a key or value that is not, has output and lse NaN; under a rule that masks
    anything it passes no gradient either.

    Args:
        q: Queries, ``(batch, head, query, qk_dim)``.
        k: Keys, ``(batch, kv_head, key, qk_dim)``; ``head`` is a multiple of ``kv_head`` (multi-head,
            grouped, multi-query), and keys are never repeated in memory.
        v: Values, ``(batch, kv_head, key, v_dim)``.
        rule: How scores are computed and which keys are masked. Default: scaled dot product, nothing masked.
        dropout: Probability with which a weight is set to 0.
        path: "plain", "tiled" or "fused". Default: the fastest that can do it.

    Returns:
        Output and log-sum-exp, in which any weight is exp(score - lse).

    Raises:
        ShapeError: If the inputs or the rule do not fit together.
        ArgumentError: If scores of finite queries and keys overflow, unless compiled.
        UnsupportedError: If `path` is "fused" and no kernel can do this; the message says why.

    Example:
        >>> q = k = v = torch.eye(2)[None, None]
        >>> out, lse = attend(q, k, v)
        >>> weight = torch.exp(q[0, 0, 0] @ k[0, 0, 1] / 2**0.5 - lse[0, 0, 0])
        >>> bool(torch.isclose(weight, out[0, 0, 0, 1]))
        True
    """
    rule = _checked(q, k, v, rule)
    check_dropout(dropout)
    if path not in ("plain", "tiled", "fused", None):
        raise ArgumentError(f"path must be 'plain', 'tiled', 'fused' or None. Got {path!r}.")
    if q.shape[0] == 0 or q.shape[2] == 0 or k.shape[2] == 0:
        return _nothing_to_see(q, k, v)
    visible = rule.visible.simplified(q.shape[2], k.shape[2])
    if visible is not rule.visible:
        rule = replace(rule, visible=visible)
    refusal = _why_not_fused(q, k, v, rule, dropout)
    if path is None:
        n_score = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
        path = "fused" if refusal is None else "plain" if n_score <= _PLAIN_UP_TO else "tiled"
    elif path == "fused" and refusal is not None:
        raise UnsupportedError(f"the fused path cannot do this: {refusal}. Use path='tiled' or None.")
    if path == "fused" and not values_unknown(q) and (visible.everything or not needs_graph(q, k, v)):
        out, lse, sound = _fused(q, k, v, rule)
        # Hidden garbage would show: 0 x NaN is NaN. A score of -inf would not.
        if sound and (visible.everything or all_finite(k)):
            return Attended(*_with_sink(out, lse, rule))
        path = "tiled" if visible.everything else path
    q, k, v, nonfinite_rows = _quarantine(q, k, v, rule.visible)
    if path == "fused":
        out, lse, sound = _fused(q, k, v, rule)
        path = "fused" if sound else "tiled"
    if path != "fused":
        out, lse = (_plain if path == "plain" else _tiled)(q, k, v, rule, dropout)
        _check_range(q, k, lse, rule)
    out, lse = _with_sink(out, lse, rule)
    return Attended(
        _with_nan_rows(out, nonfinite_rows),
        lse if nonfinite_rows is None else torch.where(nonfinite_rows, math.nan, lse),
    )


def weights(q: Queries, k: Keys, rule: ScoreRule | None = None) -> Float[Tensor, "batch head query key"]:
    """Compute all attention weights.

    Args:
        q: Queries, ``(batch, head, query, qk_dim)``.
        k: Keys, ``(batch, kv_head, key, qk_dim)``; ``head`` is a multiple of ``kv_head``.
        rule: How scores are computed and which keys are masked. Default: scaled dot product, nothing masked.

    Returns:
        ``(batch, head, query, key)``. Rows sum to 1, to less where a sink takes part, to 0 where every key is
        masked.

    Raises:
        ShapeError: If the inputs or the rule do not fit together.

    Example:
        >>> weights(torch.zeros(1, 1, 1, 3), torch.ones(1, 1, 2, 3))[0, 0]
        tensor([[0.5000, 0.5000]])
    """
    rule = _checked(q, k, None, rule)
    if k.shape[2] == 0:
        return q.new_zeros(*q.shape[:3], 0)
    q, k, _, nonfinite_rows = _quarantine(q, k, None, rule.visible)
    rows, lse = _softmax(rule.scores(q, k))
    _check_range(q, k, lse, rule)
    rows, _ = _with_sink(rows, lse, rule)
    return _with_nan_rows(rows, nonfinite_rows).to(q.dtype)


def masked_softmax(
    scores: Float[Tensor, "batch query key"],
    valid_lens: Int[Tensor, "batch"] | Int[Tensor, "batch query"] | None = None,
) -> Float[Tensor, "batch query key"]:
    """Compute the softmax over the first `valid_lens` keys; weights of the others are 0.

    Args:
        scores: ``(batch, query, key)``.
        valid_lens: ``(batch,)``, for each sequence, or ``(batch, query)``, for each query. Default: all keys.

    Returns:
        ``(batch, query, key)``, in the dtype of the scores; a row of length 0 is 0.

    Raises:
        ShapeError: If the shapes do not fit.
        ArgumentError: If a length is negative or above the number of keys.

    Example:
        >>> masked_softmax(torch.zeros(1, 1, 4), torch.tensor([2]))[0].tolist()
        [[0.5, 0.5, 0.0, 0.0]]
    """
    check_rank("scores", scores, ("batch", "query", "key"))
    check_same_kind(scores=scores)
    visible = Visibility(lengths=valid_lens)
    batch, n_query, n_key = scores.shape
    visible.check(batch, 1, n_query, n_key)
    if valid_lens is not None:
        seen = visible.tile(slice(0, n_query), slice(0, n_key), scores.device)[:, 0]
        scores = torch.where(seen, scores, -math.inf)
    if n_key == 0:
        return scores
    return _softmax(scores.to(torch.promote_types(scores.dtype, torch.float32)))[0].to(scores.dtype)


def attend_hard(
    q: Queries, k: Keys, v: Values, rule: ScoreRule | None = None, *, straight_through: bool = False
) -> Float[Tensor, "batch head query v_dim"]:
    """Return each query's value of its most similar visible key (the first on ties).

    argmax has no gradient, so only the winning values get one.

    Args:
        q: Queries, ``(batch, head, query, qk_dim)``.
        k: Keys, ``(batch, kv_head, key, qk_dim)``.
        v: Values, ``(batch, kv_head, key, v_dim)``.
        rule: How scores are computed and which keys are masked. Default: scaled dot product, nothing masked.
        straight_through: Give queries and keys the gradient that soft attention would have given them
            (Bengio et al. 2013).

    Returns:
        ``(batch, head, query, v_dim)``; 0 where a query sees nothing, or a sink's score is above all others.

    Raises:
        ShapeError: If the inputs or the rule do not fit together.
    """
    rule = _checked(q, k, v, rule)
    if q.shape[0] == 0 or q.shape[2] == 0 or k.shape[2] == 0:
        return _nothing_to_see(q, k, v).out
    clean_q, clean_k, clean_v, nonfinite_rows = _quarantine(q, k, v, rule.visible)
    group = q.shape[1] // k.shape[1]
    with torch.no_grad():
        blocks = [rule.scores(clean_q, clean_k, rows).max(-1) for rows, _ in _tiles(q, k, rule)]
        best, index = (torch.cat(parts, dim=-1) for parts in zip(*blocks, strict=True))
        _check_range(clean_q, clean_k, best, rule)
        index = torch.where(best == -math.inf, -1, index)  # -1: sees nothing
        if rule.sink is not None:
            index = torch.where(best < rule.sink.to(best.dtype)[:, None], -1, index)
    # (batch, head, query) picks from (batch, kv_head, key): the heads of a group share their values.
    flat = index.clamp(min=0).unflatten(1, (-1, group)).flatten(2, 3)
    picked = clean_v.gather(2, flat[..., None].expand(-1, -1, -1, v.shape[3]))
    picked = picked.unflatten(2, (group, -1)).flatten(1, 2)
    out = torch.where(index[..., None] < 0, 0.0, picked)
    if straight_through:
        soft = attend(q, k, v.detach(), rule).out
        out = out + torch.where(torch.isfinite(soft), soft - soft.detach(), 0.0)
    return _with_nan_rows(out, nonfinite_rows)


def _checked(q: Tensor, k: Tensor, v: Tensor | None, rule: ScoreRule | None) -> ScoreRule:
    """The rule, which fits these inputs as they fit one another."""
    rule = _DEFAULT if rule is None else rule
    if not isinstance(rule, ScoreRule):
        raise ArgumentError(
            "rule must be a ScoreRule: a mask, True = may look, goes in as "
            f"ScoreRule(visible=Visibility.from_dense(mask)). Got {type(rule).__name__}."
        )
    check_attention(q, k, v)
    rule.check(q, k)
    return rule


def _softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and log-sum-exp of each row; a row of -inf has weights 0, lse -inf and gradient 0."""
    best = scores.amax(-1, keepdim=True)
    hidden = best == -math.inf
    some_hidden = values_unknown(hidden) or bool(hidden.any())
    if some_hidden:
        scores, best = scores.masked_fill(hidden, 0.0), best.masked_fill(hidden, 0.0)
    rows = torch.softmax(scores, -1)
    lse = best - rows.amax(-1, keepdim=True).log()  # the largest weight is exp(best - lse)
    if some_hidden:
        rows, lse = rows.masked_fill(hidden, 0.0), lse.masked_fill(hidden, -math.inf)
    return rows, lse[..., 0]


def _with_sink(out: Tensor, lse: Tensor, rule: ScoreRule) -> tuple[Tensor, Tensor]:
    """Outputs, or weights, and log-sum-exp when a sink takes its part of each row that sees a key.

    sum_j exp(s_j) / (sum_j exp(s_j) + exp(sink)) is what it leaves of all: a sigmoid.
    """
    if rule.sink is None:
        return out, lse
    sink = rule.sink.to(lse.dtype)[:, None]
    left = torch.sigmoid(lse - sink)[..., None]
    together = torch.logaddexp(lse, sink)
    return (out * left).to(out.dtype), torch.where(lse == -math.inf, lse, together)


def _plain(q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule, dropout: float) -> tuple[Tensor, Tensor]:
    """All scores, softmax, average: the definition."""
    return _rows(q, k, v, rule, dropout, slice(0, q.shape[2]), slice(0, k.shape[2]))


def _rows(
    q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule, dropout: float, rows: slice, cols: slice
) -> tuple[Tensor, Tensor]:
    """Attention of some rows, of which no key outside `cols` is visible."""
    probabilities, lse = _softmax(rule.scores(q, k, rows, cols))
    probabilities = F.dropout(probabilities, dropout)
    batch, n_head, n_row, n_col = probabilities.shape
    n_kv_head = v.shape[1]
    grouped = probabilities.reshape(batch, n_kv_head, n_head // n_kv_head * n_row, n_col)
    with no_autocast(q.device):
        out = grouped @ v[:, :, cols].to(probabilities.dtype)
    return out.reshape(batch, n_head, n_row, v.shape[3]).to(q.dtype), lse


def _tiled(q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule, dropout: float) -> tuple[Tensor, Tensor]:
    """`_plain`, a block of rows at a time; the backward pass computes each block's scores again."""
    run = _rows
    if needs_graph(q, k, v) or (torch.is_grad_enabled() and rule.learned):
        run = partial(checkpoint, _rows, use_reentrant=False, preserve_rng_state=dropout > 0)
    made = [run(q, k, v, rule, dropout, rows, cols) for rows, cols in _tiles(q, k, rule)]
    return _joined(made)


def _joined(made: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Outputs and log-sum-exps of blocks of rows as one."""
    if len(made) == 1:
        return made[0]
    outs, lses = zip(*made, strict=True)
    return torch.cat(outs, 2), torch.cat(lses, 2)


def _tiles(q: Tensor, k: Tensor, rule: ScoreRule, heads: int | None = None) -> Iterator[tuple[slice, slice]]:
    """A few queries, and the keys that some of them may see: at least one, which visibility may hide."""
    cost = rule.row_cost(q, k) if heads is None else q.shape[0] * heads * k.shape[2]
    for rows in row_blocks(slice(0, q.shape[2]), cost):
        cols = rule.visible.key_range(rows, k.shape[2])
        yield rows, cols if cols.start < cols.stop else slice(0, 1)


def _why_not_fused(q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule, dropout: float) -> str | None:
    """Return the reason why no kernel can do this, or None."""
    return kernels.why_not(
        q,
        k,
        v_dim=v.shape[3],
        mask=rule.visible.by_key or not _flag_says_it(rule),
        gradients=needs_graph(q, k, v),
        bias_gradients=rule.learned and torch.is_grad_enabled(),
        additive=rule.additive is not None,
        softcap=rule.softcap is not None,
        dropout=dropout > 0,
    )


def _flag_says_it(rule: ScoreRule) -> bool:
    """Whether a kernel's causal flag, which aligns query 0 with key 0, says all but which keys are hidden."""
    visible = rule.visible
    aligned = not visible.causal or visible.start == 0
    return rule.bias is None and aligned and not visible.by_pair and visible.window is None


def _fused(q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule) -> tuple[Tensor, Tensor, bool]:
    """One kernel call where its causal flag and a row of hidden keys say it all, else one a block of rows.

    The last says whether the kernel's numbers are sound; taken to be so where they cannot be asked.
    """
    visible, scale = rule.visible, rule.scale_for(q.shape[3])
    # What is added stays exact: in bfloat16 a bias of 100 would move in steps of 0.5.
    mask_dtype = torch.promote_types(q.dtype, torch.float32)
    if _flag_says_it(rule):
        keys = visible.combined_key_mask(k.shape[2])
        draw = None if keys is None else partial(_as_added, keys[:, None, None], mask_dtype)
        out, lse = kernels.flash(q, k, v, draw, visible.causal, scale)
    else:
        made = []
        by_head = rule.bias is not None or (visible.dense is not None and visible.dense.shape[1] > 1)
        for rows, cols in _tiles(q, k, rule, heads=q.shape[1] if by_head else 1):
            draw = partial(_mask, rule, rows, cols, q.device, mask_dtype)
            made.append(kernels.flash(q[:, :, rows], k[:, :, cols], v[:, :, cols], draw, False, scale))
        out, lse = _joined(made)
    sees = _sees(q, k, rule)
    sound = values_unknown(q) or _sound(q, k, out, lse, scale)
    if sees is not None:  # the kernel reports lse 0 for a row that sees nothing
        out = torch.where(sees[..., None], out, 0.0)
        lse = torch.where(sees, lse, -math.inf)
    return out, lse, sound


def _sees(q: Tensor, k: Tensor, rule: ScoreRule) -> Tensor | None:
    """Which rows see a key, none that the bias hides; None where all surely do."""
    if rule.bias is None:
        return rule.visible.rows_that_see(q.shape[2], k.shape[2], q.device)
    dtype = torch.promote_types(q.dtype, torch.float32)
    masks = (_mask(rule, *tile, q.device, dtype) for tile in _tiles(q, k, rule))
    return torch.cat([(mask > -math.inf).any(-1) for mask in masks], 2)


def _sound(q: Tensor, k: Tensor, out: Tensor, lse: Tensor, scale: float) -> bool:
    """Whether a kernel's numbers are those of the definition.

    It multiplies before it scales, and gives output 0 and lse 0 to a row that sees nothing and to one of NaN.
    Its backward pass computes the scores anew: of this size their rounding would not cancel against lse.
    """
    low, high = (bound.item() for bound in lse.detach().abs().aminmax())
    if not (high < 1 / (64 * torch.finfo(lse.dtype).eps) and all_finite(out)):
        return False
    return low > 0 or _cannot_overflow(q, k, scale)


def _cannot_overflow(q: Tensor, k: Tensor, scale: float) -> bool:
    """Whether lengths tell that all products q . k are numbers, scaled and not."""
    wide = torch.promote_types(q.dtype, torch.float32)
    longest = [torch.linalg.vector_norm(t.detach(), dim=-1, dtype=wide).max() for t in (q, k)]
    return bool(longest[0] * longest[1] * max(1.0, abs(scale)) < math.inf)


def _check_range(q: Tensor, k: Tensor, lse: Tensor, rule: ScoreRule) -> None:
    """Raise where a row has no number for its log-sum-exp although its queries and keys have."""
    if values_unknown(q) or not lse.numel():
        return
    low, high = lse.detach().aminmax()
    if (low > -math.inf and high < math.inf) or _cannot_overflow(q, k, rule.scale_for(q.shape[3])):
        return
    if not all(bool(torch.isfinite(t).all()) for t in (q, k)):
        return  # NaN begets NaN
    sees = _sees(q, k, rule)
    if not bool((torch.isfinite(lse) if sees is None else torch.isfinite(lse) | ~sees).all()):
        most = f"{torch.finfo(lse.dtype).max:.1e}"
        raise ArgumentError(
            f"q and k are out of range: scores must stay below {most}, the largest {lse.dtype}. "
            f"Got |q| up to {float(q.detach().abs().max()):.1e}, |k| up to "
            f"{float(k.detach().abs().max()):.1e} and scale {rule.scale_for(q.shape[3]):.1e}."
        )


def _mask(rule: ScoreRule, rows: slice, cols: slice, device: torch.device, dtype: torch.dtype) -> Tensor:
    """What a kernel adds to the scores of `rows` x `cols`: the bias where visible."""
    visible, bias = rule.visible.tile(rows, cols, device), rule.bias_tile(rows, cols)
    if bias is None:
        return _as_added(visible, dtype)
    return torch.where(visible, bias.to(dtype), -math.inf)


def _as_added(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean table as what a kernel adds to the scores."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, -math.inf)


def _quarantine(
    q: Tensor, k: Tensor, v: Tensor | None, visible: Visibility
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Inputs in which what is not finite is 0, and the rows (batch, head, query) that it spoils.

    Every path multiplies hidden values by a weight of 0, and 0 x NaN is NaN. Where nothing is hidden there
    is nothing to keep apart, and where all is finite the sum tells so for the price of reading once.
    """
    value = k if v is None else v
    if visible.everything or all_finite(q, k, value):
        return q, k, value, None
    bad_query = ~torch.isfinite(q).all(-1)
    bad_key = ~(torch.isfinite(k).all(-1) & torch.isfinite(value).all(-1))
    bad_key = bad_key.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    nonfinite_rows = bad_query | visible.rows_seeing(bad_key, q.shape[2])
    q, k, value = (torch.where(torch.isfinite(t), t, 0.0) for t in (q, k, value))
    return q, k, value, nonfinite_rows


def _with_nan_rows(rows: Tensor, nonfinite_rows: Tensor | None) -> Tensor:
    """Rows that are NaN where something that is not finite reached them."""
    return rows if nonfinite_rows is None else torch.where(nonfinite_rows[..., None], math.nan, rows)


def _nothing_to_see(q: Tensor, k: Tensor, v: Tensor) -> Attended:
    """Attention over no keys, or of no queries: zeros that keep their place in the graph."""
    nothing = q[..., :0].sum() + k[..., :0].sum() + v[..., :0].sum()  # 0, whatever they hold
    batch, n_head, n_query, _ = q.shape
    lse = q.new_full((batch, n_head, n_query), -math.inf, dtype=torch.promote_types(q.dtype, torch.float32))
    return Attended(q.new_zeros(batch, n_head, n_query, v.shape[3]) + nothing, lse + nothing)
