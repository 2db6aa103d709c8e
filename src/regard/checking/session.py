"""Answers checked and marked where they are written: in a notebook, or at a prompt.

    regard.check(masked_softmax)       # a function or class of this notebook, or of a file
    regard.check("homework.ipynb")     # every exercise that a file answers

    points("assignment.toml", "masked-softmax")              # prints the reasons, and returns the points
    require("assignment.toml", "masked-softmax", "values")   # raises unless these checks pass

One worker stays warm for the session. It runs what the answer needs of the notebook, not the notebook.
"""

import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from click import unstyle

from regard.checking.assignment import load
from regard.checking.catalogue import catalogue, pick
from regard.checking.check import Checker, Result
from regard.checking.child.messages import Cell
from regard.checking.grading import checker_of
from regard.checking.marks import REFUSED, UNTOUCHED, Mark, mark
from regard.checking.progress import Progress
from regard.checking.quiz import warm_runner
from regard.checking.reports import html
from regard.checking.reports.terminal import report
from regard.checking.submission import Submission, answered, as_cells, from_source, names_in, read, tree_of
from regard.errors import ArgumentError

NAME = "this notebook"  # what reports call it


@dataclass(frozen=True, eq=False)
class Report:
    """What checking gave: the last value of a notebook's cell shows itself, with pictures."""

    results: tuple[Result, ...]

    @property
    def passed(self) -> bool:
        """Whether everything passed."""
        return all(result.passed for result in self.results)

    def __repr__(self) -> str:
        """The report as the terminal has it."""
        return unstyle("\n".join(report(result, width=100) for result in self.results))

    def _repr_html_(self) -> str:
        return html.cell(list(self.results))


def check(
    answer: object, exercise: str | None = None, *, seed: int | None = None, strict: bool = False
) -> Report:
    """Check a function or class, or the `.py` or `.ipynb` file of that path, and name its mistakes.

    Args:
        answer: The function or class, or the path of a file.
        exercise: Which exercise it answers, where its name does not say that.
        seed: Repeats the inputs of an earlier check; None: they are drawn afresh.
        strict: Refuse conventions other than the task's first one.

    Returns:
        The report: what passed, what did not, and the mistakes by name.

    Raises:
        ArgumentError: If the answer has no source to be found, or no exercise fits it.
    """
    if isinstance(answer, str | Path):
        return _report(read(answer), exercise, seed, strict)
    if not (inspect.isfunction(answer) or inspect.isclass(answer)):
        kind = type(answer)
        yours = ": its class is what you wrote." if kind.__module__ == "__main__" else "."
        rule = "check takes a function, a class, or the path of a file."
        raise ArgumentError(f"{rule} Got an object of type {kind.__name__}{yours}")
    names = [answer.__name__]
    if _shell() is not None and answer.__module__ == "__main__":
        return _report(session(names), exercise, seed, strict, names)
    try:
        path = Path(inspect.getsourcefile(answer) or "")
    except TypeError:
        path = Path()
    if not path.is_file():
        raise ArgumentError(f"the source of {answer.__name__} is not at hand: write it in a file or a cell.")
    return _report(read(path), exercise, seed, strict, names)


def check_cell(source: str, exercise: str | None, *, seed: int | None, strict: bool) -> Report:
    """Check what a cell defines that this notebook has just run."""
    cells, _, _ = as_cells([source])
    names = {name for cell in cells for statement in tree_of(cell).body for name in names_in(statement)[0]}
    return _report(session(names), exercise, seed, strict, names)


def _report(
    submission: Submission, exercise: str | None, seed: int | None, strict: bool, names: Iterable[str] = ()
) -> Report:
    """The report on what a submission answers; of the exercises that want other names than these, nothing."""
    exercises = catalogue()
    if exercise is not None:
        pick(exercises, exercise)
    meant = {id: known for id, known in exercises.items() if set(known.names) & set(names)}
    checker = Checker(meant if meant and exercise is None else exercises, warm_runner(), seed, strict=strict)
    results = tuple(checker.check_files([submission], exercise))
    progress = Progress()
    for result in results:
        progress.note(result)
    if reason := progress.save():
        print(reason, file=sys.stderr)
    return Report(results)


def _shell() -> Any:
    """The notebook or IPython that this runs in, or None."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def session(names: Iterable[str]) -> Submission:
    """What this notebook has executed so far of what these names need."""
    shell = _shell()
    if shell is None:
        raise ArgumentError("this is no notebook: give the file of the answer.")
    history = [source for source in shell.history_manager.input_hist_raw if source.strip()]
    cells, _, _ = as_cells(history)  # what failed to parse was never executed
    return Submission(NAME, needed(cells, names), folder=str(Path.cwd()))


def needed(cells: Iterable[Cell], names: Iterable[str]) -> tuple[Cell, ...]:
    """The cells with only those statements that define the names, and what they use in turn.

    Every other line is blank, so that line numbers stay.

    >>> [cell.source for cell in needed([Cell("", "a = 1\\nb = a\\nc = 2")], ["b"])]
    ['a = 1\\nb = a']
    """
    statements = [(cell, statement) for cell in cells for statement in tree_of(cell).body]
    bound_and_used = [names_in(statement) for _, statement in statements]
    wanted, kept = {*names, "*"}, set[int]()
    while more := {at for at, (bound, _) in enumerate(bound_and_used) if at not in kept and bound & wanted}:
        kept |= more
        wanted = wanted.union(*(bound_and_used[at][1] for at in more))
    sources: dict[Cell, list[str]] = {}
    for cell, statement in (statements[at] for at in sorted(kept)):
        lines = cell.source.splitlines()
        source = sources.setdefault(cell, [""] * len(lines))
        first = min([statement.lineno, *(part.lineno for part in getattr(statement, "decorator_list", []))])
        source[first - 1 : statement.end_lineno] = lines[first - 1 : statement.end_lineno]
    return tuple(Cell(cell.label, "\n".join(source).rstrip()) for cell, source in sources.items())


def points(assignment: str, id: str) -> float:
    """The points of what this notebook has run of an exercise, never more than it has; prints the reasons."""
    marked = _mark(assignment, id)
    print("\n".join([f"{id}: {marked.points:g} of {marked.out_of:g} points.", *marked.reasons]))
    return min(marked.points, marked.out_of)


def require(assignment: str, id: str, kind: str) -> None:
    """Raise an AssertionError with the reasons, unless all values are right and this kind of check passes."""
    marked = _mark(assignment, id)
    lines = [line for line in marked.lines if line.kind in ("values", kind)]
    if not lines or marked.status in (UNTOUCHED, REFUSED) or not all(line.passed for line in lines):
        raise AssertionError("\n".join(marked.reasons))


def _mark(path: str, id: str) -> Mark:
    """The mark of what this notebook has run of the answer; a text is marked once."""
    exercise = pick(load(path).exercises, id)
    return _mark_of(path, id, "\n\n".join(cell.source for cell in session(exercise.names).cells))


@cache
def _mark_of(path: str, id: str, source: str) -> Mark:
    assignment = load(path)
    submission = from_source(source, NAME, str(Path.cwd()))
    checker, part = checker_of(assignment, warm_runner()), assignment.parts[id]
    answers = [answer for answer in answered(submission, checker.exercises) if answer.exercise.id == id]
    if not answers:
        return Mark(id, part.points)
    return mark(part, submission, checker.check(submission, answers[-1]))[0]
