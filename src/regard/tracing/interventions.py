"""`with regard.intervene(model) as run:` what a model would have said with something in it otherwise.

    run.knock_out(layer=5, head=3, query=-1, key=4)   an edge, rows, columns, a whole head
    run.gate(layer=2, head=7, by=0.0)                 a head's output times a number, or toward its mean
    run.patch(layer=7, head=2, source=clean)          outputs, weights or scores of another run
    run.patch("model.layers.4.mlp", source=clean)     a module's output: the residual stream, an MLP

Every attention that can be watched can be changed, exactly there and nowhere else; when the block ends, the
model is as it was. A trace taken inside the block shows each layer as it was computed, before its change.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, get_args

from torch import Tensor, nn

from regard.errors import ArgumentError, ShapeError
from regard.models.model import Model
from regard.tracing.around import around_calls
from regard.tracing.calls import Called, numbered
from regard.tracing.changes import At, Change, Gate, KnockOut, Patch, What
from regard.tracing.ours import Put
from regard.tracing.take import module_of
from regard.tracing.traces import Trace
from regard.tracing.watch import watching


class Run:
    """What is changed inside a block, and what of its calls is kept."""

    def __init__(self, model: nn.Module, thread: int | None = None) -> None:
        self._model, self._thread = model, thread
        self.changes: list[Change] = []
        self.layers: list[str] = model.attention_names if isinstance(model, Model) else []  # by their numbers
        self._modules: dict[str, _Module] = {}
        self._n_call = 0

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
        self._add(KnockOut(layer, head, query, batch, key, renormalise))

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
        self._add(Gate(layer, head, query, batch, by, toward))

    def patch(
        self,
        module: str | None = None,
        *,
        source: Trace | Run | Tensor,
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
        if module is not None:
            if isinstance(source, Trace):
                raise ArgumentError(
                    "a trace holds attention only: call the model once in `with regard.intervene(model) as "
                    f"clean` after `clean.keep({module!r})`, and give source=clean."
                )
            tensor = source.kept(module) if isinstance(source, Run) else source
            if head is not None or key is not None or what != "outputs":
                raise ArgumentError("a module has one output: head, key and what are for layers.")
            self._module(module).patches.append((tensor, query, batch))
            return
        assert layer is not None  # one of the two is given
        if isinstance(source, Run):
            raise ArgumentError("heads are patched from a trace: regard.trace(model, ..., keep_v=True).")
        if not isinstance(source, Trace | Tensor):
            raise ArgumentError(f"source must be a Trace, a Run or a tensor. Got {type(source).__name__}.")
        self._add(Patch(layer, head, query, batch, source, what, key))

    def keep(self, *modules: str) -> None:
        """Keep the output of these modules in the calls that follow."""
        for module in modules:
            self._module(module).keeps = True

    def kept(self, module: str) -> Tensor:
        """The output of a module in the last call."""
        known = self._modules.get(module)
        if known is None or known.output is None:
            raise ArgumentError(
                f"nothing is kept of {module!r}: say keep({module!r}) in that run, and call the model."
            )
        return known.output

    def clear(self) -> None:
        """Take all changes back."""
        self.changes.clear()
        for module in self._modules.values():
            module.patches.clear()

    def __repr__(self) -> str:
        n_patch = sum(len(module.patches) for module in self._modules.values())
        return f"<{len(self.changes) + n_patch} changes of {type(self._model).__name__}>"

    def _add(self, change: Change) -> None:
        layer = change.layer
        if isinstance(self._model, Model):
            known = range(-len(self.layers), len(self.layers)) if isinstance(layer, int) else self.layers
            if layer not in known:
                raise ArgumentError(self._no_layer(layer))
        elif isinstance(layer, int) and layer < 0 and not self.layers:
            raise ArgumentError(
                f"layer {layer} counts from the end, which is known after the first call: count from 0."
            )
        if isinstance(layer, int) and layer < 0:
            change.layer = layer + len(self.layers)
        self.changes.append(change)

    def _no_layer(self, layer: int | str) -> str:
        seen = ", ".join(self.layers) or "none"
        return f"there is no attention layer {layer!r}: layers are numbers from 0, or {seen}."

    def _module(self, name: str) -> _Module:
        if name not in self._modules:
            try:
                module = self._model.get_submodule(name)
            except AttributeError:
                raise ArgumentError(f"the model has no module {name!r}: see model.named_modules().") from None
            self._modules[name] = _Module(name, module, self._thread)
        return self._modules[name]

    def _one_call(self) -> Put:
        """What is asked, in one call of the model, for the outputs of each layer."""
        seen: list[str] = []
        n_query: Counter[str] = Counter()  # of each layer so far: a recurrent decoder looks word by word
        self._n_call += 1

        def put(called: Called, out: Tensor) -> Tensor:
            if isinstance(self._model, Model):
                called = replace(called, before=n_query[called.name])
                n_query[called.name] += called.shape[2]
            else:
                called = replace(called, name=numbered(called.name, seen))
            seen.append(called.name)
            if called.name not in self.layers:
                self.layers.append(called.name)
            for change in self.changes:
                if change.layer in (called.name, self.layers.index(called.name)):
                    out = change(called, out)
            return out

        return put

    def _check_all_took_place(self) -> None:
        for change in self.changes:
            if self._n_call and not change.times:
                raise ArgumentError(
                    self._no_layer(change.layer)
                    if change.layer not in (*self.layers, *range(len(self.layers)))
                    else f"nothing was changed in layer {change.layer!r}: no call had query {change.query}"
                    f"{f' and key {change.key}' if isinstance(change, KnockOut) else ''}, counted from 0."
                )


@contextmanager
def intervene(model: Any, *, this_thread: bool = False) -> Iterator[Run]:
    """A block in which calls of `model`, ours or any that can be watched, run with the changes of a `Run`.

    With `this_thread` calls of the model in other threads stay as they are.

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
    run = Run(module, threading.get_ident() if this_thread else None)
    try:
        with around_calls(module, lambda *_: watching(module, None, run._one_call()), run._thread):
            yield run
    finally:
        for known in run._modules.values():
            known.handle.remove()
    run._check_all_took_place()


class _Module:
    """A module whose output is kept or exchanged."""

    def __init__(self, name: str, module: nn.Module, thread: int | None) -> None:
        self.name, self.thread, self.keeps = name, thread, False
        self.output: Tensor | None = None
        self.patches: list[tuple[Tensor, At, At]] = []
        self.handle = module.register_forward_hook(self._pass)

    def _pass(self, module: nn.Module, args: Any, given: Any) -> Any:
        if self.thread not in (None, threading.get_ident()):
            return None
        out = given if isinstance(given, Tensor) else given[0]
        if not isinstance(out, Tensor):
            raise ArgumentError(f"{self.name} gives no tensor but {type(out).__name__}: name one inside it.")
        if self.keeps:
            self.output = out.detach().clone()
        if not self.patches:
            return None
        for source, query, batch in self.patches:
            out = self._patched(out, source, query, batch)
        return out if isinstance(given, Tensor) else (out, *given[1:])

    def _patched(self, out: Tensor, source: Tensor, query: At, batch: At) -> Tensor:
        if source.shape[1:] != out.shape[1:] or source.shape[0] not in (1, out.shape[0]):
            raise ShapeError(
                f"{self.name} gives (batch, position, ...) = {tuple(out.shape)} here, and the source has "
                f"{tuple(source.shape)}: batches must be equal or 1, all other sizes equal."
            )
        source = source.to(out).expand_as(out)
        if query is None and batch is None:
            return source
        changed = out.clone()
        rows, places = (slice(None) if at is None else at for at in (batch, query))
        for place in [places] if isinstance(places, int | slice) else places:
            changed[rows, place] = source[rows, place]
        return changed
