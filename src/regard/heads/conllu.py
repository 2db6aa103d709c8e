"""Sentences of a CoNLL-U file: their words, where these stand in the text, and who depends on whom.

The format: https://universaldependencies.org/format.html. Any Universal Dependencies treebank reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
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
    sentences = [
        _sentence(part, f"{path}, the sentence from line {number} on")
        for number, part in islice(_sentences(lines), most)
    ]
    if not sentences:
        raise LoadError(f"{path} has no sentence: CoNLL-U has one word a line, ten columns, tabs between.")
    return sentences


def _sentences(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Runs of lines between empty ones, each with the number of its first."""
    part: list[str] = []
    first = 1
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r")
        if line.strip():
            if not part:
                first = number
            part.append(line)
        elif part:
            yield first, part
            part = []
    if part:
        yield first, part


def _sentence(lines: list[str], where: str) -> Sentence:
    text = next((line.partition("=")[2].strip() for line in lines if line.startswith("# text =")), None)
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    if any(len(row) != 10 for row in rows) or not rows:
        raise LoadError(f"{where}: a word's line has ten columns with tabs between, and there must be one.")
    tokens = _surface(rows, where)
    if text is None:  # then it is what the words spell
        text = "".join(form + space for form, space, _ in tokens).rstrip()
    spans: dict[int, tuple[int, int]] = {}
    at = 0
    for form, _, ids in tokens:
        start = text.find(form, at)
        if start < 0:
            raise LoadError(f"{where}: {form!r} does not stand in its text after character {at}.")
        at = start + len(form)
        spans |= _split(form, start, ids, rows)
    numbered = {int(row[0]): row for row in rows if row[0].isdigit()}
    if list(numbered) != list(range(1, len(numbered) + 1)):
        raise LoadError(f"{where}: words must be numbered from 1 on. Got {list(numbered)[:8]}...")
    words = []
    for index, row in numbered.items():
        if not row[6].isdigit() or int(row[6]) > len(numbered):
            raise LoadError(f"{where}: word {index} depends on {row[6]!r}; it must be 0 to {len(numbered)}.")
        words.append(Word(row[1], *spans[index], row[3], int(row[6]) - 1, row[7]))
    return Sentence(text, tuple(words))


def _surface(rows: list[list[str]], where: str) -> list[tuple[str, str, list[int]]]:
    """What is written: (form, the space after it, the words it stands for)."""
    forms: list[tuple[str, str, list[int]]] = []
    covered = 0
    for row in rows:
        space = "" if "SpaceAfter=No" in row[9].split("|") else " "
        first, dash, last = row[0].partition("-")
        if dash and first.isdigit() and last.isdigit():
            forms.append((row[1], space, list(range(int(first), int(last) + 1))))
            covered = int(last)
        elif row[0].isdigit():
            if int(row[0]) > covered:
                forms.append((row[1], space, [int(row[0])]))
        elif not all(part.isdigit() for part in row[0].split(".")):  # 8.1: a word that is not written
            raise LoadError(f"{where}: {row[0]!r} is no number of a word.")
    return forms


def _split(form: str, start: int, ids: list[int], rows: list[list[str]]) -> dict[int, tuple[int, int]]:
    """Where each word of a written form stands: its part where the parts spell the form, else all of it."""
    forms = [row[1] for row in rows if row[0].isdigit() and int(row[0]) in ids]
    if "".join(forms) != form:
        return dict.fromkeys(ids, (start, start + len(form)))
    ends = list(accumulate(map(len, forms), initial=start))
    return dict(zip(ids, pairwise(ends), strict=True))
