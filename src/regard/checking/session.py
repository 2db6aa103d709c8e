"""Marks what a notebook has defined so far, from inside of it: for nbgrader, otter, and any cell.

points("assignment.toml", "masked-softmax")              prints the reasons, and returns the points
require("assignment.toml", "masked-softmax", "values")   raises with the reasons, unless these checks pass
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from regard.checking.assignment import load
from regard.checking.catalogue import pick
from regard.checking.grading import checker_of
from regard.checking.marks import REFUSED, UNTOUCHED, Mark, mark
from regard.checking.notebook import NAME, session
from regard.checking.quiz import warm_runner
from regard.checking.submission import answered, from_source


def points(assignment: str, id: str, source: str | None = None) -> float:
    """The points of an exercise, never more than it has; the reasons are printed.

    `source` is the text of the answer; without it, what this notebook has run.
    """
    marked = _mark(assignment, id, source)
    print("\n".join([f"{id}: {marked.points:g} of {marked.out_of:g} points.", *marked.reasons]))
    return min(marked.points, marked.out_of)


def require(assignment: str, id: str, kind: str, source: str | None = None) -> None:
    """Raise an AssertionError with the reasons, unless all values are right and this kind of check passes."""
    marked = _mark(assignment, id, source)
    lines = [line for line in marked.lines if line.kind in ("values", kind)]
    if not lines or marked.status in (UNTOUCHED, REFUSED) or not all(line.passed for line in lines):
        raise AssertionError("\n".join(marked.reasons))


def _mark(path: str, id: str, source: str | None) -> Mark:
    """The mark of a text, or of what this notebook has run of the answer."""
    if source is None:
        wanted = pick(load(path).exercises, id).names
        source = "\n\n".join(cell.source for cell in session(wanted).cells)
    return _mark_of(path, id, source)


@cache
def _mark_of(path: str, id: str, source: str) -> Mark:
    assignment = load(path)
    pick(assignment.exercises, id)
    submission = from_source(source, NAME, str(Path.cwd()))
    checker = checker_of(assignment, warm_runner())
    answers = answered(submission, checker.exercises, None)
    mine = [answer for answer in answers if answer.exercise.id == id]
    part = assignment.parts[id]
    return mark(part, submission, checker.check(submission, mine[-1]))[0] if mine else Mark(id, part.points)
