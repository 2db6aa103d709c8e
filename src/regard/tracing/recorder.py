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
from regard.tracing.layers import DenseLayerTrace, Kind, LayerTrace, LinearLayerTrace
from regard.tracing.rule_parts import mapped_rule
from regard.tracing.traces import LayerCheck

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


class Recorder:
    """Collects layers. As a `Record` it takes what our own layers report; `add` takes it from anywhere."""

    def __init__(
        self,
        *,
        layers: Sequence[int | str] | None = None,
        keep_v: bool = False,
        dtype: torch.dtype | None = None,
        expect: Expect | None = None,
        gates: dict[str, Tensor] | None = None,
        keep_graph: bool = False,
    ) -> None:
        if dtype is not None and dtype not in STORAGE:
            raise ArgumentError(
                f"dtype is how queries and keys are kept: one of {', '.join(map(str, STORAGE))} or None for "
                f"the model's own. Got {dtype}."
            )
        self.wanted = None if layers is None else set(layers)
        self.keep_v, self.dtype, self.expect, self.gates = keep_v, dtype, expect, gates or {}
        self.layers: list[Recorded] = []
        self.samples: list[_Sample] = []
        self.seen: list[str] = []  # every layer that ran, wanted or not
        self.rearranged: list[
            str
        ] = []  # layers whose weights were cut into blocks before they met the values
        self.not_seen = ""  # what of the model computes something else than softmax attention, in words
        self.outputs: list[Tensor] = []  # given before what they belong to, as by a decoder's steps
        # For gradients: what of the graph holds a layer's output, and how its gradient becomes heads.
        self.keep_graph = keep_graph
        self.graph: list[list[tuple[Tensor, ToHeads]]] = []
        self._steps: list[tuple[Tensor, ToHeads]] = []
        self._pending: tuple[Recorded, Tensor] | None = None
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, name: str, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, rule: Rule) -> None:
        """Take a layer of ours; its output follows in `output`, or has come before."""
        self.finish()
        kind: Kind = "cross" if name.endswith("cross") else "self"
        out = torch.cat(self.outputs, dim=2) if self.outputs else None
        self.outputs = []
        self.add(name, q, k, v, lse, rule, kind=kind, out=out)
        if self.graph and self._steps:
            self.graph[-1] += self._steps
            self._steps = []

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
            kept_rule = rule if owned else mapped_rule(rule, self._shared)
            kept_sink = None if sink is None else _copied(sink, lse.dtype)
            layer = LayerTrace(name, kept_q, kept_k, sums, kept_rule, kept_v, kind, kept_sink, alike)
        self._take(layer, v)
        if out is not None:
            self.output(out)
        return layer

    def add_weights(self, name: str, weights: Tensor, v: Tensor, *, kind: Kind) -> None:
        """Keep the weights themselves of a layer whose queries and keys are not known."""
        name, wanted = self._named(name)
        if wanted:
            self._take(DenseLayerTrace(name, _copied(weights, None), kind), v)

    def widen(self, v: Tensor) -> None:
        """More values of the layer taken last, beside those it has."""
        if self.layers and isinstance(layer := self.layers[-1], LayerTrace) and layer.v is not None:
            self.layers[-1] = replace(layer, v=torch.cat([layer.v, self._kept(v)], -1))

    def _named(self, name: str) -> tuple[str, bool]:
        """The name of the layer that runs now, numbered where it ran before, and whether it is wanted."""
        again = sum(seen == name or seen.startswith(f"{name}#") for seen in self.seen)
        index, name = len(self.seen), f"{name}#{again + 1}" if again else name
        self.seen.append(name)
        return name, self.wanted is None or bool({name, index} & self.wanted)

    def _take(self, layer: Recorded, v: Tensor) -> None:
        self.finish()
        self.layers.append(layer)
        self.graph.append([])
        self._pending = (layer, v.detach())

    def output(self, out: Tensor, to_heads: ToHeads | None = None) -> None:
        """The output of the layer taken last, before its projection: now it can be checked.

        (batch, head, query, v_dim), or what `to_heads` makes into that.
        """
        if self._pending is None:
            return
        layer, v = self._pending
        self._pending = None
        form = to_heads or _as_it_is
        if self.keep_graph:
            self.graph[-1].append((_in_graph(out), form))
        self._check(layer, v, form(out.detach()))

    def step_output(self, out: Tensor, to_heads: ToHeads) -> None:
        """The output of one step, of a layer that is taken once all steps are done."""
        if self._pending is not None:
            self.output(out, to_heads)
            return
        self.outputs.append(to_heads(out.detach()))
        if self.keep_graph:
            self._steps.append((_in_graph(out), to_heads))

    def finish(self) -> None:
        """Check what never got its output."""
        if self._pending is not None:
            layer, v = self._pending
            self._pending = None
            self._check(layer, v, None)

    def _check(self, layer: Recorded, v: Tensor, out: Tensor | None) -> None:
        # Other rows in every layer: together they are spread over the whole text.
        at = (0.75 + 0.382 * len(self.samples)) % 1
        self.samples.append(_sampled(layer, v, out, self.gates.get(layer.name), at))

    def checks(self) -> tuple[LayerCheck, ...]:
        """Whether each layer's weights are those it had, once the forward pass is over."""
        return tuple(_judged(sample, self.expect) for sample in self.samples)

    def _kept(self, tensor: Tensor) -> Tensor:
        kept = _copied(tensor, self.dtype)
        if self.dtype == torch.float16 and tensor.dtype != torch.float16 and not bool(kept.isfinite().all()):
            largest = float(tensor.abs().max())
            if math.isfinite(largest):
                raise TraceError(
                    f"queries or keys reach {largest:.3g}, and float16 ends at 65504: keep them as float32."
                )
        return kept

    def _shared(self, tensor: Tensor) -> Tensor:
        """A copy of a rule's tensor, one for all layers that share it."""
        known = self._copies.get(id(tensor))
        if known is None:  # the original is held, so that its id stays its own
            known = self._copies[id(tensor)] = (tensor, tensor.detach().clone())
        return known[1]


def _as_it_is(out: Tensor) -> Tensor:
    return out


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


def _sampled(layer: Recorded, v: Tensor, out: Tensor | None, gate: Tensor | None, at: float) -> _Sample:
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
    if gate is not None:
        recovered = recovered * gate[:, None, None]
    eps = torch.finfo(out.dtype).eps
    difference = recovered - out[:, :, rows]
    if (
        isinstance(layer, LayerTrace) and layer.alike is None
    ):  # what a row that sees nothing gives is not told
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
        hidden = _largest(weights.masked_fill(may_look | ~may_look.any(-1, keepdim=True), 0.0).sum(-1))
    kept = layer.tensors[0].dtype
    exact = torch.finfo(torch.promote_types(kept, torch.float32)).eps
    stored = torch.finfo(kept).eps
    given = stored if sample.output_eps is None else sample.output_eps
    n_rounding, size = _roundings(layer, rows, cols)
    allowed = exact * (8 + n_rounding * size)
    if given > _HALF:
        allowed += _HALF_EXP
    if stored > given:  # kept with fewer digits than the model computed with
        allowed += stored * size
    return LayerCheck(
        layer.name,
        output=None if sample.difference is None else _largest(sample.difference.abs()),
        output_allowed=(allowed + 4 * given) * sample.value_size,
        row_sum=_largest((weights.sum(-1) - _wanted_sums(layer, rows)).abs()),
        row_sum_allowed=allowed,
        hidden=hidden,
    )


def _hides_by_rule(layer: Recorded, expected: Visibility) -> bool:
    """Whether the layer's own rule hides all that `expected` hides: those weights are then exp(-inf)."""
    if isinstance(layer, DenseLayerTrace):
        return False
    if isinstance(layer, LinearLayerTrace):
        causal, keys, start = layer.causal, layer.keys, layer.n_key - layer.n_query
    else:
        own = layer.rule.visible
        causal, keys, start = own.causal, own.keys, own.start
    if expected.causal and not (causal and start == expected.start):
        return False
    same_keys = expected.keys is None or (keys is not None and torch.equal(keys, expected.keys))
    return same_keys and not expected.by_pair and expected.window is None and expected.lengths is None


def _wanted_sums(layer: Recorded, rows: slice) -> Tensor:
    """What each row must sum to: 1, or 0 where it sees nothing, less what a sink takes."""
    if isinstance(layer, DenseLayerTrace):  # as the model had them, whatever they sum to
        return layer.block(rows, slice(0, layer.n_key)).sum(-1)
    if isinstance(layer, LinearLayerTrace):
        return (layer.normaliser[:, :, rows] > 0).float()
    lse = layer.lse[:, :, rows]
    wanted = (lse > -math.inf).to(lse.dtype)
    if layer.alike is not None:
        wanted = torch.where(layer.alike[:, :, rows], 1.0, wanted)
    if layer.sink is None:
        return wanted
    return wanted - torch.where(wanted > 0, torch.exp(layer.sink[:, None] - lse), 0.0)


def _roundings(layer: Recorded, rows: slice, cols: slice) -> tuple[float, float]:
    """How many roundings, of what size, a weight may be off by, relative to itself: what bounds differences.

    A score is off by some roundings of sum |q||k|, which is at most |q| |k|, and its weight by as much of
    itself. Sums of n positive terms, as linear attention has, are off by sqrt(n) roundings or so.
    """
    if isinstance(layer, DenseLayerTrace):
        return math.sqrt(layer.n_key), 1.0
    if isinstance(layer, LinearLayerTrace):
        return 4 * math.sqrt(layer.n_key + layer.kernel.dim(layer.q.shape[3])), 1.0
    rule, qk_dim = layer.rule, layer.q.shape[3]
    if rule.additive is not None:
        size = float(rule.additive.abs().sum())
    else:
        longest_q = _largest(torch.linalg.vector_norm(layer.q[:, :, rows].float(), dim=-1))
        # Hidden keys may be anything.
        lengths = torch.linalg.vector_norm(layer.k[:, :, cols].float(), dim=-1)
        longest_k = _largest(lengths.nan_to_num(0.0, posinf=0.0))
        size = abs(rule.scale_for(qk_dim)) * longest_q * longest_k
    bias = rule.bias_tile(rows, cols)
    if bias is not None and bias.numel():
        size += float(bias.abs().amax())
    return 2 + math.sqrt(qk_dim), size


def _size(tensor: Tensor) -> float:
    """The largest absolute value, in one pass."""
    if not tensor.numel():
        return 0.0
    low, high = map(float, tensor.aminmax())
    return max(-low, high) if low == low else low  # NaN is in both


def _largest(values: Tensor) -> float:
    """The largest, NaN where one is NaN."""
    return float(values.amax()) if values.numel() else 0.0
