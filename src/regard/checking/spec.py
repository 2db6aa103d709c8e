"""What an exercise is: a folder with a task, right answers, known mistakes, and calls to tell them apart.

    task.md         what is asked
    starter.py      the signatures to fill in
    exercise.toml   title, names, conventions, hints, mistakes
    trials.py       the reference, calls and probes: run when an answer is checked, and not before
    right/*.py      correct ways to write it, which need nothing but torch
    drive.py        `drive(answer, *args, **kwargs)`, where one call is not enough; runs beside the answer

Only `trials.py` runs here, and may call our library. All else that is Python runs in a process where regard
cannot be imported. Nothing here needs torch until `checks` is asked for. An exercise.toml has these keys:

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

import ast
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.checking.syntax import parsed
from regard.errors import ArgumentError, LoadError

if TYPE_CHECKING:
    from regard.checking.trials import Checks

OURS = Path(__file__).parent.parent / "exercises"
TABLES = ("words", "conventions", "hints", "choice", "mistake")  # what exercises may share
KEYS = ("title", "names", "example", "shared", "needs", "drive", "tolerance", "right", *TABLES)
GRADES = ("symptom", "place", "cause", "fix")
Hints = tuple[str, str, str, str]


@dataclass(frozen=True)
class Convention:
    """A question the task leaves open. `name` is a keyword of the reference; the first choice is ours."""

    name: str
    choices: Mapping[str, str]  # choice -> the sentence a student reads whose answer chose it


@dataclass(frozen=True)
class Right:
    """Another correct way to write it, as source text that needs nothing but torch."""

    name: str
    source: str


@dataclass(frozen=True)
class Mistake:
    """A way to be wrong that has a name. Of the four `hints` the first tells the least.

    Its `choices` make the reference give its numbers. Where numbers cannot show it, `fails` has the checks
    that fail, each with words of what they say.
    """

    name: str
    hints: Hints
    choices: Mapping[str, str] = field(default_factory=dict)
    fails: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Entry:
    """What a list of exercises says of one."""

    folder: Path
    title: str
    names: tuple[str, ...]  # what an answer defines: one class, or one or more functions

    @property
    def id(self) -> str:
        """The folder's name as students write it."""
        return self.folder.name.replace("_", "-")


@dataclass(frozen=True, eq=False)
class Exercise(Entry):
    """One task and everything that checks it; files are read when they are asked for."""

    variants: Mapping[str, str]  # file in right/ -> what is special about it
    hints: Hints  # for an answer whose mistake has no name
    mistakes: tuple[Mistake, ...]
    conventions: tuple[Convention, ...] = ()
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # output -> its dimensions
    example: str = ""  # lines that call an answer and print shapes
    drive_file: str = ""
    tolerance: float = 1.0  # times the usual one, with a reason beside it
    needs: tuple[str, ...] = ()  # ids of exercises an answer may call and a file may leave out

    def read(self, file: str) -> str:
        """The text of a file of the folder."""
        try:
            return (self.folder / file).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise LoadError(f"{self.id}: cannot read {self.folder / file}: {error}.") from error

    @cached_property
    def task(self) -> str:
        """What is asked, in Markdown."""
        return self.read("task.md")

    @cached_property
    def starter(self) -> str:
        """What a student begins with."""
        return self.read("starter.py")

    @cached_property
    def drive(self) -> str:
        """Source of `drive(answer, *args, **kwargs)`, or nothing."""
        return self.read(self.drive_file) if self.drive_file else ""

    @cached_property
    def right(self) -> tuple[Right, ...]:
        """The right variants, in the order of exercise.toml."""
        return tuple(Right(name, self.read(f"right/{file}.py")) for file, name in self.variants.items())

    @cached_property
    def checks(self) -> Checks:
        """The reference, trials and probes; this imports torch, and runs trials.py."""
        from regard.checking.trials import load

        return load(self.folder)

    @cached_property
    def definitions(self) -> dict[str, ast.FunctionDef | ast.ClassDef]:
        """What the starter defines: the signatures that tell which exercise a file answers."""
        defined = {
            node.name: node
            for node in parsed(self.starter).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        missing = [name for name in self.names if name not in defined]
        if missing:
            raise ArgumentError(f"{self.id}: the starter does not define {', '.join(missing)}.")
        return defined

    @property
    def is_class(self) -> bool:
        """Whether the answer is a class."""
        return isinstance(self.definitions[self.names[0]], ast.ClassDef)

    @cached_property
    def has_bias_option(self) -> bool:
        """Whether the constructor is told if there are biases: then one too many is a mistake."""
        return any(
            isinstance(part, ast.FunctionDef)
            and part.name == "__init__"
            and any(argument.arg == "bias" for argument in part.args.args)
            for part in self.definitions[self.names[0]].body
        )


def load_entry(folder: Path) -> Entry:
    """Title and names alone, which stand before the first table of exercise.toml: no more is read."""
    path = folder / "exercise.toml"
    try:
        about = _read(path, "\n[")
    except LoadError:  # a line of the example begins like a table, or the file is wrong: all of it says which
        about = _read(path)
    return Entry(folder, _checked(path, "title", about.get("title"), "a text"), _texts(path, about, "names"))


def load_folder(folder: Path) -> Exercise:
    """The exercise of a folder that holds an exercise.toml."""
    path = folder / "exercise.toml"
    about = _read(path)
    unknown = sorted(set(about) - set(KEYS))
    if unknown:
        raise LoadError(f"{path}: {', '.join(unknown)}: no such keys. There are: {', '.join(KEYS)}.")
    if not about.get("names") or not about.get("right"):
        raise LoadError(f"{path} must have names = [...] and, below [right], a file of right/.")
    tables: dict[str, dict[str, Any]] = {name: {} for name in TABLES}
    # Of mistakes that give the same numbers the first is named: the exercise's before those that are shared.
    mistakes: dict[str, Any] = dict.fromkeys(about.get("mistake", {}))
    files = [_shared(folder, name) for name in _texts(path, about, "shared")]
    for file in [*files, path]:  # what comes later replaces what has the same name
        part = _read(file)
        for name, table in tables.items():
            table.update(_checked(file, name, part.get(name, {}), "a table"))
        choices = part.get("choice", {})  # of its file come before others
        mistakes |= {name: (file, mistake, choices) for name, mistake in part.get("mistake", {}).items()}
    return Exercise(
        folder=folder,
        title=_checked(path, "title", about.get("title"), "a text"),
        example=_checked(path, "example", about.get("example", ""), "a text"),
        names=_texts(path, about, "names"),
        variants=_checked(path, "right", about["right"], "a table of texts"),
        hints=_hints(path, "hints", tables["hints"]),
        mistakes=tuple(
            mistake
            for name, (file, table, near) in mistakes.items()
            for mistake in _mistakes(file, name, table, {**tables["choice"], **near})
        ),
        conventions=tuple(_convention(path, name, table) for name, table in tables["conventions"].items()),
        words={word: _texts(path, tables["words"], word) for word in tables["words"]},
        drive_file=_checked(path, "drive", about.get("drive", ""), "a text"),
        tolerance=float(_checked(path, "tolerance", about.get("tolerance", 1.0), "a number")),
        needs=_texts(path, about, "needs"),
    )


_parsed = cache(tomllib.loads)  # what exercises share is read by each of them


def _read(path: Path, end: str = "\0") -> dict[str, Any]:
    """What a file says, as far as `end`."""
    try:
        return _parsed(path.read_text(encoding="utf-8").split(end)[0])
    except (OSError, ValueError) as error:
        raise LoadError(f"cannot read {path}: {error}.") from error


def _shared(folder: Path, name: str) -> Path:
    beside = folder.parent / "shared" / f"{name}.toml"
    return beside if beside.exists() else OURS / "shared" / f"{name}.toml"


KINDS: dict[str, Callable[[Any], bool]] = {
    "a text": lambda value: isinstance(value, str),
    "a number": lambda value: isinstance(value, int | float),
    "a table": lambda value: isinstance(value, dict),
    "a list of texts": lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    "a table of texts": lambda value: isinstance(value, dict) and KINDS["a list of texts"]([*value.values()]),
}


def _checked(path: Path, key: str, value: Any, kind: str) -> Any:
    if not KINDS[kind](value):
        raise LoadError(f"{path}: {key} must be {kind}. Got {value!r}.")
    return value


def _texts(path: Path, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(_checked(path, key, table.get(key, []), "a list of texts"))


def _hints(path: Path, of: str, table: Mapping[str, Any]) -> Hints:
    missing = [grade for grade in GRADES if not isinstance(table.get(grade), str)]
    if missing:
        raise LoadError(
            f"{path}: {of} needs {', '.join(GRADES)}, a sentence each. Without: {', '.join(missing)}."
        )
    symptom, place, cause, fix = (table[grade] for grade in GRADES)
    return symptom, place, cause, fix


def _convention(path: Path, name: str, table: object) -> Convention:
    choices = _checked(path, f"conventions.{name}", table, "a table of texts")
    if len(choices) < 2:
        raise LoadError(f"{path}: convention {name!r} needs at least two choices. Got {list(choices)}.")
    return Convention(name, choices)


def _mistakes(path: Path, name: str, table: object, common: Mapping[str, Any]) -> Iterator[Mistake]:
    """The mistake, once for each way to make it that `choice` has."""
    known = {*GRADES, "choice", "fails"}
    if not isinstance(table, dict) or set(table) - known or ("choice" in table) == ("fails" in table):
        raise LoadError(
            f"{path}: mistake {name!r} needs {', '.join(GRADES)} and either choice = {{...}} or "
            f"fails = {{...}}. Got: {table}."
        )
    ways = table.get("choice", {})
    for way in ways if ways and isinstance(ways, list) else [ways]:
        choices = _checked(path, f"mistake {name!r}: choice", way, "a table of texts")
        hints: dict[str, Any] = {}
        for choice in choices:
            near = _checked(path, f"choice.{choice}", common.get(choice, {}), "a table of texts")
            hints = {**near, **hints}
        fails = _checked(path, f"mistake {name!r}: fails", table.get("fails", {}), "a table of texts")
        yield Mistake(name, _hints(path, f"mistake {name!r}", {**hints, **table}), choices, fails)
