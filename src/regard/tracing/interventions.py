"""`with regard.intervene(model) as run:` what a model would have said with something in it otherwise.

    run.knock_out(layer=5, head=3, query=-1, key=4)   an edge, rows, columns, a whole head
    run.gate(layer=2, head=7, by=0.0)                 a head's output times a number, or toward its mean
    run.patch(layer=7, head=2, source=clean)          outputs, weights or scores of another run
    run.patch("model.layers.4.mlp", source=clean)     a module's output: the residual stream, an MLP

Every attention that can be watched can be changed, exactly there and nowhere else; when the block ends, the
model is as it was. A trace taken inside the block shows each layer as it was computed, before its change.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from regard.attention.shapes import row_blocks, whole_index
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.layers.layer_id import nth_call
from regard.models.model import Model
from regard.tracing.by_hand import Rewrite
from regard.tracing.calls import AttentionCall, of_heads
from regard.tracing.layers import AnyLayer, LayerTrace
from regard.tracing.layout import Layout
from regard.tracing.take import module_of
from regard.tracing.traces import Trace
from regard.tracing.watch import ReplaceOutput, around_calls, doubtful_layers, measure_layouts, watching

At = int | slice | Sequence[int] | None  # one place, several, or all
What = Literal["outputs", "weights", "scores"]
# Given a call and the outputs (batch, head, rows, v_dim) of these heads and rows: what takes their place.
New = Callable[[AttentionCall, Tensor, list[int], slice], Tensor]
Edit = Callable[..., None]  # given a call, its `Rewrite`, the cells that are meant, their heads and rows


class InterventionRun:
    """The changes made inside a `with intervene(...)` block, and what its calls keep."""

    def __init__(self, model: nn.Module, thread: int | None, hooks: ExitStack) -> None:
        """Begin with no change.

        Args:
            model: The module whose calls are changed.
            thread: Only calls in this thread; None: in all.
            hooks: What is undone at the end of the block.
        """
        self._model, self._thread, self._hooks = model, thread, hooks
        self.changes: list[Change] = []
        self.layers: list[str] = model.attention_names if isinstance(model, Model) else []  # by their numbers
        self._patches: dict[str, list[tuple[Tensor, At, At]]] = {}  # of modules: by what, queries, sequences
        self._known_layouts: dict[Any, dict[str, Layout]] = {}  # by the shapes of what the model is given
        self._certain = isinstance(getattr(getattr(model, "config", None), "model_type", None), str)
        self._kept: dict[str, Tensor | None] = {}  # outputs of modules, of the last call
        self._n_call = 0
        self._whole = False  # whether this call has no cache
        self._of_outputs: list[tuple[AttentionCall, list[Change]]] = []  # of this call: what changed outputs

    def knock_out(
        self,
        *,
        layer: int | str,
        head: At = None,
        query: At = None,
        key: At = None,
        batch: At = None,
        renormalise: bool = True,
    ) -> None:
        """Cut edges: these queries do not see these keys, and share the weight among the others.

        Without `key` a row sees nothing and gives 0; without `query` all rows are meant, without `head` all
        heads. `renormalise=False` leaves the other weights as they are. Queries are positions in the whole
        text, also where a cache feeds it step by step; -1 is the last of every call.
        """
        edit = partial(_cut_scores, key, renormalise)
        self._add(Change(partial(_cut, key, renormalise), layer, head, query, key, batch, edit=edit))

    def gate(
        self,
        *,
        layer: int | str,
        head: At = None,
        by: float | Tensor = 0.0,
        toward: Tensor | None = None,
        query: At = None,
        batch: At = None,
    ) -> None:
        """Multiply the output of heads by a number, or by one for each: a gradient reaches it.

        `toward` (head, v_dim) fills what the gate takes away: with `by=0` and `head_means` of some texts this
        is mean ablation.
        """
        self._add(
            Change(
                partial(_gated, by, toward),
                layer,
                head,
                query,
                None,
                batch,
                toward is not None or isinstance(by, Tensor),
            )
        )

    def patch(
        self,
        module: str | None = None,
        *,
        source: Trace | InterventionRun | Tensor,
        layer: int | str | None = None,
        head: At = None,
        query: At = None,
        key: At = None,
        batch: At = None,
        what: What = "outputs",
    ) -> None:
        """Put what another run computed in the place of this run's own.

        Of heads of a `layer`: their outputs (the source is a trace with `keep_v=True`, or a tensor), weights,
        or scores, of which `key` may choose some. Of a named `module`: its output, kept by `keep` in a run of
        its own or given as a tensor; `query` chooses positions.
        """
        if what not in get_args(What):
            raise ArgumentError(f"what must be one of {', '.join(get_args(What))}. Got {what!r}.")
        if (module is None) == (layer is None):
            raise ArgumentError("patch a module by its name, or heads of a `layer`: give one of the two.")
        if layer is not None:
            if not isinstance(source, Trace | Tensor):
                raise ArgumentError(
                    "heads are patched from a trace, regard.trace(model, ..., keep_v=True), or by a tensor. "
                    f"Got {type(source).__name__}."
                )
            new: Any = _given if isinstance(source, Tensor) else _traced
            edit = None
            if isinstance(source, Trace) and what != "outputs":
                edit = partial(_put_traced, source, what)
            self._add(Change(partial(new, source, what, key), layer, head, query, key, batch, True, edit))
        elif module is not None:
            if isinstance(source, Trace):
                raise ArgumentError(
                    "a trace holds attention only: call the model once in `with regard.intervene(model) as "
                    f"clean` after `clean.keep({module!r})`, and give source=clean."
                )
            tensor = source.kept(module) if isinstance(source, InterventionRun) else source
            if head is not None or key is not None or what != "outputs":
                raise ArgumentError("a module has one output: head, key and what are for layers.")
            self._hook(module).append((tensor, query, batch))

    def keep(self, *modules: str) -> None:
        """Keep the output of these modules in the calls that follow."""
        for module in modules:
            self._hook(module)
            self._kept[module] = None

    def kept(self, module: str) -> Tensor:
        """Return the output of a module in the last call."""
        output = self._kept.get(module)
        if output is None:
            raise ArgumentError(
                f"nothing is kept of {module!r}: say keep({module!r}) in that run, and call the model."
            )
        return output

    def clear(self) -> None:
        """Take all changes back."""
        self.changes.clear()
        for patches in self._patches.values():
            patches.clear()

    def __repr__(self) -> str:
        n_change = len(self.changes) + sum(map(len, self._patches.values()))
        return f"<{n_change} changes of {type(self._model).__name__}>"

    def _add(self, change: Change) -> None:
        layer = change.layer
        if isinstance(self._model, Model):
            known = range(-len(self.layers), len(self.layers)) if isinstance(layer, int) else self.layers
            if layer not in known:
                raise ArgumentError(self._no_layer(layer))
        if isinstance(layer, int) and layer < 0:
            if not self.layers:
                raise ArgumentError(
                    f"layer {layer} counts from the end, which is known after the first call: count from 0."
                )
            change.layer = layer + len(self.layers)
        self.changes.append(change)

    def _no_layer(self, layer: int | str) -> str:
        if not self.layers:
            return f"there is no attention layer {layer!r}: no attention was seen that can be changed."
        last = f"0 to {len(self.layers) - 1}" if len(self.layers) > 1 else "0"
        return (
            f"there is no attention layer {layer!r}: there are {last}, or by name {', '.join(self.layers)}."
        )

    def _hook(self, name: str) -> list[tuple[Tensor, At, At]]:
        """The patches of a module, whose output is seen from now on."""
        if name not in self._patches:
            try:
                module = self._model.get_submodule(name)
            except AttributeError:
                raise ArgumentError(f"the model has no module {name!r}: see model.named_modules().") from None
            self._patches[name] = []
            self._hooks.enter_context(module.register_forward_hook(partial(self._pass, name)))
        return self._patches[name]

    def _pass(self, name: str, module: nn.Module, args: Any, given: Any) -> Any:
        if self._thread not in (None, threading.get_ident()):
            return None
        out = given if isinstance(given, Tensor) else given[0]
        if not isinstance(out, Tensor):
            raise ArgumentError(f"{name} gives no tensor but {type(out).__name__}: name one inside it.")
        if name in self._kept:
            self._kept[name] = out.detach().clone()
        if not self._patches[name]:
            return None
        for source, query, batch in self._patches[name]:
            if source.shape[1:] != out.shape[1:] or source.shape[0] not in (1, out.shape[0]):
                raise ShapeError(
                    f"{name} gives (batch, position, ...) = {tuple(out.shape)} here, and the source has "
                    f"{tuple(source.shape)}: batches must be equal or 1, all other sizes equal."
                )
            source, changed = source.to(out).expand_as(out), out.clone()
            rows, places = (slice(None) if at is None else at for at in (batch, query))
            for place in [places] if isinstance(places, int | slice) else places:
                changed[rows, place] = source[rows, place]
            out = changed
        return out if isinstance(given, Tensor) else (out, *given[1:])

    def _layouts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Layout]:
        """What are sequences and what heads, measured where a change names some and it is not sure."""
        if isinstance(self._model, Model) or not any(change.tells_heads_apart for change in self.changes):
            return {}
        shapes = tuple(tuple(v.shape) if isinstance(v, Tensor) else None for v in (*args, *kwargs.values()))
        if shapes not in self._known_layouts:
            plain = all(isinstance(v, Tensor | int | float | str | None) for v in (*args, *kwargs.values()))
            doubts: dict[str, int | None] = {}
            if plain and not self._certain:
                doubts = doubtful_layers(self._model, args, kwargs)
            self._known_layouts[shapes] = measure_layouts(self._model, args, kwargs) if doubts else {}
        return self._known_layouts[shapes]

    def _one_call(self) -> ReplaceOutput:
        """What is asked, in one call of the model, for the outputs of each layer."""
        seen: list[str] = []
        tokens: dict[Any, str] = {}  # of layers whose weights may meet other values
        n_query: Counter[str] = Counter()  # of each layer so far: a recurrent decoder looks word by word
        self._n_call += 1

        def put(called: AttentionCall, out: Tensor) -> Tensor:
            if isinstance(self._model, Model):
                called = replace(called, before=n_query[called.name])
                n_query[called.name] += called.shape[2]
            elif called.token is not None and called.token in tokens:
                called = replace(called, name=tokens[called.token])
            else:
                called = replace(called, name=nth_call(called.name, seen))
            called = replace(called, whole=self._whole and called.weights is not None)
            seen.append(called.name)
            if called.token is not None:
                tokens[called.token] = called.name
            if called.name not in self.layers:
                self.layers.append(called.name)
            mine = [one for one in self.changes if one.layer in (called.name, self.layers.index(called.name))]
            if not mine:
                return out
            if not called.layout_sure and any(one.tells_heads_apart for one in mine):
                raise UnsupportedError(
                    f"{called.name}: which dimensions of its weights are sequences and which are heads could "
                    "not be measured here. Leave out head and batch, or call the model with tensors alone."
                )
            if called.rewrite is not None:
                edits = [one for one in mine if one.edit is not None]
                mine = [one for one in mine if one.edit is None]
                if edits and not called.use:  # later uses of the weights are given the new ones
                    self._gone(called, edits, "leaves PyTorch")
                    rewrite = called.rewrite()
                    took_place = [one.rewritten(called, rewrite) for one in edits]
                    if any(took_place):
                        out = called.to_heads(rewrite.run())
            if mine:
                self._of_outputs.append((called, mine))
            for change in mine:
                out = change(called, out)
            return out

        return put

    def _called(self) -> None:
        """Raise where weights had a use that a change of outputs did not reach."""
        seen, self._of_outputs = self._of_outputs, []
        for called, changes in seen:
            self._gone(called, changes)

    def _gone(self, called: AttentionCall, changes: list[Change], word: str = "") -> None:
        for use in called.lost:
            lost = [how for how in use.lost if word in how]
            if lost:
                raise UnsupportedError(
                    f"{called.name}: its weights are also used by {lost[0]}, which a change of "
                    f"{'weights' if word else 'outputs'} does not reach: "
                    + ("nothing of it can be changed." if word else "cut edges, or patch weights.")
                )

    def _end(self) -> None:
        """Raise where a change did not take place."""
        for change in self.changes:
            if self._n_call and not change.times:
                raise ArgumentError(
                    self._no_layer(change.layer)
                    if change.layer not in (*self.layers, *range(len(self.layers)))
                    else f"nothing was changed in layer {change.layer!r}: no call had query {change.query}"
                    f"{'' if change.key is None else f' and key {change.key}'}, counted from 0."
                )


@contextmanager
def intervene(model: Any, *, this_thread: bool = False) -> Iterator[InterventionRun]:
    """Change calls of `model` inside a `with` block; after it the model is as it was.

    Args:
        model: Any PyTorch model, or one of ours.
        this_thread: Leave calls of the model in other threads as they are.

    Returns:
        A context manager. What it gives takes the changes: `gate`, `knock_out`, `patch`, `keep`.

    >>> import torch
    >>> model = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    >>> x = torch.randn(1, 3, 8)
    >>> with torch.no_grad(), intervene(model) as run:
    ...     run.gate(layer=0, by=0.0)
    ...     silenced = model(x, x, x, need_weights=False)[0]
    >>> torch.equal(silenced, model.out_proj.bias.expand(1, 3, 8))
    True
    """
    module = module_of(model)
    with ExitStack() as hooks:
        run = InterventionRun(module, threading.get_ident() if this_thread else None, hooks)
        with around_calls(module, partial(_changed_call, module, run), run._thread):
            yield run
    run._end()


@contextmanager
def _changed_call(
    module: nn.Module, run: InterventionRun, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[None]:
    """A block around one call of the model, in which the changes of a run take place."""
    layouts = run._layouts(args, kwargs)
    run._whole = all(
        isinstance(value, Tensor | int | float | str | None) for value in (*args, *kwargs.values())
    )
    with watching(module, None, run._one_call(), layouts=layouts):
        yield
    run._called()


@dataclass(slots=True, eq=False)
class Change:
    """A change of one layer: of some sequences, heads and queries of it, or of all.

    Only the heads and rows that it names are computed again, some rows at a time; others stay, to the bit.
    """

    new: New
    layer: int | str
    head: At
    query: At
    key: At
    batch: At
    of_each: bool = False  # something else for each head and sequence
    edit: Edit | None = None  # changes weights where they are computed, of attention written by hand
    times: int = field(default=0, init=False)  # how often it took place
    _n_key: int = field(default=0, init=False)  # of the call before

    def __call__(self, called: AttentionCall, out: Tensor) -> Tensor:
        """The outputs of all heads after the change."""
        n_batch, n_head, n_query, n_key = called.shape
        called = replace(called, before=self._first(called))
        rows = _positions(self.query, n_query, called.before)
        heads = _places("head", self.head, n_head, called.name)
        batch = _places("batch", self.batch, n_batch, called.name)
        if not rows or not _positions(self.key, n_key):
            return out
        self.times += 1
        changed = out.clone()
        for block in _blocks(rows, n_batch * len(heads) * n_key):
            before = out[:, heads, block]
            new = self.new(called, before, heads, block)
            if called.uniform_rows is not None:  # such a row is padding: it stays as it is
                uniform_rows = called.uniform_rows.expand(n_batch, n_head, n_query)[:, heads, block, None]
                new = torch.where(uniform_rows, before, new)
            at = torch.tensor(batch)[:, None, None], torch.tensor(heads)[None, :, None]
            changed[(*at, torch.arange(block.start, block.stop))] = new[batch].to(changed.dtype)
        return changed

    @property
    def tells_heads_apart(self) -> bool:
        """Whether it must be known which dimensions are heads and which are sequences."""
        return self.of_each or self.head is not None or self.batch is not None

    def rewritten(self, called: AttentionCall, rewrite: Rewrite) -> bool:
        """Change weights where they are computed; whether there was anything to change."""
        n_batch, n_head, n_query, n_key = called.shape
        called = replace(called, before=self._first(called))
        rows = _positions(self.query, n_query, called.before)
        heads = _places("head", self.head, n_head, called.name)
        batch = _places("batch", self.batch, n_batch, called.name)
        keys = _positions(self.key, n_key)
        if not rows or not keys:
            return False
        self.times += 1
        assert called.weights is not None
        sides = [torch.zeros(size, dtype=torch.bool) for size in called.shape]
        for side, places in zip(sides, (batch, heads, rows, keys), strict=True):
            side[places] = True
        of_batch, of_head, of_row, of_key = sides
        chosen = of_batch[:, None, None, None] & of_head[:, None, None] & of_row[:, None] & of_key
        assert self.edit is not None
        self.edit(called, rewrite, chosen.to(called.weights.device), heads, rows)
        return True

    def _first(self, called: AttentionCall) -> int:
        """The position of the first query, after what a cache held; refused where that is not known."""
        n_query, n_key = called.shape[2:]
        before, self._n_key = self._n_key, n_key
        if called.kind == "cross" or n_query == n_key:
            return called.before
        if not before and called.whole:  # no cache: its rows are the queries of this call, counted from 0
            return called.before
        if before + n_query != n_key and not (self.query is None or self.query == -1):
            raise UnsupportedError(
                f"{called.name} has {n_query} queries and {n_key} keys, and had {before} before: where its "
                "queries stand is not known (a cache of fixed size, or one that forgets). Leave out query, "
                "or say -1, the last."
            )
        return n_key - n_query


def _cut_scores(
    key: At, renormalise: bool, called: AttentionCall, rewrite: Rewrite, chosen: Tensor, *_: object
) -> None:
    """Give the model's own softmax scores of -inf, or take weights out of what it gave."""
    if renormalise and key is not None:
        rewrite.mask(chosen)
    else:
        rewrite.zero(chosen)


def _put_traced(
    trace: Trace,
    what: What,
    called: AttentionCall,
    rewrite: Rewrite,
    chosen: Tensor,
    heads: list[int],
    rows: list[int],
) -> None:
    """Put weights or scores of a trace in the place of the model's own."""
    layer = trace.layer(called.name)
    _check_source(layer, called, heads, max(rows) + called.before + 1, what)
    new = chosen.new_zeros((layer.n_batch, *called.shape[1:]), dtype=torch.float32)
    for block in _blocks(rows, layer.n_batch * len(heads) * layer.n_key):
        at = slice(block.start + called.before, block.stop + called.before)
        if what == "weights":
            some = torch.cat([layer.block(head, at, slice(0, layer.n_key)) for head in heads], 1)
        elif isinstance(layer, LayerTrace):
            source = AttentionCall(layer.name, layer.kind, None, None, q=layer.q, k=layer.k, rule=layer.rule)
            some = source.scores_of(heads, at)
        else:
            raise UnsupportedError(f"{called.name} has no scores that are known in the source.")
        new = new.to(some.dtype)
        new[:, heads, block] = some
    (rewrite.put if what == "weights" else rewrite.put_scores)(new.expand(called.shape), chosen)


def _check_source(layer: AnyLayer, called: AttentionCall, heads: list[int], end: int, what: What) -> None:
    """Raise where a layer of a trace does not have what is to be put in the place of a call's own."""
    if layer.n_head <= max(heads) or layer.n_query < end or layer.n_batch not in (1, called.shape[0]):
        raise ShapeError(
            f"{called.name} has (batch, head, query) = {called.shape[:3]} here and {layer.shape[:3]} in "
            "the source: batches must be equal or 1, and every place that is patched must be there."
        )
    if what != "outputs" and layer.n_key != called.shape[3]:
        raise ShapeError(
            f"{called.name} has {called.shape[3]} keys here and {layer.n_key} in the source: weights and "
            "scores can be exchanged between texts of one length only."
        )


def _cut(
    key: At, renormalise: bool, called: AttentionCall, out: Tensor, heads: list[int], rows: slice
) -> Tensor:
    """Outputs without these keys: the rest of a row shares what they had."""
    hidden = torch.zeros(called.shape[3], dtype=torch.bool, device=out.device)
    hidden[_positions(key, called.shape[3])] = True
    scores = called.scores_of(heads, rows)
    sums = None if renormalise else called.sums(scores, heads)
    return called.attended(called.softmax(scores.masked_fill(hidden, -math.inf), heads, sums), heads)


def _gated(
    by: float | Tensor,
    toward: Tensor | None,
    called: AttentionCall,
    out: Tensor,
    heads: list[int],
    rows: slice,
) -> Tensor:
    """Outputs times a factor; what the factor leaves is filled with `toward`, where that is given."""
    n_head, v_dim = len(heads), out.shape[3]
    by_rule, toward_rule = "by must be one number or (head,)", "toward must be (head, v_dim)"
    for rule, given, wanted in ((by_rule, by, (n_head,)), (toward_rule, toward, (n_head, v_dim))):
        if isinstance(given, Tensor) and given.shape not in (wanted, wanted[1:]):
            raise ShapeError(f"{rule} = {wanted} in {called.name}. Got {tuple(given.shape)}.")
    by = by[:, None, None] if isinstance(by, Tensor) and by.dim() else by
    if toward is None:
        return out * by
    return out * by + toward.to(out).expand(n_head, v_dim)[:, None] * (1 - by)


def _traced(
    trace: Trace, what: What, key: At, called: AttentionCall, out: Tensor, heads: list[int], rows: slice
) -> Tensor:
    """Outputs by the outputs, weights or scores of a trace."""
    layer = trace.layer(called.name)
    at = slice(rows.start + called.before, rows.stop + called.before)
    _check_source(layer, called, heads, at.stop, what)
    if what == "scores":
        if not isinstance(layer, LayerTrace):
            raise UnsupportedError(f"{called.name} has no scores that are known in the source.")
        keys = _positions(key, called.shape[3])
        scores = called.scores_of(heads, rows).clone()
        source = AttentionCall(layer.name, layer.kind, None, None, q=layer.q, k=layer.k, rule=layer.rule)
        scores[..., keys] = source.scores_of(heads, at).to(scores.dtype).expand_as(scores)[..., keys]
        return called.attended(called.softmax(scores, heads), heads)
    weights = torch.cat([layer.block(head, at, slice(0, layer.n_key)) for head in heads], 1)
    if what == "weights":
        return called.attended(weights, heads).expand_as(out)
    if layer.v is None:
        raise ArgumentError(
            f"the source has no values of {called.name}: trace it with keep_v=True, or patch weights."
        )
    v = layer.v[..., called.v_start : called.v_start + out.shape[3]]  # of this use, where there are several
    if v.shape[3] != out.shape[3]:
        raise ShapeError(
            f"{called.name} has values of {out.shape[3]} numbers here and {v.shape[3]} in the source."
        )
    return (weights @ of_heads(v, heads, layer.n_head).to(weights.dtype)).expand_as(out)


def _given(
    source: Tensor, what: What, key: At, called: AttentionCall, out: Tensor, heads: list[int], rows: slice
) -> Tensor:
    """Outputs that were given as they are, those of all heads and queries."""
    wanted = (*called.shape[:3], out.shape[3])
    if what != "outputs" or source.shape[1:] != wanted[1:] or source.shape[0] not in (1, wanted[0]):
        raise ShapeError(
            f"a tensor to patch {called.name} with must be outputs, (batch, head, query, v_dim) = {wanted}, "
            f"or one of them for all of the batch. Got {tuple(source.shape)}."
        )
    return source[:, heads, rows].to(out).expand_as(out)


def _places(name: str, at: At, size: int, where: str) -> list[int]:
    """The indices that `at` means; raises where one is not there."""
    if at is None or isinstance(at, slice):
        return list(range(size)[at or slice(None)])
    try:
        return [whole_index(name, index, size) for index in ([at] if isinstance(at, int) else at)]
    except (ArgumentError, IndexError, ShapeError) as error:
        raise ArgumentError(f"{where}: {error}") from None


def _positions(at: At, n: int, first: int = 0) -> list[int]:
    """Which of the `n` positions from `first` on are meant: in a text that grows, others come later."""
    end = first + n
    if at is None or isinstance(at, slice):
        places = list(range(end)[at or slice(None)])
    else:
        places = [place + end if place < 0 else place for place in ([at] if isinstance(at, int) else at)]
    return sorted({place - first for place in places if first <= place < end})


def _blocks(rows: list[int], cost: int) -> Iterator[slice]:
    """Rows as slices of neighbours, a few at a time where a row costs `cost` weights."""
    for _, pairs in groupby(enumerate(rows), lambda pair: pair[1] - pair[0]):
        neighbours = [row for _, row in pairs]
        yield from row_blocks(slice(neighbours[0], neighbours[-1] + 1), cost)
