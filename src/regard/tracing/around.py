"""`with regard.watch(model) as seen:` around anything a program does with a model.

Every forward pass of the model is recorded, in whatever thread it runs. A pass that goes on where the one
before it ended, as each step of `model.generate()` with its cache does, makes that trace grow; any other
begins a new one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from regard.errors import TraceError
from regard.tracing.generation import GrowingTrace
from regard.tracing.recorder import Recorder
from regard.tracing.take import Fed, Layers, facts_of, fed_of, module_of
from regard.tracing.traces import Trace
from regard.tracing.watch import uncompiled, watched_only, watching
from regard.tracing.wrapping import fast_paths, with_fast_path


class Seen:
    """What was seen of a model: a trace for each call, or one that grew over the steps of a generation."""

    def __init__(self, model: nn.Module, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._texts: list[tuple[threading.Thread, GrowingTrace]] = []
        self._lock = threading.Lock()

    def _add(self, recorder: Recorder, fed: Fed) -> None:
        thread = threading.current_thread()  # not its number: the next thread may get that again
        with self._lock:
            last = next((text for other, text in reversed(self._texts) if other is thread), None)
            if last is None or not last.goes_on_with(recorder):
                self._texts.append((thread, last := GrowingTrace()))
            last.take(recorder, fed)

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The traces so far, in the order they began."""
        facts = facts_of(self._model)
        return tuple(text.trace(tokenizer=self._tokenizer, facts=facts) for _, text in self._texts)

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
        recorder = Recorder(layers=layers, keep_v=keep_v, dtype=dtype)
        with watching(module, recorder):
            yield
        if recorder.seen:
            recorder.choose()
            seen._add(recorder, fed_of(args, kwargs))

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
