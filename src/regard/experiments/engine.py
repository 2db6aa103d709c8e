"""Many changed runs of one text, exactly: a change is a row of a batch.

    engine = RowEngine(loaded, given, read)
    engine.unchanged                       the score of the run as it is
    engine.run([(HeadGate("decoder.3.self", (5,)),), ...]).scores

The unchanged run is kept: what each block was given, and the keys and values of each layer. A changed run
differs from it only from the first layer on that its change touches, and in a decoder from the first position
on. A row starts there, from the kept state. Rows that start at later layers join a batch when it has got to
their layer. As many rows run at once as fill the processor and fit into memory.

A model of somebody else runs its own code. Its blocks before the first one touched are skipped: they give
back what they gave in the unchanged run. This is tried on the unchanged run first; where it changes anything,
every row runs whole.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from regard.attention.linear import Rule
from regard.attention.scores import ScoreRule
from regard.attention.shapes import row_blocks
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.experiments.changes import (
    Change,
    Edit,
    HeadGate,
    KnockOut,
    PatchModule,
    PatchOutputs,
    Places,
)
from regard.files.loading import Loaded
from regard.heads.model import layers_of, path_of
from regard.layers.cache import LayerCache
from regard.layers.layer_id import LayerId, nth_call
from regard.models.transformer import BlockInputs, Stack, Transformer
from regard.tracing.calls import AttentionCall
from regard.tracing.interventions import intervene
from regard.tracing.take import ModelInput, module_of
from regard.tracing.watch import watching, wrapped

Score = Callable[[Tensor], Tensor]
Progress = Callable[[int, int], None]  # rows done, rows in all

# Tokens of a batch: enough that reading the weights costs little, few enough to stay in the caches.
TOKENS = 2048
MEMORY = 1 << 30  # bytes that the rows of a batch may take
_SCORES = 1 << 24  # scores of edges that are computed again at once
_READING = 24  # tokens whose computing takes as long as reading the weights
_SLACK = 1.3
_SAFETY = 3  # activations beside those that modules give: queries, keys, products


@dataclass(frozen=True, slots=True, eq=False)
class LogitReading:
    """Which numbers are read off the logits of each row.

    Attributes:
        score: From logits ``(row, example, vocab)``, or ``(row, example, position, vocab)`` where `positions`
            is None, to one number or several for each row.
        positions: The position of each example whose logits are read, ``(example,)``; None: all positions,
            and the logits of a model that has no positions in them.
    """

    score: Score
    positions: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RowScores:
    """What came out of a list of changes.

    Attributes:
        scores: One number, or several, for each change; NaN where it was not run.
        n_run: How many changes were run.
        seconds: How long they took.
        interrupted: Whether somebody pressed Ctrl-C before all were run.
    """

    scores: Float[Tensor, "change *score"]
    n_run: int
    seconds: float
    interrupted: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """One change, and where it begins to matter."""

    index: int
    change: Change
    block: int  # among all blocks in the order they run
    position: int


class RowEngine:
    """Runs changes of one input, many at once."""

    @torch.no_grad()
    def __init__(
        self,
        loaded: Loaded,
        given: ModelInput,
        read: LogitReading,
        *,
        memory: int = MEMORY,
        tokens: int | None = None,
    ) -> None:
        """Run the input unchanged, and keep what changed runs start from.

        Args:
            loaded: The model.
            given: What it is given, as `regard.trace` reads it.
            read: Which numbers are read off its logits.
            memory: Bytes that a batch may take.
            tokens: Tokens that a batch may have, though it has one row at least; None: as measured to be
                quick.
        """
        if module_of(loaded).training:
            raise ArgumentError(
                "the model is in training mode, and dropout differs from run to run: call .eval()."
            )
        self.loaded, self.read = loaded, read
        ours = isinstance(loaded.model, Transformer)
        began = time.perf_counter()
        self.rows: OurRows | _ForeignRows = (OurRows if ours else _ForeignRows)(loaded, given, read)
        self._memory, self._tokens = memory, tokens or self.rows.tokens
        self.seconds = time.perf_counter() - began  # of the unchanged run
        self.unchanged = self.rows.unchanged

    @property
    def outputs(self) -> dict[str, Float[Tensor, "example head query v_dim"]]:
        """What the heads of each layer gave in the unchanged run."""
        return self.rows.outputs

    @property
    def kinds(self) -> dict[str, str]:
        """For each layer: "self" or "cross"."""
        return self.rows.kinds

    def causal(self, layer: str) -> bool:
        """Return whether a layer's queries see no key after them, in the unchanged run."""
        return self.rows.is_causal[layer]

    @property
    def module(self) -> nn.Module:
        """The model's own module."""
        return module_of(self.loaded)

    @property
    def block_paths(self) -> list[str]:
        """The names of the blocks in the model, in the order they run."""
        return self.rows.block_paths

    def block_of(self, layer: str) -> int:
        """Return the number of the block in which an attention layer stands."""
        return self.rows.block_of(HeadGate(layer))

    @torch.no_grad()
    def module_outputs(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Return what modules give in the unchanged run, of those that give a tensor, or one first."""
        outputs: dict[str, Tensor] = {}
        thread = threading.get_ident()

        def keep(name: str, module: nn.Module, args: Any, given: Any) -> None:
            out = given[0] if isinstance(given, tuple) else given
            if isinstance(out, Tensor) and threading.get_ident() == thread:
                outputs[name] = out

        with ExitStack() as hooks:
            for name in names:
                hook = self.module.get_submodule(name).register_forward_hook(partial(keep, name))
                hooks.callback(hook.remove)
            self.rows.run([()], [_Row(0, (), 0, 0)])
        return outputs

    @property
    def starts_in_the_middle(self) -> bool:
        """Whether rows start at the first block that their change touches."""
        return self.rows.starts_in_the_middle

    def plan(self, changes: Sequence[Change]) -> list[list[_Row]]:
        """Return the batches in which changes are run, each of rows that start near each other."""
        rows = [_Row(index, change, *self.rows.start_of(change)) for index, change in enumerate(changes)]
        rows.sort(key=lambda row: (self.rows.stage(row.block), row.position, row.block))
        batches: list[list[_Row]] = []
        for row in rows:
            last = batches[-1] if batches else None
            n_token = self.rows.n_token(row.position)
            most = max(1, min(self._tokens // n_token, self._memory // self.rows.bytes_of_row(row.position)))
            same = last is not None and (self.rows.stage(last[0].block), last[0].position) == (
                self.rows.stage(row.block),
                row.position,
            )
            if last is not None and same and len(last) < most:
                last.append(row)
            else:
                batches.append([row])
        return batches

    def seconds_of(self, changes: Sequence[Change]) -> float:
        """Return about how long these changes take.

        A batch costs as much as its tokens, and reading the weights costs as much as some tokens more.
        """
        once = self.rows.n_token(0) + _READING
        cost = 0.0
        for batch in self.plan(changes):
            starts = [row.block for row in batch]
            if not self.rows.rows_join:
                starts = [min(starts)] * len(starts)
            shares = [1 - start / (self.rows.n_block + 1) for start in starts]
            cost += self.rows.n_token(batch[0].position) * sum(shares) + _READING * max(shares)
        return _SLACK * self.seconds * cost / once

    @torch.no_grad()
    def run(self, changes: Sequence[Change], *, progress: Progress | None = None) -> RowScores:
        """Run each change on the unchanged input.

        Args:
            changes: Each a tuple of edits that are made together; an empty one changes nothing.
            progress: AttentionCall with the number of changes done and of all, after every batch.

        Returns:
            The scores in the order of `changes`. Ctrl-C ends early, with what is done.
        """
        scores: Tensor | None = None
        n_done, began, interrupted = 0, time.perf_counter(), False
        try:
            for batch in self.plan(changes):
                logits = self.rows.run([row.change for row in batch], batch)
                read = self.read.score(logits).double().cpu()
                if scores is None:
                    scores = read.new_full((len(changes), *read.shape[1:]), torch.nan)
                scores[[row.index for row in batch]] = read
                n_done += len(batch)
                if progress is not None:
                    progress(n_done, len(changes))
        except KeyboardInterrupt:
            interrupted = True
        if scores is None:
            scores = self.unchanged.new_full((len(changes), *self.unchanged.shape), torch.nan)
        return RowScores(scores, n_done, time.perf_counter() - began, interrupted)


class OurRows:
    """Rows of a `Transformer`, started at any block and position."""

    starts_in_the_middle = True
    rows_join = True  # a row joins a batch that is under way
    tokens = TOKENS

    def __init__(self, loaded: Loaded, given: ModelInput, read: LogitReading) -> None:
        self.model = model = loaded.transformer
        self.layers = layers_of(loaded)
        self.read = read
        tokens = list(given.args)
        masks = [given.key_mask] if len(tokens) == 1 else [given.source_key_mask, given.key_mask]
        stacks = [stack for stack in (model.encoder, model.decoder) if stack is not None]
        self.stacks: list[Stack] = stacks
        self.key_masks: list[Tensor | None] = [
            None if mask is None or bool(mask.all()) else mask for mask in masks
        ]
        self.n_example = len(tokens[0])
        self.first_block = [0]  # of each stack, then the number of all
        for stack in stacks:
            self.first_block.append(self.first_block[-1] + len(stack.blocks))
        self.n_block = self.first_block[-1]
        self.kept: list[list[Tensor]] = []  # of each stack: what blocks were given, what the last gave
        self.memory: Tensor | None = None
        self.outputs: dict[str, Tensor] = {}
        self.keys_values: dict[str, tuple[Tensor, Tensor]] = {}
        self.queries: dict[str, Tensor] = {}
        self.kinds: dict[str, str] = {}
        self.lengths: dict[str, tuple[int, int]] = {}  # queries and keys
        self.is_causal: dict[str, bool] = {}
        self.rules: dict[str, Rule] = {}
        self.observe: Callable[[str, Tensor, Tensor, Tensor], None] | None = None  # told each row's q, k, v
        self.positions: list[Tensor] = []
        self._given: tuple[tuple[int, int, int, int], BlockInputs] | None = None  # the last, by what for
        sizes = _Sizes()
        for number, (stack, ids) in enumerate(zip(stacks, tokens, strict=True)):
            key_mask = self.key_masks[number]
            model._check(ids, key_mask, 0)
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
            if key_mask is not None:
                positions = (key_mask.long().cumsum(-1) - 1).clamp(min=0)
            self.positions.append(positions)
            x = model.embed(ids, positions)
            self.kept.append([x])
            for index in range(len(stack.blocks)):
                with sizes.of(stack.blocks[index]):
                    x = model.run_block(stack, index, x, self._inputs(number, 1, 0), record=self._keep)
                self.kept[-1].append(x)
            if number + 1 < len(stacks):
                self.memory = self._normed(stack, x)
        self._causal = stacks[-1] is model.decoder and self.key_masks[-1] is None
        self._causal = self._causal and all(isinstance(rule, ScoreRule) for rule in self.rules.values())
        self._block_bytes = sizes.most
        logits = self._logits(self.kept[-1][-1], 0)
        self._logit_bytes = logits.numel() * logits.element_size()
        self.logits = logits[0]
        self.unchanged = read.score(logits).double().cpu()[0]

    def _keep(
        self, name: str, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, rule: Rule
    ) -> Tensor | None:
        """Keep what a layer of the unchanged run computed."""
        self.outputs[name], self.keys_values[name], self.rules[name] = out, (k, v), rule
        self.queries[name] = q
        self.kinds[name] = LayerId.parse(name).kind
        self.lengths[name] = q.shape[2], k.shape[2]
        self.is_causal[name] = bool(rule.visible.causal if isinstance(rule, ScoreRule) else rule.causal)
        return None

    def _inputs(self, number: int, n_row: int, position: int, memory: Tensor | None = None) -> BlockInputs:
        """What the blocks of a stack are given, for so many rows that start at a position.

        `memory` is the encoder's output in each of the rows; None: as in the unchanged run.
        """
        key = (number, n_row, position, id(memory))
        if self._given is None or self._given[0] != key:  # a growing batch asks for each number of rows once

            def rows_of(tensor: Tensor | None) -> Tensor | None:
                return None if tensor is None else tensor.repeat(n_row, *(1,) * (tensor.dim() - 1))

            positions = self.positions[number]
            n_key = positions.shape[1]
            positions = positions if len(positions) == 1 else positions.repeat(n_row, 1)
            if number and memory is None:
                memory = rows_of(self.memory)
            given = self.model.block_inputs(
                self.stacks[number],
                positions[:, position:],
                n_key,
                rows_of(self.key_masks[number]),
                memory,
                rows_of(self.key_masks[0]) if number else None,
            )
            self._given = key, given
        return self._given[1]

    @staticmethod
    def _normed(stack: Stack, x: Tensor) -> Tensor:
        normed: Tensor = x if stack.norm is None else stack.norm(x)
        return normed

    def _logits(self, x: Tensor, position: int) -> Tensor:
        """The logits that are read, (row, example, ...), of the stream after the last block."""
        x = x.unflatten(0, (-1, self.n_example))
        at = self.read.positions
        if at is not None:
            x = x[:, torch.arange(self.n_example, device=x.device), at.to(x.device) - position]
        hidden = self._normed(self.stacks[-1], x)
        flat = hidden.flatten(0, 1)
        scored = self.model.logits(flat[:, None] if at is not None else flat)
        if scored is None:  # a model without a language-model head: its hidden states are read
            return hidden
        scored = scored[:, 0] if at is not None else scored
        logits: Tensor = scored.unflatten(0, (-1, self.n_example))
        return logits

    @property
    def block_paths(self) -> list[str]:
        """The names of the blocks in the model."""
        return [f"{stack.name}.blocks.{index}" for stack in self.stacks for index in range(len(stack.blocks))]

    def stage(self, block: int) -> int:
        """The stack in which a row starts: rows of different ones are not run together."""
        return sum(block >= first for first in self.first_block[1:-1])

    def n_token(self, position: int) -> int:
        """Tokens of a row that starts at a position."""
        return self.n_example * max(1, self.positions[-1].shape[1] - position)

    def bytes_of_row(self, position: int) -> int:
        """Bytes that a row takes, as measured in the unchanged run."""
        n = self.positions[-1].shape[1]
        part = (n - position) / n
        keys = sum(tensor.nbytes for tensor in next(iter(self.keys_values.values()), ()))
        return int(_SAFETY * part * self._block_bytes) + self._logit_bytes + 2 * keys + 1

    def start_of(self, change: Change) -> tuple[int, int]:
        """The first block, and in a decoder the first position, at which a change makes a difference."""
        block = min((self.block_of(edit) for edit in change), default=self.n_block)
        last = self.positions[-1].shape[1] - 1
        if not self._causal or block < self.first_block[-2]:
            return block, 0
        read = last if self.read.positions is None else int(self.read.positions.min())
        if self.read.positions is None:
            return block, 0
        return block, min([read, *(self._position_of(edit, last + 1) for edit in change)])

    def block_of(self, edit: Edit) -> int:
        """The number of the block in which an edit is made."""
        if isinstance(edit, PatchModule):
            parts = edit.module.split(".")
            for number, stack in enumerate(self.stacks):
                if parts[:2] == [stack.name, "blocks"] and parts[2].isdigit():
                    return self.first_block[number] + int(parts[2])
            raise UnsupportedError(
                f"{edit.module!r} is in no block: rows start at a block. regard.intervene patches any module."
            )
        if edit.layer not in self.layers:
            raise ArgumentError(
                f"there is no attention layer {edit.layer!r}: there are {', '.join(self.layers)}."
            )
        parts = path_of(self.model, edit.layer).split(".")
        number = [stack.name for stack in self.stacks].index(parts[0])  # type: ignore[arg-type]
        return self.first_block[number] + int(parts[2])

    def _position_of(self, edit: Edit, n: int) -> int:
        """The first query that an edit of a causal layer changes."""
        rows = edit.rows
        if isinstance(edit, KnockOut) and edit.cols is not None and self.kinds[edit.layer] == "self":
            first = min(edit.cols, default=n)  # earlier queries do not see these keys anyway
            seen = range(first, n) if rows is None else [row for row in rows if row >= first]
            return min(seen, default=n - 1)
        return 0 if rows is None else min(rows, default=n - 1)

    def run(self, changes: Sequence[Change], rows: Sequence[_Row]) -> Tensor:
        """The logits (row, example, ...) of rows that start in one stack at one position, in order."""
        position, n_example = rows[0].position, self.n_example
        by_layer: dict[str, list[tuple[int, Edit]]] = defaultdict(list)
        of_modules: list[tuple[int, PatchModule]] = []
        for number, change in enumerate(changes):
            for edit in change:
                if isinstance(edit, PatchModule):
                    of_modules.append((number, edit))
                else:
                    by_layer[edit.layer].append((number, edit))
        edited = partial(_edited, by_layer, n_example, position)

        def record(
            name: str, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, rule: Rule
        ) -> Tensor | None:
            if self.observe is not None:
                self.observe(name, q, k, v)
            return edited(name, q, k, v, out, lse, rule)

        memory: Tensor | None = None
        x = self.kept[-1][-1]
        with _patched_modules(self.model, of_modules, n_example, position):
            for number in range(self.stage(rows[0].block), len(self.stacks)):
                stack, kept, first = self.stacks[number], self.kept[number], self.first_block[number]
                starts = [max(row.block - first, 0) for row in rows]
                n_row, x = 0, kept[0][:0, position:]
                for index in range(min(starts), len(stack.blocks) + 1):
                    joining = starts.count(index)
                    if joining:
                        x = torch.cat([x, kept[index][:, position:].repeat(joining, 1, 1)])
                        n_row += joining
                    if index < len(stack.blocks):
                        given = self._inputs(number, n_row, position, memory)
                        cache = self._past(stack, index, n_row, position)
                        x = self.model.run_block(stack, index, x, given, cache=cache, record=record)
                if number + 1 < len(self.stacks):
                    memory = self._normed(stack, x)
        self._given = None
        return self._logits(x, position)

    def _past(self, stack: Stack, index: int, n_row: int, position: int) -> LayerCache | None:
        """The keys and values before a position, as they are in the unchanged run; None: there are none."""
        if not position:
            return None
        past = LayerCache(block=self.positions[-1].shape[1])
        k, v = (t[:, :, :position] for t in self.keys_values[str(LayerId(stack.name, index))])
        past.append(k.repeat(n_row, 1, 1, 1), v.repeat(n_row, 1, 1, 1))
        return past


def _edited(
    by_layer: Mapping[str, list[tuple[int, Edit]]],
    n_example: int,
    position: int,
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    rule: Rule,
) -> Tensor | None:
    """Make the edits of a layer, each in its own row; queries are counted from `position` on."""
    edits = by_layer.get(name)
    if not edits:
        return None
    out = out.clone()
    n_head, n_query = out.shape[1:3]
    cuts: dict[tuple[Places, Places], list[tuple[int, KnockOut]]] = defaultdict(list)
    for row, edit in edits:
        batch = slice(row * n_example, (row + 1) * n_example)
        assert not isinstance(edit, PatchModule)  # those are made by hooks
        heads = list(range(n_head)) if edit.heads is None else list(edit.heads)
        if max(heads, default=-1) >= n_head:
            raise ArgumentError(f"{name} has {n_head} heads. Got head {max(heads)}.")
        if isinstance(edit, KnockOut):
            one_row: Places = edit.rows if edit.rows is not None and len(edit.rows) == 1 else None
            cuts[edit.heads, one_row].append((row, edit))
            continue
        queries = _local(edit.rows, n_query, position)
        for head in heads:
            at = (batch, head, queries)
            if isinstance(edit, HeadGate):
                out[at] *= edit.by
                if edit.toward is not None:
                    toward = edit.toward if edit.toward.dim() == 1 else edit.toward[heads.index(head)]
                    out[at] += (1 - edit.by) * toward.to(out)
            elif isinstance(edit, PatchOutputs):
                wanted = (n_head, position + n_query, out.shape[3])
                if edit.source.shape[1:] != wanted or len(edit.source) not in (1, n_example):
                    raise ShapeError(
                        f"the source for {name} must be (example or 1, head, query, v_dim) = "
                        f"({n_example}, {', '.join(map(str, wanted))}). Got {tuple(edit.source.shape)}."
                    )
                out[at] = edit.source[:, head, position:][:, queries].to(out)
            else:
                kv_head = head * v.shape[1] // n_head
                rows = slice(position, position + n_query)
                source = edit.source.layer(name).block(head, rows, slice(0, k.shape[2]))[:, 0]
                out[at] = (source.to(v.dtype) @ v[batch, kv_head])[:, queries]
    called = AttentionCall(name, "self", v, out, q=q, k=k, rule=rule)
    for (places, one_row), some in cuts.items():
        heads = list(range(n_head)) if places is None else list(places)
        _cut_rows(some, heads, one_row, n_example, position, out, called)
    return out


def _local(rows: Places, n_query: int, position: int) -> list[int]:
    """Queries as this call counts them, which starts at `position`."""
    return list(range(n_query)) if rows is None else [row - position for row in rows if row >= position]


def _cut_rows(
    cuts: list[tuple[int, KnockOut]],
    heads: list[int],
    one_row: Places,
    n_example: int,
    position: int,
    out: Tensor,
    called: AttentionCall,
) -> None:
    """Write into `out` what heads give without some edges, for several rows of the batch at once."""
    n_query, n_key = called.shape[2:]
    if one_row is not None and one_row[0] < position:
        return  # this call does not compute that row: in a causal model no key that is cut was visible to it
    queries = (
        slice(0, n_query) if one_row is None else slice(one_row[0] - position, one_row[0] - position + 1)
    )
    per_row = n_example * len(heads) * (queries.stop - queries.start) * n_key
    for some in _chunks(cuts, max(1, _SCORES // per_row)):
        batch = [row * n_example + example for row, _ in some for example in range(n_example)]
        index = torch.tensor(batch, device=out.device)
        part = _rows_of(called, batch, index)
        for block in row_blocks(queries, len(batch) * len(heads) * n_key):
            hidden, touched = _cells([edit for _, edit in some], block, n_key, position, out.device)
            hidden, touched = (t.repeat_interleave(n_example, 0)[:, None] for t in (hidden, touched))
            scores = part.scores_of(heads, block).masked_fill(hidden, -torch.inf)
            new = part.attended(part.softmax(scores, heads), heads).to(out.dtype)
            at = (index[:, None, None], torch.tensor(heads, device=out.device)[None, :, None])
            rows = torch.arange(block.start, block.stop, device=out.device)
            out[(*at, rows)] = torch.where(touched[..., None], new, out[(*at, rows)])


def _rows_of(called: AttentionCall, batch: list[int], index: Tensor) -> AttentionCall:
    """A call of attention as it is in some sequences of the batch."""
    assert called.q is not None  # ours reports them
    assert called.k is not None
    assert called.v is not None
    rule = called.rule.part(None, batch) if isinstance(called.rule, ScoreRule) else called.rule
    q, k, v = (tensor[index] for tensor in (called.q, called.k, called.v))
    return AttentionCall(called.name, called.kind, v, None, q=q, k=k, rule=rule)


def _cells(
    edits: list[KnockOut], block: slice, n_key: int, position: int, device: torch.device
) -> tuple[Bool[Tensor, "row query key"], Bool[Tensor, "row query"]]:
    """Which cells are hidden by each of several edits, and which queries it names."""
    n_query = block.stop - block.start
    touched = torch.zeros(len(edits), n_query, dtype=torch.bool)
    cols = torch.zeros(len(edits), n_key, dtype=torch.bool)
    for number, edit in enumerate(edits):
        rows = range(n_query) if edit.rows is None else [row - position - block.start for row in edit.rows]
        touched[number, [row for row in rows if 0 <= row < n_query]] = True
        cols[number, slice(None) if edit.cols is None else list(edit.cols)] = True
    hidden = touched[:, :, None] & cols[:, None, :]
    return hidden.to(device), touched.to(device)


def _chunks(items: Sequence[Any], size: int) -> Iterator[Any]:
    return (items[at : at + size] for at in range(0, len(items), size))


@contextmanager
def _patched_modules(
    model: nn.Module, patches: Sequence[tuple[int, PatchModule]], n_example: int, position: int
) -> Iterator[None]:
    """A block in which modules give, in some rows, what they gave elsewhere."""
    by_module: dict[str, list[tuple[int, PatchModule]]] = defaultdict(list)
    for row, edit in patches:
        by_module[edit.module].append((row, edit))
    thread = threading.get_ident()

    def patch(name: str, module: nn.Module, args: Any, given: Any) -> Any:
        if threading.get_ident() != thread:
            return None
        out = (given if isinstance(given, Tensor) else given[0]).clone()
        for row, edit in by_module[name]:
            if edit.source.shape[2:] != out.shape[2:] or edit.source.shape[1] != position + out.shape[1]:
                raise ShapeError(
                    f"{name} gives (batch, position, ...) = {tuple(out.shape)} from position {position} on. "
                    f"Got a source of {tuple(edit.source.shape)}."
                )
            queries = _local(edit.rows, out.shape[1], position)
            batch = slice(row * n_example, (row + 1) * n_example)
            out[batch, queries] = edit.source[:, position:][:, queries].to(out)
        return out if isinstance(given, Tensor) else (out, *given[1:])

    with ExitStack() as hooks:
        for name in by_module:
            try:
                module = model.get_submodule(name)
            except AttributeError:
                raise ArgumentError(f"the model has no module {name!r}: see model.named_modules().") from None
            hooks.callback(module.register_forward_hook(partial(patch, name)).remove)
        yield


class _Sizes:
    """Measures the bytes that the modules of a block give, of the block that gives most."""

    def __init__(self) -> None:
        self.most = 0

    @contextmanager
    def of(self, block: nn.Module) -> Iterator[None]:
        """A block of code in which a block of the model runs."""
        total = 0

        def add(module: nn.Module, args: Any, given: Any) -> None:
            nonlocal total
            tensors = [given] if isinstance(given, Tensor) else given if isinstance(given, tuple) else ()
            total += sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))

        with ExitStack() as hooks:
            for module in block.modules():
                hooks.callback(module.register_forward_hook(add).remove)
            yield
        self.most = max(self.most, total)


def _causal(called: AttentionCall) -> bool:
    """Whether a call's queries see no key after them."""
    if isinstance(called.rule, ScoreRule):
        if called.rule.visible.causal:
            return True
        n_query, n_key = called.shape[2:]
        seen = called.rule.visible.tile(slice(0, n_query), slice(0, n_key), torch.device("cpu"))
        return called.kind == "self" and not bool(seen.triu(1 + n_key - n_query).any())
    if called.weights is not None:
        return called.kind == "self" and not bool(called.weights.triu(1).any())
    return False


def _block_name(name: str) -> str:
    """The outermost block of a stack in which a module stands; "" where it stands in none."""
    layer = LayerId.parse(name)
    return "" if layer.index is None else f"{layer.stack}.{layer.index}".lstrip(".")


class _ForeignRows:
    """Rows of anybody's model, which runs its own code; blocks before a change are skipped if that holds."""

    rows_join = False
    tokens = TOKENS // 4  # a batch starts at the first of its rows' layers

    def __init__(self, loaded: Loaded, given: ModelInput, read: LogitReading) -> None:
        self.loaded, self.read, self.module = loaded, read, module_of(loaded)
        self.args, self.kwargs = given.args, dict(given.kwargs)
        tensors = [t for t in (*given.args, *given.kwargs.values()) if isinstance(t, Tensor) and t.dim()]
        if not tensors:
            raise ArgumentError("the model is given no tensor, whose rows could be changed.")
        self.n_example = len(tensors[0])
        self._n_token = max(t.shape[1] if t.dim() > 1 else 1 for t in tensors)
        accepted = getattr(self.module.forward, "__code__", None)
        if accepted is not None and "use_cache" in accepted.co_varnames:
            self.kwargs.setdefault("use_cache", False)
        self.outputs: dict[str, Tensor] = {}
        self.kinds: dict[str, str] = {}
        self.lengths: dict[str, tuple[int, int]] = {}  # queries and keys
        self.is_causal: dict[str, bool] = {}
        self._kept: dict[str, Any] = {}
        sizes = _Sizes()
        with watching(self.module, None, self._keep_outputs), self._keeping(), sizes.of(self.module):
            logits = self._call(1)
        self._bytes = max(1, sizes.most)
        self.logits = self._chosen(logits)[0]
        self.unchanged = read.score(self._chosen(logits)).double().cpu()[0]
        with_attention = {_block_name(name) for name in self.outputs}
        self.blocks = [name for name in self._kept if name in with_attention]  # in the order they ran
        self._place = {name: n for n, name in enumerate(self.blocks)}
        self.n_block = len(self.blocks)
        self.batched = self._same(logits, 0)
        self.starts_in_the_middle = (
            self.batched and self.n_block > 1 and self._same(logits, self.n_block // 2)
        )
        if self.starts_in_the_middle:
            self.starts_in_the_middle = self._same(logits, self.n_block)

    def _keep_outputs(self, called: AttentionCall, out: Tensor) -> Tensor:
        name = nth_call(called.name, self.outputs)
        self.outputs[name] = out.detach()
        self.kinds[name] = called.kind
        self.lengths[name] = called.shape[2], called.shape[3]
        self.is_causal[name] = _causal(called)
        return out

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """A block in which is kept what members of module lists give, in the order they run."""

        def keep(name: str, module: nn.Module, args: Any, given: Any) -> None:
            self._kept.pop(name, None)
            self._kept[name] = given

        with ExitStack() as hooks:
            for name, module in self.module.named_modules():
                if name and _block_name(name) == name:
                    hooks.callback(module.register_forward_hook(partial(keep, name)).remove)
            yield

    def _repeated(self, tree: Any, n_row: int) -> Any:
        """Every tensor of the unchanged run's batch, once for each row."""

        def rows(tensor: Tensor) -> Tensor:
            if not tensor.dim() or len(tensor) != self.n_example:
                return tensor
            return tensor.repeat(n_row, *(1,) * (tensor.dim() - 1))

        return tree_map_only(Tensor, rows, tree)

    def _call(self, n_row: int) -> Tensor:
        args, kwargs = self._repeated((self.args, self.kwargs), n_row)
        out = self.module(*args, **kwargs)
        logits = out if isinstance(out, Tensor) else getattr(out, "logits", None)
        if logits is None:
            logits = out[0]
        return logits.unflatten(0, (-1, self.n_example))  # type: ignore[no-any-return]

    def _chosen(self, logits: Tensor) -> Tensor:
        """The logits that are read, (row, example, ...)."""
        at = self.read.positions
        if at is None or logits.dim() < 4:
            return logits
        return logits[:, torch.arange(self.n_example, device=logits.device), at.to(logits.device)]

    def _same(self, logits: Tensor, first: int) -> bool:
        """Whether two unchanged rows that start at a block give what the model gave."""
        try:
            with self._skipping(first, 2):
                again = self._call(2)
        except Exception:  # whatever it says: this model cannot be run like that
            return False
        scale = float(logits.abs().max())
        return again.shape[1:] == logits.shape[1:] and float((again - logits).abs().max()) <= 1e-5 * scale

    @contextmanager
    def _skipping(self, first: int, n_row: int) -> Iterator[None]:
        """A block in which blocks before the `first` give back what they gave, in this thread."""
        thread = threading.get_ident()

        def skip(name: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return forward(*args, **kwargs)
            return self._repeated(self._kept[name], n_row)

        with ExitStack() as stack:
            for name in self.blocks[:first]:
                stack.enter_context(
                    wrapped(self.module.get_submodule(name), "forward", partial(partial, skip, name))
                )
            yield

    @property
    def block_paths(self) -> list[str]:
        """The names of the blocks in the model."""
        return self.blocks

    def stage(self, block: int) -> int:
        """Rows of all blocks may run together."""
        return 0

    def n_token(self, position: int) -> int:
        """Tokens of a row."""
        return self.n_example * self._n_token if self.batched else TOKENS

    def bytes_of_row(self, position: int) -> int:
        """Bytes that a row takes, as measured in the unchanged run: of the whole model, so never too few."""
        return self._bytes

    def start_of(self, change: Change) -> tuple[int, int]:
        """The first block that a change touches."""
        if not self.starts_in_the_middle:
            return 0, 0
        return min((self.block_of(edit) for edit in change), default=self.n_block), 0

    def block_of(self, edit: Edit) -> int:
        """The number of the block in which an edit is made."""
        return self._place.get(_block_name(edit.module if isinstance(edit, PatchModule) else edit.layer), 0)

    def run(self, changes: Sequence[Change], rows: Sequence[_Row]) -> Tensor:
        """The logits (row, example, ...) of these rows."""
        first = min(row.block for row in rows) if self.starts_in_the_middle else 0
        with intervene(self.loaded, this_thread=True) as run, self._skipping(first, len(rows)):
            for number, change in enumerate(changes):
                batch = list(range(number * self.n_example, (number + 1) * self.n_example))
                for edit in change:
                    edit.ask(run, batch, len(rows) * self.n_example)
            return self._chosen(self._call(len(rows)))
