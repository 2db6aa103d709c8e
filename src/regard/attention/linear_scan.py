"""The scans behind linear attention: blocks of chunks, forwards and backwards, with one running state.

Three differentiable functions on sums, which hold S and, as a last column, z:

    Collect   keys and values -> sums              what every query may see
    Read      queries and sums -> outputs
    Causal    queries, keys, values and the sums before them -> outputs and the sums after them

None keeps features, similarities or states for its backward pass: each walks its inputs again. The backward
passes are written by hand. With each block left to autograd and run again by `torch.utils.checkpoint`, a
forward and a backward pass takes 1.34 times as long at 2,048 positions and 1.27 times at 8,192 (elu + 1, 8
heads of 64), and 1.49 times at 1,024 with the quadratic map.

Temporaries have P = batch * kv_head lanes, cut along positions into chunks of C: keys (P, chunk, C, D),
values with a column of ones for the normaliser (P, chunk, C, v_dim + 1), and the rows of a whole group of
query heads one after the other (P, chunk, group * C, D), before the keys they share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.feature_maps import FeatureMap
from regard.attention.scores import no_autocast
from regard.errors import UnsupportedError

# Numbers held at a time in the widest temporary: few enough to stay near a processor, enough to fill a GPU.
CPU_BUDGET = 1 << 17
GPU_BUDGET = 1 << 24
# Positions taken together where no chunk is asked for.
CHUNK = 64

Gradients = tuple[Tensor | None, ...]


class Given(NamedTuple):
    """What `Causal` is given, or one lane of it."""

    q: Tensor
    k: Tensor
    v: Tensor
    visible: Tensor | None
    before: Tensor | None


class Made(NamedTuple):
    """What `Causal` made of it, with the gradient of the outputs."""

    grad: Tensor
    out: Tensor
    normaliser: Tensor


class Span(NamedTuple):
    """Positions `start` to `stop`, in whole chunks of `chunk`."""

    start: int
    stop: int
    chunk: int

    @property
    def cut(self) -> tuple[int, int]:
        return (self.stop - self.start) // self.chunk, self.chunk


def summing_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype sums over a sequence are kept in."""
    return torch.promote_types(dtype, torch.float32)


def least_normaliser(kernel: FeatureMap, q: Tensor, z: Tensor | None) -> Tensor | float:
    """A normaliser up to this one is taken as 0: it is rounding, or made of subnormal numbers."""
    numbers = torch.finfo(q.dtype)
    least = numbers.tiny / numbers.eps
    return least if z is None else kernel.rounding(q, z) + least


def row_scores(kernel: FeatureMap, q: Tensor, k: Tensor) -> Tensor:
    """Similarities up to the factor for each row that `phi_query` may have."""
    return kernel.similarity(q, k) if kernel.direct else kernel.phi_query(q) @ kernel.phi(k).mT


def _once(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """A backward pass that refuses to be differentiated: PyTorch would take its result for a constant."""

    @wraps(backward)
    def checked(ctx: Any, *grads: Tensor | None) -> Gradients:
        if torch.is_grad_enabled():
            raise UnsupportedError(
                "linear attention has a first derivative only: its backward pass keeps no graph. "
                "Got create_graph=True."
            )
        return backward(ctx, *grads)

    return checked


class Causal(torch.autograd.Function):
    """Outputs, normalisers and the sums after. Its gradient scans forwards for q, backwards for k and v."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visible: Tensor | None,
        before: Tensor | None,
        kernel: FeatureMap,
        chunk: int,
        return_state: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        feature = kernel.dim(q.shape[3])
        out = v.new_empty((*q.shape[:3], v.shape[3]))
        normaliser = q.new_empty(q.shape[:3], dtype=summing_dtype(q.dtype))
        after = normaliser.new_zeros((*k.shape[:2], feature, v.shape[3] + 1)) if return_state else None
        ctx.cost = max(feature, chunk) * q.shape[1] // k.shape[1]
        for lane in _lanes(k, ctx.cost * min(4 * chunk, k.shape[2])):
            given = Given(*lane(q, k, v, visible, before))
            _causal_outputs(kernel, chunk, ctx.cost, given, *lane(out, normaliser, after))
        ctx.save_for_backward(q, k, v, visible, before, out, normaliser)
        ctx.kernel, ctx.chunk = kernel, chunk
        ctx.mark_non_differentiable(normaliser)
        return out, normaliser, after

    @staticmethod
    @_once
    def backward(ctx: Any, grad: Tensor, _: Tensor, grad_after: Tensor | None) -> Gradients:
        q, k, v, visible, before, out, normaliser = ctx.saved_tensors
        q, grad, out, normaliser = _finite_rows(q, grad, out, normaliser)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        grad_before = None if before is None else torch.zeros_like(before)
        with no_autocast(q.device):
            for lane in _lanes(k, ctx.cost * min(4 * ctx.chunk, k.shape[2])):
                scan = ctx.kernel, ctx.chunk, ctx.cost
                given = Given(*lane(q, k, v, visible, before))
                made = Made(*lane(grad, out, normaliser))
                if ctx.needs_input_grad[0]:
                    _causal_grad_q(*scan, given, made, *lane(grad_q))
                if any(ctx.needs_input_grad[1:5]):
                    _causal_grad_kv(*scan, given, made, *lane(grad_after, grad_k, grad_v, grad_before))
        return grad_q, grad_k, grad_v, None, grad_before, None, None, None


def _causal_outputs(
    kernel: FeatureMap,
    chunk: int,
    cost: int,
    given: Given,
    out: Tensor,
    normaliser: Tensor,
    after: Tensor | None,
) -> None:
    q, k, v, visible, before = given
    state = None if before is None else before.flatten(0, 1)
    for span in _spans(k, chunk, cost):
        wanted = span.stop < k.shape[2] or after is not None
        keys, values = _keys(k, v, visible, span)
        queries = _rows(q, k.shape[1], span)
        features, earlier, state = _prefix(kernel, keys, values, state, wanted)
        if kernel.direct:
            asked = None if earlier is None else kernel.phi_query(queries)
            table = kernel.similarity(queries, keys)
        else:
            asked = kernel.phi_query(queries)
            table = asked @ (kernel.phi(keys) if features is None else features).mT
        sums = _weigh(_triangle(table, span.chunk), values, values if state is None else state)
        if earlier is not None and asked is not None:
            sums.flatten(0, 1).baddbmm_(asked.flatten(0, 1), earlier.flatten(0, 1))
        floor = least_normaliser(kernel, queries, None if earlier is None else earlier[..., -1])
        _divide(sums, floor, _place(out, k.shape[1], span), _place(normaliser[..., None], k.shape[1], span))
    if after is not None and state is not None:
        after.copy_(state.view_as(after))


def _causal_grad_q(
    kernel: FeatureMap,
    chunk: int,
    cost: int,
    given: Given,
    made: Made,
    grad_q: Tensor,
) -> None:
    q, k, v, visible, before = given
    state = None if before is None else before.flatten(0, 1)
    for span in _spans(k, chunk, cost):
        keys, values = _keys(k, v, visible, span)
        queries = _rows(q, k.shape[1], span)
        features, earlier, state = _prefix(kernel, keys, values, state, span.stop < k.shape[2])
        grad_sums = _grad_sums(k.shape[1], span, made)
        grad_table = _triangle(grad_sums @ values.mT, span.chunk)
        grad_asked = None if earlier is None else grad_sums @ earlier.mT
        if kernel.direct:
            (pulled,) = _pull(lambda x, keys=keys: kernel.similarity(x, keys), grad_table, queries)
            if grad_asked is not None:
                pulled = pulled + _pull(kernel.phi_query, grad_asked, queries)[0]
        else:
            inside = grad_table @ (kernel.phi(keys) if features is None else features)
            (pulled,) = _pull(
                kernel.phi_query, inside if grad_asked is None else inside + grad_asked, queries
            )
        _put(grad_q, pulled, k.shape[1], span)


def _causal_grad_kv(
    kernel: FeatureMap,
    chunk: int,
    cost: int,
    given: Given,
    made: Made,
    grad_after: Tensor | None,
    grad_k: Tensor,
    grad_v: Tensor,
    grad_before: Tensor | None,
) -> None:
    q, k, v, visible, before = given
    state = None if grad_after is None else grad_after.flatten(0, 1)
    for span in reversed(_spans(k, chunk, cost)):
        keys, values = _keys(k, v, visible, span)
        queries = _rows(q, k.shape[1], span)
        grad_sums = _grad_sums(k.shape[1], span, made)
        wanted = span.start > 0 or before is not None
        # The same sums as the forward scan's, of queries and gradients, from the last chunk to the first.
        asked, later, state = _prefix(
            kernel, queries, grad_sums, state, wanted, phi=kernel.phi_query, reverse=True
        )
        grad_table = _triangle(grad_sums @ values.mT, span.chunk)
        grad_features = None if later is None else values @ later.mT
        if kernel.direct:
            features = None if later is None else kernel.phi(keys)
            table = kernel.similarity(queries, keys)
            (pulled,) = _pull(lambda x, queries=queries: kernel.similarity(queries, x), grad_table, keys)
            if grad_features is not None:
                pulled = pulled + _pull(kernel.phi, grad_features, keys)[0]
        else:
            features = kernel.phi(keys)
            asked = kernel.phi_query(queries) if asked is None else asked
            table = asked @ features.mT
            inside = grad_table.mT @ asked
            (pulled,) = _pull(kernel.phi, inside if grad_features is None else inside + grad_features, keys)
        made_values = _triangle(table, span.chunk).mT @ grad_sums
        if later is not None and features is not None:
            made_values.flatten(0, 1).baddbmm_(features.flatten(0, 1), later.flatten(0, 1))
        _put_keys(grad_k, pulled, visible, span)
        _put_keys(grad_v, made_values[..., :-1], visible, span)
    if grad_before is not None and state is not None:
        grad_before.copy_(state.view_as(grad_before))


class Collect(torch.autograd.Function):
    """The sums of all keys and values, added to those before them."""

    @staticmethod
    def forward(
        ctx: Any, k: Tensor, v: Tensor, visible: Tensor | None, before: Tensor | None, kernel: FeatureMap
    ) -> Tensor:
        feature = kernel.dim(k.shape[3])
        sums = k.new_zeros((*k.shape[:2], feature, v.shape[3] + 1), dtype=summing_dtype(k.dtype))
        if before is not None:
            sums.copy_(before)
        for lane in _lanes(k, feature * k.shape[2]):
            lane_k, lane_v, seen, lane_sums = lane(k, v, visible, sums)
            for span in _whole(lane_k, feature):
                keys, values = _keys(lane_k, lane_v, seen, span)
                lane_sums += (kernel.phi(keys).mT @ values).view_as(lane_sums)
        ctx.save_for_backward(k, v, visible)
        ctx.kernel = kernel
        return sums

    @staticmethod
    @_once
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        k, v, visible = ctx.saved_tensors
        kernel, feature = ctx.kernel, grad.shape[2]
        grad_k, grad_v = torch.empty_like(k), torch.empty_like(v)
        with no_autocast(k.device):
            for lane in _lanes(k, feature * k.shape[2]):
                lane_k, lane_v, seen, made_k, made_v, lane_grad = lane(k, v, visible, grad_k, grad_v, grad)
                sums = lane_grad.flatten(0, 1)[:, None]
                for span in _whole(lane_k, feature):
                    keys, values = _keys(lane_k, lane_v, seen, span)
                    _put_keys(made_k, _pull(kernel.phi, values @ sums.mT, keys)[0], seen, span)
                    _put_keys(made_v, (kernel.phi(keys) @ sums)[..., :-1], seen, span)
        return grad_k, grad_v, None, grad if ctx.needs_input_grad[3] else None, None


class Read(torch.autograd.Function):
    """Outputs and normalisers of queries that all see the same sums."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, sums: Tensor, kernel: FeatureMap) -> tuple[Tensor, Tensor]:
        cost = sums.shape[2] * q.shape[1] // sums.shape[1]
        out = q.new_empty((*q.shape[:3], sums.shape[3] - 1))
        normaliser = q.new_empty(q.shape[:3], dtype=sums.dtype)
        for lane in _lanes(sums, cost * q.shape[2]):
            lane_q, lane_sums, lane_out, lane_below = lane(q, sums, out, normaliser)
            seen, kv_head = lane_sums.flatten(0, 1)[:, None], lane_sums.shape[1]
            for span in _whole(lane_q, sums.shape[2]):
                queries = _rows(lane_q, kv_head, span)
                floor = least_normaliser(kernel, queries, seen[..., -1])
                places = _place(lane_out, kv_head, span), _place(lane_below[..., None], kv_head, span)
                _divide(kernel.phi_query(queries) @ seen, floor, *places)
        ctx.save_for_backward(q, sums, out, normaliser)
        ctx.kernel, ctx.cost = kernel, cost
        ctx.mark_non_differentiable(normaliser)
        return out, normaliser

    @staticmethod
    @_once
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Gradients:
        q, sums, out, normaliser = ctx.saved_tensors
        q, grad, out, normaliser = _finite_rows(q, grad, out, normaliser)
        grad_q, grad_seen = torch.empty_like(q), torch.zeros_like(sums)
        with no_autocast(q.device):
            for lane in _lanes(sums, ctx.cost * q.shape[2]):
                lane_q, lane_sums, made, made_seen = lane(q, sums, grad_q, grad_seen)
                kv_head = lane_sums.shape[1]
                for span in _whole(lane_q, sums.shape[2]):
                    queries = _rows(lane_q, kv_head, span)
                    grad_sums = _grad_sums(kv_head, span, Made(*lane(grad, out, normaliser)))
                    made_seen += (ctx.kernel.phi_query(queries).mT @ grad_sums).view_as(made_seen)
                    grad_asked = grad_sums @ lane_sums.flatten(0, 1)[:, None].mT
                    _put(made, _pull(ctx.kernel.phi_query, grad_asked, queries)[0], kv_head, span)
        return grad_q, grad_seen, None


def _budget(x: Tensor) -> int:
    return CPU_BUDGET if x.device.type == "cpu" else GPU_BUDGET


def _lanes(k: Tensor, cost: int) -> Iterator[Callable[..., list[Any]]]:
    """Cutters to batch entries and heads that fit the budget, at `cost` numbers for each (batch, kv_head).

    A cutter takes tensors (batch, head or kv_head, ...), `visible` (batch, key) and None.
    """
    batch, kv_head = k.shape[:2]
    at_once = max(1, _budget(k) // max(1, cost))
    entries, heads = max(1, at_once // kv_head), min(kv_head, at_once)

    def cutter(entry: int, head: int) -> Callable[..., list[Any]]:
        def cut(tensor: Tensor | None) -> Tensor | None:
            if tensor is None:
                return None
            part = tensor[entry : entry + entries]
            group = tensor.shape[1] // kv_head
            return part if tensor.dim() == 2 else part[:, head * group : (head + heads) * group]

        return lambda *tensors: [cut(tensor) for tensor in tensors]

    for entry in range(0, batch, entries):
        for head in range(0, kv_head, heads):
            yield cutter(entry, head)


def _spans(x: Tensor, chunk: int, cost: int) -> list[Span]:
    """Stretches of whole chunks that fit the budget, at `cost` numbers a position; then a short chunk."""
    n = x.shape[2]
    lanes = x.shape[0] * x.shape[1]
    at_once = max(1, _budget(x) // max(1, cost * chunk * lanes)) * chunk
    whole = n - n % chunk
    spans = [Span(start, min(start + at_once, whole), chunk) for start in range(0, whole, at_once)]
    return [*spans, Span(whole, n, n - whole)] if whole < n else spans


def _whole(x: Tensor, cost: int) -> list[Span]:
    """Stretches that fit the budget, each one chunk."""
    return [Span(start, stop, stop - start) for start, stop, _ in _spans(x, CHUNK, cost)]


def _keys(k: Tensor, v: Tensor, visible: Tensor | None, span: Span) -> tuple[Tensor, Tensor]:
    """Chunks of keys, and of values with a column of ones; where hidden, both are 0, whatever they held."""
    dtype = summing_dtype(k.dtype)
    keys = k[:, :, span.start : span.stop].to(dtype)
    values = keys.new_empty((*keys.shape[:3], v.shape[3] + 1))
    values[..., :-1] = v[:, :, span.start : span.stop]
    values[..., -1] = 1
    if visible is not None:
        hidden = ~visible[:, None, span.start : span.stop, None]
        keys = keys.masked_fill(hidden, 0)
        values.masked_fill_(hidden, 0)
    return keys.reshape(-1, *span.cut, k.shape[3]), values.view(-1, *span.cut, v.shape[3] + 1)


def _place(x: Tensor, kv_head: int, span: Span) -> Tensor:
    """A span of (batch, head, position, D), as a view (batch, kv_head, chunk, group, C, D)."""
    part = x[:, :, span.start : span.stop]
    cut: Tensor = part.unflatten(1, (kv_head, -1)).unflatten(3, span.cut)
    return cut.transpose(2, 3)


def _rows(x: Tensor, kv_head: int, span: Span) -> Tensor:
    """A span of (batch, head, position, D), as rows (P, chunk, group * C, D) in the dtype of sums."""
    place = _place(x, kv_head, span)
    return place.to(summing_dtype(x.dtype)).flatten(3, 4).flatten(0, 1)


def _put(target: Tensor, rows: Tensor, kv_head: int, span: Span) -> None:
    """Write rows where `_rows` takes them from."""
    place = _place(target, kv_head, span)
    place.copy_(rows.reshape(place.shape))


def _put_keys(target: Tensor, made: Tensor, visible: Tensor | None, span: Span) -> None:
    """Write gradients of keys or values where `_keys` takes them from; hidden ones are 0."""
    place = target[:, :, span.start : span.stop]
    place.copy_(made.reshape(place.shape))
    if visible is not None:
        place.masked_fill_(~visible[:, None, span.start : span.stop, None], 0)


def _prefix(
    kernel: FeatureMap,
    x: Tensor,
    weights: Tensor,
    state: Tensor | None,
    wanted: bool,
    *,
    phi: Callable[[Tensor], Tensor] | None = None,
    reverse: bool = False,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Features, the sums before each chunk (after it, if reverse), and all sums; None: not needed."""
    chunks = range(x.shape[1])
    if not wanted and len(chunks) == 1:
        return None, None if state is None else state[:, None], None
    features = (phi or kernel.phi)(x)
    terms = features.mT @ weights
    if state is None and len(chunks) == 1:
        return features, None, terms[:, 0]
    sums = torch.empty_like(terms)
    added, running = list(terms.unbind(1)), list(sums.unbind(1))
    if reverse:
        added.reverse()
        running.reverse()
    _ = running[0].zero_() if state is None else running[0].copy_(state)
    for term, (total, following) in zip(added, pairwise(running), strict=False):
        torch.add(total, term, out=following)
    return features, sums, running[-1] + added[-1]


def _triangle(table: Tensor, chunk: int) -> Tensor:
    """The table with 0 for what lies in the future, in place; rows hold each head's C positions in turn."""
    table.unflatten(2, (-1, chunk)).tril_()
    return table


def _weigh(table: Tensor, values: Tensor, witness: Tensor) -> Tensor:
    """table @ values, where a value that is not finite reaches only its own position and later ones.

    `witness` is not finite if any value is not: the values, or the smaller sums that hold them all.
    """
    if witness.sum().isfinite():
        return table @ values
    # 0 times NaN is NaN: a future value would reach back through its weight of 0.
    spoilt = (~values.isfinite()).cumsum(2) > 0
    sums = table @ values.nan_to_num(0.0, 0.0, 0.0)
    group = table.shape[2] // table.shape[3]
    return sums.masked_fill(spoilt.repeat(1, 1, group, 1), math.nan)


def _divide(sums: Tensor, floor: Tensor | float, out: Tensor, normaliser: Tensor) -> None:
    """Write the outputs and normalisers of rows of sums, whose last column is the normaliser."""
    below = sums[..., -1:]
    nothing = below <= (floor[..., None] if isinstance(floor, Tensor) else floor)
    normaliser.copy_(below.masked_fill(nothing, 0).view_as(normaliser))
    # Divided by infinity, a row that sees nothing is 0, while NaN stays NaN.
    divisor = below.masked_fill(nothing, math.inf).view_as(normaliser)
    torch.div(sums[..., :-1].view_as(out), divisor, out=out)


def _finite_rows(q: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
    """The queries and what belongs to them, 0 where a query is not finite: padding passes no gradient."""
    if not torch.compiler.is_compiling() and q.sum().isfinite():
        return q, *rows
    finite = q.isfinite().all(-1)
    return tuple(torch.where(finite[..., None] if x.dim() == 4 else finite, x, 0.0) for x in (q, *rows))


def _grad_sums(kv_head: int, span: Span, made: Made) -> Tensor:
    """The gradient of the rows of sums that `_divide` was given."""
    parts = (made.grad, made.out, made.normaliser[..., None])
    grad, out, normaliser = (_rows(x, kv_head, span) for x in parts)
    inverse = normaliser.masked_fill(normaliser == 0, math.inf).reciprocal()
    return torch.cat([grad * inverse, -(grad * out).sum(-1, keepdim=True) * inverse], -1)


def _pull(function: Callable[..., Tensor], grad: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """The gradient of x, from that of function(x), which is run again."""
    with torch.enable_grad():
        fresh = x.detach().requires_grad_()
        return torch.autograd.grad(function(fresh), fresh, grad)
