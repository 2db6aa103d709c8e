"""Batches whose place in the data is two numbers: seek to them, and the same batches follow.

Examples are put in an order that depends on (seed, epoch) alone and cut into windows of some thousands. A
window is sorted by length, cut into batches of about as many tokens, and its batches shuffled. So a batch is
found from (window, batch) without the ones before it, and only one window is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.decoding.prompts import rectangle
from regard.errors import ArgumentError
from regard.train.vocabulary import SPECIAL

IGNORED = -100  # a label that the loss leaves out, as cross_entropy has it
WINDOW = 4096  # examples sorted together
Row = Sequence[int] | np.ndarray


class Example(NamedTuple):
    """What a model reads, what it is given of the answer, and what it must say."""

    source: Row | None  # None: a language model has no source
    inputs: Row
    labels: Row  # one for each of `inputs`


class Batch(NamedTuple):
    """Several examples, padded."""

    source: Int[Tensor, "batch position"] | None
    source_key_mask: Bool[Tensor, "batch position"] | None  # of the source
    inputs: Int[Tensor, "batch target_position"]
    labels: Int[Tensor, "batch target_position"]  # IGNORED where there is nothing to say

    @property
    def n_label(self) -> int:
        """How many labels count."""
        return int((self.labels != IGNORED).sum())

    def part(self, rank: int, world: int) -> Batch:
        """Return this process's rows; with fewer rows than processes, a row that does not count."""
        if rank < len(self.inputs):
            return self._changed(lambda part: part[rank::world])
        idle = self._changed(lambda part: part[:1])
        return idle._replace(labels=torch.full_like(idle.labels, IGNORED))

    def to(self, device: torch.device) -> Batch:
        """Move it to that device."""
        return self._changed(lambda part: part.to(device, non_blocking=True))

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return Batch._make(None if part is None else change(part) for part in self)


@runtime_checkable
class Examples(Protocol):
    """Examples by number: its length is that of an epoch."""

    def __len__(self) -> int: ...

    def get(self, epoch: int, index: int) -> Example:
        """Return the example of that number in that epoch."""


@dataclass(frozen=True, slots=True, eq=False)
class PairExamples:
    """Pairs of a source and its answer, as tokens, by their number."""

    pair: Callable[[int], tuple[Row, Row]]
    size: int
    start: int  # the token an answer begins with
    endless: bool = False  # another epoch, other pairs

    def __len__(self) -> int:
        return self.size

    def get(self, epoch: int, index: int) -> Example:
        source, target = self.pair(epoch * self.size + index if self.endless else index)
        labels = np.asarray(target, dtype=np.int64)
        return Example(source, np.concatenate([[self.start], labels[:-1]]), labels)


@dataclass(frozen=True, slots=True, eq=False)
class BlockExamples:
    """A text cut into blocks of equal length, elsewhere in each epoch: the next token is the label."""

    tokens: np.ndarray
    context: int
    seed: int
    mask: int | None = None  # BERT: hide some tokens behind this one, and ask for them
    vocab: int = 0
    moving: bool = True  # False: held-out text is cut at the same places each time

    def __post_init__(self) -> None:
        if len(self) < 1:
            raise ArgumentError(
                f"the text has {len(self.tokens)} tokens: at least {self.context + 1} are needed for one "
                f"context of {self.context}. Give more text, or a shorter context."
            )

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def get(self, epoch: int, index: int) -> Example:
        slack = min(self.context - 1, len(self.tokens) - 1 - len(self) * self.context)
        random = np.random.default_rng((self.seed, epoch, 1))
        first = (int(random.integers(slack + 1)) if self.moving else 0) + index * self.context
        block = np.asarray(self.tokens[first : first + self.context + 1], dtype=np.int64)
        if self.mask is None:
            return Example(None, block[:-1], block[1:])
        return self._masked(block[:-1], np.random.default_rng((self.seed, epoch, index, 2)))

    def _masked(self, block: np.ndarray, random: np.random.Generator) -> Example:
        """Ask for 15 % of tokens: 80 % masked, 10 % replaced, 10 % unchanged (Devlin et al. 2019, 3.1)."""
        chosen = random.random(len(block)) < 0.15
        chosen[random.integers(len(block))] = True  # never none
        fate = random.random(len(block))
        other = random.integers(len(SPECIAL), max(self.vocab, len(SPECIAL) + 1), len(block))
        changed = np.select([fate < 0.8, fate >= 0.9], [np.int64(self.mask or 0), other], block)
        return Example(None, np.where(chosen, changed, block), np.where(chosen, block, IGNORED))


class DataPosition(NamedTuple):
    """Where in the data the next batch is."""

    window: int = 0
    batch: int = 0


class Batches:
    """An endless series of batches from any place; `shuffled` unless the examples are random already."""

    def __init__(
        self, examples: Examples, batch_tokens: int, seed: int, pad: int, *, shuffled: bool = True
    ) -> None:
        if len(examples) < 1:
            raise ArgumentError("there is nothing to learn from: the data hold no usable line.")
        self.examples, self.batch_tokens, self.seed, self.pad = examples, batch_tokens, seed, pad
        self.shuffled = shuffled
        self.n_window = -(-len(examples) // WINDOW)  # of an epoch
        self._groups: tuple[int, list[list[Example]]] = (-1, [])  # of a window

    def at(self, place: DataPosition) -> tuple[Batch, DataPosition]:
        """Return the batch there, and the place after it."""
        if self._groups[0] != place.window:
            self._groups = (place.window, self._window(place.window))
        groups = self._groups[1]
        last = place.batch + 1 == len(groups)
        after = DataPosition(place.window + 1) if last else DataPosition(place.window, place.batch + 1)
        return padded(groups[place.batch], self.pad), after

    def _window(self, window: int) -> list[list[Example]]:
        """Return the batches of a window, in their order."""
        epoch, part = divmod(window, self.n_window)
        random, size = np.random.default_rng((self.seed, epoch, 0)), len(self.examples)
        whole = random.permutation(size) if self.shuffled else range(size)
        indices = whole[part * WINDOW : (part + 1) * WINDOW]
        examples = [self.examples.get(epoch, int(index)) for index in indices]
        groups = bucketed(examples, self.batch_tokens)
        order = np.random.default_rng((self.seed, window, 3)).permutation(len(groups))
        return [groups[index] for index in order]


def bucketed(examples: Sequence[Example], batch_tokens: int) -> list[list[Example]]:
    """Return examples of about the same length together, as many as fit `batch_tokens` with their padding."""
    ordered = sorted(examples, key=lambda example: (_length(example), len(example.inputs)))
    groups: list[list[Example]] = []
    for example in ordered:  # the last of a group is its longest
        if not groups or _length(example) * (len(groups[-1]) + 1) > batch_tokens:
            groups.append([])
        groups[-1].append(example)
    return groups


def one_pass(examples: Examples, batch_tokens: int, pad: int, most: int | None = None) -> Iterator[Batch]:
    """Return each example once, or the first `most`: for an evaluation."""
    size = len(examples) if most is None else min(most, len(examples))
    for first in range(0, size, WINDOW):
        some = [examples.get(0, index) for index in range(first, min(size, first + WINDOW))]
        for group in bucketed(some, batch_tokens):
            yield padded(group, pad)


def padded(examples: Sequence[Example], pad: int) -> Batch:
    """Return examples as one rectangle."""
    inputs = rectangle([example.inputs for example in examples], pad)
    labels = rectangle([example.labels for example in examples], IGNORED)
    sources = [example.source for example in examples if example.source is not None]
    if not sources:
        return Batch(None, None, inputs, labels)
    source = rectangle(sources, pad)
    lengths = torch.tensor([len(row) for row in sources])
    source_key_mask = torch.arange(source.shape[1])[None] < lengths[:, None]
    return Batch(source, None if bool(source_key_mask.all()) else source_key_mask, inputs, labels)


def _length(example: Example) -> int:
    return max(len(example.source) if example.source is not None else 0, len(example.inputs))
