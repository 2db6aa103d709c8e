"""Traces that grow: each new token's rows appended to those before, while a model writes.

The keys of a step are all keys so far, so what must be kept of a step is its own query and log-sum-exp, and
the trace of the finished text comes out of the steps without running it again.

    trace_generation(model, "Once upon a time")     a model of ours writes
    with regard.watch(model) as seen:               around anything that a program does with a model

Inside `watch` every forward pass is recorded, in whatever thread it runs. A pass that goes on where the one
before it ended, as each step of `model.generate()` with its cache does, makes that trace grow; any other
begins a new one.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.linear import LinearRule
from regard.decoding.loop import generate
from regard.decoding.prompts import encoded
from regard.errors import ArgumentError, TraceError
from regard.files.loading import Loaded
from regard.tracing.calls import AttentionCall
from regard.tracing.recorder import Recorded, Recorder, expected
from regard.tracing.take import Layers, ModelInput, assemble, facts_of, model_input, module_of
from regard.tracing.traces import Trace
from regard.tracing.watch import around_calls, watching


class GrowingTrace(Recorder):
    """A `record` for decoding: after every step it has the rows of all tokens so far.

    >>> from regard.files.loading import load
    >>> loaded = load("gpt2", random=True)
    >>> growing = GrowingTrace()
    >>> _, decoding = loaded.model.begin(torch.tensor([[5, 7, 11]]), record=growing)
    >>> _ = decoding.next(torch.tensor([13]))
    >>> growing.layer("decoder.0.self").shape
    (1, 12, 4, 4)
    """

    def __init__(self, *, keep_v: bool = False, dtype: torch.dtype | None = None) -> None:
        """Begin with nothing recorded.

        Args:
            keep_v: Keep the values too.
            dtype: How queries and keys are kept; None: as computed.
        """
        super().__init__(keep_v=keep_v, dtype=dtype, expect=expected)
        self.fed = ModelInput()
        self._summed: dict[str, list[AttentionCall]] = {}  # steps of causal linear attention

    def add(self, called: AttentionCall) -> None:
        """Take one step of one layer."""
        rule, name = called.rule, called.name
        if isinstance(rule, LinearRule) and rule.causal:
            # It hands on a sum, and never sees the keys of earlier steps again: they are kept here.
            steps = self._summed.setdefault(name, [])
            steps.append(called)
            k, v = (torch.cat([getattr(step, side).detach() for step in steps], 2) for side in "kv")
            known = [keys for step in steps if (keys := getattr(step.rule, "key_mask", None)) is not None]
            keys = torch.cat(known, 1) if len(known) == len(steps) else None
            called = replace(called, k=k, v=v, rule=replace(rule, key_mask=keys))
        step, so_far = self.layer_of(name, called), self.rows.get(name)
        if so_far is not None and not so_far.goes_on_with(step):
            raise TraceError(
                f"{name} has {step.n_batch} sequences of {step.n_key} keys in this step, and had "
                f"{so_far.last.n_batch} of {so_far.n_key}: steps must follow one another, with sequences and "
                "keys in their places, which a cropped cache or beam search changes."
            )
        self.keep(step, called)

    def goes_on_with(self, step: Recorder) -> bool:
        """Return whether a call continues this text: further rows of its layers, or new layers."""
        known = [layer for layer in step.layers if layer.name in self.rows]
        return bool(step.rows) and all(self.rows[layer.name].goes_on_with(layer) for layer in known)

    def take(self, step: Recorder, fed: ModelInput) -> None:
        """Append what was recorded of a call that does, and what the model was fed in it."""
        before = self.fed
        if before.ids is None or fed.ids is None:
            self.fed = fed
        elif any(name in self.rows for name in step.rows):
            ids = torch.cat([before.ids, fed.ids], 1)
            self.fed = ModelInput(ids=ids, source_ids=before.source_ids, key_mask=fed.key_mask)
        else:  # an encoder, then its decoder
            self.fed = ModelInput(ids=fed.ids, source_ids=before.ids, key_mask=fed.key_mask)
        for layer in step.layers:
            self.keep(layer)
        for check in step.checks.values():
            self.note(check)
        self.remarks = {**step.remarks, **self.remarks}

    def __repr__(self) -> str:
        longest = max((rows.n_query for rows in self.rows.values()), default=0)
        return f"GrowingTrace({len(self.rows)} layers, {longest} tokens so far)"

    @property
    def names(self) -> tuple[str, ...]:
        """The layers seen so far."""
        return tuple(self.rows)

    def n_query(self, name: str) -> int:
        """Return how many rows a layer has so far."""
        return self.rows[name].n_query if name in self.rows else 0

    def layer(self, name: str) -> Recorded:
        """Return one layer as it is now."""
        if name not in self.rows:
            raise ArgumentError(f"no layer {name!r} was seen: there are {', '.join(self.rows)}.")
        return self.rows[name].whole()

    def trace(
        self,
        ids: Tensor | None = None,
        source_ids: Tensor | None = None,
        tokenizer: Any = None,
        facts: Any = None,
    ) -> Trace:
        """Return the trace of all tokens so far; `ids` label the rows where no call has shown them."""
        if not self.rows:
            raise TraceError("nothing was recorded: give this object as `record` when decoding begins.")
        fed = self.fed if ids is None else ModelInput(ids=ids, source_ids=source_ids)
        if fed.key_mask is not None and (fed.ids is None or fed.key_mask.shape != fed.ids.shape):
            fed = replace(fed, key_mask=None)
        return assemble(self, fed, tokenizer, facts or {})


def trace_generation(
    model: Loaded,
    prompt: str | Sequence[int] | Tensor,
    *,
    max_new: int = 64,
    keep_v: bool = False,
    dtype: torch.dtype | None = None,
    on_token: Callable[[GrowingTrace], None] | None = None,
    **choice: Any,
) -> Trace:
    """Continue `prompt`, or answer it, and return the trace of the finished text.

    Args:
        model: A loaded model.
        prompt: One text, or its token ids.
        max_new: The largest number of tokens to write.
        keep_v: Keep the values too.
        dtype: How queries and keys are kept; None: as computed.
        on_token: Called after every step with the trace as it grows.
        choice: What `generate` takes: temperature, top_k, seed, stop, ...

    Returns:
        The trace of the prompt and of what was written, as one text.

    Raises:
        ArgumentError: If there are several prompts or beams, or the prompt fills the model's context.
    """
    ids = encoded(prompt, model.tokenizer, model.device).ids
    if ids.shape[0] != 1:
        raise ArgumentError(f"one text is written at a time. Got {ids.shape[0]} prompts.")
    if choice.get("n_beam", 1) != 1:
        raise ArgumentError("beam search changes what it has written: trace its result with `trace`.")
    growing = GrowingTrace(keep_v=keep_v, dtype=dtype)
    watched = _Watched(model.model, growing, on_token)
    both = model.model.kind == "encoder-decoder"
    limit = None if both else model.model.sizes.n_position
    if limit is not None:
        if ids.shape[1] >= limit:
            raise ArgumentError(
                f"the prompt has {ids.shape[1]} tokens, the model's limit is {limit}: nothing can follow."
            )
        max_new = min(max_new, limit - ids.shape[1])
    choice = {"stop": model.stop_tokens, "start_token": model.start_token, **choice}
    new = list(generate(watched, ids, max_new=max_new, **choice).tokens[0])
    for token in new[watched.n_fed :]:  # the last one was chosen and not read: its row is still missing
        watched.next(ids.new_tensor([token]))
    start = [choice["start_token"]] if both else ids[0].tolist()
    written = ids.new_tensor([[*start, *new]])
    return growing.trace(written, ids if both else None, model.tokenizer, facts_of(model))


class _Watched:
    """A model, then its running decode, that reports to a growing trace."""

    def __init__(
        self, model: Any, growing: GrowingTrace, on_token: Callable[[GrowingTrace], None] | None
    ) -> None:
        self.inner, self.growing, self.on_token, self.n_fed = model, growing, on_token, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def begin(self, *given: Any, **options: Any) -> tuple[Tensor, Any]:
        scores, self.inner = self.inner.begin(*given, **options, record=self.growing)
        return scores, self

    def next(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.inner.next(tokens)
        self.n_fed += 1
        if self.on_token is not None:
            self.on_token(self.growing)
        return scores


class WatchedCalls:
    """What was seen of a model: a trace for each call, or one that grew over the steps of a generation."""

    def __init__(self, model: nn.Module, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._texts: list[tuple[threading.Thread, GrowingTrace]] = []
        self._lock = threading.Lock()

    def _add(self, recorder: Recorder, fed: ModelInput) -> None:
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
) -> Iterator[WatchedCalls]:
    """Trace every call of `model` inside a `with` block, whoever calls it.

    Args:
        model: Any PyTorch model, or one of ours.
        layers: Only these layers, by index or name; None: all.
        keep_v: Keep the values too.
        dtype: How queries and keys are kept; None: as computed.
        tokenizer: Turns ids into labels.

    Returns:
        A context manager. What it gives has `trace`, the one trace there is, and `traces`, one for each call
        or generation.

    >>> model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    >>> with watch(model) as seen:
    ...     _ = model(torch.zeros(1, 3, 8))
    >>> seen.trace.names
    ('self_attn',)
    """
    module = module_of(model)
    seen = WatchedCalls(module, tokenizer)

    @contextmanager
    def calling(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        recorder = Recorder(layers=layers, keep_v=keep_v, dtype=dtype)
        with watching(module, recorder):
            yield
        if recorder.seen:
            recorder.choose()
            seen._add(recorder, model_input(args, kwargs))

    with around_calls(module, calling):
        yield seen
