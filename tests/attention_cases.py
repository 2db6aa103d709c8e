"""Random attention problems, and their answers worked out one number at a time, for the tests of the door."""

import math
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from regard.attention.scores import DenseBias, DistanceBias, ScoreRule, SlopeBias
from regard.attention.visibility import Visibility

# How far a result may be from the exact one, as a multiple of the largest number that enters it.
#
# Half precision: weights are rounded once before they meet the values and the output once more. Each
# rounding is half of eps, so eps in all. Scores and sums are kept in float32.
# Float32 and float64: every score is a sum of qk_dim products, exp turns its absolute error into a relative
# one, and a row sums up to some ten such terms: some tens of roundings, 64 at most.
OUT_ERROR = {dtype: torch.finfo(dtype).eps for dtype in (torch.bfloat16, torch.float16)} | {
    dtype: 64 * torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)
}
# lse is never rounded to half precision, but there the kernel uses a faster exp, good to about 1 in 10^4.
LSE_ERROR = dict.fromkeys((torch.bfloat16, torch.float16), 1e-4) | {
    dtype: OUT_ERROR[dtype] for dtype in (torch.float32, torch.float64)
}
# A gradient goes through four products, and in half precision each operand of them is rounded: the values,
# the weights, the output inside `grad_out . out`, the gradient of the scores and the gradient itself.
GRAD_ERROR = {dtype: 5 * OUT_ERROR[dtype] for dtype in OUT_ERROR}

DTYPES = list(OUT_ERROR)


def may_look(visible: Visibility, batch: int, head: int, query: int, key: int) -> bool:
    """What `Visibility` promises, one query and key at a time."""
    position = visible.start + query

    def of(tensor, *index):
        """One entry; a dimension of size 1 serves every index."""
        return tensor[
            tuple(0 if size == 1 else i for i, size in zip(index, tensor.shape, strict=True))
        ].item()

    if visible.causal and key > position:
        return False
    if visible.window is not None and abs(position - key) >= visible.window:
        return False
    if visible.lengths is not None:
        own = (batch, query)[: visible.lengths.dim()]
        if key >= visible.lengths[own].item():
            return False
    if visible.key_mask is not None and not of(visible.key_mask, batch, key):
        return False
    if (
        visible.query_segment is not None
        and visible.query_segment[batch, query].item() != visible.key_segment[batch, key].item()
    ):
        return False
    return visible.dense is None or of(visible.dense, batch, head, query, key)


def table_of(visible: Visibility, batch: int, n_head: int, n_query: int, n_key: int) -> torch.Tensor:
    """The whole table (batch, head, query, key), one cell at a time."""
    cells = [
        [
            [[may_look(visible, b, h, i, j) for j in range(n_key)] for i in range(n_query)]
            for h in range(n_head)
        ]
        for b in range(batch)
    ]
    return torch.tensor(cells, dtype=torch.bool).reshape(batch, n_head, n_query, n_key)


def exact(q, k, v, rule: ScoreRule):
    """Weights, out and lse in float64, row by row, from the formulas alone."""
    q, k, v = (t.detach().double() for t in (q, k, v))
    (batch, n_head, n_query), n_key = q.shape[:3], k.shape[2]
    group = n_head // k.shape[1]
    weights = torch.zeros(batch, n_head, n_query, n_key, dtype=torch.float64)
    out = torch.zeros(batch, n_head, n_query, v.shape[3], dtype=torch.float64)
    lse = torch.full((batch, n_head, n_query), -math.inf, dtype=torch.float64)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, (batch, n_head, n_query))).tolist():
        seen = [j for j in range(n_key) if may_look(rule.visible, b, h, i, j)]
        scores = [exact_score(q[b, h, i], k[b, h // group, j], rule, b, h, i, j) for j in seen]
        if not seen:
            continue
        beside = [] if rule.sink is None else [rule.sink[h].item()]
        top = max([*scores, *beside])
        total = sum(math.exp(score - top) for score in [*scores, *beside])
        lse[b, h, i] = top + math.log(total)
        for j, score in zip(seen, scores, strict=True):
            weights[b, h, i, j] = math.exp(score - top) / total
            out[b, h, i] += weights[b, h, i, j] * v[b, h // group, j]
    return weights, out, lse


def exact_score(query, key, rule: ScoreRule, batch: int, head: int, row: int, col: int) -> float:
    if rule.additive is not None:
        score = float((torch.tanh(query + key) * rule.additive.detach().double()).sum())
    else:
        score = float((query * key).sum()) * (len(query) ** -0.5 if rule.scale is None else rule.scale)
    if rule.softcap is not None:
        score = rule.softcap * math.tanh(score / rule.softcap)
    distance = col - (rule.visible.start + row)
    match rule.bias:
        case DistanceBias(values, zero):
            score += values[head if len(values) > 1 else 0, zero + distance].item()
        case SlopeBias(slopes):
            score -= slopes[head if len(slopes) > 1 else 0].item() * abs(distance)
        case DenseBias(values):
            at = (batch, head, row, col)
            score += values[tuple(min(i, n - 1) for i, n in zip(at, values.shape, strict=True))].item()
    return score


@dataclass
class Case:
    """One problem. `rule` has no learned part: its tensors are plain numbers."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    rule: ScoreRule

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """batch, head, query, key."""
        return (*self.q.shape[:3], self.k.shape[2])

    def __repr__(self) -> str:
        shapes = ", ".join(f"{n} {tuple(getattr(self, n).shape)}" for n in "qkv")
        return f"Case({self.q.dtype}, {shapes}, {self.rule})"


def maybe(strategy):
    return st.none() | strategy


def booleans(*shape):
    """A random table, from one drawn number."""
    return st.integers(0, 2**31).map(
        lambda seed: torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    )


def whole(high: int, *shape):
    """Random whole numbers from 0 to `high`."""
    return st.integers(0, 2**31).map(
        lambda seed: torch.randint(0, high + 1, shape, generator=torch.Generator().manual_seed(seed))
    )


@st.composite
def visibilities(draw, batch: int, n_head: int, n_query: int, n_key: int):
    """Any of the parts, together or not at all."""
    segments = draw(maybe(st.tuples(whole(2, batch, n_query), whole(2, batch, n_key))))
    shape = (draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, n_head])), n_query, n_key)
    return Visibility(
        causal=draw(st.booleans()),
        start=draw(st.integers(0, 5)),
        window=draw(maybe(st.integers(1, 9))),
        lengths=draw(maybe(whole(n_key, batch) | whole(n_key, batch, n_query))),
        key_mask=draw(maybe(booleans(draw(st.sampled_from([1, batch])), n_key))),
        query_segment=None if segments is None else segments[0],
        key_segment=None if segments is None else segments[1],
        dense=draw(maybe(booleans(*shape))),
    )


@st.composite
def sizes(draw):
    """batch, head, query, key; small, and mostly different."""
    n_kv_head, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return (draw(st.integers(1, 3)), n_kv_head * group, draw(st.integers(1, 7)), draw(st.integers(1, 11)))


@st.composite
def biases(draw, batch: int, n_head: int, n_query: int, n_key: int, start: int):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    heads = draw(st.sampled_from([1, n_head]))
    kind = draw(st.sampled_from(["none", "distance", "slope", "dense"]))
    if kind == "distance":
        zero = start + n_query - 1 + draw(st.integers(0, 2))
        return DistanceBias(
            torch.randn(heads, zero + n_key + 1, generator=generator, dtype=torch.float64), zero
        )
    if kind == "slope":
        return SlopeBias(torch.rand(heads, generator=generator, dtype=torch.float64))
    if kind == "dense":
        shape = (draw(st.sampled_from([1, batch])), heads, draw(st.sampled_from([1, n_query])), n_key)
        return DenseBias(torch.randn(shape, generator=generator, dtype=torch.float64))
    return None


@st.composite
def cases(draw, dtypes=(torch.float64,), everything=False):
    """Any problem; `everything=True`: nothing is hidden."""
    batch, n_head, n_query, n_key = draw(sizes())
    n_kv_head = draw(st.sampled_from([n for n in range(1, n_head + 1) if n_head % n == 0]))
    qk_dim, dtype = draw(st.integers(1, 5)), draw(st.sampled_from(dtypes))
    v_dim = draw(st.sampled_from([qk_dim, qk_dim, 7]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    visible = Visibility() if everything else draw(visibilities(batch, n_head, n_query, n_key))
    additive = torch.randn(qk_dim, generator=generator) if draw(st.integers(0, 4)) == 0 else None
    rule = ScoreRule(
        scale=None if additive is not None else draw(maybe(st.sampled_from([0.3, 1.0, -0.7, 0.0]))),
        visible=visible,
        bias=draw(biases(batch, n_head, n_query, n_key, visible.start)),
        softcap=draw(maybe(st.sampled_from([0.5, 3.0]))),
        additive=additive,
        sink=2 * torch.randn(n_head, generator=generator) if draw(st.integers(0, 2)) == 0 else None,
    )
    shapes = ((n_head, n_query, qk_dim), (n_kv_head, n_key, qk_dim), (n_kv_head, n_key, v_dim))
    return Case(*(torch.randn(batch, *s, generator=generator).to(dtype) for s in shapes), rule)
