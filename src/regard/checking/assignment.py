"""Reads `assignment.toml`: which exercises are set, and how answers to them become points.

title = "Attention, part one"
points = 10                      # any key of an exercise may stand here, for all that do not have it

[exercise.masked-softmax]
points = 5

handouts/assignment.toml has every key with what it means and what holds without it.
"""

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from regard import __version__
from regard.checking.catalogue import catalogue
from regard.checking.comments import EVERY_SHAPE
from regard.checking.spec import Exercise
from regard.errors import ArgumentError, LoadError, no_such

HANDOUTS = Path(__file__).parent / "handouts"
DEFAULTS = tomllib.loads((HANDOUTS / "assignment.toml").read_text(encoding="utf-8"))
KINDS = tuple(DEFAULTS["weights"])  # of checks
OF_FAILURES = {"wrong": "values", "fragile": "robustness", "train mode": "training", "wasteful": "memory"}
# What a value must be beside of its default's type; numbers are 0 to a million unless this says otherwise.
RANGES: dict[str, tuple[float, int]] = {
    **dict.fromkeys(("late_per_day", "wrong_keeps", "hidden_share"), (0, 1)),
    "line_length": (40, 10**6),
    "values": (1e-6, 10**6),
}
CHOICES = {
    "show_hidden": ("never", "after due date", "after published"),
    "conventions": ("free", "fixed"),
    "comments": ("free", "checked", "required"),
    "portability": ("free", "required"),
}
WORDS = {
    str: "a text",
    bool: "true or false",
    list: "a list of texts",
    datetime: "a date and time, as 2027-01-31T23:59:00",
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """One exercise of an assignment, and how it is marked."""

    exercise: Exercise
    points: float
    wrong_keeps: float
    all_or_nothing: bool
    conventions: str
    comments: str
    portability: str
    hidden: list[str]
    hidden_share: float
    forbid: list[str]
    allow: list[str]
    few_lines: int
    bonus: float
    weights: Mapping[str, float]

    @cached_property
    def kinds(self) -> dict[str, str]:
        """The kind of each check of the exercise that has one of its own; all others are about values.

        A name in `hidden` that is neither a kind nor a check is an error. This runs trials.py and drive.py.
        """
        from regard.checking.plan import VARIANTS

        named = dict.fromkeys((*VARIANTS, "inputs unchanged", "parameters"), "robustness")
        named |= {"gradients": "gradients", "shape comments": "comments", EVERY_SHAPE: "comments"}
        for item in self.exercise.checks.items:
            kind = "memory" if getattr(item, "most_numbers", None) else OF_FAILURES[item.kind]
            named[item.name] = "robustness" if getattr(item, "raises", ()) else kind
        for name in self.hidden:
            if name not in named and name not in KINDS:
                raise ArgumentError(f"{self.exercise.id}: hidden: {no_such('check', name, [*KINDS, *named])}")
        return named

    def kind(self, name: str) -> str:
        """The kind of the check of this name."""
        return self.kinds.get(name, "values")

    def hides(self, name: str) -> bool:
        """Whether students do not see the check of this name."""
        return name in self.hidden or self.kind(name) in self.hidden


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

    @property
    def own_files(self) -> list[Path]:
        """What the exercises of its own folder are made of."""
        inside = sorted(self.folder.rglob("*.*")) if self.folder else []
        return [path for path in inside if path.suffix in (".toml", ".py", ".md")]

    def digest(self) -> str:
        """Changes when anything does that marks depend on: this file, an exercise of its own, our version."""
        texts = [path.read_bytes() for path in (self.path, *self.own_files)]
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
    beside = about.get("from")
    folder = path.resolve().parent / beside if isinstance(beside, str) else None
    exercises = catalogue(folder)
    of_part = {key: DEFAULTS[key] for key in DEFAULTS if key in {field.name for field in fields(Part)}}
    known = {**DEFAULTS, "deadline": datetime.min, "from": "", "exercise": dict.fromkeys(exercises, of_part)}
    values = {"deadline": None, **DEFAULTS, "title": path.stem, **_checked(path, "", about, known)}
    parts = {}
    for id, table in values.get("exercise", {}).items():
        both = {**{key: values[key] for key in of_part}, **table}
        both["weights"] = {**DEFAULTS["weights"], **values["weights"], **table.get("weights", {})}
        parts[id] = Part(exercise=exercises[id], **both)
        if parts[id].bonus and not parts[id].few_lines:
            raise LoadError(f"{path}: exercise.{id}: bonus needs few_lines, the most lines that earn it.")
    if not parts:
        raise LoadError(f"{path} sets no exercise: add [exercise.masked-softmax], say.")
    rest = {field.name: values[field.name] for field in fields(Assignment) if field.name in values}
    return Assignment(path=path, folder=folder, parts=parts, **rest)


def _checked(path: Path, where: str, table: object, known: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a table, each of the type of its default and in its range."""
    if not isinstance(table, dict):
        raise LoadError(f"{path}: {where.removesuffix('.')} must be a table. Got {table!r}.")
    checked: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            what = "exercise" if where == "exercise." else "key"
            raise LoadError(f"{path}: {where}{key}: {no_such(what, key, known)}")
        kind = type(known[key])
        if kind is dict:
            checked[key] = _checked(path, f"{where}{key}.", value, known[key])
            continue
        right = type(value) is kind
        if kind in (int, float):
            least, most = RANGES.get(key, (0, 10**6))
            words = f"a {'whole ' * (kind is int)}number from {least:g} to {most}"
            right = (right or type(value) is int) and least <= value <= most
        elif key in CHOICES:
            words = " or ".join(f'"{choice}"' for choice in CHOICES[key])
            right = value in CHOICES[key]
        else:
            words = WORDS[kind]
            right = right and (kind is not list or all(isinstance(item, str) for item in value))
        if not right:
            raise LoadError(f"{path}: {where}{key} must be {words}. Got {value!r}.")
        checked[key] = float(value) if kind is float else value
    return checked
