"""Attention written by hand: followed from the product of queries and keys to that of weights and values.

    scores = q @ k.mT ...  ->  softmax  ->  ... weights @ v

Every product of two tensors is marked, and so is all that is made of it; a softmax turns the mark into one
of weights. So do exponentials that are divided by their sums. Views and permutations pass weights on; so do
masks, gates and mixed heads, which change them. When weights meet values, in a product or in a weighted sum,
a use of the layer is complete. What was done to the product on the way (scale, softcap, bias, mask) is read
off the scores themselves. Only where queries, keys and that rule give back every single weight are they kept;
else the weights are, as they are.

To change weights, what the model did to them is done again: its own softmax is given other scores, and every
function that has used the weights so far is called again with the new ones (`Rewrite`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from regard.attention.scores import DenseBias, ScoreRule
from regard.attention.visibility import hidden_by
from regard.errors import ShapeError, UnsupportedError
from regard.tracing.calls import AttentionCall, compact_bias, log_sum_exp, read_visible, without_repeats
from regard.tracing.layers import LayerTrace, all_scores, reach

SOFTMAX = frozenset({"softmax", "_softmax", "_safe_softmax", "special_softmax"})
LOG_SOFTMAX = frozenset({"log_softmax", "_log_softmax", "special_log_softmax"})
_EXP = frozenset({"exp", "exp_", "exp2", "exp2_"})
_PRODUCT = frozenset(
    {"matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "mv", "baddbmm", "einsum", "linear", "inner"}
)
_TIMES = frozenset({"mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply", "multiply_"})
_OVER = frozenset({"div", "div_", "__truediv__", "__itruediv__", "true_divide", "divide", "divide_"})
_SUM = frozenset({"sum", "nansum"})
_SHORTER = (
    frozenset({"mean", "amax", "amin", "max", "min", "norm", "logsumexp", "topk", "sort", "cumsum"}) | _SUM
)
# What these give holds no number of a weight.
_NOTHING = frozenset(
    {
        "size",
        "dim",
        "argmax",
        "argmin",
        "any",
        "all",
        "numel",
        "stride",
        "isnan",
        "isfinite",
        "isinf",
        "gt",
        "lt",
    }
    | {
        "ge",
        "le",
        "eq",
        "ne",
        "is_contiguous",
        "data_ptr",
        "element_size",
        "zeros_like",
        "ones_like",
        "new_zeros",
    }
    | {
        "new_ones",
        "new_full",
        "full_like",
        "empty_like",
        "rand_like",
        "new_empty",
        "requires_grad_",
        "backward",
    }
)
# What these say of weights is another where weights are.
_COMPARED = frozenset(
    {"argmax", "argmin", "any", "all", "isnan", "isfinite", "isinf", "gt", "lt", "ge", "le", "eq", "ne"}
)
# These move numbers and change none.
_REARRANGING = frozenset(
    {"view", "reshape", "flatten", "unflatten", "transpose", "transpose_", "permute", "movedim", "moveaxis"}
    | {"swapaxes", "swapdims", "t", "mT", "T", "squeeze", "squeeze_", "unsqueeze", "unsqueeze_", "expand"}
    | {"expand_as", "view_as", "reshape_as", "repeat", "repeat_interleave", "tile", "broadcast_to", "unbind"}
    | {"chunk", "split", "tensor_split", "__getitem__", "narrow", "select", "index_select", "cat", "concat"}
    | {"concatenate", "stack", "pad", "roll", "flip", "unfold", "contiguous", "clone", "detach", "__get__"}
    | {
        "diagonal",
        "tril",
        "triu",
        "split_with_sizes",
        "hstack",
        "vstack",
        "gather",
        "take_along_dim",
        "squeeze",
    }
)
# These leave every dimension where it is.
_IN_PLACE_OF = frozenset({"contiguous", "clone", "detach", "tril", "triu", "roll", "flip", "pad"})
# What these make of scores is no longer scores: hidden states, mostly.
_PROJECTED = frozenset(
    {"linear", "addmm", "conv1d", "conv2d", "layer_norm", "embedding", "rms_norm", "group_norm"}
)
_SCATTERED = frozenset(
    {"scatter_add", "scatter_add_", "index_add", "index_add_", "scatter_reduce", "scatter_reduce_"}
)
_AWAY = frozenset({"numpy", "__array__", "tolist", "item"})
_DROPOUT = frozenset({"dropout", "dropout_", "native_dropout"})
# A weight recovered from queries and keys is this close to the model's own, or the weights are kept.
_CLOSE = 5e-6
_FEW = 1 << 22  # weights: in float64 they still take little
_MOST_PATHS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """Queries and keys that were multiplied, and what the product was multiplied by since."""

    q: Tensor  # (*lead, query, qk_dim)
    k: Tensor  # (*lead, key, qk_dim)
    scale: float = 1.0
    cap: float | None = None  # tanh was taken, and multiplied by this
    bent: str = ""  # by which function it was made a weight, where that is not a softmax

    @property
    def computed(self) -> bool:
        """Whether both were computed, not learned."""
        bases = (tensor if tensor._base is None else tensor._base for tensor in (self.q, self.k))
        return not any(isinstance(base, nn.Parameter) for base in bases)

    def made(self, scores: Tensor) -> bool:
        """Whether `scores` may be of these queries and keys, both of them computed, not learned."""
        return {self.q.shape[-2], self.k.shape[-2]} <= set(scores.shape) and self.computed


class Additive:
    """tanh(query + key), or what was made of it: scores, once it is one number for each pair."""


class Features:
    """What a linear layer gave: a softmax over its last dimension chooses among classes or experts."""


_ADDITIVE = Additive()
_FEATURES = Features()


@dataclass(slots=True, eq=False)
class SoftmaxUse:
    """What became of a softmax: all that is kept of it when its weights are gone."""

    module: str = ""  # where it was taken
    place: str = ""  # in which line of the source
    of_scores: bool = False  # of a product that was computed, or in a module called attention
    of_features: bool = False  # over what a linear layer gave: a router's, a classifier's
    met: int = 0  # how often its weights, or what was made of them, met values
    by_exp: bool = False  # exponentials, that became weights when they were divided
    normalised: bool = True
    log: bool = False  # logarithms of weights were taken
    lost: list[str] = field(default_factory=list)  # what else used them, and was not followed
    # For a change: the function, its arguments, the scores as they were, and what it gave.
    function: Callable[[Tensor], Tensor] | None = None
    scores: Tensor | None = None
    out: Tensor | None = None
    dim: int = -1
    weights: Tensor | None = None  # (..., query, key), where nothing may have met values in the end
    batch: int | None = None  # sequences that the model was given


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """What a softmax gave, or what was made of it."""

    values: Tensor  # (..., query, key)
    scores: Tensor | None  # None: the softmax too was written by hand
    product: Product | None
    uses: tuple[SoftmaxUse, ...]
    key_dim: int | None = -1  # of the tensor that is marked; None: not known
    log: bool = False  # their logarithms

    @property
    def use(self) -> SoftmaxUse:
        return self.uses[0]


@dataclass(frozen=True, slots=True, eq=False)
class Weighted:
    """Weights times values, element by element, that are not summed yet."""

    mark: Weights
    weights: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Derived:
    """Sums, maxima and the like of weights."""

    uses: tuple[SoftmaxUse, ...]


class Step(NamedTuple):
    """One function that was given weights."""

    function: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    uses: tuple[SoftmaxUse, ...]


class Written(NamedTuple):
    """Weights that met their values."""

    weights: Tensor  # (*lead, query, key)
    v: Tensor | None  # (*lead, key, v_dim); None: each query has values of its own
    out: Tensor
    arrange: Callable[[Tensor], Tensor]  # makes the output, or its gradient, (*lead, query, v_dim)
    softmax: Weights
    again: Callable[[], Tensor] | None = None  # calls the function that made `out` with what has changed
    met: Tensor | None = None  # the weights as that function was given them
    arrange_weights: Callable[[Tensor], Tensor] | None = None  # makes that (*lead, query, key)
    one_query: bool = False  # every place has values of its own: windows, or pooling


class Follower:
    """Marks products and weights as functions of PyTorch pass them on."""

    def __init__(self, *, may_change: bool = False) -> None:
        self.marks: Any = WeakTensorKeyDictionary()  # of tensors: one of the classes above
        self.uses: list[SoftmaxUse] = []
        self.notes: list[tuple[str, Tensor | None]] = []  # attention without a softmax: what was seen of it
        self.may_change = may_change
        self.steps: list[Step] = []  # since a softmax whose weights have met no values yet
        self.replaced: Any = WeakTensorKeyDictionary()  # by what tensors are replaced from now on

    def __call__(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> Written | None:
        """Take note of one call; what it completes, if anything."""
        written = None
        if name in _PRODUCT and (name != "linear" or _of_computed(args, kwargs)):
            written = self._multiplied(func, name, args, kwargs, out)
        elif name in SOFTMAX or name in LOG_SOFTMAX:
            self._softmax(func, name, args, kwargs, out)
        elif name in ("tanh", "tanh_") and isinstance(out, Tensor) and self.marks.get(args[0]) is None:
            if out.dim() > 2:
                self.marks[out] = _ADDITIVE
        elif (
            name == "linear"
            and isinstance(out, Tensor)
            and 1 < out.shape[-1] <= 512
            and not self._marked(args)
        ):
            self.marks[out] = _FEATURES
        elif len(self.marks) and (name not in _NOTHING or (self.may_change and name in _COMPARED)):
            written = self._passed_on(func, name, args, kwargs, out)
        return written

    def _marked(self, args: Any) -> bool:
        return any(self.marks.get(value) is not None for value in _tensors(args))

    def dropped(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        """The probability with which this call would drop weights; 0 where it drops nothing of ours."""
        if name not in _DROPOUT or not args or not isinstance(self.marks.get(args[0]), Weights):
            return 0.0
        p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
        return float(p or 0.0) if (args[2] if len(args) > 2 else kwargs.get("training", True)) else 0.0

    def substituted(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments with what has been replaced in its place."""
        if not len(self.replaced):
            return args, kwargs

        def new(value: Any) -> Any:
            other = self.replaced.get(value) if isinstance(value, Tensor) else None
            return value if other is None else other

        return tree_map(new, args), tree_map(new, kwargs)

    def _softmax(self, func: Any, name: str, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        given = args[0] if args else kwargs.get("input")
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        if not isinstance(given, Tensor) or not isinstance(out, Tensor) or not out.dim() or dim is None:
            return
        if not isinstance(dim, int):
            return
        more_args, more = (
            args[1:],
            {key: value for key, value in kwargs.items() if key not in ("input", "out")},
        )

        def again(scores: Tensor) -> Tensor:
            made: Tensor = func(scores, *more_args, **more)
            return made

        mark = self.marks.get(given)
        product = mark if isinstance(mark, Product) else None
        use = SoftmaxUse(function=again, out=out, dim=dim % out.dim())
        use.of_scores = mark is _ADDITIVE or (product is not None and product.made(given))
        use.of_features = mark is _FEATURES and use.dim == out.dim() - 1
        self._begin(use, given, out, product, log=name in LOG_SOFTMAX)

    def _begin(
        self, use: SoftmaxUse, scores: Tensor, out: Tensor, product: Product | None, *, log: bool = False
    ) -> None:
        self.uses.append(use)
        use.log = log
        if self.may_change:
            use.scores = scores.clone(memory_format=torch.contiguous_format)
        else:
            use.function = use.out = None
        given = None if use.by_exp else scores.movedim(use.dim, -1)
        self.marks[out] = Weights(out.movedim(use.dim, -1), given, product, (use,), use.dim, log)
        if use.of_scores and not use.by_exp:
            use.weights = out.detach().movedim(use.dim, -1)
            use.weights = use.weights.exp() if log else use.weights

    def _exponential(self, func: Any, name: str, args: Any, kwargs: Any, out: Any) -> None:
        """Exponentials of scores, or of anything: weights, should they be divided by their sums."""
        given = args[0]
        mark = self.marks.get(given)
        if isinstance(mark, Weights):
            if mark.log:
                self.marks[out] = replace(mark, log=False, values=mark.values.exp())
                self._log(func, name, args, kwargs, out, mark.uses)
            return
        product = mark if isinstance(mark, Product) else None
        use = SoftmaxUse(function=func, out=out, dim=out.dim() - 1, by_exp=True, normalised=False)
        use.of_scores = mark is _ADDITIVE or (product is not None and product.made(given))
        if name.endswith("_"):  # the scores are gone
            use.function = None
        self._begin(use, given, out, product)

    def _log(
        self, func: Any, name: str, args: Any, kwargs: Any, out: Any, uses: tuple[SoftmaxUse, ...]
    ) -> None:
        if self.may_change:
            self.steps.append(Step(func, name, args, kwargs, out, uses))

    def _passed_on(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> Written | None:
        if name in _EXP and isinstance(out, Tensor) and out.dim() > 1 and out.is_floating_point():
            self._exponential(func, name, args, kwargs, out)
            return None
        given = [
            (value, mark)
            for value in _tensors(chain(args, kwargs.values()))
            if (mark := self.marks.get(value)) is not None
        ]
        if not given:
            return None
        uses = tuple(dict.fromkeys(use for _, mark in given for use in _uses_of(mark)))
        if uses:
            self._log(func, name, args, kwargs, out, uses)
            return self._weights_passed_on(func, name, args, kwargs, out, given, uses)
        made = [value for value in _tensors((out,)) if value.is_floating_point()]
        products = [(value.numel(), mark) for value, mark in given if isinstance(mark, Product)]
        if products:
            if name in _AWAY and max(products, key=lambda pair: pair[0])[1].computed:
                self.notes.append((f"scores leave PyTorch by {name.strip('_')}()", None))
            if name in _PROJECTED or name in _SHORTER:
                return None
            mark = max(products, key=lambda pair: pair[0])[1]
            factor = _factor(name, args)
            if factor is not None:
                if mark.cap is None:
                    mark = replace(mark, scale=mark.scale * factor)
                else:
                    mark = replace(mark, cap=mark.cap * factor)
            elif name in ("tanh", "tanh_"):
                mark = replace(mark, cap=1.0)
            elif name in (
                "sigmoid",
                "sigmoid_",
                "relu",
                "relu_",
                "gelu",
                "silu",
                "softplus",
                "elu",
                "square",
                "pow",
            ):
                mark = replace(mark, bent=name.rstrip("_"))
            for value in made:
                self.marks[value] = mark
        elif given[0][1] is _ADDITIVE:
            kept = (
                name in _REARRANGING
                or name in _TIMES
                or name in _SUM
                or name in ("masked_fill", "add", "div")
            )
            narrow = name == "linear" and made and made[0].shape[-1] == 1
            for value in made if kept or narrow else ():
                self.marks[value] = _ADDITIVE
        elif name in _OVER or name in (
            "to",
            "float",
            "type_as",
            "topk",
            "half",
            "bfloat16",
            "double",
            "__get__",
        ):
            for value in made:
                self.marks[value] = _FEATURES
        return None

    def _weights_passed_on(
        self,
        func: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        given: list[tuple[Tensor, Any]],
        uses: tuple[SoftmaxUse, ...],
    ) -> Written | None:
        """What a function makes of weights, of weights times values, or of sums of weights."""
        made = [value for value in _tensors((out,)) if value.is_floating_point()]
        if self.may_change:
            for value in _tensors((out,)):
                if not value.is_floating_point():
                    self.marks[value] = Derived(uses)
        weighted = next((pair for pair in given if isinstance(pair[1], Weighted)), None)
        if weighted is not None:
            return self._summed(func, name, args, kwargs, out, *weighted)
        weights = [(value, mark) for value, mark in given if isinstance(mark, Weights)]
        if name in _AWAY:
            for use in uses:
                use.lost.append(f"{name.strip('_')}(), which leaves PyTorch")
            return None
        if not weights:
            # Sums of weights that meet something else are a use of the weights.
            others = [value for value in _tensors(chain(args, kwargs.values())) if value.dim()]
            if name not in _REARRANGING and len(others) > sum(1 for value, _ in given if value.dim()):
                for use in uses:
                    use.lost.append(name.strip("_"))
            else:
                for value in made:
                    self.marks[value] = Derived(uses)
            return None
        tensor, mark = max(weights, key=lambda pair: pair[0].numel())
        mark = replace(mark, uses=tuple(dict.fromkeys((*mark.uses, *uses))))
        if name in _SHORTER or name in _SCATTERED:
            at = _kept_dim(name, args, kwargs, tensor, mark.key_dim)
            for value in made:
                self.marks[value] = Derived(uses) if at is None else replace(mark, key_dim=at)
            return None
        if name in _OVER and any(isinstance(other, Derived) for _, other in given):
            for use in uses:
                use.normalised = True
        if name in _REARRANGING:
            for value in made:
                self.marks[value] = replace(
                    mark, key_dim=_moved_dim(func, name, args, kwargs, tensor, mark.key_dim, value, made)
                )
            return None
        for value in made:
            if value.shape == tensor.shape:
                self.marks[value] = mark
            elif name in _TIMES and mark.use.normalised and len(args) > 1:
                other = next((arg for arg in args[:2] if isinstance(arg, Tensor) and arg is not tensor), None)
                if other is not None and not any(other is value for value, _ in weights):
                    self.marks[value] = Weighted(mark, tensor, other)
            elif name in ("linear", "conv1d", "conv2d") and value.dim() == tensor.dim():
                # Heads are mixed, in the last dimension or the first after the batch.
                keeps = mark.key_dim is not None and value.shape[mark.key_dim] == tensor.shape[mark.key_dim]
                self.marks[value] = replace(mark, key_dim=mark.key_dim if keeps else None)
            else:
                self.marks[value] = Derived(uses)
                for use in uses:
                    use.lost.append(name.strip("_"))
        return None

    def _summed(
        self,
        func: Any,
        name: str,
        args: Any,
        kwargs: dict[str, Any],
        out: Any,
        tensor: Tensor,
        mark: Weighted,
    ) -> Written | None:
        """Weights times values, summed over the keys: attention without a product of matrices."""
        uses, made = mark.mark.uses, [value for value in _tensors((out,)) if value.is_floating_point()]
        if name not in _SUM or not isinstance(out, Tensor):
            for value in made:
                if value.shape == tensor.shape and name not in _TIMES:
                    self.marks[value] = mark
                else:
                    self.marks[value] = Derived(uses)
                    for use in uses:
                        use.lost.append(f"{name.strip('_')} of weights times values")
            return None
        dims = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis"))
        dims = list(range(tensor.dim())) if dims is None else [dims] if isinstance(dims, int) else list(dims)
        dims = [dim % tensor.dim() for dim in dims]
        keep = bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))
        letters = "abcdefghijklmnopqrstuvwxyz"[: tensor.dim()]
        sides = []
        for part, other in ((mark.weights, mark.values), (mark.values, mark.weights)):
            sizes, others = ((1,) * (tensor.dim() - one.dim()) + tuple(one.shape) for one in (part, other))
            at = "".join(
                letter
                for letter, mine, theirs in zip(letters, sizes, others, strict=True)
                if mine > 1 or theirs == 1
            )
            sides.append(
                (
                    part.reshape([size for size, letter in zip(sizes, letters, strict=True) if letter in at]),
                    at,
                )
            )
        summed = {letters[dim] for dim in dims}
        out_at = "".join(letter for letter in letters if letter not in summed)
        terms = _Terms(sides[0][0], sides[1][0], sides[0][1], sides[1][1], out_at)

        def squeezed(tensor: Tensor) -> Tensor:
            return tensor.squeeze(tuple(dims)) if keep else tensor

        if mark.mark.use.of_features or not mark.mark.use.normalised:
            return None
        written = _completed(terms, out, mark.mark)
        if written is None:
            for use in uses:
                use.lost.append("a sum of weights times values")
            return None
        _met(uses)
        shape = (1,) * (tensor.dim() - mark.weights.dim()) + tuple(mark.weights.shape)

        def arrange_weights(weights: Tensor) -> Tensor:
            sizes = [size for size, letter in zip(shape, letters, strict=True) if letter in terms.left_at]
            return _arranged(weights.reshape(sizes), terms.left_at, written.order)

        return Written(
            written.weights,
            written.v,
            out,
            lambda tensor: written.arrange(squeezed(tensor)),
            mark.mark,
            lambda: self._again(func, args, kwargs),
            mark.weights,
            arrange_weights,
            written.order[-2] == _NONE,
        )

    def _again(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        args, kwargs = self.substituted(args, kwargs)
        made: Tensor = func(*args, **kwargs)
        return made

    def _multiplied(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> Written | None:
        terms = _terms(name, args, kwargs)
        uses = tuple(
            dict.fromkeys(
                use
                for value in _tensors(chain(args, kwargs.values()))
                for use in _uses_of(self.marks.get(value))
            )
        )
        if uses:
            self._log(func, name, args, kwargs, out, uses)
        if terms is None or not isinstance(out, Tensor) or not out.is_floating_point():
            for use in uses:
                use.lost.append(f"{name.strip('_')} of several tensors")
            return None
        left, right = self.marks.get(terms.left), self.marks.get(terms.right)
        for mark, other, side in ((left, right, terms), (right, left, terms.turned())):
            if isinstance(mark, Weights) and not isinstance(other, Weights):
                return self._met_or_mixed(func, args, kwargs, out, side, mark, uses)
        if uses:
            for use in uses:
                use.lost.append(name.strip("_"))
            if all(isinstance(mark, Weights) for mark in (left, right)):  # rollout: weights times weights
                self.marks[out] = Derived(uses)
            return None
        if isinstance(left, Product) and not isinstance(right, Product) and left.computed:
            written = _completed(terms, out, left)
            if written is not None:
                self.uses.append(written.softmax.use)
                written.softmax.use.of_scores = True
                return Written(*written[:5], None, terms.left, None)
            if left.bent and left.made(terms.left):
                self.notes.append((f"products of queries and keys meet values through {left.bent}", out))
        if isinstance(right, Product) and left is None and right.computed:
            self.notes.append(("a product of keys and values meets queries, as in linear attention", out))
        roles = terms.roles(terms.out_at)
        if roles is not None:
            query, key, summed, lead = roles
            if query == _NONE or key == _NONE:
                return None
            q = _arranged(terms.left, terms.left_at, [*lead, query, summed])
            k = _arranged(terms.right, terms.right_at, [*lead, key, summed])
            self.marks[out] = Product(q, k, float(kwargs.get("alpha", 1)))
        elif left is _ADDITIVE or right is _ADDITIVE:
            self.marks[out] = _ADDITIVE
        return None

    def _met_or_mixed(
        self,
        func: Any,
        args: Any,
        kwargs: dict[str, Any],
        out: Tensor,
        terms: _Terms,
        mark: Weights,
        uses: tuple[SoftmaxUse, ...],
    ) -> Written | None:
        """A product of weights (left) and something: their values, or what mixes heads or queries."""
        summed = (set(terms.left_at) & set(terms.right_at)) - set(terms.out_at)
        key = None if mark.key_dim is None else terms.left_at[mark.key_dim]
        if (key is None or key not in summed) and len(summed) == 1:
            key = _sums_to_one(terms, summed) or key
        if key is None or key not in summed:
            at = -1 if key is None or key not in terms.out_at else terms.out_at.index(key)
            if at < 0:
                self.marks[out] = Derived(uses)
                for use in uses:
                    use.lost.append("a product over a dimension that is not known to be that of the keys")
            else:
                self.marks[out] = replace(mark, uses=uses, key_dim=at)
            return None
        if any(not use.normalised for use in uses):
            for use in uses:
                use.lost.append("a product with values before they are normalised (as in an online softmax)")
            return None
        if mark.log:
            return None
        written = _completed(terms, out, mark)
        if written is None:
            for use in uses:
                use.lost.append("a product that is not one of matrices")
            return None
        _met(uses)
        tensor = terms.left
        return Written(
            *written[:5],
            lambda: self._again(func, args, kwargs),
            tensor,
            lambda weights: _arranged(weights, terms.left_at, written.order),
            written.order[-2] == _NONE,
        )


def _of_computed(args: Any, kwargs: Any) -> bool:
    """Whether a linear function is given a weight that was computed, not learned."""
    weight = args[1] if len(args) > 1 else kwargs.get("weight")
    if not isinstance(weight, Tensor) or len(args) > 2 or kwargs.get("bias") is not None:
        return False
    base = weight if weight._base is None else weight._base
    return not isinstance(base, nn.Parameter) and not base.requires_grad and not _is_leaf_buffer(weight)


def _is_leaf_buffer(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Buffer) if hasattr(nn, "Buffer") else False


def _uses_of(mark: Any) -> tuple[SoftmaxUse, ...]:
    if isinstance(mark, Weights | Derived):
        return mark.uses
    return mark.mark.uses if isinstance(mark, Weighted) else ()


def _met(uses: Iterable[SoftmaxUse]) -> None:
    for use in uses:
        use.met += 1
        use.weights = None


def _moved_dim(
    func: Any,
    name: str,
    args: Any,
    kwargs: Any,
    tensor: Tensor,
    dim: int | None,
    value: Tensor,
    made: list[Tensor],
) -> int | None:
    """The dimension of the keys in what a function that moves numbers made; None where it is not known.

    The function is given a line of keys, repeated everywhere else, which takes no memory: in what it makes
    of that, the keys are the only dimension in which there are differences.
    """
    if dim is None:
        return None
    dim %= tensor.dim()
    if name in _IN_PLACE_OF:
        return dim
    n_key = tensor.shape[dim]
    if n_key < 2:
        return value.dim() - 1 if dim == tensor.dim() - 1 else None
    line = torch.arange(1, n_key + 1, device=tensor.device).view(
        [-1 if at == dim else 1 for at in range(tensor.dim())]
    )
    line = line.expand(tensor.shape)

    def new(given: Any) -> Any:
        if given is tensor:
            return line
        if isinstance(given, Tensor) and given.is_floating_point():
            return torch.zeros((), dtype=line.dtype, device=line.device).expand(given.shape)
        return given

    try:
        lines = list(_tensors((func(*tree_map(new, args), **tree_map(new, kwargs)),)))
        probe = lines[next(at for at, one in enumerate(made) if one is value)]
    except (RuntimeError, TypeError, ValueError, IndexError, StopIteration):
        return None
    if probe.shape != value.shape:
        return None
    probe = probe[tuple(slice(None) if stride else slice(0, 1) for stride in probe.stride())]  # no repeats
    differ = [
        at
        for at in range(probe.dim())
        if probe.shape[at] > 1 and not bool((probe == probe.narrow(at, 0, 1)).all())
    ]
    return differ[0] if len(differ) == 1 else None


def _kept_dim(name: str, args: Any, kwargs: Any, tensor: Tensor, key_dim: int | None) -> int | None:
    """The dimension of the keys after a sum or mean over others, as over heads; None where it is none."""
    dims = args[1] if len(args) > 1 else kwargs.get("dim")
    if name not in ("sum", "mean") or key_dim is None or dims is None:
        return None
    gone = {dim % tensor.dim() for dim in ([dims] if isinstance(dims, int) else dims)}
    key_dim %= tensor.dim()
    if key_dim in gone:
        return None
    keep = bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))
    return key_dim if keep else key_dim - sum(dim < key_dim for dim in gone)


def _sums_to_one(terms: _Terms, summed: set[str]) -> str | None:
    """The letter of the keys, where it can only be told by the sums of weights being 1."""
    (letter,) = summed
    sums = terms.left.detach().float().sum(terms.left_at.index(letter))
    return letter if bool((((sums - 1).abs() < 1e-3) | (sums == 0)).all()) else None


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (item for item in value if isinstance(item, Tensor))


def _factor(name: str, args: tuple[Any, ...]) -> float | None:
    """The number a tensor is multiplied by in this call; None where it is no such call."""
    if (name not in _TIMES and name not in _OVER) or len(args) < 2:
        return None
    first, second = (_number(value) for value in args[:2])
    if name in _OVER:
        return 1 / second if second else None
    return first if second is None else second


def _number(value: Any) -> float | None:
    one = isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta
    return float(value) if one or isinstance(value, int | float) else None


_NONE = "?"  # stands for a dimension that there is not: one query, or values of one number


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
        if len(summed) != 1 or not out <= left | right or len(left - right - out) or len(right - left - out):
            return None
        one, other = lefts[-1] if lefts else _NONE, rights[-1] if rights else _NONE
        # Values that differ from query to query and not from sequence to sequence are relative positions.
        before = order[order.index(next(iter(summed))) - 1] if order.endswith(next(iter(summed))) else one
        if order == self.left_at and len(order) > 2 and order[0] in lefts and before not in lefts:
            one = before
        return one, other, summed.pop(), [at for at in self.out_at if at not in (one, other)]


def _terms(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Terms | None:
    """The two tensors of a product, and which of their dimensions are the same."""
    equation: Any = "...xy,...yz->...xz"
    if name == "einsum":
        equation, *given = args
        pair = list(given[0]) if len(given) == 1 and isinstance(given[0], list | tuple) else given
    else:
        positional = args[1:] if name == "baddbmm" else args
        named = [
            kwargs[word] for word in ("other", "mat2", "batch1", "batch2", "weight", "vec") if word in kwargs
        ]
        pair = [*positional[:2], *named][:: -1 if name == "__rmatmul__" else 1]
    if not isinstance(equation, str) or len(pair) != 2 or not all(isinstance(one, Tensor) for one in pair):
        return None
    if name in ("linear", "inner"):
        equation = "...y,zy->...z" if pair[1].dim() > 1 else "...y,y->..."
    elif name != "einsum" and 1 in (pair[0].dim(), pair[1].dim()):
        one_left, one_right = (one.dim() == 1 for one in pair)
        equation = "y,y->" if one_left and one_right else "y,...yz->...z" if one_left else "...xy,y->...x"
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    ats = inputs.split(",")
    if len(ats) != 2:
        return None
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


class _Completed(NamedTuple):
    """What `_completed` finds: a `Written`, and the letters of its weights."""

    weights: Tensor
    v: Tensor | None
    out: Tensor
    arrange: Callable[[Tensor], Tensor]
    softmax: Weights
    order: list[str]


def _completed(terms: _Terms, out: Tensor, mark: Product | Weights) -> _Completed | None:
    """The attention that a product of weights (left) and values completes; None where it is none."""
    roles = terms.roles(terms.left_at)
    if roles is None:
        return None
    query, value, key, lead = roles
    order = [*lead, query, key]
    weights = _arranged(terms.left, terms.left_at, order)
    if isinstance(mark, Product):
        sums = weights.detach().float().sum(-1)
        right = ((sums - 1).abs() < 1e-3) | (sums == 0)
        if not bool(right.all() & (weights >= 0).all() & (sums > 0).any()):
            return None
        mark = Weights(weights, None, mark, (SoftmaxUse(met=1),))

    def arrange(tensor: Tensor) -> Tensor:
        return _arranged(tensor, terms.out_at, [*lead, query, value])

    own = set(terms.right_at) <= {*lead, key, value}  # else each query has values of its own
    v = _arranged(terms.right, terms.right_at, [*lead, key, value]) if own else None
    return _Completed(weights, v, out, arrange, mark, order)


def _arranged(tensor: Tensor, at: str, wanted: list[str]) -> Tensor:
    """The tensor with its dimensions in the order `wanted`; those it lacks have size 1."""
    ordered = tensor.permute(*(at.index(letter) for letter in wanted if letter in at))
    return ordered[tuple(slice(None) if letter in at else None for letter in wanted)]


def _zeroed(cells: Tensor, given: Tensor) -> Tensor:
    return given.flatten().index_fill(0, cells, 0.0).view_as(given)


class Rewrite:
    """The weights of a layer computed once more, from other scores or with other weights.

    Cells are counted as the trace counts them, (batch, head, query, key), and found among the numbers of the
    softmax: every function that moved weights on their way to the values is called again, with their places.
    """

    def __init__(self, follow: Follower, written: Written, four: Callable[[Tensor], Tensor]) -> None:
        self.follow, self.written, self.four = follow, written, four
        self.uses = written.softmax.uses
        assert written.met is not None
        if (
            written.again is None
            or written.arrange_weights is None
            or any(use.function is None or use.scores is None for use in self.uses)
        ):
            raise UnsupportedError(
                "its softmax is written so that it cannot be computed again (in place, or without exp): "
                "edges cannot be cut here, nor weights exchanged. Heads can be gated, and outputs patched."
            )
        self.scores = [use.scores.clone() for use in self.uses if use.scores is not None]  # in order
        self.edits: list[list[Callable[[Tensor], Tensor]]] = [
            [] for _ in self.uses
        ]  # of what a softmax gives
        self.final: list[Callable[[Tensor], Tensor]] = []  # of the weights as they meet the values
        self.whole = [[] for _ in self.uses]  # type: list[list[Tensor]]  # places that must not be NaN
        self.places, self.moved = self._places()

    def _places(self) -> tuple[list[list[Tensor]], bool]:
        """For each softmax: the place of every cell among its numbers, -1 where there is none.

        And whether the weights are those numbers, moved and not changed.
        """
        follow, target = self.follow, self.written.met
        assert target is not None
        found: list[list[Tensor]] = []
        for use in self.uses:
            assert use.out is not None
            index = torch.arange(use.out.numel(), device=use.out.device).view(use.out.shape)
            known: Any = WeakTensorKeyDictionary()
            known[use.out] = [index]
            for step in follow.steps:
                _place(step, use, known)
            paths = known.get(target)
            found.append([self._four(path) for path in paths or ()])
        if all(found):
            moved = len(found) == 1 and len(found[0]) == 1
            if moved:
                assert self.uses[0].out is not None
                flat, cells = self.uses[0].out.detach().flatten(), found[0][0]
                moved = bool((cells >= 0).all()) and torch.equal(
                    flat[cells].nan_to_num(2.0), self._four(target.detach()).nan_to_num(2.0)
                )
            return found, moved
        # Heads are mixed on the way. A cell is what it was before that, where shapes agree.
        shape, natural = self._four(target).shape, list[list[Tensor]]()
        for use in self.uses:
            assert use.out is not None
            index = torch.arange(use.out.numel(), device=use.out.device).view(use.out.shape)
            try:
                cells = self.four(index.movedim(use.dim, -1))
            except (RuntimeError, ValueError, ShapeError):
                cells = index
            if cells.shape != shape:
                raise UnsupportedError(
                    f"weights are mixed between softmax {tuple(use.out.shape)} and values "
                    f"{tuple(shape)} (batch, head, query, key), and which of them become which is not known: "
                    "edges cannot be cut here. Heads can be gated, and outputs patched."
                )
            natural.append([cells])
        return natural, False

    def _four(self, weights: Tensor) -> Tensor:
        assert self.written.arrange_weights is not None
        return self.four(self.written.arrange_weights(weights))

    def _chosen(self, chosen: Tensor) -> Iterator[tuple[int, Tensor]]:
        for at, paths in enumerate(self.places):
            for cells in paths:
                picked = cells.expand(chosen.shape)[chosen]
                yield at, picked[picked >= 0]

    def mask(self, chosen: Tensor) -> None:
        """Give the softmax scores of -inf in these cells (batch, head, query, key)."""
        for at, cells in self._chosen(chosen):
            self.scores[at].view(-1)[cells] = -math.inf
            self.whole[at].append(cells)

    def zero(self, chosen: Tensor) -> None:
        """Set weights to 0 where the softmax gave them; nothing else of their rows changes."""
        if any(use.by_exp or use.log for use in self.uses):
            self.final.append(lambda weights: weights.masked_fill(chosen, 0.0))
            return
        for at, cells in self._chosen(chosen):
            self.edits[at].append(partial(_zeroed, cells))

    def put(self, weights: Tensor, chosen: Tensor) -> None:
        """Put other weights in the place of these, as they meet the values."""
        if not self.moved or self.uses[0].by_exp:
            self.final.append(lambda given: torch.where(chosen, weights.to(given.dtype), given))
            return
        cells = self.places[0][0][chosen]
        new = weights.expand(chosen.shape)[chosen]
        self.edits[0].append(
            lambda given: given.flatten().index_put((cells,), new.to(given.dtype)).view_as(given)
        )

    def put_scores(self, scores: Tensor, chosen: Tensor) -> None:
        """Give the softmax other scores in these cells."""
        if len(self.places) != 1 or len(self.places[0]) != 1 or not self.moved or self.uses[0].by_exp:
            raise UnsupportedError(
                "its scores are not those of one softmax whose weights meet the values as they are: "
                "patch weights, or outputs."
            )
        cells = self.places[0][0][chosen]
        self.scores[0].view(-1)[cells] = scores.expand(chosen.shape)[chosen].to(self.scores[0].dtype)

    def scores4(self) -> Tensor | None:
        """The scores as the softmax was given them, (batch, head, query, key)."""
        if not self.moved or self.uses[0].by_exp:
            return None
        return self.scores[0].flatten()[self.places[0][0]]

    def run(self) -> Tensor:
        """What meets the values now, made by the model's own functions."""
        follow, written = self.follow, self.written
        for at, use in enumerate(self.uses):
            assert use.function is not None
            assert use.out is not None
            made = use.function(self.scores[at])
            if self.whole[at] and not use.by_exp:  # a row that sees nothing gives nothing
                blind = (self.scores[at] == -math.inf).all(use.dim, keepdim=True)
                made = torch.where(blind, torch.zeros((), dtype=made.dtype, device=made.device), made)
            for edit in self.edits[at]:
                made = edit(made)
            follow.replaced[use.out] = made
        for step in follow.steps[:-1]:  # the last is the one that met the values
            if set(step.uses) & set(self.uses):
                args, kwargs = follow.substituted(step.args, step.kwargs)
                if "out" in kwargs:
                    raise UnsupportedError("it writes into a tensor that was given: it cannot be changed.")
                made = step.function(*args, **kwargs)
                for old, new in zip(_tensors((step.out,)), _tensors((made,)), strict=True):
                    follow.replaced[old] = new
        assert written.met is not None
        assert written.again is not None
        if self.final:
            current = follow.replaced.get(written.met)
            current = written.met if current is None else current
            cells = self._four(torch.arange(current.numel(), device=current.device).view(current.shape))
            weights = self._four(current)
            if cells.unique().numel() != cells.numel():
                raise UnsupportedError("its weights are shared between heads: they cannot be exchanged here.")
            for edit in self.final:
                weights = edit(weights)
            new = torch.empty_like(current.flatten()).index_put((cells.flatten(),), weights.flatten())
            follow.replaced[written.met] = new.view_as(current)
        return written.again()


def _place(step: Step, use: SoftmaxUse, known: Any) -> None:
    """Where the numbers of a softmax are in what a function made of them."""
    given = [
        (value, paths)
        for value in _tensors(chain(step.args, step.kwargs.values()))
        if (paths := known.get(value))
    ]
    made = list(_tensors((step.out,)))
    if not given or not made or use not in step.uses:
        return
    if step.name in _REARRANGING:
        n_path = max(len(paths) for _, paths in given)
        for at in range(n_path):

            def new(value: Any, at: int = at) -> Any:
                paths = known.get(value) if isinstance(value, Tensor) else None
                if paths:
                    return paths[min(at, len(paths) - 1)]
                if isinstance(value, Tensor) and value.is_floating_point():
                    return torch.full(value.shape, -1, device=value.device)
                return value

            args, kwargs = tree_map(new, step.args), tree_map(new, step.kwargs)
            if step.name == "pad":
                args, kwargs = (
                    args[:2],
                    {**{key: kwargs[key] for key in ("pad",) if key in kwargs}, "value": -1},
                )
            try:
                moved = list(_tensors((step.function(*args, **kwargs),)))
            except (RuntimeError, TypeError, ValueError):
                return
            for value, places in zip(made, moved, strict=True):
                if value.shape == places.shape:
                    known[value] = [*(known.get(value) or [] if at else []), places]
        return
    for value in made:
        paths = [path for _, some in given for path in some]
        fits = [path for path in paths if _fits(path.shape, value.shape)]
        if (
            step.name in _PRODUCT
            or step.name in _SHORTER
            or len(fits) != len(paths)
            or len(paths) > _MOST_PATHS
        ):
            continue
        if step.name in ("linear", "conv1d", "conv2d"):
            continue
        known[value] = [path.expand(value.shape) for path in fits]


def _fits(shape: Sequence[int], whole: Sequence[int]) -> bool:
    try:
        return tuple(torch.broadcast_shapes(shape, whole)) == tuple(whole)
    except RuntimeError:
        return False


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
    try:
        q, k = (four(tensor.detach(), lead).contiguous() for tensor in (product.q, product.k))
    except (ShapeError, RuntimeError):  # the dimensions of the product stand in another order
        return None
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
    hides = hidden_by(scores[..., :n_key], reach(dots)) | ~scores[..., :n_key].isfinite()
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
    lse = log_sum_exp(known, None, _FEW)  # of these scores, not of the model's: rounding in both cancels
    recovered = LayerTrace("", q, k, lse, rule, uniform_rows=some_uniform).block(None, *everywhere)
    if not reach(recovered - weights.to(recovered.dtype)) <= min(4 * noise, _CLOSE):
        return None
    return replace(known, lse=lse)


def same_weights(softmax: Weights, weights: Tensor, four: Callable[..., Tensor]) -> bool:
    """Whether what met the values is what the softmax gave, but for a last column of a sink."""
    given = softmax.values.detach().to(weights.dtype)
    try:
        given = four(given)
    except (ShapeError, RuntimeError):  # its dimensions stand in another order
        given = given.reshape(1, 1, *given.flatten(0, -2).shape)
    if given.shape[:3] == weights.shape[:3] and given.shape[3] - weights.shape[3] in (0, 1):
        given = given[..., : weights.shape[3]]
    elif given.numel() == weights.numel():  # its dimensions may stand in another order
        given, weights = given.flatten().sort()[0], weights.flatten().sort()[0]
    else:
        return False
    return torch.equal(given, weights) or torch.equal(given.nan_to_num(2.0), weights.nan_to_num(2.0))
