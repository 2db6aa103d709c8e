"""Text files as token files: read line by line, kept on disk, never whole in memory.

A `TokenFile` is three arrays on disk: the tokens of all rows one after the other, where each row ends, and
how many bytes of text each row was. Arrays are mapped, so a corpus larger than memory is read where needed.
"""

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import numpy as np

from regard.errors import LoadError

_SHOWN = 10  # line numbers named for each kind of bad line


@dataclass(slots=True)
class BadLines:
    """Lines that cannot be used: how many, of which kind, and where the first of them are."""

    counts: Counter[str] = field(default_factory=Counter)
    where: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, path: str | Path, line: int) -> None:
        """Count one more."""
        self.counts[reason] += 1
        places = self.where.setdefault(reason, [])
        if len(places) < _SHOWN:
            places.append(f"{Path(path).name}:{line}")

    def __str__(self) -> str:
        reasons = [
            f"{count} {reason} ({', '.join(self.where[reason])}{', ...' if count > _SHOWN else ''})"
            for reason, count in self.counts.items()
        ]
        return f"{self.counts.total()} bad lines: {'; '.join(reasons)}"


def _raw_lines(path: str | Path) -> Iterator[bytes]:
    path = Path(path)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except (OSError, EOFError, zlib.error) as error:  # gzip finds out while reading
        raise LoadError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def read_pairs(paths: Sequence[str | Path], bad: BadLines) -> Iterator[tuple[int, str, str]]:
    """Return line number, source and target of each pair, from one TSV file or two files of as many lines."""
    for line, raws in enumerate(zip_longest(*map(_raw_lines, paths)), 1):
        if None in raws:
            raise LoadError(
                f"{paths[raws.index(None)]} ends after line {line - 1} and the other file continues: "
                "aligned files have as many lines as each other."
            )
        try:
            texts = [raw.decode() for raw in raws]
        except UnicodeDecodeError as error:
            bad.add("not UTF-8", paths[raws.index(error.object)], line)
            continue
        texts = [text.strip() for text in (texts[0].split("\t") if len(paths) == 1 else texts)]
        if len(texts) != 2:
            bad.add("not two columns", paths[0], line)
        elif not all(texts):
            bad.add("empty side", paths[0 if not texts[0] else -1], line)
        else:
            yield line, texts[0], texts[1]


def read_lines(paths: Sequence[str | Path], bad: BadLines) -> Iterator[tuple[int, str]]:
    """Return line number and text of each line of text files, with its end."""
    for path in paths:
        for line, raw in enumerate(_raw_lines(path), 1):
            try:
                yield line, raw.decode()
            except UnicodeDecodeError:
                bad.add("not UTF-8", path, line)


class TokenFile:
    """Rows of tokens on disk: `rows[i]` is an array, `n_byte(a, b)` the text's size of rows a to b."""

    def __init__(self, folder: Path) -> None:
        try:
            facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise LoadError(f"{folder} is not a token file: its facts.json cannot be read.") from error

        def mapped(name: str, dtype: str, size: int) -> np.ndarray:
            if size == 0:  # nothing cannot be mapped
                return np.zeros(0, dtype)
            try:
                return np.memmap(folder / f"{name}.bin", dtype=dtype, mode="r", shape=(size,))
            except (OSError, ValueError) as error:
                raise LoadError(f"{folder / name}.bin cannot be read: {error}.") from error

        self.crc = int(facts["crc"])
        self.bad = str(facts["bad"])  # "": every line could be used
        self.unknown = int(facts["unknown"])
        self.tokens = mapped("tokens", facts["dtype"], facts["n_token"])
        self.ends, self.bytes_until = (mapped(name, "int64", facts["n_row"]) for name in ("ends", "bytes"))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> np.ndarray:
        return np.asarray(self.between(row, row + 1))

    def between(self, first: int, last: int) -> np.ndarray:
        """Return the tokens of the rows from `first` up to `last`."""
        begin, end = (int(self.ends[row - 1]) if row else 0 for row in (first, last))
        return self.tokens[begin:end]

    def n_byte(self, first: int, last: int) -> int:
        """Return the bytes of text in the rows from `first` up to `last`."""
        begin, end = (int(self.bytes_until[row - 1]) if row else 0 for row in (first, last))
        return end - begin

    @classmethod
    def exists(cls, folder: Path) -> bool:
        """Return whether a whole one is there: its facts are written last."""
        return (folder / "facts.json").is_file()


def write_tokens(
    folder: Path, rows: Iterable[tuple[Sequence[int], int]], bad: BadLines, *, vocab: int, unknown: int = -1
) -> None:
    """Write a `TokenFile` of rows and how many bytes of text each was: its facts come last, make it whole."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "facts.json").unlink(missing_ok=True)
    dtype = np.dtype(np.uint16 if vocab <= 2**16 else np.uint32)
    n_token = n_byte = n_row = crc = n_unknown = 0
    with ExitStack() as stack:
        tokens, ends, sizes = (
            stack.enter_context((folder / f"{name}.bin").open("wb")) for name in ("tokens", "ends", "bytes")
        )
        for row, size in rows:
            packed = np.asarray(row, dtype=dtype).tobytes()
            n_row, n_token, n_byte = n_row + 1, n_token + len(row), n_byte + size
            n_unknown += row.count(unknown)
            crc = zlib.crc32(packed, crc)
            tokens.write(packed)
            ends.write(np.int64(n_token).tobytes())
            sizes.write(np.int64(n_byte).tobytes())
    facts = {"dtype": dtype.name, "n_token": n_token, "n_row": n_row, "crc": crc, "unknown": n_unknown}
    write_whole(folder / "facts.json", json.dumps({**facts, "bad": str(bad) if bad.counts else ""}))


def write_whole(path: Path, text: str) -> None:
    """Write a file that is whole or not there."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
