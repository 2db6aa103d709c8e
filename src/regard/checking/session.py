"""Marks what a notebook has defined so far, from inside of it: for nbgrader, otter, and any cell.

points("assignment.toml", "masked-softmax")              prints the reasons, and returns the points
require("assignment.toml", "masked-softmax", "values")   raises with the reasons, unless these checks pass
"""

from __future__ import annotations

import atexit
import builtins
from functools import cache
from pathlib import Path

from regard.checking.assignment import load
from regard.checking.catalogue import pick
from regard.checking.grading import checker_of
from regard.checking.marks import REFUSED, UNTOUCHED, Mark, mark
from regard.checking.runner import Runner
from regard.checking.submission import UNPARSED, answered, from_source
from regard.checking.syntax import parsed
from regard.errors import ArgumentError


def points(assignment: str, id: str, source: str | None = None) -> float:
    """The points of an exercise, never more than it has; the reasons are printed.

    `source` is the text of the answer; without it, that of all cells that have been run in this notebook.
    """
    marked = _marked(assignment, id, _cells() if source is None else source)
    print("\n".join([f"{id}: {marked.points:g} of {marked.out_of:g} points.", *marked.reasons]))
    return min(marked.points, marked.out_of)


def require(assignment: str, id: str, kind: str, source: str | None = None) -> None:
    """Raise an AssertionError with the reasons, unless all values are right and this kind of check passes."""
    marked = _marked(assignment, id, _cells() if source is None else source)
    lines = [line for line in marked.lines if line.kind in ("values", kind)]
    if not lines or marked.status in (UNTOUCHED, REFUSED) or not all(line.passed for line in lines):
        raise AssertionError("\n".join(marked.reasons))


def _cells() -> str:
    """What has been run in this notebook, cell by cell, without those that are no Python."""
    shell = getattr(builtins, "get_ipython", lambda: None)()
    if shell is None:
        raise ArgumentError("this is no notebook: give the text of the answer as `source`.")
    return "\n\n".join(cell for cell in shell.user_ns["In"] if _is_python(cell))


def _is_python(text: str) -> bool:
    try:
        parsed(text)
    except UNPARSED:
        return False
    return True


@cache
def _runner() -> Runner:
    """One worker for as long as this process lives."""
    runner = Runner(1)
    atexit.register(runner.__exit__)
    return runner


@cache
def _marked(path: str, id: str, source: str) -> Mark:
    assignment = load(path)
    pick(assignment.exercises, id)
    submission = from_source(source, "this notebook", str(Path.cwd()))
    checker = checker_of(assignment, _runner())
    answers = answered(submission, checker.exercises, None)
    mine = [answer for answer in answers if answer.exercise.id == id]
    part = assignment.parts[id]
    return mark(part, submission, checker.check(submission, mine[-1]))[0] if mine else Mark(id, part.points)
