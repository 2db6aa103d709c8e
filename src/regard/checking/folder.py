"""Reads `exercise.toml`: what an exercise says about itself, without running anything.

title = "Masked softmax"
names = ["masked_softmax"]       # what an answer defines
example = "print(masked_softmax(torch.randn(2, 3, 4)).shape)"   # a call that shows shapes, below the starter
shared = ["always", "lengths"]   # of ../shared, or of ours: words, conventions, hints, choices, mistakes
needs = ["rnn-step"]             # exercises whose answers are lent to a file that leaves them out
drive = "drive.py"               # where one call is not enough
tolerance = 2.0                  # times the usual one

[right]                          # files of right/, and what is special about each
flat = "rows made flat"

[words]                          # dimensions of the result; of one of several results by its number
"" = ["batch", "query", "key"]

[conventions.empty_row]          # a keyword of the reference: its choices, ours first
zeros = "a row of length 0 is all zeros."

[hints]                          # for an answer whose mistake has no name
symptom = "..."                  # and place, cause, fix

[mistake."the mask is upside down"]
symptom = "The weight lies on the padding."
place = "Look at the comparison of positions with lengths."
cause = "True means hidden here, and the comparison is true for the valid keys."
fix = "Hide the positions at or past the length."
choice = { polarity = "hides the valid" }   # keywords of the reference that give its numbers; [{...}, {...}]
                                            # where it is made in several ways
# or, where numbers are right:
# fails = { device = "on the CPU" }         # checks that fail, and words of what they say

[choice.polarity]                # place and fix of mistakes that choose it, those of this file first
place = "..."
fix = "..."
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from regard.checking.spec import GRADES, Convention, Entry, Exercise, Hints, Mistake
from regard.errors import LoadError

OURS = Path(__file__).parent.parent / "exercises" / "shared"
TABLES = ("words", "conventions", "hints", "choice", "mistake")  # what exercises may share
KEYS = ("title", "names", "example", "shared", "needs", "drive", "tolerance", "right", *TABLES)


def load_entry(folder: Path) -> Entry:
    """Title and names alone, which stand before the first table of exercise.toml: no more is read."""
    path = folder / "exercise.toml"
    try:
        about = _read(path, "\n[")
    except LoadError:  # a line of the example begins like a table, or the file is wrong: all of it says which
        about = _read(path)
    return Entry(folder, _text(path, "title", about.get("title")), _texts(path, about, "names"))


def load_folder(folder: Path) -> Exercise:
    """The exercise of a folder that holds an exercise.toml."""
    path = folder / "exercise.toml"
    about = _read(path)
    tables: dict[str, dict[str, Any]] = {name: {} for name in TABLES}
    for name in _texts(path, about, "shared"):
        beside = folder.parent / "shared" / f"{name}.toml"
        shared = beside if beside.exists() else OURS / f"{name}.toml"
        _join(shared, tables, _read(shared))
    _join(path, tables, about)
    # Of mistakes that give the same numbers the first is named: the exercise's before those that are shared.
    mistakes = {**dict.fromkeys(about.get("mistake", {})), **tables["mistake"]}
    unknown = sorted(set(about) - set(KEYS))
    if unknown:
        raise LoadError(f"{path}: {', '.join(unknown)}: no such keys. There are: {', '.join(KEYS)}.")
    variants = _strings(path, "right", about.get("right"))
    names = _texts(path, about, "names")
    if not names or not variants:
        raise LoadError(f"{path} must have names = [...] and, below [right], a file of right/.")
    tolerance = about.get("tolerance", 1.0)
    if not isinstance(tolerance, int | float):
        raise LoadError(f"{path}: tolerance must be a number. Got {tolerance!r}.")
    return Exercise(
        folder=folder,
        title=_text(path, "title", about.get("title")),
        example=_text(path, "example", about.get("example", "")),
        names=names,
        variants=variants,
        hints=_hints(path, "hints", tables["hints"]),
        mistakes=tuple(
            mistake
            for name, (path, table, near) in mistakes.items()
            for mistake in _mistakes(path, name, table, {**tables["choice"], **near})
        ),
        conventions=tuple(_convention(path, name, table) for name, table in tables["conventions"].items()),
        words={word: _texts(path, tables["words"], word) for word in tables["words"]},
        drive_file=_text(path, "drive", about.get("drive", "")),
        tolerance=float(tolerance),
        needs=_texts(path, about, "needs"),
    )


_parsed = cache(tomllib.loads)  # what exercises share is read by each of them


def _read(path: Path, end: str = "\0") -> dict[str, Any]:
    """What a file says, as far as `end`."""
    try:
        return _parsed(path.read_text(encoding="utf-8").split(end)[0])
    except (OSError, ValueError) as error:
        raise LoadError(f"cannot read {path}: {error}.") from error


def _join(path: Path, tables: dict[str, dict[str, Any]], about: Mapping[str, Any]) -> None:
    """Add what a file says; what comes later replaces what has the same name."""
    for name, table in tables.items():
        more = about.get(name, {})
        if not isinstance(more, dict):
            raise LoadError(f"{path}: {name} must be a table. Got {more!r}.")
        table.update(more)
    for name, mistake in about.get("mistake", {}).items():  # the choices of its file come before others
        tables["mistake"][name] = (path, mistake, about.get("choice", {}))


def _text(path: Path, key: str, value: object) -> str:
    if not isinstance(value, str):
        raise LoadError(f"{path}: {key} must be a text. Got {value!r}.")
    return value


def _texts(path: Path, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise LoadError(f"{path}: {key} must be a list of texts. Got {value!r}.")
    return tuple(value)


def _strings(path: Path, key: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise LoadError(f"{path}: {key} must be a table of texts. Got {value!r}.")
    return value


def _hints(path: Path, of: str, table: Mapping[str, Any]) -> Hints:
    missing = [grade for grade in GRADES if not isinstance(table.get(grade), str)]
    if missing:
        raise LoadError(
            f"{path}: {of} needs {', '.join(GRADES)}, a sentence each. Without: {', '.join(missing)}."
        )
    symptom, place, cause, fix = (table[grade] for grade in GRADES)
    return symptom, place, cause, fix


def _convention(path: Path, name: str, table: object) -> Convention:
    choices = _strings(path, f"conventions.{name}", table)
    if len(choices) < 2:
        raise LoadError(f"{path}: convention {name!r} needs at least two choices. Got {list(choices)}.")
    return Convention(name, choices)


def _mistakes(path: Path, name: str, table: object, common: Mapping[str, Any]) -> Iterator[Mistake]:
    """The mistake, once for each way to make it that `choice` has."""
    if not isinstance(table, dict):
        raise LoadError(f"{path}: mistake {name!r} must be a table. Got {table!r}.")
    unknown = sorted(set(table) - {*GRADES, "choice", "fails"})
    if unknown or ("choice" in table) == ("fails" in table):
        raise LoadError(
            f"{path}: mistake {name!r} needs {', '.join(GRADES)} and either choice = {{...}} or "
            f"fails = {{...}}. Got: {', '.join(table)}."
        )
    ways = table.get("choice", {})
    fails = _strings(path, f"mistake {name!r}: fails", table.get("fails", {}))
    for way in ways if ways and isinstance(ways, list) else [ways]:
        choices = _strings(path, f"mistake {name!r}: choice", way)
        hints: dict[str, Any] = {}
        for choice in choices:
            hints = {**_strings(path, f"choice.{choice}", common.get(choice, {})), **hints}
        yield Mistake(name, _hints(path, f"mistake {name!r}", {**hints, **table}), choices, fails)
