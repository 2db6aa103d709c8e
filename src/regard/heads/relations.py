"""Which head follows a relation between words: subject to verb, determiner to noun, any pairs given.

Scored as Clark et al. (2019) do: attention to a word that is split into pieces is the sum over its
pieces, from it the mean; the word most looked at is the prediction. A head is compared with the best fixed
offset ("the word before"), which is what a head that knows nothing of the relation could do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ArgumentError
from regard.files.loading import Loaded
from regard.heads.conllu import Sentence
from regard.heads.model import strongest
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
        return strongest(self.accuracy, 1)[0]

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


def pieces_of_words(spans: Spans, offsets: Sequence[tuple[int, int]]) -> list[list[int]]:
    """For each word the tokens that overlap its span in the text.

    >>> pieces_of_words([(0, 3), (4, 11)], [(0, 3), (3, 8), (8, 11)])
    [[0], [1, 2]]
    """
    pieces: list[list[int]] = [[] for _ in spans]
    for token, (start, end) in enumerate(offsets):
        for word, (first, last) in enumerate(spans):
            if start < end and start < last and first < end:
                pieces[word].append(token)
    return pieces


def score_relations(
    loaded: Loaded, sentences: Iterable[Sentence], relations: Sequence[str], *, from_head: bool = False
) -> dict[str, RelationScore]:
    """The score of every head on each relation of a treebank: dependents looking at their heads, or heads.

    In a causal model only pairs that look back are scored, by heads and by the baseline alike.
    """
    examples = (
        (
            sentence.text,
            [(word.start, word.end) for word in sentence.words],
            {relation: sentence.pairs(relation, from_head=from_head) for relation in relations},
        )
        for sentence in sentences
    )
    return _scores(_read(loaded, examples), relations)


def score_pairs(
    loaded: Loaded, examples: Iterable[tuple[str, Spans, Pairs]], name: str = "pairs"
) -> RelationScore:
    """The score of every head on pairs of one's own: (text, spans of its words, (from, to) pairs)."""
    return _scores(_read(loaded, ((text, spans, {name: pairs}) for text, spans, pairs in examples)), [name])[
        name
    ]


def _read(
    loaded: Loaded, examples: Iterable[tuple[str, Spans, Mapping[str, Pairs]]]
) -> Iterator[tuple[Trace, list[list[int]], Mapping[str, Pairs]]]:
    """The trace of each text that has pairs, and which of its tokens make up each word."""
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        raise ArgumentError(f"{loaded.facts.name} has no tokenizer: words are found through it.")
    for text, spans, wanted in examples:
        wrong = [
            pair
            for pairs in wanted.values()
            for pair in pairs
            if not 0 <= min(pair) <= max(pair) < len(spans)
        ]
        if wrong:
            raise ArgumentError(f"pairs are of words 0 to {len(spans) - 1}. Got {wrong[:3]}.")
        if any(wanted.values()):
            # Without the space that byte-level tokens begin with.
            offsets = [
                (end - len(text[start:end].lstrip()), end) for start, end in tokenizer.offsets(text)[:LONGEST]
            ]
            ids = torch.tensor(tokenizer.encode(text)[:LONGEST])
            yield trace(loaded, ids), pieces_of_words(spans, offsets), wanted


def _scores(
    examples: Iterable[tuple[Trace, list[list[int]], Mapping[str, Pairs]]], relations: Sequence[str]
) -> dict[str, RelationScore]:
    """Right predictions counted over traces, the pieces of their words, and the pairs of each relation."""
    layers: tuple[str, ...] = ()
    right = dict.fromkeys(relations, torch.zeros(0, 0))
    offsets: dict[str, Counter[int]] = {relation: Counter() for relation in relations}
    for traced, pieces, wanted in examples:
        first = traced.layers[0]
        # A causal model is one whose first token sees no other.
        causal = first.n_key > 1 and not bool(first.visible(slice(0, 1), slice(1, 2))[0, 0])
        widest = max(layer.n_head for layer in traced.layers)
        predicted = torch.full((len(traced.layers), widest, len(pieces)), -1)  # -1: there is no such head
        for index, layer in enumerate(traced.layers):
            seen = word_attention(layer, pieces)
            seen.diagonal(dim1=-2, dim2=-1).fill_(-1.0)  # a word is not related to itself
            predicted[index, : layer.n_head] = seen.argmax(-1).cpu()
        if not layers:
            layers = traced.names
            nothing = torch.zeros(predicted.shape[:2]).masked_fill(predicted[..., 0] < 0, torch.nan)
            right = dict.fromkeys(relations, nothing)
        for relation, pairs in wanted.items():
            for i, j in pairs:
                if i != j and pieces[i] and pieces[j] and (j < i or not causal):
                    offsets[relation][j - i] += 1
                    right[relation] = right[relation] + (predicted[..., i] == j)
    scores = {}
    for relation, times in offsets.items():
        n_pair = times.total()
        offset, at_best = max(times.items(), key=lambda item: (item[1], -item[0]), default=(0, 0))
        accuracy, baseline = right[relation] / max(1, n_pair), at_best / max(1, n_pair)
        scores[relation] = RelationScore(relation, accuracy, n_pair, baseline, offset, layers)
    return scores
