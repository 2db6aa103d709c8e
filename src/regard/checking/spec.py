"""What an exercise is: a folder with a task, right answers, known mistakes, and calls to tell them apart.

    task.md         what is asked
    starter.py      the signatures to fill in
    exercise.toml   title, names, conventions, hints, mistakes: read by `regard.checking.folder`
    trials.py       the reference, calls and probes: run when an answer is checked, and not before
    right/*.py      correct ways to write it, which need nothing but torch
    drive.py        `drive(answer, *args, **kwargs)`, where one call is not enough; runs beside the answer

Only `trials.py` runs here, and may call our library. All else that is Python runs in a process where regard
cannot be imported. Nothing here needs torch until `checks` is asked for.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from regard.checking.syntax import parsed
from regard.errors import ArgumentError, LoadError

if TYPE_CHECKING:
    from regard.checking.trials import Checks

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
