"""What a forward pass shows of its attention, kept as layers of a trace and checked on the way."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from regard.attention.linear import LinearRule, Rule
from regard.attention.scores import ScoreRule, SlopeBias
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, TraceError
from regard.layers.layer_id import Kind, LayerId, nth_call
from regard.tracing.calls import AttentionCall, compact_bias, read_visible
from regard.tracing.disk import on_disk
from regard.tracing.layers import DenseLayerTrace, LayerTrace, LinearLayerTrace, reach
from regard.tracing.traces import LayerCheck

Recorded = LayerTrace | LinearLayerTrace | DenseLayerTrace
# What must be visible of a layer by what is known of model and input; None where nothing is known.
Expect = Callable[[str, Kind, int, int], Visibility | None]

_TERMS = 64  # of a sum: one rounding in the same direction
_AT_ONCE = 1024  # keys that are summed in the dtype of weights
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
        to_disk: bool = False,
        expect: Expect | None = None,
        keep_graph: bool = False,
    ) -> None:
        """Begin with nothing recorded.

        Args:
            layers: Only these layers, by index or name; None: all.
            keep_v: Keep the values too.
            dtype: How queries and keys are kept; None: as computed.
            to_disk: Map the tensors of long texts from temporary files in place of memory.
            expect: Says which keys may be visible in a layer, where that is known, for its check.
            keep_graph: Keep the outputs as they are in the autograd graph.
        """
        if dtype is not None and dtype not in STORAGE:
            raise ArgumentError(
                f"dtype is how queries and keys are kept: one of {', '.join(map(str, STORAGE))} or None for "
                f"the model's own. Got {dtype}."
            )
        # Which layer is meant by an index from the end is known after a run: until then all are kept.
        backwards = any(isinstance(layer, int) and layer < 0 for layer in layers or ())
        self.asked = None if layers is None or backwards else set(layers)
        self.wanted = layers
        self.keep_v, self.dtype, self.to_disk, self.expect = keep_v, dtype, to_disk, expect
        self.keep_graph = keep_graph
        self.seen: list[str] = []  # every layer that ran, wanted or not
        self.rows: dict[str, Rows] = {}  # of those wanted
        self.checks: dict[str, LayerCheck] = {}  # of several steps the first that failed, or the last
        # For gradients: what of the graph holds a layer's output, of every step, and how it becomes heads.
        self.graph: dict[str, list[tuple[Tensor, Callable[[Tensor], Tensor]]]] = {}
        self.doubts: dict[str, int | None] = {}  # layers of which it is not sure what are heads
        self.remarks: dict[str, str] = {}  # what is to be said of a foreign model, for the facts of a trace
        self._keys: Tensor | None = None  # of the layer seen last
        self._copies: Any = WeakTensorKeyDictionary()  # of tensors that rules share

    @property
    def layers(self) -> list[Recorded]:
        """The layers so far."""
        return [rows.whole() for rows in self.rows.values()]

    def __call__(
        self, name: str, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, rule: Rule
    ) -> None:
        """Take a layer of ours."""
        self.add(AttentionCall(name, LayerId.parse(name).kind, v, out, q=q, k=k, rule=rule, lse=lse))

    def add(self, called: AttentionCall) -> None:
        """Keep one layer and check it; or the next step of the one seen last, whose rows are added.

        A recurrent decoder has one query a step, and the same keys in all of them.
        """
        goes_on = called.k is not None and self._keys is called.k and self.seen[-1] == called.name
        self._keys = called.k if called.shape[2] == 1 and called.kind == "cross" else None
        if not goes_on:
            self.seen.append(nth_call(called.name, self.seen))
        if self.asked is None or {self.seen[-1], len(self.seen) - 1} & self.asked:
            self.keep(self.layer_of(self.seen[-1], called), called)

    def keep(self, layer: Recorded, called: AttentionCall | None = None) -> None:
        """Keep a layer, or the next rows of one that is kept; checked against its call."""
        if layer.name in self.rows:
            self.rows[layer.name].append(layer)
        else:
            self.rows[layer.name] = Rows(layer)
        if called is None or called.v is None or called.out is None:
            return
        out = called.out
        if self.keep_graph:  # where nothing before it needs a gradient, the output is where the graph begins
            out = out if out.requires_grad else out.requires_grad_()
            self.graph.setdefault(layer.name, []).append((out, called.to_heads))
        expected = None
        if self.expect is not None:
            expected = self.expect(layer.name, layer.kind, layer.n_query, layer.n_key)
        # Other rows in every layer: together they are spread over the whole text.
        at = (0.75 + 0.382 * (len(self.rows) - 1)) % 1
        self.note(_checked(layer, called.v.detach(), called.to_heads(out.detach()), at, expected))

    def note(self, check: LayerCheck) -> None:
        """Put one step's check among those of other layers and steps: the first that failed stays."""
        if check.name not in self.checks or self.checks[check.name].passed:
            self.checks[check.name] = check

    def layer_of(self, name: str, called: AttentionCall) -> Recorded:
        """Build the layer that is kept of a call."""
        if called.rule is None:
            assert called.weights is not None  # without a rule the weights are there
            v = self._stored(called.v) if self.keep_v and called.v is not None else None
            return DenseLayerTrace(name, _copied(called.weights), called.kind, v=v)
        assert called.q is not None  # a rule is one of queries and keys
        assert called.k is not None
        assert called.lse is not None
        q, k, sums = self._stored(called.q), self._stored(called.k), _copied(called.lse)
        v = self._stored(called.v) if self.keep_v and called.v is not None else None
        rule = called.rule.mapped(self._shared)
        if isinstance(rule, LinearRule):
            return LinearLayerTrace(
                name, q, k, sums, rule.feature_map, rule.causal, rule.key_mask, v, called.kind
            )
        return LayerTrace(name, q, k, sums, rule, v, called.kind, called.uniform_rows)

    def widen(self, v: Tensor) -> None:
        """Append values to those of the layer taken last."""
        layer = self.rows[self.seen[-1]].last if self.seen[-1] in self.rows else None
        if isinstance(layer, LayerTrace | DenseLayerTrace) and layer.v is not None:
            v = self._stored(v).expand(*layer.v.shape[:3], -1) if layer.v.shape[1] >= v.shape[1] else v
            if v.shape[:3] != layer.v.shape[:3]:  # heads that shared values no longer do
                group = v.shape[1] // layer.v.shape[1]
                layer = replace(layer, v=layer.v.repeat_interleave(group, 1))
            assert layer.v is not None
            self.rows[layer.name] = Rows(replace(layer, v=torch.cat([layer.v, self._stored(v)], -1)))

    def choose(self) -> None:
        """Keep the layers asked for, once all have run."""
        if self.wanted is not None:
            for name in {*self.rows} - {*wanted_layers(self.seen, self.wanted)}:
                for kept in (self.rows, self.checks, self.graph):
                    kept.pop(name, None)

    def _stored(self, tensor: Tensor) -> Tensor:
        mapped = on_disk(tensor, self.dtype) if self.to_disk else None
        stored = _copied(tensor, self.dtype) if mapped is None else mapped
        if self.dtype == torch.float16 and not bool(stored.isfinite().all()):
            largest = reach(tensor)
            if math.isfinite(largest):
                raise TraceError(
                    f"queries or keys reach {largest:.3g}, and float16 ends at 65504: keep them as float32."
                )
        return stored

    def _shared(self, tensor: Tensor) -> Tensor:
        """A copy of a rule's tensor, one for all layers that share it."""
        if tensor not in self._copies:
            self._copies[tensor] = tensor.detach().clone()
        copy: Tensor = self._copies[tensor]
        return copy


def expected(
    name: str,
    kind: Kind,
    n_query: int,
    n_key: int,
    key_mask: Tensor | None = None,
    source_key_mask: Tensor | None = None,
    reads_source: bool = False,
) -> Visibility:
    """What may be seen in a layer of ours, by what is known of model and input; queries are the last keys."""
    causal = kind == "self" and name.startswith("decoder")
    of_source = kind == "cross" or (reads_source and name.startswith("encoder"))
    keys = source_key_mask if of_source else key_mask
    return Visibility(causal=causal, start=n_key - n_query if causal else 0, key_mask=keys)


def wanted_layers(names: Sequence[str], layers: Sequence[int | str]) -> list[str]:
    """The names of the layers asked for; raises where there is none of that index or name."""
    places = range(-len(names), len(names))
    if not layers or any(at not in (names if isinstance(at, str) else places) for at in layers):
        raise ArgumentError(
            f"layers must be some of 0 to {len(names) - 1} or {', '.join(names)}. Got {list(layers)}."
        )
    return [at if isinstance(at, str) else names[at] for at in layers]


class _Step(NamedTuple):
    """What is kept of a step when the next has come: nothing as long as its keys."""

    rows: Tensor  # its queries, or its weights where only they are known
    sums: Tensor | None
    rule: ScoreRule | None
    first: int  # where its keys begin among all
    n_key: int


class Rows:
    """One layer as it grows: the rows of all steps, and all keys and values so far."""

    def __init__(self, layer: Recorded) -> None:
        self.last = layer  # the newest step, whole
        self.k, self.v, self.n_key = layer.k, layer.v, 0
        # Later steps have keys of their own: none of their rows is kept so.
        self.uniform_rows = layer.uniform_rows if isinstance(layer, LayerTrace) else None
        self._steps: list[_Step] = []
        self._note(layer, 0)

    @property
    def n_query(self) -> int:
        return sum(step.rows.shape[2] for step in self._steps)

    def goes_on_with(self, layer: Recorded) -> bool:
        """Whether `layer` has the same keys, or some of those and as many new ones as it has queries."""
        first = self._begins(layer)
        if type(self.last) is not type(layer) or self.last.shape[:2] != layer.shape[:2]:
            return False
        if self.k is None or layer.k is None:
            return first == 0
        if layer.k.shape[1] != self.k.shape[1] or not 0 <= first < self.n_key:  # then no key is known
            return False
        return torch.equal(self.k[:, :, first:], layer.k[:, :, : self.n_key - first])

    def append(self, layer: Recorded) -> None:
        """Take the next step."""
        first = self._begins(layer)
        self.k, self.v = (
            known if known is None or new is None else torch.cat([known, new[:, :, self.n_key - first :]], 2)
            for known, new in ((self.k, layer.k), (self.v, layer.v))
        )
        self.last = layer
        self._note(layer, first)

    def _begins(self, layer: Recorded) -> int:
        """Where its keys begin: above 0 where a window's cache has forgotten the oldest."""
        return self.n_key + (0 if layer.kind == "cross" else layer.n_query) - layer.n_key

    def _note(self, layer: Recorded, first: int) -> None:
        rows = layer.values if isinstance(layer, DenseLayerTrace) else layer.q
        sums = layer.lse if isinstance(layer, LayerTrace) else getattr(layer, "normaliser", None)
        self._steps.append(_Step(rows, sums, layer.rule, first, layer.n_key))
        self.n_key = first + layer.n_key

    def whole(self) -> Recorded:
        """All steps as one layer."""
        last, rows = self.last, [step.rows for step in self._steps]
        if len(rows) == 1:
            return last
        if isinstance(last, DenseLayerTrace):
            return replace(last, values=self._table(rows, 0.0), v=self.v)
        assert self.k is not None  # only weights come without
        q = torch.cat(rows, 2)
        sums = torch.cat([step.sums for step in self._steps if step.sums is not None], 2)
        if isinstance(last, LinearLayerTrace):
            return replace(last, q=q, k=self.k, normaliser=sums, v=self.v)
        uniform_rows = self.uniform_rows
        if uniform_rows is not None:
            uniform_rows = F.pad(
                uniform_rows.expand(*q.shape[:2], -1), (0, q.shape[2] - uniform_rows.shape[2])
            )
        rule = self._rule(last.rule, q.device)
        return replace(last, q=q, k=self.k, lse=sums, rule=rule, v=self.v, uniform_rows=uniform_rows)

    def _rule(self, last: ScoreRule, device: torch.device) -> ScoreRule:
        """The rule of all steps, of which `last` is the newest."""
        rules = [step.rule for step in self._steps if step.rule is not None]
        sizes = [(slice(0, step.rows.shape[2]), slice(0, step.n_key)) for step in self._steps]
        starts = accumulate((rows.stop for rows, _ in sizes[:-1]), initial=rules[0].visible.start)
        if all(
            rule.visible.causal
            and rule.visible.start == start
            and not (rule.visible.by_key or rule.visible.by_pair)
            and rule.visible.window == last.visible.window
            and isinstance(rule.bias, SlopeBias | None)
            for rule, start in zip(rules, starts, strict=True)
        ):
            return replace(last, visible=replace(last.visible, start=rules[0].visible.start))
        tiles = [rule.visible.tile(*size, device) for rule, size in zip(rules, sizes, strict=True)]
        visible = self._table(tiles, False)
        read = read_visible(visible)
        if all(rule.bias is None for rule in rules):
            return replace(last, visible=read)
        biases = [
            0.0 * tile if (bias := rule.bias_tile(*size)) is None else bias
            for rule, size, tile in zip(rules, sizes, tiles, strict=True)
        ]
        return replace(last, visible=read, bias=compact_bias(self._table(biases, 0.0), ~visible, read.start))

    def _table(self, tiles: list[Tensor], empty: float | bool) -> Tensor:
        """The tiles of the steps as rows of one table (batch, head, query, key)."""
        n_batch, n_head = (max(tile.shape[axis] for tile in tiles) for axis in (0, 1))
        around = [(step.first, self.n_key - step.first - step.n_key) for step in self._steps]
        wide = [tile.expand(n_batch, n_head, -1, -1) for tile in tiles]
        return torch.cat([F.pad(*pair, value=empty) for pair in zip(wide, around, strict=True)], 2)


def _copied(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A copy, head by head: a view would keep the whole it is part of, and change when that is written to."""
    return tensor.detach().to(dtype or tensor.dtype, copy=True, memory_format=torch.contiguous_format)


def _summed_over_keys(weights: Tensor, v: Tensor) -> Tensor:
    """Weights times values, some keys at a time: one long sum would round more than kernels do."""
    n_key = weights.shape[3]
    if n_key <= _AT_ONCE:
        return weights @ v.to(weights.dtype)
    total: Tensor | None = None
    for first in range(0, n_key, _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        some = (weights[..., part] @ v[:, :, part].to(weights.dtype)).double()
        total = some if total is None else total + some
    assert total is not None
    return total.to(weights.dtype)


def _checked(layer: Recorded, v: Tensor, out: Tensor, at: float, expected: Visibility | None) -> LayerCheck:
    """A few rows of a layer, at the fraction `at` of all, compared with what it gave and what must hold.

    `out` is the layer's own output, before its projection. `expected` is what may be seen by what is known of
    the model, apart from the rule the layer was given.
    """
    n_row = min(_MOST_ROWS, max(1, _CHECKED // max(1, layer.n_key)))
    first = int(at * max(0, layer.n_query - n_row))
    rows = slice(first, min(layer.n_query, first + n_row))
    cols = layer.key_range(rows)  # by the rule, all other weights of these rows are 0
    weights, v = layer.block(None, rows, cols), v[:, :, cols]
    value_size = reach(v)
    if not math.isfinite(value_size):  # hidden values may be anything
        v = torch.where(v.isfinite(), v, 0.0)
        value_size = reach(v)
    batch, n_head, n_row, n_key = weights.shape
    grouped = _summed_over_keys(weights.reshape(batch, v.shape[1], -1, n_key), v)
    difference = grouped.reshape(batch, n_head, n_row, v.shape[3]) - out[:, :, rows]
    if (
        isinstance(layer, LayerTrace) and layer.uniform_rows is None
    ):  # a row that sees nothing may give anything
        difference = difference.masked_fill((layer.lse[:, :, rows] == -math.inf)[..., None], 0.0)
    hidden = None
    if expected is not None:
        may_look = expected.tile(rows, cols, weights.device)
        # A row of padding may look anywhere: nobody looks at it.
        hidden = reach(weights.masked_fill(may_look | ~may_look.any(-1, keepdim=True), 0.0).sum(-1))
    kept = layer.tensors[0].dtype
    exact = torch.finfo(torch.promote_types(kept, torch.float32)).eps
    stored, computed = torch.finfo(kept).eps, torch.finfo(out.dtype).eps
    n_rounding, size = layer.rounding(rows, cols)
    # Equal terms, as a repetitive text has them, round the same way at every step of a long sum. For 65,536
    # of them a kernel was off by 500 roundings of the result.
    allowed = exact * (8 + layer.n_key / _TERMS + n_rounding * size)
    if computed > _HALF:
        allowed += _HALF_EXP
    if stored > computed:  # kept with fewer digits than the model computed with
        allowed += stored * size
    return LayerCheck(
        layer.name,
        output=reach(difference),
        output_allowed=(allowed + 4 * computed) * value_size,
        row_sum=reach(weights.sum(-1) - layer.row_sums(rows)),
        row_sum_allowed=allowed,
        hidden=hidden,
    )
