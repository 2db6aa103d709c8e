"""Sentences of a CoNLL-U file: their words, where these stand in the text, and who depends on whom.

The format: https://universaldependencies.org/format.html. Any Universal Dependencies treebank reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate, groupby, islice, pairwise
from pathlib import Path

from regard.errors import LoadError


@dataclass(frozen=True, slots=True)
class Word:
    """One word: where it stands in its sentence's text, and its place in the tree."""

    form: str
    start: int  # text[start:end]; words that share a spelling ("don't") may share the span
    end: int
    tag: str  # the universal part of speech
    head: int  # the word it depends on, counted from 0; -1: the root
    relation: str  # to that word, as nsubj or nmod:poss


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text and its words."""

    text: str
    words: tuple[Word, ...]

    def pairs(self, relation: str, *, from_head: bool = False) -> list[tuple[int, int]]:
        """(dependent, head) of every word with this relation, or (head, dependent).

        A relation without a subtype takes in all of them: nsubj also nsubj:pass.
        """
        pairs = [
            (index, word.head)
            for index, word in enumerate(self.words)
            if word.head >= 0 and (word.relation == relation or word.relation.split(":")[0] == relation)
        ]
        return [(head, dependent) for dependent, head in pairs] if from_head else pairs


def read_conllu(path: str | Path, most: int | None = None) -> list[Sentence]:
    """The sentences of a file, the first `most` of them."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise LoadError(f"{path} is not UTF-8 text: byte {error.start} is no part of any.") from error
    numbered = enumerate((line.rstrip("\r") for line in lines), 1)
    parts = (
        list(part) for is_empty, part in groupby(numbered, lambda row: not row[1].strip()) if not is_empty
    )
    sentences = [
        _sentence([line for _, line in part], f"{path}, the sentence from line {part[0][0]} on")
        for part in islice(parts, most)
    ]
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
    return Sentence(
        text,
        tuple(
            Word(row[1], *span, row[3], int(row[6]) - 1, row[7])
            for row, span in zip(words, spans, strict=True)
        ),
    )
