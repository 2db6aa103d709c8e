"""One call of attention by our names, whoever computed it: queries, keys, values, how scores are made.

F.scaled_dot_product_attention    and the flash kernels below it, called directly
a function of transformers' attention registry
attention written by hand (`by_hand`), and the layers of this library (`watch`)

A mask comes as a table of query x key. Causality, windows, padding and a bias that depends only on distance
are recognised and kept as a flag, a number or a line of numbers; what is none of these is kept whole.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.attention.kernels import GIVES_LOG_SUM_EXP
from regard.attention.linear import Rule
from regard.attention.scores import Bias, DenseBias, DistanceBias, ScoreRule
from regard.attention.shapes import row_blocks
from regard.attention.visibility import Visibility, hidden_by
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.layers.layer_id import Kind
from regard.tracing.layers import Shape, all_scores

# A mask in our terms: who sees whom, what is added, and (batch, head, query) rows that a finite number hides.
Read = tuple[Visibility, Bias | None, Tensor | None]

# What transformers calls the arguments that `read_call` has.
_REGISTERED = {"dropout": "dropout_p", "scaling": "scale", "softcap": "softcap", "s_aux": "sink"}
_FEW = 1 << 18  # scores: summed in less time than the layer around them takes
_LARGE = 20.0  # scores of this size are off by 1e-6 in float32


def as_it_is(out: Tensor) -> Tensor:
    return out


@dataclass(frozen=True, slots=True, eq=False)
class AttentionCall:
    """One call of attention, as it was computed, with whatever graph it has.

    Its weights follow from queries, keys and rule; or they are there, where the model wrote them out.
    """

    name: str
    kind: Kind
    v: Tensor | None  # (batch, kv_head, key, v_dim)
    out: Tensor | None  # in the layout of whoever computed it
    to_heads: Callable[[Tensor], Tensor] = as_it_is  # that, or its gradient, as (batch, head, query, v_dim)
    q: Tensor | None = None
    k: Tensor | None = None
    rule: Rule | None = None
    lse: Tensor | None = None  # where it was asked for; of linear attention its normaliser
    uniform_rows: Tensor | None = None  # rows that see nothing, and are give all keys the same weight
    weights: Tensor | None = None  # (batch, head, query, key)
    scores: Tensor | None = None
    before: int = 0  # queries that the layer has had in this call of the model
    # Of attention written by hand: computes its weights once more, the softmaxes they are of, and whether it
    # was measured which of its dimensions are heads.
    rewrite: Callable[[], Any] | None = None
    lost: tuple[Any, ...] = ()
    layout_sure: bool = True
    # A layer whose weights meet several values: the same token for all, which use it is, and where its
    # values begin.
    token: Any = None
    use: int = 0
    v_start: int = 0
    whole: bool = False  # the model was given no cache

    @property
    def shape(self) -> Shape:
        """(batch, head, query, key)."""
        if self.weights is not None:
            batch, n_head, n_query, n_key = self.weights.shape
            return batch, n_head, n_query, n_key
        assert self.q is not None  # weights, or what they follow from
        assert self.k is not None
        return (*self.q.shape[:3], self.k.shape[2])

    def scores_of(self, heads: list[int], rows: slice) -> Tensor:
        """The scores of these heads and rows; refused where there are none, or nobody knows them."""
        if self.scores is not None and self.scores.shape == self.shape:
            return self.scores[:, heads, rows]
        if not isinstance(self.rule, ScoreRule) or self.q is None or self.k is None:
            raise UnsupportedError(
                f"{self.name} has no scores that are known here ("
                + ("linear attention forms none" if self.rule is not None else "its softmax was not seen")
                + "): its edges cannot be cut, nor its scores exchanged. A head of it can be gated, and its "
                "outputs patched."
            )
        k = of_heads(self.k, heads, self.q.shape[1])
        return self.rule.part(heads, None).scores(self.q[:, heads], k, rows)

    def attended(self, weights: Tensor, heads: list[int]) -> Tensor:
        """What these heads make of `weights` (batch, head, rows, key)."""
        assert self.v is not None  # only weights that a model returned itself come without
        v = of_heads(self.v, heads, self.shape[1])
        return weights.to(v.dtype) @ v

    def sums(self, scores: Tensor, heads: list[int]) -> Tensor:
        """The log-sum-exp of each row, a sink included."""
        sums = torch.logsumexp(scores, -1, keepdim=True)
        sink = self.rule.sink if isinstance(self.rule, ScoreRule) else None
        return sums if sink is None else torch.logaddexp(sums, sink[heads].to(sums.dtype)[:, None, None])

    def softmax(self, scores: Tensor, heads: list[int], sums: Tensor | None = None) -> Tensor:
        """Weights of these scores, 0 in a row that sees nothing; `sums` are other sums than their own."""
        sums = self.sums(scores, heads) if sums is None else sums
        return torch.where(sums == -torch.inf, 0.0, torch.exp(scores - sums.clamp_min(-1e30)))


def of_heads(tensor: Tensor, heads: list[int], n_head: int) -> Tensor:
    """What these of `n_head` heads use of keys or values (batch, kv_head, key, dim)."""
    return tensor[:, [head * tensor.shape[1] // n_head for head in heads]]


class LogSumExp(TorchDispatchMode):
    """Keeps the log-sum-exp of the kernel that PyTorch chooses, where it chooses one that gives it."""

    lse: Tensor | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if GIVES_LOG_SUM_EXP.match(func.__name__):
            self.lse = out[1]
        return out


def read_call(
    masks: Any,
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    softcap: float | None = None,
    sink: Tensor | None = None,
    turned: bool = False,
    **_: Any,
) -> AttentionCall:
    """A call of scaled_dot_product_attention that gave `out`; by name, what other functions add to it.

    `masks` are those that were read so far. `turned`: the output is (batch, query, head, v_dim).
    """
    refuse_dropout(dropout_p)
    lead = query.shape[:-2] if enable_gqa else torch.broadcast_shapes(query.shape[:-2], value.shape[:-2])
    # Autocast gives the kernel fewer digits than the function was given.
    q, k, v = (_four(tensor, lead, enable_gqa).to(out.dtype) for tensor in (query, key, value))
    if attn_mask is not None and attn_mask.dim() > 2 and len(lead) != 2:
        attn_mask = _four(attn_mask, lead, False)
    shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    k, v = without_repeats(q, k, v)
    size = 0.0
    if attn_mask is not None and attn_mask.is_floating_point():
        longest_q, longest_k = (
            float(torch.linalg.vector_norm(t.detach().float(), dim=-1).max()) for t in (q, k)
        )
        size = longest_q * longest_k * abs(scale if scale is not None else q.shape[3] ** -0.5)
    visible, bias, uniform_rows = read_mask(masks, attn_mask, shape, size)
    visible = Visibility(causal=True) & visible if is_causal else visible
    rule = ScoreRule(scale=scale, visible=visible, bias=bias, softcap=softcap, sink=sink)

    def to_heads(out: Tensor) -> Tensor:
        return out.transpose(1, 2) if turned else out.reshape(*shape[:3], out.shape[-1])

    return AttentionCall("", "self", v, out, to_heads, q, k, rule, uniform_rows=uniform_rows)


def read_registered(
    masks: Any,
    out: Tensor,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    **given: Any,
) -> AttentionCall:
    """A call of a function in the registry of transformers that gave `out`."""
    mask = attention_mask if isinstance(attention_mask, Tensor) else None
    stated = given.get("is_causal")
    causal = getattr(module, "is_causal", True) if stated is None else stated
    named = {ours: given[theirs] for theirs, ours in _REGISTERED.items() if theirs in given}
    named["is_causal"] = bool(causal) and mask is None and query.shape[2] > 1
    return read_call(masks, out, query, key, value, mask, enable_gqa=True, turned=True, **named)


def refuse_dropout(dropout: float) -> None:
    """Raise where attention drops weights: they would differ from run to run."""
    if dropout:
        raise ArgumentError(
            f"attention has dropout {dropout}, and its weights differ from run to run: "
            "call model.eval() before tracing."
        )


def log_sum_exp(called: AttentionCall, kernel: Tensor | None, few: int = _FEW) -> Tensor:
    """The log-sum-exp of every row of a call; `kernel` are those of a kernel, where there was one.

    Scores may be so large that rounding of their sum shows in weights. If they are `few` enough, they are
    summed anew and in float64: where our own scores are summed, rows sum to 1 whatever the rounding.
    """
    assert called.q is not None  # it was read from its arguments
    assert called.k is not None
    assert isinstance(called.rule, ScoreRule)
    q, k, rule = called.q.detach(), called.k.detach(), called.rule
    rough = False
    if math.prod(called.shape) <= few and q.dtype == torch.float32:
        longest_q, longest_k = (float(torch.linalg.vector_norm(tensor, dim=-1).max()) for tensor in (q, k))
        rough = not abs(rule.scale_for(q.shape[3])) * longest_q * longest_k < _LARGE  # NaN: summed too
    if kernel is None or kernel.numel() != q.shape[:3].numel() or rough:
        q, k, cols, rows_done = q.contiguous(), k.contiguous(), slice(0, k.shape[2]), []  # as will be kept
        for rows in row_blocks(slice(0, q.shape[2]), q.shape[0] * q.shape[1] * k.shape[2]):
            scores = all_scores(q, k, rule, rows, cols, widen=False)
            seen = torch.where(rule.visible.tile(rows, cols, q.device), scores, -torch.inf)
            rows_done.append(torch.logsumexp(seen.double(), -1))
        sums = torch.cat(rows_done, -1)
        sums = sums if rough else sums.to(torch.promote_types(q.dtype, torch.float32))
    else:  # a kernel says 0 of a row that sees nothing
        sums = kernel.reshape(q.shape[:3])
        sees = rule.visible.rows_that_see(q.shape[2], k.shape[2], q.device)
        sums = sums if sees is None else torch.where(sees, sums, -torch.inf)
    return sums if rule.sink is None else torch.logaddexp(sums, rule.sink.detach().to(sums.dtype)[:, None])


def _four(tensor: Tensor, lead: tuple[int, ...], grouped: bool) -> Tensor:
    """(batch, head, position, dim), whatever comes before the last two."""
    if tensor.is_nested:
        raise UnsupportedError("nested tensors cannot be traced: give padded ones, with a mask.")
    if not grouped:
        tensor = tensor.expand(*lead, *tensor.shape[-2:])
    if tensor.dim() < 4:
        return tensor[(slice(None),) * (tensor.dim() - 2) + (None,) * (4 - tensor.dim())]
    return tensor.flatten(0, -4)


def without_repeats(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values once for each group of query heads, where a model has copied them for every head."""
    n_head = q.shape[1]
    if k.shape[1] != n_head or v.shape[1] != n_head or n_head < 2:
        return k, v
    group = 1
    # Copies stand side by side; one number of each tells those apart that are none.
    while group < n_head and torch.equal(k[:, group, :1], k[:, 0, :1]):
        group += 1
    if group == 1 or n_head % group:
        return k, v
    for tensor in (k, v):
        split = tensor.unflatten(1, (-1, group))
        if not bool((split == split[:, :, :1]).all()):
            return k, v
    return k[:, ::group], v[:, ::group]


def read_mask(known: Any, mask: Tensor | None, shape: Shape, score_size: float = 0.0) -> Read:
    """What a mask of a call with (batch, head, query, key) says; None hides nothing.

    As `scaled_dot_product_attention` takes it: boolean (True = may look) or added to scores. It is read once:
    the layers of a model mostly share theirs, or slices of it, and `known` has what was read, by tensor.
    """
    if mask is None:
        return Visibility(), None, None
    # A slice of the same table is another object for every layer, of the same base.
    read = known.setdefault(mask if mask._base is None else mask._base, {})
    size = 2.0 ** math.ceil(math.log2(score_size)) if 1 < score_size < 1e30 else min(1.0, score_size)
    version = 0 if mask.is_inference() else mask._version
    key = (mask.data_ptr(), mask.shape, mask.stride(), mask.dtype, version, shape, size)
    if key not in read:
        table = _unrepeated(mask.detach(), shape)
        if table.dtype == torch.bool:
            read[key] = read_visible(table, shape[2]), None, None
        else:
            hides = hidden_by(table, size)
            visible, bias = read_visible(~hides, shape[2]), table.masked_fill(hides, 0.0)
            softly_blind = (hides.all(-1) & table.isfinite().any(-1)).expand(-1, -1, shape[2])
            read[key] = (
                visible,
                compact_bias(bias, hides, visible.start) if bool(bias.any()) else None,
                softly_blind if bool(softly_blind.any()) else None,
            )
    entry: Read = read[key]
    return entry


def read_visible(visible: Tensor, n_query: int | None = None) -> Visibility:
    """What a table (batch, head, query, key) says, True = may look, as compactly as it can be said.

    One row may stand for all of `n_query`.
    """
    if bool(visible.all()):
        return Visibility()
    for axis in (0, 1):
        if visible.shape[axis] > 1 and bool((visible == visible.narrow(axis, 0, 1)).all()):
            visible = visible.narrow(axis, 0, 1)
    if visible.shape[1:3] == (1, 1):
        return Visibility(key_mask=visible[:, 0, 0])
    return Visibility.from_dense(visible.expand(-1, -1, n_query or visible.shape[2], -1))


def compact_bias(bias: Tensor, hides: Tensor, start: int = 0, within: float = 0.0) -> Bias:
    """One number for each head and distance where that says it all, else the table itself.

    `within`: numbers that differ by no more are equal, as those that a subtraction gave back.
    """
    by_distance = _by_distance(bias, hides, start, within)
    if by_distance is not None:
        return by_distance
    for axis in (0, 1, 2):
        # A cell hidden in one sequence, head or row may be visible in another.
        shared = bias.masked_fill(hides, -math.inf).amax(axis, keepdim=True)
        if bias.shape[axis] > 1 and bool((((bias - shared).abs() <= within) | hides).all()):
            bias, hides = shared.masked_fill(shared == -math.inf, 0.0), hides.all(axis, keepdim=True)
    return DenseBias(bias)


def dense_bytes(rule: ScoreRule, n_query: int) -> int:
    """Bytes of the tables of query x key that a rule holds; 0 where it is compact."""
    tables = [t for t in rule.tensors if t.dim() == 4 and t.shape[2] == n_query > 1]
    return sum(t.numel() * t.element_size() for t in tables)


def _unrepeated(mask: Tensor, shape: Shape) -> Tensor:
    """The mask as (batch or 1, head or 1, query or 1, key), without what is only repeated."""
    if mask.dim() > 4:
        raise ShapeError(f"a mask has at most 4 dimensions here. Got shape {tuple(mask.shape)}.")
    table = mask[(None,) * (4 - mask.dim())]
    for axis in (0, 1, 2):
        if table.stride(axis) == 0 and table.shape[axis] > 1:
            table = table.narrow(axis, 0, 1)
    if any(got not in (1, want) for got, want in zip(table.shape, shape, strict=True)):
        raise ShapeError(
            f"a mask must stretch to (batch, head, query, key) = {shape}. Got shape {tuple(mask.shape)}."
        )
    return table.expand(-1, -1, -1, shape[3])


def _by_distance(bias: Tensor, hides: Tensor, start: int, within: float) -> DistanceBias | None:
    """The bias as a line of numbers for each head, if all its visible cells depend on distance alone."""
    n_query, n_key = bias.shape[2:]
    if n_query == 1 and n_key > 1:
        return None
    lowest = torch.finfo(bias.dtype).min
    # A cell hidden in one sequence may be visible in another.
    shown = bias.masked_fill(hides, lowest).amax(0)
    before = torch.cat([shown[:, 1:, 0].flip(-1), shown[:, 0, :]], dim=-1)  # where each diagonal begins
    after = torch.cat([shown[:, -1, :], shown[:, :-1, -1].flip(-1)], dim=-1)  # and where it ends
    values = torch.where(before > lowest, before, after)
    line = DistanceBias(values.masked_fill(values == lowest, 0.0), n_query - 1 + start)
    for rows in row_blocks(slice(0, n_query), bias.shape[0] * bias.shape[1] * n_key):
        drawn = line.tile(rows, slice(0, n_key), start)
        if not bool((((drawn - bias[:, :, rows]).abs() <= within) | hides[:, :, rows]).all()):
            return None
    return line
