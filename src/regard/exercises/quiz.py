"""Written questions: shapes, blanks and costs are checked, the rest points to an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from regard.errors import ArgumentError
from regard.exercises import expressions
from regard.exercises.compare import same
from regard.exercises.runner import Runner
from regard.exercises.spec import Draw

QuestionKind = Literal["shape", "formula", "order", "blank", "open"]


@dataclass(frozen=True)
class Question:
    """One question on paper."""

    id: str
    text: str
    kind: QuestionKind
    answer: str  # a shape, a formula, a Python expression; for an open question what to look for
    symbols: tuple[str, ...] = ()
    where: Mapping[str, str] = field(default_factory=dict)  # symbols in terms of others, true by definition
    code: str = ""  # of a blank: the expression with ____ in it
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of a blank: the tensors it uses
    lab: str = ""  # the experiment that shows it


@dataclass(frozen=True)
class Marked:
    """A marked answer; `right` is None for an open question."""

    right: bool | None
    message: str


def mark(question: Question, given: str, runner: Runner | None = None) -> Marked:
    """Whether an answer is right; equivalent forms count. Blanks are run in a child process of `runner`."""
    if question.kind == "open":
        return Marked(None, f"{question.answer} See for yourself: regard lab {question.lab}")
    if question.kind == "blank":
        if runner is None:
            raise ArgumentError("a blank is marked by running it: a runner is needed.")
        return _blank(question, given, runner)
    if question.kind == "shape":
        return _shape(question, given)
    compare = expressions.equal if question.kind == "formula" else expressions.same_order
    right = compare(given, question.answer, question.symbols, question.where)
    return Marked(right, "right." if right else "that is another formula.")


def _shape(question: Question, given: str) -> Marked:
    wanted, got = (_dimensions(text) for text in (question.answer, given))
    if len(wanted) != len(got):
        return Marked(False, f"the shape has {len(wanted)} dimensions, and yours {len(got)}.")
    for axis, (want, have) in enumerate(zip(wanted, got, strict=True)):
        if not expressions.equal(have, want, question.symbols, question.where):
            return Marked(False, f"dimension {axis + 1} is another one.")
    return Marked(True, "right.")


def _dimensions(text: str) -> list[str]:
    """The dimensions of `(b, n, d/h)`: commas inside brackets of a dimension do not count."""
    plain = text.strip()
    if plain[:1] in "([" and plain[-1:] in ")]" and len(plain) > 1:
        plain = plain[1:-1]
    parts, depth, current = [], 0, ""
    for character in plain:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    parts = [part.strip() for part in [*parts, current] if part.strip()]
    if not parts:
        raise ArgumentError(f"{text!r} is no shape: write it as in (b, n, d/h).")
    return parts


def _blank(question: Question, given: str, runner: Runner) -> Marked:
    """Fill the blank with both answers and compare what comes out, on random tensors."""
    names = list(question.sizes)
    answers = []
    for text in (question.answer, given):
        filled = question.code.replace("____", f"({text})")
        source = (
            "import math\nimport torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\n"
            f"def blank({', '.join(names)}):\n    return {filled}\n"
        )
        try:
            compile(source, "<blank>", "exec")
        except (SyntaxError, ValueError):
            return Marked(False, "that is no Python expression.")
        answers.append(
            {
                "cells": [{"label": "", "source": source}],
                "subjects": [["blank", -1]],
                "is_class": False,
                "drive": "",
            }
        )
    draw = Draw({}, 11)
    case = {
        "args": tuple(draw.normal(*shape) for shape in question.sizes.values()),
        "kwargs": {},
        "call": "",
        "init": (),
        "init_kwargs": {},
        "weights": {},
        "train": False,
    }
    wanted, got = runner.run({"answers": answers, "cases": [case], "runs": [{"id": 0, "case": 0}]})
    outcome = got["runs"].get(0, {"error": {"type": "it could not be run", "message": ""}})
    if outcome.get("error") is not None:
        error = outcome["error"]
        return Marked(
            False, f"filled in, it fails: {error.get('type', '')} {error.get('message', '')}".strip() + "."
        )
    right = same(wanted["runs"][0]["value"], outcome["value"], 1e-5)
    return Marked(right, "right." if right else "filled in, it runs, and gives something else.")


def question(id: str, questions: tuple[Question, ...]) -> Question:
    """The question of that id."""
    for each in questions:
        if each.id == id:
            return each
    raise ArgumentError(
        f"there is no question {id!r}. There are: {', '.join(each.id for each in questions)}."
    )
