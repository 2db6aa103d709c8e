"""What an exercise is: a folder with a task, right answers, known mistakes, and calls to tell them apart.

    task.md         what is asked
    starter.py      the signatures to fill in
    exercise.toml   everything else: title, names, reference, calls, conventions, hints, mistakes
    right/*.py      correct ways to write it, which need nothing but torch
    trials.py       only where something is code: functions that formulas, edits and judges call by name
    drive.py        `drive(answer, *args, **kwargs)`, where one call is not enough; formulas may call it too

`trials.py` and `drive.py` run here, when an answer is checked and not before. `drive.py` also runs beside
the answer, as all else that is Python does, in a process where regard cannot be imported. Nothing here needs
torch until `checks` is asked for. An exercise.toml has these keys:

title = "Masked softmax"
names = ["masked_softmax"]       # what an answer defines
example = "print(masked_softmax(torch.randn(2, 3, 4)).shape)"   # a call that shows shapes, below the starter
shared = ["always", "lengths"]   # files of ../shared, or of ours, with any of the tables below; NAME.py
                                 # beside NAME.toml has functions. What comes later replaces what is there
drive = "drive.py"               # where one call is not enough
biases = "none"                  # a bias that is not among the weights is a mistake; "free": it is not
counts = ["float16"]             # of device, float16, bfloat16: what the task asks for; others are notes

[right]                          # files of right/, and what is special about each
flat = "rows made flat"

[words]                          # dimensions of the result; of one of several results by its number
"" = ["batch", "query", "key"]

[formulas]                       # the reference, in order: the last is the result. Each is one expression
scale = "2"                      # of arguments, conventions, `parameters` (the weights), `options`, `train`,
scaled = "scores / scale"        # torch, F, math, itertools, and formulas before it
result = "twice(scaled)"
"twice(x)" = "x + x"             # a function, which any formula may call; [formulas."steps(x, y)"] is one of
                                 # several formulas. A method that is called is a function of that name

[sizes]                          # of every call that does not say otherwise
batch = 2

[draws]                          # formulas of sizes and of draws before them; `...` is left out of a call
scores = "normal(batch, 3, 4)"   # there are normal, weight, uniform, integers, distinct, lengths, and `draw`
"W_q.weight" = "weight(4, 4)"    # with a dot: a weight of the layer

[call]                           # which draws and sizes are args, options (by keyword), init, init_options
args = ["scores"]                # and weights of a layer; train = true; call = "a method". "*name" is a list

[trials]                         # calls that must give the reference's result: what they change of sizes,
"batch of one" = { batch = 1 }   # draws and call; variants, grad, most_numbers, optional, raises, secret,
                                 # kind, says

[probes."sequences do not affect each other"]
edits = ["first_sequence", { scores = "-scores" }]   # further calls: by a function, or by other draws
says = "..."                                         # where the reference does not move, no answer may
# judge = { holds = "results[0] < 1", says = "..." } # or a function by its name, in the place of that

[conventions.empty_row]          # what the task leaves open: a name in formulas and draws, and its choices,
about = "a row of length 0"      # ours first. The task's text ends with them, and an answer that made another
zeros = "zeros"                  # choice is told which. One without `about` helps to name mistakes: the task
nan = "NaN, as -inf gives"       # does not tell it

[hints]                          # for an answer whose mistake has no name
symptom = "..."                  # and place, cause, fix

[mistake."the mask is upside down"]
symptom = "The weight lies on the padding."
place = "Look at the comparison of positions with lengths."
cause = "True means hidden here, and the comparison is true for the valid keys."
fix = "Hide the positions at or past the length."
choice = { mask = "~hidden" }    # formulas in the place of the reference's that give its numbers; several
                                 # ways to make it are [{...}, {...}]
# or, where numbers are right:
# fails = { device = "on the CPU" }         # checks that fail, and words of what they say

[choice.mask]                    # place and fix of mistakes that choose it, those of this file first
place = "..."
fix = "..."
"""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.checking.syntax import formula_names, parsed
from regard.errors import ArgumentError, LoadError

if TYPE_CHECKING:
    from regard.checking.trials import Checks

OURS = Path(__file__).parent.parent / "exercises"
GRADES = ("symptom", "place", "cause", "fix")
TASK_WIDTH = 116  # of lines that are added to a task, without their indent
FREE = "Yours to choose; what differs from ours passes, with a note:"
FIXED = "Conventions, which are fixed:"
ABOUT = "about"  # of a convention: the question that the task leaves open
# What a file may say, and of which kind that is; of tables, which exercises may share, what is in them.
KEYS = {
    **dict.fromkeys(("title", "example", "drive"), "a text"),
    **dict.fromkeys(("names", "shared", "counts"), "a list of texts"),
    "biases": "none or free",
    "right": "a table of texts",
}
TABLES = {
    "words": "a list of texts",
    "conventions": "a table of texts, at least two choices",
    "hints": "a text",
    "choice": "a table of texts",
    "mistake": "a table",
    "formulas": "a text or a table of texts",
    "sizes": "a whole number",
    "draws": "a text or a number",
    "call": "one of CALL",
    "trials": "a table",
    "probes": "a table",
}
JOINED = ("formulas", "sizes", "draws", "call", "trials", "probes")  # how an answer is called and judged
MISTAKE = {
    **dict.fromkeys(GRADES, "a text"),
    "choice": "a table of texts, or a list of them",
    "fails": "a table of texts",
}
# What a trial or a probe may say beside the sizes and draws that it changes.
CALL = {
    **dict.fromkeys(("args", "options", "init", "init_options", "weights"), "a list of texts"),
    "call": "a text",
    "train": "true or false",
}
FLAGS = {
    "optional": "true or false",
    "raises": "a list of texts",
    "secret": "true or false",
    "kind": "wrong, fragile, train mode or wasteful",
    "says": "a text",
}
ONLY = {
    "trials": {"grad": "true or false", "variants": "true or false", "most_numbers": "a text"},
    "probes": {"edits": "a list of names and tables", "judge": "a name, or { holds, says }"},
}
Hints = tuple[str, str, str, str]
Parts = tuple[dict[str, Any], dict[str, int], dict[str, Any]]  # flags, sizes, and changes of the call


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


@dataclass(frozen=True)
class Freedom:
    """What a task says of one convention: every choice, and ours alone."""

    all: str
    ours: str

    @classmethod
    def of(cls, choices: Mapping[str, str]) -> Freedom:
        """Return the lines of a convention's table."""
        ours, *others = (text for choice, text in choices.items() if choice != ABOUT)
        return cls(f"{choices[ABOUT]}: {ours} (ours); {'; '.join(others)}.", f"{choices[ABOUT]}: {ours}.")


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
    conventions: Mapping[str, Mapping[str, str]]  # name -> choice -> what is said of it; the first is ours
    freedom: tuple[Freedom, ...]  # what the task leaves open: the conventions that have a question
    words: Mapping[str, tuple[str, ...]]  # output -> its dimensions
    formulas: Mapping[str, Any]  # of the reference
    draws: Mapping[str, Any]  # how each argument and weight is drawn
    call: Mapping[str, Any]  # which draws are arguments, and of what
    trials: Mapping[str, Parts]
    probes: Mapping[str, Parts]
    modules: tuple[Path, ...]  # Python whose functions formulas may call
    example: str  # lines that call an answer and print shapes
    drive_file: str
    counts: tuple[str, ...]  # checks that the task asks for in words, which elsewhere are notes
    biases: str  # "none": one that is no weight of ours is a mistake; "free": it is not; "": it is told

    def read(self, file: str) -> str:
        """The text of a file of the folder."""
        try:
            return (self.folder / file).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise LoadError(f"{self.id}: cannot read {self.folder / file}: {error}.") from error

    @cached_property
    def task(self) -> str:
        """What is asked, in Markdown, with what the conventions leave open."""
        return self.task_text(fixed=False)

    def task_text(self, *, fixed: bool) -> str:
        """Return what is asked, in Markdown, with the conventions: all choices, or ours where it is fixed."""
        lines = [self.read("task.md").rstrip()]
        if self.freedom:
            lines.append(f"\n{FIXED if fixed else FREE}\n")
        for choices in self.freedom:
            text = textwrap.fill(choices.ours if fixed else choices.all, TASK_WIDTH, break_on_hyphens=False)
            lines.append(textwrap.indent(text, "  ").replace("  ", "- ", 1))
        return "\n".join([*lines, ""])

    @cached_property
    def starter(self) -> str:
        """What a student begins with."""
        return self.read("starter.py")

    @cached_property
    def drive(self) -> str:
        """Source of `drive(answer, *args, **kwargs)`, or nothing."""
        return self.read(self.drive_file) if self.drive_file else ""

    @cached_property
    def right(self) -> tuple[str, ...]:
        """The sources of the right variants, which need nothing but torch."""
        return tuple(self.read(f"right/{file}.py") for file in self.variants)

    @cached_property
    def checks(self) -> Checks:
        """The reference, trials and probes; this imports torch, and runs trials.py."""
        from regard.checking.trials import load

        return load(self)

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """What the starter's parameters are, where they are left out."""
        defaults: dict[str, Any] = {}
        for definition in self.definitions.values():
            for node in ast.walk(definition):
                if isinstance(node, ast.FunctionDef) and node.args.defaults:
                    names = [argument.arg for argument in node.args.args]
                    values = map(ast.literal_eval, node.args.defaults)
                    defaults |= dict(zip(names[-len(node.args.defaults) :], values, strict=True))
        return defaults

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
    def offers(self) -> list[dict[str, str]]:
        """How calls may be made, ours first: every choice of the conventions that draws depend on."""
        tables = [table for *_, table in (*self.trials.values(), *self.probes.values())]
        tables += [edit for table in tables for edit in table.get("edits", ()) if isinstance(edit, dict)]
        changes = [table[name] for table in tables for name in table if name in self.draws]
        words = set(re.findall(r"\w+", " ".join(map(str, (*self.draws.values(), *changes)))))
        open_to = {name: choices for name, choices in self.conventions.items() if name in words}
        return [dict(zip(open_to, way, strict=True)) for way in itertools.product(*open_to.values())]


def load_entry(folder: Path) -> Entry:
    """Title and names alone, which stand before the first table of exercise.toml: no more is read."""
    path = folder / "exercise.toml"
    try:
        about = _read(path, "title", "names", end="\n[")
    except LoadError:  # a line of the example begins like a table, or the file is wrong: all of it says which
        about = _read(path, "title", "names")
    return Entry(folder, about["title"], tuple(about["names"]))


def load_folder(folder: Path) -> Exercise:
    """The exercise of a folder that holds an exercise.toml."""
    path = folder / "exercise.toml"
    about = _read(path, "title", "names", "right")
    ours = about.get("mistake", {})
    tables: dict[str, dict[str, Any]] = {name: {} for name in TABLES}
    # Of mistakes that give the same numbers the first is named: the exercise's before those that are shared.
    mistakes: dict[str, Any] = dict.fromkeys(ours)
    files = [_shared(folder, name) for name in about.get("shared", ())]
    for file in [*files, path]:  # what comes later replaces what has the same name
        part = _read(file)
        for name, table in tables.items():
            more = part.get(name, {})
            tables[name] = _joined(table, more, name) if name in JOINED else {**table, **more}
        choices = part.get("choice", {})  # of its file come before others
        mistakes |= {name: (file, mistake, choices) for name, mistake in part.get("mistake", {}).items()}
    made = tuple(
        mistake
        for name, (file, table, near) in mistakes.items()
        for mistake in _mistakes(file, name, table, {**tables["choice"], **near})
    )
    names = formula_names(tables["formulas"])
    for mistake in made:
        for name in mistake.choices:
            known = names.count(name) or int(name in (*tables["conventions"], "form"))
            if mistake.name in ours and known != 1:
                raise LoadError(
                    f"{path}: mistake {mistake.name!r} chooses {name!r}, and there is "
                    f"{'two formulas' if known else 'no formula'} of that name. "
                    f"There are: {', '.join(sorted(set(names)))}."
                )
    drive = about.get("drive", "")
    code = [file.with_suffix(".py") for file in files]
    code += [folder / (drive or "drive.py"), folder / "trials.py"]
    return Exercise(
        folder=folder,
        title=about["title"],
        names=tuple(about["names"]),
        variants=about["right"],
        hints=_hints(path, "hints", tables["hints"]),
        mistakes=made,
        conventions={name: _said(choices) for name, choices in tables["conventions"].items()},
        freedom=tuple(Freedom.of(choices) for choices in tables["conventions"].values() if ABOUT in choices),
        words={word: tuple(dimensions) for word, dimensions in tables["words"].items()},
        formulas=tables["formulas"],
        draws=tables["draws"],
        call=tables["call"],
        trials=_items(path, "trials", tables, about),
        probes=_items(path, "probes", tables, about),
        modules=tuple(file for file in code if file.exists()),
        example=about.get("example", ""),
        drive_file=drive,
        counts=tuple(about.get("counts", ())),
        biases=about.get("biases", ""),
    )


def _read(path: Path, *needed: str, end: str = "\0") -> dict[str, Any]:
    """What a file says, as far as `end`."""
    try:
        about = _checked(path, path.read_text(encoding="utf-8").split(end)[0])
    except LoadError:
        raise
    except (OSError, ValueError) as error:
        raise LoadError(f"cannot read {path}: {error}.") from error
    missing = [key for key in needed if not about.get(key)]
    if missing:
        raise LoadError(f"{path} must have {', '.join(missing)}.")
    return about


@cache  # what exercises share is read by each of them
def _checked(path: Path, text: str) -> dict[str, Any]:
    """What a text says, each part of its kind."""
    about = tomllib.loads(text)
    _check(path, "", about, {**KEYS, **dict.fromkeys(TABLES, "a table")})
    for name, kind in TABLES.items():
        table = about.get(name, {})
        _check(path, f"{name}.", table, CALL if name == "call" else dict.fromkeys(table, kind))
    for name, mistake in about.get("mistake", {}).items():
        if ("choice" in mistake) == ("fails" in mistake):
            raise LoadError(
                f"{path}: mistake {name!r} needs either choice = {{...}} or fails = {{...}}. Got: {mistake}."
            )
        _check(path, f"mistake {name!r}: ", mistake, MISTAKE)
    return about


def _check(path: Path, of: str, table: Mapping[str, Any], kinds: Mapping[str, str]) -> None:
    """Each value of a table is of its kind."""
    for key, value in table.items():
        if key not in kinds:
            raise LoadError(f"{path}: {of}{key}: no such key. There are: {', '.join(kinds)}.")
        if not KINDS[kinds[key]](value):
            raise LoadError(f"{path}: {of}{key} must be {kinds[key]}. Got {value!r}.")


KINDS: dict[str, Callable[[Any], bool]] = {
    "true or false": lambda value: isinstance(value, bool),
    "a whole number": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "a number": lambda value: isinstance(value, int | float),
    "a text": lambda value: isinstance(value, str),
    "a text or a number": lambda value: isinstance(value, str | int | float),
    "a text or a table of texts": lambda value: isinstance(value, str) or KINDS["a table of texts"](value),
    "a list of texts": lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    "a list of names and tables": lambda value: (
        isinstance(value, list) and all(isinstance(edit, str | dict) for edit in value)
    ),
    "a table": lambda value: isinstance(value, dict),
    "a table of texts": lambda value: isinstance(value, dict) and KINDS["a list of texts"]([*value.values()]),
    "a table of texts, at least two choices": lambda value: (
        KINDS["a table of texts"](value) and len({*value} - {ABOUT}) > 1
    ),
    "a table of texts, or a list of them": lambda value: (
        value != []
        and all(KINDS["a table of texts"](way) for way in (value if isinstance(value, list) else [value]))
    ),
    "none or free": lambda value: value in ("none", "free"),
    "a name, or { holds, says }": lambda value: isinstance(value, str) or set(value) == {"holds", "says"},
    "wrong, fragile, train mode or wasteful": lambda value: (
        value in ("wrong", "fragile", "train mode", "wasteful")
    ),
}


def _shared(folder: Path, name: str) -> Path:
    beside = folder.parent / "shared" / f"{name}.toml"
    return beside if beside.exists() else OURS / "shared" / f"{name}.toml"


def _joined(table: Mapping[str, Any], more: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """What comes later replaces what has the same name, with or without its parameters; tables are joined.

    New draws come first, because those that are shared may use them.
    """
    parts = {key.partition("(")[0]: (key, value) for key, value in table.items()}
    for key, value in more.items():
        name = key.partition("(")[0]
        old, before = parts.get(name, (key, None))
        both = isinstance(before, dict) and isinstance(value, dict)
        parts[name] = key if "(" in key else old, {**before, **value} if both else value
    if kind == "draws":
        return dict(sorted(parts.values(), key=lambda part: part[0] in table))
    return dict(parts.values())


def _items(path: Path, kind: str, tables: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Parts]:
    """Trials or probes; those that are shared and have a size or draw that is missing here are left out."""
    items, sizes, draws = {}, tables["sizes"], tables["draws"]
    words = {**CALL, **FLAGS, **ONLY[kind]}
    kinds = {**words, **dict.fromkeys(draws, TABLES["draws"]), **dict.fromkeys(sizes, TABLES["sizes"])}
    for name, table in tables[kind].items():
        of = f"{kind}.{name!r}: "
        other = {word: sizes.get(size, size) for word, size in table.items() if word in sizes}
        edited = {word for edit in table.get("edits", ()) if isinstance(edit, dict) for word in edit}
        missing = [size for size in other.values() if isinstance(size, str)]
        unknown = sorted({*table, *missing} - set(kinds) | edited - {*CALL, *draws})
        if unknown and name in about.get(kind, {}):
            raise LoadError(
                f"{path}: {of}{', '.join(unknown)}: no size and no draw. There are the sizes "
                f"{', '.join(sizes)}; the draws {', '.join(draws)}; and {', '.join(words)}."
            )
        if not unknown:
            _check(path, of, {**table, **other}, kinds)
            flags = {word: table[word] for word in (*FLAGS, *ONLY[kind]) if word in table and word != "edits"}
            items[name] = flags, {**sizes, **other}, table
    return items


def _said(choices: Mapping[str, str]) -> dict[str, str]:
    """What is said of each choice of a convention to an answer that made it."""
    texts = {choice: text for choice, text in choices.items() if choice != ABOUT}
    if ABOUT not in choices:
        return texts
    ours = next(iter(texts.values()))
    return {choice: f"{choices[ABOUT]}: {text} (ours: {ours})." for choice, text in texts.items()}


def _hints(path: Path, of: str, table: Mapping[str, Any]) -> Hints:
    missing = [grade for grade in GRADES if grade not in table]
    if missing:
        raise LoadError(
            f"{path}: {of} needs {', '.join(GRADES)}, a sentence each. Without: {', '.join(missing)}."
        )
    symptom, place, cause, fix = (table[grade] for grade in GRADES)
    return symptom, place, cause, fix


def _mistakes(
    path: Path, name: str, table: Mapping[str, Any], common: Mapping[str, Any]
) -> Iterator[Mistake]:
    """The mistake, once for each way to make it that `choice` has."""
    ways = table.get("choice", {})
    for choices in ways if isinstance(ways, list) else [ways]:
        hints = dict(table)
        for choice in choices:
            hints = {**common.get(choice, {}), **hints}
        yield Mistake(name, _hints(path, f"mistake {name!r}", hints), choices, table.get("fails", {}))
