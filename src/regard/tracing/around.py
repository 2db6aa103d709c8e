"""`with regard.watch(model) as seen:` around anything a program does with a model.

Every forward pass of the model is recorded, in whatever thread it runs. A pass that goes on where the one
before it ended, as each step of `model.generate()` with its cache does, makes that trace grow; any other
begins a new one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.visibility import Visibility
from regard.errors import TraceError
from regard.tracing.fast_paths import fast_paths, with_fast_path
from regard.tracing.layers import DenseLayerTrace, LayerTrace
from regard.tracing.masks import compact_bias, read_visible
from regard.tracing.recorder import Recorded, Recorder
from regard.tracing.take import (
    Fed,
    Layers,
    assemble,
    choose,
    facts_of,
    from_the_end,
    module_of,
    padding_in,
    token_ids,
)  # fmt: skip
from regard.tracing.traces import LayerCheck, Trace
from regard.tracing.watch import uncompiled, watched_only, watching


class Seen:
    """What was seen of a model: a trace for each call, or one that grew over the steps of a generation."""

    def __init__(self, model: nn.Module, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._texts: list[_Text] = []
        self._lock = threading.Lock()

    def _add(self, recorder: Recorder, given: _Given) -> None:
        thread = threading.current_thread()  # not its number: the next thread may get that again
        with self._lock:
            last = next((text for text in reversed(self._texts) if text.thread is thread), None)
            if last is None or not last.goes_on_with(recorder):
                self._texts.append(last := _Text(thread))
            last.append(recorder, given)

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The traces so far, in the order they began."""
        facts = facts_of(self._model)
        return tuple(text.trace(self._tokenizer, facts) for text in self._texts)

    @property
    def trace(self) -> Trace:
        """The one trace there is."""
        if len(self._texts) != 1:
            raise TraceError(
                f"{len(self._texts)} calls were seen that do not continue one another: look at `traces`."
                if self._texts
                else "no attention of the model was seen: call it, or its generate(), inside the block."
            )
        return self.traces[0]

    def __repr__(self) -> str:
        return f"<{len(self._texts)} traces of {type(self._model).__name__}>"


@contextmanager
def watch(
    model: Any,
    *,
    layers: Layers = None,
    keep_v: bool = False,
    dtype: torch.dtype | None = None,
    tokenizer: Any = None,
) -> Iterator[Seen]:
    """A block in which everything that `model` attends to is seen, whoever calls it.

    >>> model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    >>> with watch(model) as seen:
    ...     _ = model(torch.zeros(1, 3, 8))
    >>> seen.trace.names
    ('self_attn',)
    """
    module = module_of(model)
    seen = Seen(module, tokenizer)

    @contextmanager
    def calling(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        recorder = Recorder(layers=None if from_the_end(layers) else layers, keep_v=keep_v, dtype=dtype)
        given = _Given.of(args, kwargs)
        with watching(module, recorder):
            yield
        if recorder.seen:
            choose(recorder, layers)
            seen._add(recorder, given)

    with around_calls(module, calling):
        yield seen


@contextmanager
def around_calls(
    model: nn.Module,
    calling: Callable[[tuple[Any, ...], dict[str, Any]], AbstractContextManager[None]],
    thread: int | None = None,
) -> Iterator[None]:
    """A block in which every call of the model, in any thread or only in that one, has a `calling(...)`."""
    running = threading.local()

    def elsewhere() -> bool:
        return thread not in (None, threading.get_ident())

    def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if elsewhere():
            return
        running.depth = getattr(running, "depth", 0) + 1
        if running.depth == 1:
            running.stack = ExitStack()
            running.stack.enter_context(calling(args, kwargs))

    def end(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        if elsewhere():
            return
        running.depth -= 1
        if running.depth == 0:
            running.stack.close()

    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        stack.enter_context(fast_paths(model, watched_only))  # `begin` is too late: a call has its `forward`
        # `generate` calls an encoder by itself, which is the model's child or grandchild.
        fast = tuple(f"{name}." if name else "" for name in with_fast_path(model))
        for name, module in model.named_modules():
            closes = name.startswith(fast) or isinstance(module, nn.TransformerEncoderLayer)
            if name.count(".") < 2 and not (name and closes):  # a hook would close a fast path
                stack.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(end, always_call=True).remove)
        yield


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """What is known of a call by its arguments."""

    ids: Tensor | None
    source_ids: Tensor | None
    real: Tensor | None  # of all tokens so far

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Given:
        ids = token_ids(kwargs.get("input_ids", args[0] if args else None))
        answer = token_ids(kwargs.get("decoder_input_ids"))
        real = padding_in(kwargs, "attention_mask")
        return cls(ids, None, real) if answer is None else cls(answer, ids, None)


@dataclass(slots=True, eq=False)
class _Text:
    """One trace as it grows."""

    thread: threading.Thread
    layers: dict[str, _Rows] = field(default_factory=dict)
    checks: dict[str, LayerCheck] = field(default_factory=dict)
    given: _Given | None = None
    remarks: dict[str, str] = field(default_factory=dict)

    def goes_on_with(self, recorder: Recorder) -> bool:
        """Whether a call continues this text: further rows of its layers, or layers it does not have yet."""
        known = [layer for layer in recorder.layers if layer.name in self.layers]
        return bool(recorder.layers) and all(self.layers[layer.name].goes_on_with(layer) for layer in known)

    def append(self, recorder: Recorder, given: _Given) -> None:
        """Take a call that does."""
        begun = any(layer.name in self.layers for layer in recorder.layers)
        for layer in recorder.layers:
            self.layers.setdefault(layer.name, _Rows()).append(layer)
        for check in recorder.checks():
            if self.checks.get(check.name, check).passed:  # the first that failed stays
                self.checks[check.name] = check
        self.remarks = {**recorder.remarks, **self.remarks}
        before = self.given
        if before is None or before.ids is None or given.ids is None:
            self.given = given
        elif begun:
            self.given = _Given(torch.cat([before.ids, given.ids], 1), before.source_ids, given.real)
        else:  # an encoder, then its decoder
            self.given = _Given(given.ids, before.ids, given.real)

    def trace(self, tokenizer: Any, facts: Any) -> Trace:
        recorder = Recorder()
        recorder.layers = [rows.whole() for rows in self.layers.values()]
        recorder.seen = list(self.layers)
        recorder.remarks = self.remarks
        given = self.given or _Given(None, None, None)
        fits = given.real is not None and given.ids is not None and given.real.shape == given.ids.shape
        fed = Fed(ids=given.ids, source_ids=given.source_ids, real=given.real if fits else None)
        return assemble(recorder, fed, tokenizer, facts, tuple(self.checks.values()))


@dataclass(slots=True, eq=False)
class _Rows:
    """One layer as it grows: the steps, and all keys so far."""

    steps: list[Recorded] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)  # where the keys of each step begin among all
    keys: Tensor | None = None
    n_key: int = 0

    def goes_on_with(self, layer: Recorded) -> bool:
        """Whether `layer` has the same keys, or some of those and as many new ones as it has queries."""
        last, first = self.steps[-1], self._first(layer)
        if type(last) is not type(layer) or last.shape[:2] != layer.shape[:2]:
            return False
        if not isinstance(layer, LayerTrace):
            return isinstance(layer, DenseLayerTrace) and first == 0
        assert self.keys is not None  # of a layer like this one
        if layer.k.shape[1] != self.keys.shape[1] or not 0 <= first < self.n_key:  # then no key is known
            return False
        return torch.equal(self.keys[:, :, first:], layer.k[:, :, : self.n_key - first])

    def _first(self, layer: Recorded) -> int:
        n_new = 0 if layer.kind == "cross" else layer.n_query
        return self.n_key + n_new - layer.n_key  # above 0 where a window's cache has forgotten the oldest

    def append(self, layer: Recorded) -> None:
        first = self._first(layer) if self.steps else 0
        if isinstance(layer, LayerTrace):
            new = layer.k if self.keys is None else layer.k[:, :, self.n_key - first :]
            self.keys = new if self.keys is None else torch.cat([self.keys, new], 2)
        self.n_key = first + layer.n_key
        self.steps.append(layer)
        self.firsts.append(first)

    def whole(self) -> Recorded:
        """All steps as one layer."""
        last = self.steps[-1]
        if len(self.steps) == 1:
            return last
        if isinstance(last, DenseLayerTrace):
            return replace(last, values=self._table([step.tensors[0] for step in self.steps], 0.0))
        parts = [step for step in self.steps if isinstance(step, LayerTrace)]
        assert self.keys is not None  # of a layer like these
        assert isinstance(last, LayerTrace)
        tiles, biases = [], []
        for step in parts:
            rows, cols = slice(0, step.n_query), slice(0, step.n_key)
            tiles.append(step.rule.visible.tile(rows, cols, step.q.device))
            bias = step.rule.bias_tile(rows, cols)
            biases.append(torch.zeros(1, 1, step.n_query, step.n_key) if bias is None else bias)
        visible = self._table(tiles, False)
        read = read_visible(visible) if not bool(visible.all()) else Visibility()
        bias = self._table(biases, 0.0)
        compact = compact_bias(bias, ~visible, read.start) if bool(bias.any()) else None
        values = [step.v for step in parts if step.v is not None]
        return LayerTrace(
            last.name,
            torch.cat([step.q for step in parts], 2),
            self.keys,
            torch.cat([step.lse for step in parts], 2),
            replace(last.rule, visible=read, bias=compact),
            torch.cat(
                [
                    values[0],
                    *(v[:, :, -step.n_query :] for v, step in zip(values[1:], parts[1:], strict=True)),
                ],
                2,
            )
            if values and last.kind == "self"
            else (values[0] if values else None),
            last.kind,
            last.sink,
            self._alike(parts),
        )

    def _alike(self, parts: list[LayerTrace]) -> Tensor | None:
        """Which rows see all keys of their step alike. Steps have keys of their own: then none is kept so."""
        first, *later = parts
        if first.alike is None:
            return None
        rest = [torch.zeros(*step.q.shape[:3], dtype=torch.bool, device=step.q.device) for step in later]
        return torch.cat([first.alike.expand(*first.q.shape[:3]), *rest], 2)

    def _table(self, tiles: list[Tensor], empty: float | bool) -> Tensor:
        """The tiles of the steps as rows of one table (batch, head, query, key)."""
        sizes = torch.tensor([tile.shape[:2] for tile in tiles]).amax(0).tolist()
        n_query = sum(tile.shape[2] for tile in tiles)
        table = tiles[0].new_full((*sizes, n_query, self.n_key), empty)
        row = 0
        for tile, first in zip(tiles, self.firsts, strict=True):
            table[:, :, row : row + tile.shape[2], first : first + tile.shape[3]] = tile
            row += tile.shape[2]
        return table
