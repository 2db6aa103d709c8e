"""Tracing while a model writes: each new token's rows appended to those before.

The keys of a step are all keys so far, so what must be kept of a step is its own query and log-sum-exp, and
the trace of the finished text comes out of the steps without running it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from regard.attention.linear import LinearRule
from regard.attention.scores import ScoreRule
from regard.attention.visibility import Visibility
from regard.decoding.loop import generate
from regard.decoding.prompts import encoded
from regard.errors import ArgumentError, TraceError
from regard.files.loading import Loaded
from regard.tracing.layers import Kind
from regard.tracing.recorder import Recorded, Recorder, Rule
from regard.tracing.take import Fed, assemble, facts_of
from regard.tracing.traces import Trace


@dataclass(slots=True, eq=False)
class _Rows:
    """One layer so far."""

    queries: list[Tensor] = field(default_factory=list)
    lses: list[Tensor] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)  # one, of all so far; of linear attention one a step
    values: list[Tensor] = field(default_factory=list)
    outs: list[Tensor] = field(
        default_factory=list
    )  # what the model computed: weights are checked against it
    rule: Rule | None = None
    start: int = 0  # position of the first query

    @property
    def n_query(self) -> int:
        return sum(q.shape[2] for q in self.queries)


class GrowingTrace:
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
        self.keep_v, self.dtype = keep_v, dtype
        self._layers: dict[str, _Rows] = {}

    def __call__(
        self, name: str, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, rule: Rule
    ) -> None:
        """Take one step of one layer."""
        rows = self._layers.setdefault(name, _Rows())
        if rows.queries and rows.queries[0].shape[0] != q.shape[0]:
            raise TraceError(
                f"{name} had {rows.queries[0].shape[0]} sequences and now has {q.shape[0]}: "
                "rows that change places, as in beam search, cannot be appended to."
            )
        if isinstance(rule, LinearRule):
            # It hands on a sum, and never sees the keys of earlier steps again.
            seen = rows.rule.keys if isinstance(rows.rule, LinearRule) else None
            if rows.queries and rule.causal:
                keys = None if seen is None or rule.keys is None else torch.cat([seen, rule.keys], 1)
                rows.keys.append(k.detach().clone())
                rows.values.append(v.detach().clone())
                rule = replace(rule, keys=keys)
            elif not rows.queries:
                rows.keys, rows.values = [k.detach().clone()], [v.detach().clone()]
        else:
            start = rule.visible.start
            rows.start = start if not rows.queries else rows.start
            if rule.visible.causal and start != rows.start + rows.n_query:
                raise TraceError(
                    f"{name} continues at position {start}, and its rows end at "
                    f"{rows.start + rows.n_query}: steps must follow one another."
                )
            # A cache never changes what it has returned, so the keys so far need no copy at every step.
            rows.keys, rows.values = [k.detach()], [v.detach()]
        rows.queries.append(q.detach().clone())
        rows.lses.append(lse.detach().clone())
        rows.outs.append(out.detach().clone())
        rows.rule = rule

    def __repr__(self) -> str:
        longest = max((rows.n_query for rows in self._layers.values()), default=0)
        return f"GrowingTrace({len(self._layers)} layers, {longest} tokens so far)"

    @property
    def names(self) -> tuple[str, ...]:
        """The layers seen so far."""
        return tuple(self._layers)

    def n_query(self, name: str) -> int:
        """How many rows a layer has so far."""
        return self._layers[name].n_query if name in self._layers else 0

    def layer(self, name: str) -> Recorded:
        """One layer as it is now."""
        if name not in self._layers:
            raise ArgumentError(f"no layer {name!r} was seen: there are {', '.join(self._layers)}.")
        return self._recorded([name]).layers[0]

    def _recorded(self, names: Sequence[str], visible: Callable[..., Visibility] | None = None) -> Recorder:
        recorder = Recorder(keep_v=self.keep_v, dtype=self.dtype, expect=visible)
        for name in names:
            rows = self._layers[name]
            assert rows.rule is not None  # a step was taken
            k, v = torch.cat(rows.keys, 2), torch.cat(rows.values, 2)
            rule = rows.rule
            if isinstance(rule, ScoreRule):
                bias = None if rule.bias is None else rule.bias.covering(k.shape[2], rows.start)
                rule = replace(rule, visible=replace(rule.visible, start=rows.start), bias=bias)
            kind: Kind = "cross" if name.endswith("cross") else "self"
            q, lse, out = (torch.cat(steps, 2) for steps in (rows.queries, rows.lses, rows.outs))
            recorder.add(name, q, k, v, lse, rule, kind=kind, out=out)
        return recorder

    def trace(
        self, ids: Tensor, source_ids: Tensor | None = None, tokenizer: Any = None, facts: Any = None
    ) -> Trace:
        """The trace of all tokens so far; `ids` are those the rows stand for."""

        def visible(name: str, kind: str, n_query: int, n_key: int) -> Visibility:
            return Visibility(causal=kind == "self" and name.startswith("decoder"))

        if not self._layers:
            raise TraceError("nothing was recorded: give this object as `record` when decoding begins.")
        recorder = self._recorded(self.names, visible)
        return assemble(recorder, Fed(ids=ids, source_ids=source_ids), tokenizer, facts or {})


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
    """Let the model go on after `prompt`, or answer it, and give the trace of the finished text.

    One sequence; `choice` is what `generate` takes (temperature, top_k, seed, stop, ...). `on_token` is
    called after every step with the trace as it grows.
    """
    ids = encoded(prompt, model.tokenizer, model.device).ids
    if ids.shape[0] != 1:
        raise ArgumentError(f"one text is written at a time. Got {ids.shape[0]} prompts.")
    if choice.get("n_beam", 1) != 1:
        raise ArgumentError("beam search changes what it has written: trace its result with `trace`.")
    growing = GrowingTrace(keep_v=keep_v, dtype=dtype)
    watched = _Watched(model, growing, on_token)
    both = model.model.kind == "encoder-decoder"
    limit = model.model.sizes.n_position
    if limit is not None and not both:
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
    """A model, and its running decode, that reports to a growing trace."""

    def __init__(
        self, model: Loaded, growing: GrowingTrace, on_token: Callable[[GrowingTrace], None] | None
    ) -> None:
        self.model, self.growing, self.on_token = model.model, growing, on_token
        self.parameters, self.encoder = model.model.parameters, model.model.encoder
        self.n_fed = 0
        self.decoding: Any = None

    def begin(
        self, prompt: Tensor, visible: Tensor | None = None, *, start_token: int | None = None
    ) -> tuple[Tensor, _Watched]:
        scores, self.decoding = self.model.begin(
            prompt, visible, start_token=start_token, record=self.growing
        )
        return scores, self

    def next(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.decoding.next(tokens)
        self.n_fed += 1
        if self.on_token is not None:
            self.on_token(self.growing)
        return scores

    def reorder(self, sequences: Tensor) -> None:
        raise TraceError("beam search changes what it has written: trace its result with `trace`.")
