"""Reads `assignment.toml`: which exercises are set, and how answers to them become points.

title = "Attention, part one"
points = 10                      # any key of an exercise may stand here, for all that do not have it

[exercise.masked-softmax]
points = 5

handouts/assignment.toml has every key with what it means and what holds without it.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from regard import __version__
from regard.checking.catalogue import catalogue
from regard.checking.spec import Exercise
from regard.errors import ArgumentError, LoadError, no_such

HANDOUTS = Path(__file__).parent / "handouts"
DEFAULTS = tomllib.loads((HANDOUTS / "assignment.toml").read_text(encoding="utf-8"))
KINDS = tuple(DEFAULTS["weights"])  # of checks
# What a value must be beside of its default's type; numbers are 0 to a million unless this says otherwise.
PARTS_OF_ONE = ("late_per_day", "wrong_keeps", "hidden_share")
CHOICES = {
    "show_hidden": ("never", "after due date", "after published"),
    "conventions": ("free", "fixed"),
    "comments": ("free", "checked", "required"),
}
WORDS = {str: "a text", bool: "true or false", list: "a list of texts", dict: "a table"}


@dataclass(frozen=True, kw_only=True)
class Part:
    """One exercise of an assignment, and how it is marked."""

    exercise: Exercise
    points: float
    wrong_keeps: float
    all_or_nothing: bool
    conventions: str
    comments: str
    hidden: list[str]
    hidden_share: float
    forbid: list[str]
    allow: list[str]
    few_lines: int
    bonus: float
    weights: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What a class is set."""

    path: Path
    folder: Path | None  # with exercises of its own
    parts: Mapping[str, Part]  # by the exercise's id, in the order of the file
    title: str
    deadline: datetime | None
    late_per_day: float
    show_hidden: str
    style: float
    style_most: float
    line_length: int

    @property
    def exercises(self) -> dict[str, Exercise]:
        """The exercises, by id."""
        return {id: part.exercise for id, part in self.parts.items()}

    def digest(self) -> str:
        """Changes when anything does that marks depend on: this file, an exercise of its own, our version."""
        inside = sorted(self.folder.rglob("*.*")) if self.folder else []
        texts = [path.read_bytes() for path in (self.path, *inside) if path.suffix in (".toml", ".py", ".md")]
        return hashlib.sha256(repr((__version__, texts)).encode()).hexdigest()


def load(path: str | Path) -> Assignment:
    """The assignment of a TOML file; `LoadError` names the key that is wrong."""
    path = Path(path)
    try:
        about = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise LoadError(f"{path} is not TOML: {error}.") from error
    known = {**DEFAULTS, "deadline": datetime.min, "from": "", "exercise": {}}
    given = {"deadline": None, **DEFAULTS, "title": path.stem, **_checked(path, "", about, known)}
    own = path.resolve().parent / given["from"] if "from" in given else None
    exercises = catalogue(own)
    keys = {field.name for field in fields(Part)} & set(DEFAULTS)
    parts = {}
    for id, table in given.get("exercise", {}).items():
        if id not in exercises:
            raise LoadError(f"{path}: {no_such('exercise', id, sorted(exercises))}")
        here = {key: DEFAULTS[key] for key in DEFAULTS if key in keys}
        values = _checked(path, f"exercise.{id}.", _table(path, f"exercise.{id}", table), here)
        weights = {**DEFAULTS["weights"], **given["weights"], **values.get("weights", {})}
        values = {**{key: given[key] for key in keys}, **values, "weights": weights}
        parts[id] = Part(exercise=exercises[id], **values)
        if parts[id].bonus and not parts[id].few_lines:
            raise LoadError(f"{path}: exercise.{id}: bonus needs few_lines, the most lines that earn it.")
    if not parts:
        raise LoadError(f"{path} sets no exercise: add [exercise.masked-softmax], say.")
    rest = {field.name: given[field.name] for field in fields(Assignment) if field.name in given}
    return Assignment(path=path, folder=own, parts=parts, **rest)


def _table(path: Path, key: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise LoadError(f"{path}: {key} must be a table. Got {value!r}.")
    return value


def _checked(path: Path, where: str, table: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a table, each of the type of its default and in its range."""
    checked = dict(table)
    for key, value in table.items():
        if key not in known:
            raise LoadError(f"{path}: {where}{key}: {no_such('key', key, known)}")
        kind = type(known[key])
        if kind in (int, float):
            whole = key in ("few_lines", "line_length")
            least = (
                40 if key == "line_length" else 1e-6 if where.endswith("weights.") and key == "values" else 0
            )
            most = 1 if key in PARTS_OF_ONE else 10**6
            words = f"a {'whole ' * whole}number from {least:g} to {most}"
            right = type(value) is int or (type(value) is float and not whole)
            right = right and least <= value <= most
            checked[key] = float(value) if right and not whole else value
        elif kind is datetime:
            words, right = "a date and time, as 2027-01-31T23:59:00", isinstance(value, datetime)
        else:
            choices = CHOICES.get(key) if isinstance(value, str) else None
            words = " or ".join(f'"{choice}"' for choice in CHOICES[key]) if key in CHOICES else WORDS[kind]
            right = type(value) is kind and (choices is None or value in choices)
            right = right and (kind is not list or all(isinstance(item, str) for item in value))
        if not right:
            raise LoadError(f"{path}: {where}{key} must be {words}. Got {value!r}.")
        if key == "weights":
            checked[key] = _checked(path, f"{where}weights.", value, known[key])
    return checked


def kinds(part: Part) -> dict[str, str]:
    """The kind of each check of the exercise that has one of its own; all others are about values.

    A name in `hidden` that is neither a kind nor a check is an error. This runs trials.py.
    """
    from regard.checking.plan import VARIANTS

    robust = (*VARIANTS, "inputs unchanged", "parameters")
    named = {**dict.fromkeys(robust, "robustness"), "gradients": "gradients", "shape comments": "comments"}
    of_failures = {"wrong": "values", "fragile": "robustness", "train mode": "training", "wasteful": "memory"}
    for item in part.exercise.checks.items:
        kind = "memory" if getattr(item, "most_numbers", None) else of_failures[item.kind]
        named[item.name] = "robustness" if getattr(item, "raises", ()) else kind
    for name in part.hidden:
        if name not in named and name not in KINDS:
            raise ArgumentError(f"{part.exercise.id}: hidden: {no_such('check', name, [*KINDS, *named])}")
    return named
