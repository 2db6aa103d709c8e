"""The scans behind linear attention: stretches of chunks, one after the other, with one running state.

Three functions on sums, which hold S and, as a last column, z:

    collect   keys and values -> sums              what every query may see
    read      queries and sums -> outputs
    causal    queries, keys, values and the sums before them -> outputs and the sums after them

Where gradients are wanted a stretch keeps its inputs alone, and is computed again in the backward pass.

Temporaries have P = batch * kv_head lanes, cut along positions into chunks of C: keys (P, chunk, C, D),
values with a column of ones for the normaliser (P, chunk, C, v_dim + 1), and the rows of a whole group of
query heads one after the other (P, chunk, group * C, D), before the keys they share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.attention.feature_maps import FeatureMap

# Numbers held at a time in the widest temporary: few enough to stay near a processor, enough to fill a GPU.
CPU_BUDGET = 1 << 17
GPU_BUDGET = 1 << 24


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


def collect(
    k: Tensor, v: Tensor, visible: Tensor | None, before: Tensor | None, kernel: FeatureMap
) -> Tensor:
    """The sums of all keys and values, added to those before them."""
    feature = kernel.dim(k.shape[3])
    shape = (*k.shape[:2], feature, v.shape[3] + 1)
    sums = k.new_zeros(shape, dtype=summing_dtype(k.dtype)) if before is None else before

    def added(k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
        keys, values = _keys(k, v, visible, k.shape[2])
        return (kernel.phi(keys).mT @ values).view(shape)

    sums = sums + k[:, :, :0].sum()  # its place in the graph, also where there is no key
    for part in _parts(_stretches(k, 1, feature), k, v, visible):
        sums = sums + _run(added, *part)
    return sums


def read(q: Tensor, sums: Tensor, kernel: FeatureMap) -> tuple[Tensor, Tensor]:
    """Outputs and normalisers of queries that all see the same sums."""
    q, finite = _finite_rows(q)
    kv_head = sums.shape[1]

    def outputs(q: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        queries, seen = _rows(q, kv_head, q.shape[2]), sums.flatten(0, 1)[:, None]
        floor = least_normaliser(kernel, queries, seen[..., -1])
        return _divided(kernel.phi_query(queries) @ seen, floor, q, kv_head)

    parts = _parts(_stretches(q, 1, sums.shape[2]), q)
    made = [_run(outputs, part, sums) for (part,) in parts]
    return _joined(made, q, finite, sums.shape[3] - 1)


def causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor | None,
    before: Tensor | None,
    kernel: FeatureMap,
    chunk: int,
    return_state: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Outputs, normalisers, and the sums after all keys where they are asked for."""
    q, finite = _finite_rows(q)
    kv_head, group = k.shape[1], q.shape[1] // k.shape[1]

    def outputs(
        q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, state: Tensor | None, wanted: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        size = min(chunk, q.shape[2])
        keys, values = _keys(k, v, visible, size)
        queries = _rows(q, kv_head, size)
        features = asked = earlier = None
        if wanted or state is not None or keys.shape[1] > 1:
            features, asked = kernel.phi(keys), kernel.phi_query(queries)
            earlier, state = _sums_before(features.mT @ values, state)
        if kernel.direct or features is None or asked is None:
            table = row_scores(kernel, queries, keys)
        else:
            table = asked @ features.mT
        table.unflatten(2, (group, size)).tril_()
        sums = _weigh(table, values, values if state is None else state)
        if earlier is not None and asked is not None:
            sums = torch.baddbmm(*(x.flatten(0, 1) for x in (sums, asked, earlier))).view_as(sums)
        floor = least_normaliser(kernel, queries, None if earlier is None else earlier[..., -1])
        return *_divided(sums, floor, q, kv_head), state if wanted else None

    made, state = [], None if before is None else before.flatten(0, 1)
    lengths = _stretches(k, chunk, max(kernel.dim(q.shape[3]), chunk) * group)
    for index, part in enumerate(_parts(lengths, q, k, v, visible)):
        wanted = return_state or index < len(lengths) - 1
        out, normaliser, state = _run(outputs, *part, state, wanted)
        made.append((out, normaliser))
    if return_state and state is None:  # there is no key
        shape = k.shape[0] * kv_head, kernel.dim(k.shape[3]), v.shape[3] + 1
        state = k.new_zeros(shape, dtype=summing_dtype(k.dtype)) + k.sum()
    return *_joined(made, q, finite, v.shape[3]), None if state is None else state.unflatten(0, k.shape[:2])


def _run(function: Callable[..., Any], *given: Any) -> Any:
    """function(*given), of which only what was given is kept for a backward pass."""
    tensors = [value for value in given if isinstance(value, Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return checkpoint(function, *given, use_reentrant=False, preserve_rng_state=False)
    return function(*given)


def _stretches(x: Tensor, chunk: int, cost: int) -> list[int]:
    """Lengths in whole chunks that fit the budget, at `cost` numbers a position; then a short chunk."""
    n, lanes = x.shape[2], x.shape[0] * x.shape[1]
    budget = CPU_BUDGET if x.device.type == "cpu" else GPU_BUDGET
    step = max(1, budget // max(1, cost * chunk * lanes)) * chunk
    whole = n - n % chunk
    return [length for length in (*[step] * (whole // step), whole % step, n - whole) if length]


def _parts(lengths: list[int], *tensors: Tensor | None) -> Iterator[tuple[Tensor | None, ...]]:
    """The stretches of (batch, head, position, D), of (batch, position) and of None.

    Split, because the gradients of slices would each fill a tensor of the whole length.
    """
    cut = [
        [None] * len(lengths) if x is None else x.split(lengths, 1 if x.dim() == 2 else 2) for x in tensors
    ]
    return zip(*cut, strict=True)


def _keys(k: Tensor, v: Tensor, visible: Tensor | None, chunk: int) -> tuple[Tensor, Tensor]:
    """Chunks of keys, and of values with a column of ones; where hidden, both are 0, whatever they held."""
    dtype = summing_dtype(k.dtype)
    keys, ones = k.to(dtype), k.new_ones((*v.shape[:3], 1), dtype=dtype)
    values = torch.cat([v.to(dtype), ones], -1)
    if visible is not None:
        hidden = ~visible[:, None, :, None]
        keys, values = keys.masked_fill(hidden, 0), values.masked_fill(hidden, 0)
    keys, values = (x.flatten(0, 1).unflatten(1, (-1, chunk)) for x in (keys, values))
    return keys, values


def _rows(x: Tensor, kv_head: int, chunk: int) -> Tensor:
    """(batch, head, position, D) as rows (P, chunk, group * C, D) in the dtype of sums."""
    cut: Tensor = x.unflatten(1, (kv_head, -1)).unflatten(3, (-1, chunk)).transpose(2, 3)
    return cut.to(summing_dtype(x.dtype)).flatten(3, 4).flatten(0, 1)


def _sums_before(terms: Tensor, state: Tensor | None) -> tuple[Tensor | None, Tensor]:
    """The sums before each chunk (None: nothing is), and those after the last."""
    if state is None and terms.shape[1] == 1:
        return None, terms[:, 0]
    first = torch.zeros_like(terms[:, 0]) if state is None else state
    running = torch.cat([first[:, None], terms], 1).cumsum(1)
    return running[:, :-1], running[:, -1]


def _weigh(table: Tensor, values: Tensor, witness: Tensor) -> Tensor:
    """table @ values, where a value that is not finite reaches only its own position and later ones.

    `witness` is not finite if any value is not: the values, or the smaller sums that hold them all.
    """
    if not torch.compiler.is_compiling() and witness.sum().isfinite():
        return table @ values
    # 0 times NaN is NaN: a future value would reach back through its weight of 0.
    spoilt = (~values.isfinite()).cumsum(2) > 0
    sums = table @ values.nan_to_num(0.0, 0.0, 0.0)
    group = table.shape[2] // table.shape[3]
    return sums.masked_fill(spoilt.repeat(1, 1, group, 1), math.nan)


def _divided(sums: Tensor, floor: Tensor | float, q: Tensor, kv_head: int) -> tuple[Tensor, Tensor]:
    """Outputs and normalisers of rows of sums, laid out as the queries are; the last column is the latter."""
    below = sums[..., -1:]
    nothing = below <= (floor[..., None] if isinstance(floor, Tensor) else floor)
    # Divided by infinity, a row that sees nothing is 0, while NaN stays NaN.
    out = sums[..., :-1] / below.masked_fill(nothing, math.inf)
    (batch, n_head, n_position, _), n_chunk = q.shape, sums.shape[1]

    def placed(x: Tensor) -> Tensor:
        cut = x.view(batch, kv_head, n_chunk, n_head // kv_head, n_position // n_chunk, x.shape[-1])
        return cut.transpose(2, 3).reshape(batch, n_head, n_position, x.shape[-1])

    return placed(out), placed(below.detach().masked_fill(nothing, 0))[..., 0]


def _finite_rows(q: Tensor) -> tuple[Tensor, Tensor | None]:
    """Queries that are 0 where they are not finite, and which are: padding passes no gradient."""
    if not torch.compiler.is_compiling() and q.sum().isfinite():
        return q, None
    finite = q.isfinite().all(-1)
    return torch.where(finite[..., None], q, 0.0), finite


def _joined(
    made: list[tuple[Tensor, Tensor]], q: Tensor, finite: Tensor | None, v_dim: int
) -> tuple[Tensor, Tensor]:
    """The stretches as one, NaN where a query was not finite."""
    if not made:  # no query: zeros that keep their place in the graph
        return q.new_zeros(*q.shape[:3], v_dim) + q.sum(), q.new_zeros(q.shape[:3])
    out = torch.cat([part for part, _ in made], 2).to(q.dtype)
    normaliser = torch.cat([part for _, part in made], 2)
    if finite is not None:
        out = torch.where(finite[..., None], out, math.nan)
        normaliser = torch.where(finite, normaliser, math.nan)
    return out, normaliser
