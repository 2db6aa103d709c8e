"""Which head follows a relation between words: subject to verb, determiner to noun, any pairs given.

Scored as Clark et al. (2019) do: attention to a word that is split into pieces is the sum over its
pieces, from it the mean; the word most looked at is the prediction. A head is compared with the best fixed
offset ("the word before"), which is what a head that knows nothing of the relation could do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ArgumentError
from regard.files.loading import Loaded
from regard.heads.conllu import Sentence
from regard.tracing.layers import AnyLayer
from regard.tracing.take import trace
from regard.tracing.traces import Trace

Spans = Sequence[tuple[int, int]]  # where words stand: text[start:end]
Pairs = Sequence[tuple[int, int]]  # (from, to): the word at `from` is to look at the word at `to`

LONGEST = 512  # tokens of a sentence


@dataclass(frozen=True, slots=True, eq=False)
class RelationScore:
    """How often each head's most looked-at word is the right one."""

    relation: str
    accuracy: Float[Tensor, "layer head"]
    n_pair: int
    baseline: float  # accuracy of the best fixed offset on the same pairs
    offset: int  # that offset, in words
    layers: tuple[str, ...]

    @property
    def best(self) -> tuple[int, int]:
        """Layer and head of the highest accuracy."""
        if not self.n_pair:
            raise ArgumentError(f"there is no pair of {self.relation!r} to score.")
        layer, head = divmod(int(self.accuracy.nan_to_num(nan=-1.0).argmax()), self.accuracy.shape[1])
        return layer, head

    @property
    def best_accuracy(self) -> float:
        return float(self.accuracy[self.best])

    def __repr__(self) -> str:
        if not self.n_pair:
            return f"RelationScore of {self.relation}: no pairs"
        layer, head = self.best
        return (
            f"RelationScore of {self.relation}, {self.n_pair} pairs: head {layer}.{head} "
            f"{self.best_accuracy:.2f}; always {self.offset:+d} words {self.baseline:.2f}"
        )


def word_attention(
    layer: AnyLayer, pieces: Sequence[Sequence[int]], batch: int = 0
) -> Float[Tensor, "head word other_word"]:
    """Attention between words from attention between their pieces: summed over keys, averaged over queries.

    A word without pieces (one that was cut off) looks at nothing and is not looked at.
    """
    device = layer.tensors[0].device
    belongs = torch.zeros(layer.n_key, len(pieces), device=device)
    for word, tokens in enumerate(pieces):
        belongs[list(tokens), word] = 1.0
    n_piece = belongs.sum(0).clamp(min=1.0)
    between = torch.zeros(layer.n_head, len(pieces), len(pieces), device=device)
    for rows, cols, weights in layer.strips(batch):
        between += (belongs[rows] / n_piece).mT @ (weights.float() @ belongs[cols])
    return between


def pieces_of_words(
    spans: Spans, offsets: Sequence[tuple[int, int]], special: Sequence[bool] | None = None
) -> list[list[int]]:
    """For each word the tokens that overlap its span in the text.

    >>> pieces_of_words([(0, 3), (4, 11)], [(0, 3), (3, 8), (8, 11)])
    [[0], [1, 2]]
    """
    pieces: list[list[int]] = [[] for _ in spans]
    for token, (start, end) in enumerate(offsets):
        if start == end or (special is not None and special[token]):
            continue
        for word, (first, last) in enumerate(spans):
            if start < last and first < end:
                pieces[word].append(token)
    return pieces


def score_relations(
    loaded: Loaded,
    sentences: Iterable[Sentence],
    relations: Sequence[str],
    *,
    from_head: bool = False,
) -> dict[str, RelationScore]:
    """The score of every head on each relation of a treebank: dependents looking at their heads, or heads.

    In a causal model only pairs that look back are scored, by heads and by the baseline alike.
    """
    tallies = {relation: _Tally() for relation in relations}
    layers: tuple[str, ...] = ()
    for sentence in sentences:
        wanted = {relation: sentence.pairs(relation, from_head=from_head) for relation in relations}
        if not any(wanted.values()):
            continue
        spans = [(word.start, word.end) for word in sentence.words]
        traced, pieces = _traced(loaded, sentence.text, spans)
        layers = traced.names
        _count(traced, pieces, wanted, tallies)
    return {relation: tally.score(relation, layers) for relation, tally in tallies.items()}


def score_pairs(
    loaded: Loaded, examples: Iterable[tuple[str, Spans, Pairs]], name: str = "pairs"
) -> RelationScore:
    """The score of every head on pairs of one's own: (text, spans of its words, (from, to) pairs)."""
    tally = _Tally()
    layers: tuple[str, ...] = ()
    for text, spans, pairs in examples:
        wrong = [pair for pair in pairs if not all(0 <= word < len(spans) for word in pair)]
        if wrong:
            raise ArgumentError(f"pairs are of words 0 to {len(spans) - 1}. Got {wrong[:3]}.")
        traced, pieces = _traced(loaded, text, spans)
        layers = traced.names
        _count(traced, pieces, {name: pairs}, {name: tally})
    return tally.score(name, layers)


class _Tally:
    """Right predictions and offsets, so far."""

    def __init__(self) -> None:
        self.right: Tensor | None = None
        self.offsets: Counter[int] = Counter()

    def score(self, relation: str, layers: tuple[str, ...]) -> RelationScore:
        n_pair = self.offsets.total()
        offset, at_best = max(self.offsets.items(), key=lambda item: (item[1], -item[0]), default=(0, 0))
        right = torch.zeros(0, 0) if self.right is None else self.right
        return RelationScore(
            relation, right / max(1, n_pair), n_pair, at_best / max(1, n_pair), offset, layers
        )


def _traced(loaded: Loaded, text: str, spans: Spans) -> tuple[Trace, list[list[int]]]:
    """The trace of a sentence, and which of its tokens make up each word."""
    if loaded.tokenizer is None:
        raise ArgumentError(f"{loaded.facts.name} has no tokenizer: words are found through it.")
    ids, offsets = loaded.tokenizer.encode(text)[:LONGEST], loaded.tokenizer.offsets(text)[:LONGEST]
    pieces = pieces_of_words(spans, [_bare(text, offset) for offset in offsets])
    return trace(loaded, torch.tensor(ids)), pieces


def _bare(text: str, offset: tuple[int, int]) -> tuple[int, int]:
    """An offset without the space that byte-level tokens begin with."""
    start, end = offset
    while start < end and text[start].isspace():
        start += 1
    return start, end


def _count(
    traced: Trace, pieces: list[list[int]], wanted: Mapping[str, Pairs], tallies: Mapping[str, _Tally]
) -> None:
    """Add one sentence's predictions."""
    causal = _looks_back_only(traced)
    usable = {
        relation: [(i, j) for i, j in pairs if i != j and pieces[i] and pieces[j] and (j < i or not causal)]
        for relation, pairs in wanted.items()
    }
    if not any(usable.values()):
        return
    rows = sorted({i for pairs in usable.values() for i, _ in pairs})
    place = {row: index for index, row in enumerate(rows)}
    predicted = []
    for layer in traced.layers:
        seen = word_attention(layer, pieces)
        seen.diagonal(dim1=-2, dim2=-1).fill_(-1.0)  # a word is not related to itself
        predicted.append(seen[:, rows].argmax(-1).cpu())
    widest = max(of_heads.shape[0] for of_heads in predicted)
    for relation, pairs in usable.items():
        tally = tallies[relation]
        if tally.right is None:
            tally.right = torch.full((len(predicted), widest), torch.nan)
            for index, of_heads in enumerate(predicted):
                tally.right[index, : of_heads.shape[0]] = 0.0
        for i, j in pairs:
            tally.offsets[j - i] += 1
            for index, of_heads in enumerate(predicted):
                tally.right[index, : of_heads.shape[0]] += (of_heads[:, place[i]] == j).float()


def _looks_back_only(traced: Trace) -> bool:
    """Whether the first token sees no other: a causal model."""
    layer = traced.layers[0]
    return layer.n_key > 1 and not bool(layer.visible(slice(0, 1), slice(1, 2))[0, 0])
