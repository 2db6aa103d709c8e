"""Attention written by hand: followed from the product of queries and keys to that of weights and values.

    scores = q @ k.mT ...  ->  softmax  ->  ... weights @ v

Every product of two tensors is marked, and so is all that is made of it; a softmax turns the mark into one
of weights. When weights meet values, the layer is complete. What was done to the product on the way (scale,
softcap, bias, mask) is read off the scores themselves. Only where queries, keys and that rule give back every
single weight are they kept; else the weights are, as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from regard.attention.scores import DenseBias, ScoreRule
from regard.tracing.calls import AttentionCall, compact_bias, read_visible, row_sums, without_repeats
from regard.tracing.layers import LayerTrace, all_scores, reach

SOFTMAX = ("softmax", "_softmax", "_safe_softmax", "special_softmax")
_PRODUCT = ("matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "einsum")
_TIMES = ("mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply")
_OVER = ("div", "div_", "__truediv__", "__itruediv__", "true_divide", "divide")
_SHORTER = ("sum", "mean", "amax", "max", "argmax", "norm", "size", "logsumexp", "topk", "any", "all")
# What these make of scores is no longer scores: hidden states, mostly.
_PROJECTED = ("linear", "addmm", "conv1d", "conv2d", "layer_norm", "embedding")
_DROPOUT = ("dropout", "dropout_", "native_dropout")
HIDDEN_AT = -5000.0  # a score as low as this was made so by a mask; its weight is 0 in every dtype
# A weight recovered from queries and keys is this close to the model's own, or the weights are kept.
_CLOSE = 5e-6
_FEW = 1 << 22  # weights: in float64 they still take little


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """Queries and keys that were multiplied, and what the product was multiplied by since."""

    q: Tensor  # (*lead, query, qk_dim)
    k: Tensor  # (*lead, key, qk_dim)
    scale: float = 1.0
    cap: float | None = None  # tanh was taken, and multiplied by this

    def made(self, scores: Tensor) -> bool:
        """Whether `scores` may be of these queries and keys, both of them computed, not learned."""
        bases = (tensor if tensor._base is None else tensor._base for tensor in (self.q, self.k))
        learned = any(isinstance(base, nn.Parameter) for base in bases)
        return {self.q.shape[-2], self.k.shape[-2]} <= set(scores.shape) and not learned


@dataclass(slots=True, eq=False)
class SoftmaxUse:
    """What became of a softmax: all that is kept of it when its weights are gone."""

    module: str = ""  # where it was taken
    of_scores: bool = False  # of a product that was computed, or in a module called attention
    met: bool = False  # its weights, or what was made of them, met values


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """What a softmax gave."""

    values: Tensor  # (..., query, key)
    scores: Tensor | None  # None: the softmax too was written by hand
    product: Product | None
    fate: SoftmaxUse


# Weights that met their values: (*lead, query, key), (*lead, key, v_dim), the output, what makes that or its
# gradient (*lead, query, v_dim), and the softmax.
Written = tuple[Tensor, Tensor, Tensor, Callable[[Tensor], Tensor], Weights]


class Follower:
    """Marks products and weights as functions of PyTorch pass them on."""

    def __init__(self) -> None:
        self.marks: Any = WeakTensorKeyDictionary()  # of tensors: a Product, or Weights

    def __call__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Written | None:
        """Take note of one call; what it completes, if anything."""
        if name in _PRODUCT:
            return self._multiplied(name, args, kwargs, out)
        if name in SOFTMAX:
            self._softmax(out, *args, **kwargs)
        elif len(self.marks) and name not in _SHORTER:
            self._passed_on(name, args, kwargs, out)
        return None

    def dropped(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        """The probability with which this call would drop weights; 0 where it drops nothing of ours."""
        if name not in _DROPOUT or not args or not isinstance(self.marks.get(args[0]), Weights):
            return 0.0
        p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
        return float(p or 0.0) if (args[2] if len(args) > 2 else kwargs.get("training", True)) else 0.0

    def _softmax(self, out: Any, input: Any = None, dim: int | None = None, *_: Any, **__: Any) -> None:
        if isinstance(input, Tensor) and isinstance(out, Tensor) and out.dim() > 1 and dim is not None:
            mark = self.marks.get(input)
            product = mark if isinstance(mark, Product) else None
            fate = SoftmaxUse(of_scores=product is not None and product.made(input))
            self.marks[out] = Weights(out.movedim(dim, -1), input.movedim(dim, -1), product, fate)

    def _passed_on(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        marked = [
            (isinstance(mark, Weights), value.numel(), mark)
            for value in _tensors(chain(args, kwargs.values()))
            if (mark := self.marks.get(value)) is not None
        ]
        if not marked:
            return
        of_weights, _, mark = max(marked, key=lambda entry: entry[:2])
        if not of_weights:
            if name in _PROJECTED:
                return
            factor = _factor(name, args)
            if factor is not None:
                times = {"scale": mark.scale * factor} if mark.cap is None else {"cap": mark.cap * factor}
                mark = replace(mark, **times)
            elif name in ("tanh", "tanh_"):
                mark = replace(mark, cap=1.0)
        for made in _tensors((out,)):
            if made.is_floating_point():
                self.marks[made] = mark

    def _multiplied(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> Written | None:
        terms = _terms(name, args, kwargs)
        if terms is None or not isinstance(out, Tensor) or not out.is_floating_point():
            return None
        left, right = self.marks.get(terms.left), self.marks.get(terms.right)
        for mark, other, side in ((left, right, terms), (right, left, terms.turned())):
            if isinstance(mark, Weights) and not isinstance(other, Weights):
                return None if mark.fate.met else _completed(side, out, mark)
        if isinstance(left, Product) and right is None:
            return _completed(terms, out, left)
        roles = terms.roles(terms.out_at)
        if roles is not None:
            query, key, summed, lead = roles
            q = _arranged(terms.left, terms.left_at, [*lead, query, summed])
            k = _arranged(terms.right, terms.right_at, [*lead, key, summed])
            self.marks[out] = Product(q, k, float(kwargs.get("alpha", 1)))
        return None


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (item for item in value if isinstance(item, Tensor))


def _factor(name: str, args: tuple[Any, ...]) -> float | None:
    """The number a tensor is multiplied by in this call; None where it is no such call."""
    if name not in _TIMES + _OVER or len(args) < 2:
        return None
    first, second = (_number(value) for value in args[:2])
    if name in _OVER:
        return 1 / second if second else None
    return first if second is None else second


def _number(value: Any) -> float | None:
    one = isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta
    return float(value) if one or isinstance(value, int | float) else None


class _Terms(NamedTuple):
    """A product of two tensors, one letter for each dimension, as einsum writes it."""

    left: Tensor
    right: Tensor
    left_at: str
    right_at: str
    out_at: str

    def turned(self) -> _Terms:
        return _Terms(self.right, self.left, self.right_at, self.left_at, self.out_at)

    def roles(self, order: str) -> tuple[str, str, str, list[str]] | None:
        """The letters of the left's position, the last in this order, of the right's, and of what is summed,
        and what comes before them in the output; None where it is no product of two matrices."""
        left, right, out = map(set, self[2:])
        summed = (left & right) - out
        lefts = [at for at in order if at in (left & out) - right]
        rights = [at for at in self.out_at if at in (right & out) - left]
        if len(summed) != 1 or not lefts or not rights:
            return None
        lead = [at for at in self.out_at if at not in (lefts[-1], rights[-1])]
        return lefts[-1], rights[-1], summed.pop(), lead


def _terms(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Terms | None:
    """The two tensors of a product, and which of their dimensions are the same."""
    equation = "...xy,...yz->...xz"
    if name == "einsum":
        equation, *given = args
        pair = list(given[0]) if len(given) == 1 and isinstance(given[0], list | tuple) else given
    else:
        positional = args[1:] if name == "baddbmm" else args
        named = [kwargs[word] for word in ("other", "mat2", "batch1", "batch2") if word in kwargs]
        pair = [*positional[:2], *named][:: -1 if name == "__rmatmul__" else 1]
    if not isinstance(equation, str) or len(pair) != 2 or not all(isinstance(one, Tensor) for one in pair):
        return None
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    ats = inputs.split(",")
    n_more = [tensor.dim() - len(at.replace(".", "")) for tensor, at in zip(pair, ats, strict=True)]
    if min(n_more) < 0:
        return None
    if not arrow:
        letters = inputs.replace(".", "").replace(",", "")
        out = "..." * ("." in inputs) + "".join(sorted(at for at in letters if letters.count(at) == 1))
    # Digits, of which no equation has any, stand for the dimensions that it does not name.
    more = "0123456789"[: max(n_more)]
    left, right = (at.replace("...", more[len(more) - n :]) for at, n in zip(ats, n_more, strict=True))
    terms = _Terms(pair[0], pair[1], left, right, out.replace("...", more))
    return None if any(len(set(at)) != len(at) for at in terms[2:]) else terms


def _completed(terms: _Terms, out: Tensor, mark: Product | Weights) -> Written | None:
    """The attention that a product of weights (left) and values completes; None where it is none."""
    roles = terms.roles(terms.left_at)
    if roles is None:
        return None
    query, value, key, lead = roles
    weights = _arranged(terms.left, terms.left_at, [*lead, query, key])
    if isinstance(mark, Product):
        sums = weights.detach().float().sum(-1)
        right = ((sums - 1).abs() < 1e-3) | (sums == 0)
        if not bool(right.all() & (weights >= 0).all() & (sums > 0).any()):
            return None
        mark = Weights(weights, None, mark, SoftmaxUse())
    mark.fate.met = True

    def arrange(tensor: Tensor) -> Tensor:
        return _arranged(tensor, terms.out_at, [*lead, query, value])

    v = _arranged(terms.right, terms.right_at, [*lead, key, value])
    return weights, v, out, arrange, mark


def _arranged(tensor: Tensor, at: str, wanted: list[str]) -> Tensor:
    """The tensor with its dimensions in the order `wanted`; those it lacks have size 1."""
    ordered = tensor.permute(*(at.index(letter) for letter in wanted if letter in at))
    return ordered[tuple(slice(None) if letter in at else None for letter in wanted)]


def to_heads(
    tensor: Tensor, lead: Sequence[int] | None = None, *, batch: int | None, n_head: int | None
) -> Tensor:
    """(*lead, a, b) as (batch, head, a, b).

    `batch` is that of the model's input, `n_head` what the module says: None where nobody knows.
    """
    if lead is not None:
        tensor = tensor.expand(*lead, *tensor.shape[-2:])
    *lead, _, _ = tensor.shape
    if not lead:
        return tensor[None, None]
    if len(lead) == 1:  # batch and heads together, the heads of a sequence side by side
        if batch and lead[0] % batch == 0:
            return torch.unflatten(tensor, 0, (batch, -1))
        return torch.unflatten(tensor, 0, (-1, n_head if n_head and lead[0] % n_head == 0 else 1))
    if math.prod(lead[1:]) != n_head and n_head in lead[1:]:
        return tensor.movedim(lead.index(n_head, 1), len(lead) - 1).flatten(0, len(lead) - 2)
    return tensor.flatten(1, len(lead) - 1)


def explained(
    called: AttentionCall, product: Product | None, four: Callable[..., Tensor]
) -> AttentionCall | None:
    """The call with queries, keys and a rule that give back every one of its weights; None: nothing does."""
    assert called.weights is not None  # it wrote them out
    assert called.v is not None
    weights = called.weights.detach()
    rounded = (weights,) if called.scores is None else (weights, called.scores)
    if product is None or any(tensor.element_size() < 4 for tensor in (product.q, *rounded)):
        return None  # scores of half precision move every weight by a percent: the weights alone are exact
    lead = torch.broadcast_shapes(product.q.shape[:-2], product.k.shape[:-2])
    # As they will be kept: in another order of memory products round differently.
    q, k = (four(tensor.detach(), lead).contiguous() for tensor in (product.q, product.k))
    n_key = weights.shape[3]
    if (*q.shape[:3], k.shape[2]) != weights.shape or k.shape[:2] != q.shape[:2]:
        return None
    rule = ScoreRule(scale=product.scale * (product.cap or 1.0), softcap=product.cap)
    everywhere = slice(0, q.shape[2]), slice(0, n_key)
    dots = all_scores(q, k, rule, *everywhere, widen=False)
    if called.scores is None:
        scores = torch.where(weights > 0, dots, -math.inf)
    else:
        scores = called.scores.detach().to(dots.dtype)
    n_more = scores.shape[3] - n_key  # a score beside those of the keys
    if scores.shape[:3] != weights.shape[:3] or n_more not in (0, 1):
        return None
    hides = (scores[..., :n_key] <= HIDDEN_AT) | ~scores[..., :n_key].isfinite()
    blind = hides.all(-1, keepdim=True)
    dots, shown = dots.masked_fill(hides, 0.0), scores[..., :n_key].masked_fill(hides, 0.0)
    added = shown - dots
    noise = torch.finfo(dots.dtype).eps * max(1.0, reach(dots), reach(shown)) * (2 + math.sqrt(q.shape[3]))
    visible = read_visible(~hides)
    bias = None
    if not reach(added) <= noise:
        # A softmax is the same where a number is taken from a whole row: often its largest score.
        moved = added.gather(3, weights.argmax(-1, keepdim=True))
        if reach((added - moved).masked_fill(hides, 0.0)) <= noise:
            scores = scores - moved.masked_fill(blind, 0.0)
        else:
            bias = compact_bias(added, hides, visible.start, within=noise)
            if isinstance(bias, DenseBias) and bias.values.numel() >= weights.numel():
                return None  # the weights themselves are no larger
    sink = None
    if n_more:
        sink = scores[0, :, 0, -1]
        if not reach(scores[..., -1] - sink[:, None]) <= noise:
            return None
    rule = replace(rule, visible=visible, bias=bias, sink=sink)
    uniform_rows = blind[..., 0] & (weights.amax(-1) > 0)
    some_uniform = uniform_rows if bool(uniform_rows.any()) else None
    k, v = without_repeats(q, k, called.v.detach())
    known = replace(called, q=q, k=k, v=v, rule=rule, uniform_rows=some_uniform)
    lse = row_sums(known, None, _FEW)  # of these scores, not of the model's: rounding in both cancels
    recovered = LayerTrace("", q, k, lse, rule, uniform_rows=some_uniform).block(None, *everywhere)
    if not reach(recovered - weights.to(recovered.dtype)) <= min(4 * noise, _CLOSE):
        return None
    return replace(known, lse=lse)


def same_weights(softmax: Weights, weights: Tensor, four: Callable[..., Tensor]) -> bool:
    """Whether what met the values is what the softmax gave, but for a last column of a sink."""
    given = four(softmax.values.detach()).to(weights.dtype)
    if given.shape[:3] == weights.shape[:3] and given.shape[3] - weights.shape[3] in (0, 1):
        given = given[..., : weights.shape[3]]
    elif given.numel() == weights.numel():  # its dimensions may stand in another order
        given, weights = given.flatten().sort()[0], weights.flatten().sort()[0]
    else:
        return False
    return torch.equal(given, weights) or torch.equal(given.nan_to_num(2.0), weights.nan_to_num(2.0))
