"""Keeps submissions apart that lie in one folder: none may import or read another one's answer.

A student's own modules stay in reach. What is withheld from an answer are the files below its folder that are
checked with it and define the same names: another student's answer, or an earlier one of its own.
"""

import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from regard.checking.submission import MOST_BYTES, Submission, read
from regard.errors import RegardError

Defined = Mapping[Path, frozenset[str]]  # a file -> the names that it defines itself


def defined_names(paths: Iterable[str]) -> Defined:
    """Return what each file defines itself, not by an import; a file that cannot be read defines nothing."""
    names: dict[Path, frozenset[str]] = {}
    for path in paths:
        try:
            alone = replace(read(path), folder="")
            names[Path(path).resolve()] = frozenset(one.name for one in alone.definitions)
        except RegardError:
            names[Path(path).resolve()] = frozenset()
    return names


def rivals(submission: Submission, names: Collection[str], defined: Defined) -> list[Path]:
    """Return the other files in reach of a submission that define one of the names."""
    here, folder = Path(submission.path).resolve(), Path(submission.folder)
    return [
        path
        for path, theirs in defined.items()
        if path != here and folder in path.parents and theirs & set(names)
    ]


@contextmanager
def without(submission: Submission, withheld: Collection[Path]) -> Iterator[Submission]:
    """Yield the submission in a copy of its folder that lacks these files; as it is where there are none."""
    if not withheld:
        yield submission
        return
    folder = Path(submission.folder)

    def left_out(place: str, entries: list[str]) -> list[str]:
        paths = {entry: Path(place, entry) for entry in entries}
        return [
            entry
            for entry, path in paths.items()
            if path in withheld or path.is_symlink() or (path.is_file() and path.stat().st_size > MOST_BYTES)
        ]

    with tempfile.TemporaryDirectory(prefix="apart-") as copy:
        shutil.copytree(folder, copy, ignore=left_out, dirs_exist_ok=True)
        yield replace(submission, folder=copy)
