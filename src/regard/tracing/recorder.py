"""What a forward pass shows of its attention, kept as layers of a trace and checked on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.attention.linear import LinearRule
from regard.attention.scores import ScoreRule
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, TraceError
from regard.tracing.disk import on_disk
from regard.tracing.layers import DenseLayerTrace, Kind, LayerTrace, LinearLayerTrace, largest
from regard.tracing.traces import LayerCheck

# What makes a layer's output, or its gradient, (batch, head, query, v_dim).
ToHeads = Callable[[Tensor], Tensor]
# What must be visible of a layer by what is known of model and input; None where nothing is known.
Expect = Callable[[str, Kind, int, int], Visibility | None]

Rule = ScoreRule | LinearRule
Recorded = LayerTrace | LinearLayerTrace | DenseLayerTrace

_MOST_ROWS = 4  # checked of each layer: enough to tell
_CHECKED = 512  # weights of a head, about: one row of a long text, for it sees all that the rule lets it see
_HALF = 1e-4  # one rounding of a half-precision format is larger
# Kernels take exp of half-precision inputs from a polynomial: sums were off by 7e-5 at most, in float16 and
# bfloat16 alike, for 12 to 1000 keys and scores of up to 100.
_HALF_EXP = 2**-13
STORAGE = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def _as_it_is(out: Tensor) -> Tensor:
    return out


class Recorder:
    """Collects layers. As a `Record` it takes what our own layers report; `add` takes it from anywhere."""

    def __init__(
        self,
        *,
        layers: Sequence[int | str] | None = None,
        keep_v: bool = False,
        dtype: torch.dtype | None = None,
        to_disk: bool = False,
        expect: Expect | None = None,
        keep_graph: bool = False,
    ) -> None:
        if dtype is not None and dtype not in STORAGE:
            raise ArgumentError(
                f"dtype is how queries and keys are kept: one of {', '.join(map(str, STORAGE))} or None for "
                f"the model's own. Got {dtype}."
            )
        self.wanted = None if layers is None else set(layers)
        self.keep_v, self.dtype, self.to_disk, self.expect = keep_v, dtype, to_disk, expect
        self.layers: list[Recorded] = []
        self.samples: list[_Sample] = []
        self.seen: list[str] = []  # every layer that ran, wanted or not
        self.remarks: dict[str, str] = {}  # what is to be said of a foreign model, for the facts of a trace
        self.keep_graph = keep_graph
        # For gradients: what of the graph holds a layer's output, of every step, and how it becomes heads.
        self.graph: list[list[tuple[Tensor, ToHeads]]] = []
        self._last: tuple[Tensor, Tensor, Tensor] | None = None  # of a first step: k, v, output
        self._steps: list[tuple[Tensor, Tensor, Tensor]] = []  # those after it: q, lse, output
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(
        self, name: str, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, rule: Rule
    ) -> None:
        """Take a layer of ours, or the next step of the one that was taken last: its rows are added."""
        if self._last is None or self._last[0] is not k or self.seen[-1] != name:
            self.add(name, q, k, v, lse, rule, kind="cross" if name.endswith("cross") else "self", out=out)
            # A recurrent decoder has one query a step, and the same keys in all of them.
            self._last = (k, v.detach(), out.detach()) if q.shape[2] == 1 else None
        elif self.layers and self.layers[-1].name == name:
            self._steps.append((self._kept(q), _copied(lse, None), out.detach()))
            if self.keep_graph:
                self.graph[-1].append((_in_graph(out), _as_it_is))

    def add(
        self,
        name: str,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lse: Tensor,
        rule: Rule,
        *,
        kind: Kind,
        sink: Tensor | None = None,
        alike: Tensor | None = None,
        out: Tensor | None = None,
        to_heads: ToHeads = _as_it_is,
        owned: bool = False,
    ) -> Recorded | None:
        """Keep one layer and check it; None where it is not wanted. `owned`: nobody else has the rule."""
        name, wanted = self._named(name)
        if not wanted:
            return None
        kept_q, kept_k, kept_v = self._kept(q), self._kept(k), self._kept(v) if self.keep_v else None
        sums = _copied(lse, None)
        layer: Recorded
        if isinstance(rule, LinearRule):
            keys = None if rule.keys is None else self._shared(rule.keys)
            layer = LinearLayerTrace(name, kept_q, kept_k, sums, rule.kernel, rule.causal, keys, kept_v, kind)
        else:
            kept_rule = rule if owned else rule.mapped(self._shared)
            sink = rule.sink if sink is None else sink
            kept_sink = None if sink is None else _copied(sink, lse.dtype)
            layer = LayerTrace(name, kept_q, kept_k, sums, kept_rule, kept_v, kind, kept_sink, alike)
        self._take(layer, v, out, to_heads)
        return layer

    def add_weights(
        self,
        name: str,
        weights: Tensor,
        *,
        kind: Kind,
        v: Tensor | None = None,
        out: Tensor | None = None,
        to_heads: ToHeads = _as_it_is,
    ) -> None:
        """Keep the weights themselves of a layer whose queries and keys are not known.

        Without values nothing is known that they could be checked against.
        """
        name, wanted = self._named(name)
        if not wanted:
            return
        layer = DenseLayerTrace(name, _copied(weights, None), kind)
        if v is None:
            self.layers.append(layer)
            self.graph.append([])
        else:
            self._take(layer, v, out, to_heads)

    def widen(self, v: Tensor) -> None:
        """More values of the layer taken last, beside those it has."""
        if self.layers and isinstance(layer := self.layers[-1], LayerTrace) and layer.v is not None:
            self.layers[-1] = replace(layer, v=torch.cat([layer.v, self._kept(v)], -1))

    def _named(self, name: str) -> tuple[str, bool]:
        """The name of the layer that runs now, numbered where it ran before, and whether it is wanted."""
        self._put_steps_together()
        again = sum(seen == name or seen.startswith(f"{name}#") for seen in self.seen)
        index, name = len(self.seen), f"{name}#{again + 1}" if again else name
        self.seen.append(name)
        return name, self.wanted is None or bool({name, index} & self.wanted)

    def _take(self, layer: Recorded, v: Tensor, out: Tensor | None, to_heads: ToHeads) -> None:
        self.layers.append(layer)
        self.graph.append([])
        if self.keep_graph and out is not None:
            self.graph[-1].append((_in_graph(out), to_heads))
        # Other rows in every layer: together they are spread over the whole text.
        at = (0.75 + 0.382 * len(self.samples)) % 1
        given = None if out is None else to_heads(out.detach())
        self.samples.append(_sampled(layer, v.detach(), given, at))

    def _put_steps_together(self) -> None:
        """The layer taken last with the rows of all its steps."""
        if self._steps and self._last is not None:
            _, v, first = self._last
            queries, sums, outs = zip(*self._steps, strict=True)
            last = self.layers[-1]
            assert isinstance(last, LayerTrace)  # a linear decoder takes no steps
            layer = replace(last, q=torch.cat([last.q, *queries], 2), lse=torch.cat([last.lse, *sums], 2))
            self.layers[-1] = layer
            self.samples[-1] = _sampled(layer, v, torch.cat([first, *outs], 2), 0.75)
        self._steps, self._last = [], None

    def checks(self) -> tuple[LayerCheck, ...]:
        """Whether each layer's weights are those it had, once the forward pass is over."""
        self._put_steps_together()
        return tuple(_judged(sample, self.expect) for sample in self.samples)

    def _kept(self, tensor: Tensor) -> Tensor:
        mapped = on_disk(tensor, self.dtype) if self.to_disk else None
        kept = _copied(tensor, self.dtype) if mapped is None else mapped
        if self.dtype == torch.float16 and tensor.dtype != torch.float16 and not bool(kept.isfinite().all()):
            reach = float(tensor.abs().max())
            if math.isfinite(reach):
                raise TraceError(
                    f"queries or keys reach {reach:.3g}, and float16 ends at 65504: keep them as float32."
                )
        return kept

    def _shared(self, tensor: Tensor) -> Tensor:
        """A copy of a rule's tensor, one for all layers that share it."""
        known = self._copies.get(id(tensor))
        if known is None:  # the original is held, so that its id stays its own
            known = self._copies[id(tensor)] = (tensor, tensor.detach().clone())
        return known[1]


def _in_graph(out: Tensor) -> Tensor:
    """The same tensor, made the beginning of the graph where nothing before it needs a gradient."""
    return out if out.requires_grad else out.requires_grad_()


def _copied(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A copy, head by head: a view would keep the whole it is part of, and change when that is written to."""
    return tensor.detach().to(dtype or tensor.dtype, copy=True, memory_format=torch.contiguous_format)


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    """A few rows of a layer: what must be taken while its values and its output are there."""

    layer: Recorded
    rows: slice
    cols: slice  # by the rule, all other weights of these rows are 0
    weights: Tensor
    value_size: float
    output_eps: float | None  # one rounding of the layer's output; None where it was not given
    difference: Tensor | None  # of that output and the one that the weights give


def _sampled(layer: Recorded, v: Tensor, out: Tensor | None, at: float) -> _Sample:
    """The rows at the fraction `at` of all. Between two layers every operation costs twice: few are made.

    `out` is the layer's own output, before its projection.
    """
    n_row = min(_MOST_ROWS, max(1, _CHECKED // max(1, layer.n_key)))
    first = int(at * max(0, layer.n_query - n_row))
    rows = slice(first, min(layer.n_query, first + n_row))
    cols = layer.key_range(rows)
    weights, v = layer.block(rows, cols), v[:, :, cols]
    value_size = _size(v)
    if not math.isfinite(value_size):  # hidden values may be anything
        v = torch.where(v.isfinite(), v, 0.0)
        value_size = _size(v)
    if out is None:
        return _Sample(layer, rows, cols, weights, value_size, None, None)
    batch, n_head, n_row, n_key = weights.shape
    grouped = weights.reshape(batch, v.shape[1], -1, n_key) @ v.to(weights.dtype)
    recovered = grouped.reshape(batch, n_head, n_row, v.shape[3])
    eps = torch.finfo(out.dtype).eps
    difference = recovered - out[:, :, rows]
    if isinstance(layer, LayerTrace) and layer.alike is None:  # a row that sees nothing may give anything
        difference = difference.masked_fill((layer.lse[:, :, rows] == -math.inf)[..., None], 0.0)
    return _Sample(layer, rows, cols, weights, value_size, eps, difference)


def _judged(sample: _Sample, expect: Expect | None) -> LayerCheck:
    """Compare a layer's rows with what it gave and with what must hold.

    `expect` says what may be seen by what is known of the model, apart from the rule the layer was given.
    """
    layer, rows, cols, weights = sample.layer, sample.rows, sample.cols, sample.weights
    expected = None if expect is None else expect(layer.name, layer.kind, layer.n_query, layer.n_key)
    hidden = None if expected is None else 0.0
    if expected is not None and not _hides_by_rule(layer, expected):
        may_look = expected.tile(rows, cols, weights.device)
        # A row of padding may look anywhere: nobody looks at it.
        hidden = largest(weights.masked_fill(may_look | ~may_look.any(-1, keepdim=True), 0.0).sum(-1))
    kept = layer.tensors[0].dtype
    exact = torch.finfo(torch.promote_types(kept, torch.float32)).eps
    stored = torch.finfo(kept).eps
    given = stored if sample.output_eps is None else sample.output_eps
    n_rounding, size = layer.rounding(rows, cols)
    allowed = exact * (8 + n_rounding * size)
    if given > _HALF:
        allowed += _HALF_EXP
    if stored > given:  # kept with fewer digits than the model computed with
        allowed += stored * size
    return LayerCheck(
        layer.name,
        output=None if sample.difference is None else largest(sample.difference.abs()),
        output_allowed=(allowed + 4 * given) * sample.value_size,
        row_sum=largest((weights.sum(-1) - layer.row_sums(rows)).abs()),
        row_sum_allowed=allowed,
        hidden=hidden,
    )


def _hides_by_rule(layer: Recorded, expected: Visibility) -> bool:
    """Whether the layer's rule hides all that `expected` hides: those weights are then exp(-inf)."""
    ruled = layer.visibility
    if ruled is None:
        return False
    if expected.causal and not (ruled.causal and ruled.start == expected.start):
        return False
    same_keys = expected.keys is None or (ruled.keys is not None and torch.equal(ruled.keys, expected.keys))
    return same_keys and not expected.by_pair and expected.window is None and expected.lengths is None


def _size(tensor: Tensor) -> float:
    """The largest absolute value, in one pass."""
    if not tensor.numel():
        return 0.0
    low, high = map(float, tensor.aminmax())
    return max(-low, high) if low == low else low  # NaN is in both
