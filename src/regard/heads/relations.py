"""Which head follows a relation between words: subject to verb, determiner to noun, any pairs given; and the
sentences of a CoNLL-U file, https://universaldependencies.org/format.html, of any treebank, that have them.

Scored as Clark et al. (2019) do: attention to a word that is split into pieces is the sum over its
pieces, from it the mean; the word most looked at is the prediction. A head is compared with the best fixed
offset ("the word before"), which is what a head that knows nothing of the relation could do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, islice, pairwise
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ArgumentError, LoadError
from regard.files.loading import Loaded
from regard.files.tokenizer import read_text
from regard.heads.model import strongest, tokenizer_of
from regard.tracing.layers import AnyLayer
from regard.tracing.take import trace

Spans = Sequence[tuple[int, int]]  # where words stand: text[start:end]
Pairs = Sequence[tuple[int, int]]  # (from, to): the word at `from` is to look at the word at `to`

LONGEST = 512  # tokens of a sentence


@dataclass(frozen=True, slots=True, eq=False)
class RelationScore:
    """How often each head's most looked-at word is the right one.

    Attributes:
        relation: The name of the relation.
        accuracy: The share of pairs that each head has right, ``(layer, head)``.
        n_pair: How many pairs were scored.
        baseline: The accuracy of the best fixed offset on the same pairs.
        offset: That offset, in words.
        layers: The names of the layers.
    """

    relation: str
    accuracy: Float[Tensor, "layer head"]
    n_pair: int
    baseline: float
    offset: int
    layers: tuple[str, ...]

    @property
    def best(self) -> tuple[int, int]:
        """Return the layer and head of the highest accuracy."""
        if not self.n_pair:
            raise ArgumentError(f"there is no pair of {self.relation!r} to score.")
        return strongest(self.accuracy, 1)[0]

    @property
    def best_accuracy(self) -> float:
        """Return the highest accuracy."""
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
    for rows, cols, weights in layer.strips(batch=batch):
        between += (belongs[rows] / n_piece).mT @ (weights.float() @ belongs[cols])
    return between


def pieces_of_words(spans: Spans, offsets: Sequence[tuple[int, int]]) -> list[list[int]]:
    """For each word the tokens that overlap its span in the text.

    >>> pieces_of_words([(0, 3), (4, 11)], [(0, 3), (3, 8), (8, 11)])
    [[0], [1, 2]]
    """
    places = [(token, start, end) for token, (start, end) in enumerate(offsets) if start < end]
    return [[token for token, start, end in places if start < last and first < end] for first, last in spans]


def score_relations(
    loaded: Loaded, sentences: Iterable[Sentence], relations: Sequence[str], *, from_head: bool = False
) -> dict[str, RelationScore]:
    """Score every head on each relation of a treebank: dependents looking at their heads, or heads at these.

    In a causal model only pairs that look back are scored, by heads and by the baseline alike.

    Args:
        loaded: A model with its tokenizer.
        sentences: Sentences of a treebank.
        relations: Names of relations, as ``nsubj``.
        from_head: Whether heads look at their dependents, in place of the other way round.

    Returns:
        A score for each relation.

    Raises:
        ArgumentError: If the model has no tokenizer.
    """

    def example(sentence: Sentence) -> tuple[str, Spans, Mapping[str, Pairs]]:
        pairs = {relation: sentence.pairs(relation, from_head=from_head) for relation in relations}
        return sentence.text, [(word.start, word.end) for word in sentence.words], pairs

    return _scores(loaded, map(example, sentences), relations)


def score_pairs(
    loaded: Loaded, examples: Iterable[tuple[str, Spans, Pairs]], name: str = "pairs"
) -> RelationScore:
    """Score every head on pairs of your own.

    Args:
        loaded: A model with its tokenizer.
        examples: For each text the text, the spans of its words, and pairs (from, to) of words.
        name: What the relation is called.

    Returns:
        The score of every head.

    Raises:
        ArgumentError: If a pair names a word that is not there, or the model has no tokenizer.
    """
    return _scores(loaded, ((text, spans, {name: pairs}) for text, spans, pairs in examples), [name])[name]


def _scores(
    loaded: Loaded, examples: Iterable[tuple[str, Spans, Mapping[str, Pairs]]], relations: Sequence[str]
) -> dict[str, RelationScore]:
    """Right predictions counted over texts, the spans of their words, and the pairs of each relation."""
    tokenizer = tokenizer_of(loaded)
    layers: tuple[str, ...] = ()
    right = dict.fromkeys(relations, torch.zeros(0, 0))
    distances: dict[str, Counter[int]] = {relation: Counter() for relation in relations}
    for text, spans, wanted in examples:
        pairs = [(relation, i, j) for relation, of_relation in wanted.items() for i, j in of_relation]
        wrong = [(i, j) for _, i, j in pairs if not 0 <= min(i, j) <= max(i, j) < len(spans)]
        if wrong:
            raise ArgumentError(f"pairs are of words 0 to {len(spans) - 1}. Got {wrong[:3]}.")
        if not pairs:
            continue
        # Without the space that byte-level tokens begin with.
        offsets = tokenizer.offsets(text)[:LONGEST]
        pieces = pieces_of_words(spans, [(end - len(text[at:end].lstrip()), end) for at, end in offsets])
        traced = trace(loaded, torch.tensor(tokenizer.encode(text)[:LONGEST]))
        first = traced.layers[0]
        # A causal model is one whose first token sees no other.
        causal = first.n_key > 1 and not bool(first.visible(0, slice(0, 1), slice(1, 2))[0, 0])
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
        for relation, i, j in pairs:
            if i != j and pieces[i] and pieces[j] and (j < i or not causal):
                distances[relation][j - i] += 1
                right[relation] = right[relation] + (predicted[..., i] == j)
    scores = {}
    for relation, times in distances.items():
        n_pair = times.total()
        offset, at_best = max(times.items(), key=lambda item: (item[1], -item[0]), default=(0, 0))
        accuracy, baseline = right[relation] / max(1, n_pair), at_best / max(1, n_pair)
        scores[relation] = RelationScore(relation, accuracy, n_pair, baseline, offset, layers)
    return scores


@dataclass(frozen=True, slots=True)
class Word:
    """One word: where it stands in its sentence's text, and its place in the tree.

    Attributes:
        form: The word as it is written.
        start: Where it begins in the text; words that share a spelling ("don't") may share the span.
        end: Where it ends.
        tag: The universal part of speech.
        head: The word it depends on, counted from 0; -1 for the root.
        relation: Its relation to that word, as nsubj or nmod:poss.
    """

    form: str
    start: int
    end: int
    tag: str
    head: int
    relation: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text and its words.

    Attributes:
        text: The text.
        words: Its words, in order.
    """

    text: str
    words: tuple[Word, ...]

    def pairs(self, relation: str, *, from_head: bool = False) -> list[tuple[int, int]]:
        """Return (dependent, head) of every word with this relation, or (head, dependent).

        A relation without a subtype takes in all of them: nsubj also nsubj:pass.
        """
        pairs = [
            (index, word.head)
            for index, word in enumerate(self.words)
            if word.head >= 0 and (word.relation == relation or word.relation.split(":")[0] == relation)
        ]
        return [(head, dependent) for dependent, head in pairs] if from_head else pairs


def read_conllu(path: str | Path, most: int | None = None) -> list[Sentence]:
    """Read the sentences of a CoNLL-U file.

    Args:
        path: The file.
        most: How many are read; None: all.

    Returns:
        The sentences, in order.

    Raises:
        LoadError: If the file cannot be read as CoNLL-U.
    """
    lines = read_text(Path(path)).split("\n")
    numbered = enumerate((line.rstrip("\r") for line in lines), 1)
    parts = (list(part) for is_full, part in groupby(numbered, lambda row: bool(row[1].strip())) if is_full)
    sentences = []
    for part in islice(parts, most):
        where = f"{path}, the sentence from line {part[0][0]} on"
        sentences.append(_sentence([line for _, line in part], where))
    if not sentences:
        raise LoadError(f"{path} has no sentence: CoNLL-U has one word a line, ten columns, tabs between.")
    return sentences


def _sentence(lines: list[str], where: str) -> Sentence:
    text = next((line.partition("=")[2].strip() for line in lines if line.startswith("# text =")), None)
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    if any(len(row) != 10 for row in rows) or not rows:
        raise LoadError(f"{where}: a word's line has ten columns with tabs between, and there must be one.")
    words = [row for row in rows if row[0].isdigit()]
    written: list[tuple[str, str, list[str]]] = []  # a form, the space after it, the words it stands for
    covered = 0
    for row in rows:
        number = re.fullmatch(r"(\d+)(-(\d+)|\.\d+)?", row[0])
        if number is None:
            raise LoadError(f"{where}: {row[0]!r} is no number of a word.")
        first, last = int(number[1]), int(number[3] or number[1])
        if first > covered and "." not in row[0]:  # 8.1: a word that is not written
            space = "" if "SpaceAfter=No" in row[9].split("|") else " "
            written.append((row[1], space, [word[1] for word in words[first - 1 : last]]))
            covered = last
    if text is None:  # then it is what the words spell
        text = "".join(form + space for form, space, _ in written).rstrip()
    spans: list[tuple[int, int]] = []
    at = 0
    for form, _, forms in written:
        start = text.find(form, at)
        if start < 0:
            raise LoadError(f"{where}: {form!r} does not stand in its text after character {at}.")
        at = start + len(form)
        # A word has its part where the parts spell the form, else all of it.
        ends = accumulate(map(len, forms), initial=start)
        spans += pairwise(ends) if "".join(forms) == form else [(start, at)] * len(forms)
    if [int(row[0]) for row in words] != list(range(1, len(spans) + 1)):
        raise LoadError(f"{where}: words must be numbered from 1 on. Got {[row[0] for row in words][:8]}...")
    for row in words:
        if not row[6].isdigit() or int(row[6]) > len(words):
            raise LoadError(f"{where}: word {row[0]} depends on {row[6]!r}; it must be 0 to {len(words)}.")
    tree = zip(words, spans, strict=True)
    return Sentence(text, tuple(Word(row[1], *at, row[3], int(row[6]) - 1, row[7]) for row, at in tree))
