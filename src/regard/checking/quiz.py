"""Written questions: shapes, blanks and costs are checked, the rest points to an experiment."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from regard.checking import expressions
from regard.errors import ArgumentError, LoadError, no_such

if TYPE_CHECKING:
    from regard.checking.runner import Runner

QUESTIONS = Path(__file__).parent.parent / "exercises" / "questions.toml"
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
    also: Mapping[str, str] = field(default_factory=dict)  # other right answers -> how they differ from ours
    rubric: tuple[str, ...] = ()  # of an open question: what a good answer says


@dataclass(frozen=True)
class Marked:
    """A marked answer; `right` is None for an open question."""

    right: bool | None
    message: str


def mark(question: Question, given: str, runner: Runner | None = None) -> Marked:
    """Whether an answer is right; equivalent forms count. Blanks are run in a child process of `runner`."""
    if question.kind == "open":
        rubric = "".join(f"\n  - {point}" for point in question.rubric)
        says = f" Does yours say:{rubric}\n" if rubric else " "
        return Marked(None, f"{question.answer}{says}See for yourself: regard lab {question.lab}")
    if question.kind == "blank":
        if runner is None:
            raise ArgumentError("a blank is marked by running it: a runner is needed.")
        return _blank(question, given, runner)
    if question.kind == "shape":
        others = ((_shape(question, given, text), differs) for text, differs in question.also.items())
        differs = next((differs for marked, differs in others if marked.right), "")
        return Marked(True, f"right: {differs}") if differs else _shape(question, given, question.answer)
    compare = expressions.equal if question.kind == "formula" else expressions.same_order
    right = compare(given, question.answer, question.symbols, question.where)
    if right or question.kind == "order":
        return Marked(right, "right." if right else "that grows otherwise.")
    return Marked(False, expressions.difference(given, question.answer, question.symbols, question.where))


def _shape(question: Question, given: str, answer: str) -> Marked:
    wanted, got = (_dimensions(text) for text in (answer, given))
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
    from regard.checking.child.messages import Answer, Case, Cell, Order
    from regard.checking.compare import same
    from regard.checking.trials import Draw

    answers = []
    for text in (question.answer, given):
        filled = question.code.replace("____", f"({text})")
        source = (
            "import math\nimport torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\n"
            f"def blank({', '.join(question.sizes)}):\n    return {filled}\n"
        )
        try:
            compile(source, "<blank>", "exec")
        except (SyntaxError, ValueError):
            return Marked(False, "that is no Python expression.")
        answers.append(Answer([Cell("", source)], {"blank": -1}))
    draw = Draw({}, 11)
    case = Case(tuple(draw.normal(*shape) for shape in question.sizes.values()))
    wanted, got = (runner.run(answer, [Order(0, case)]) for answer in answers)
    outcome = got.runs.get(0)
    if outcome is None or outcome.error is not None:
        error = outcome.error if outcome is not None else None
        reason = f"{error.type} {error.message}".strip() if error is not None else "it could not be run"
        return Marked(False, f"filled in, it fails: {reason}.")
    right = same(wanted.runs[0].value, outcome.value, 1e-5)
    return Marked(right, "right." if right else "filled in, it runs, and gives something else.")


@cache
def questions() -> dict[str, Question]:
    """The written questions, by id."""
    try:
        content = tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))
        return {id: _question(id, table, content["about"]) for id, table in content["question"].items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(f"cannot read {QUESTIONS}: {error}.") from error


def _question(id: str, table: dict[str, Any], abouts: dict[str, Any]) -> Question:
    about = abouts[table.pop("about")] if "about" in table else {}
    text = f"{about['text']} {table['text']}" if about else table["text"]
    both = {**about, **table, "text": text}
    both |= {key: tuple(both.get(key, ())) for key in ("symbols", "rubric")}
    both["sizes"] = {name: tuple(shape) for name, shape in both.get("sizes", {}).items()}
    return Question(id=id, **both)


def question(id: str) -> Question:
    """The question of that id."""
    if id not in questions():
        raise ArgumentError(no_such("question", id, questions()))
    return questions()[id]
