"""Written questions: shapes, blanks and costs are checked, the rest points to an experiment."""

from __future__ import annotations

import atexit
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from regard.checking.expressions import difference, dimensions, equal, same_order
from regard.checking.progress import Progress
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
    sizes: Mapping[str, list[int]] = field(default_factory=dict)  # of a blank: the tensors it uses
    lab: str = ""  # the experiment that shows it
    also: Mapping[str, str] = field(default_factory=dict)  # other right answers -> how they differ from ours
    rubric: tuple[str, ...] = ()  # of an open question: what a good answer says


class Marked(NamedTuple):
    """A marked answer; `right` is None for an open question."""

    right: bool | None
    message: str = "right."


def mark(question: Question, text: str) -> Marked:
    """Whether an answer is right; equivalent forms count. Blanks are run, in a process of their own."""
    about = (question.symbols, question.where)
    match question.kind:
        case "open":
            rubric = "".join(f"\n  - {point}" for point in question.rubric)
            says = f" Does yours say:{rubric}\n" if rubric else " "
            return Marked(None, f"{question.answer}{says}See for yourself: regard lab {question.lab}")
        case "blank":
            return _blank(question, text)
        case "shape":
            for answer, differs in question.also.items():
                if _shape(question, text, answer).right:
                    return Marked(True, f"right: {differs}")
            return _shape(question, text, question.answer)
        case "order" if not same_order(text, question.answer, *about):
            return Marked(False, "that grows otherwise.")
        case "formula" if not equal(text, question.answer, *about):
            return Marked(False, difference(text, question.answer, *about))
    return Marked(True)


def answered(question: Question, text: str) -> Marked:
    """The answer to a question, marked and remembered, where there is a home to keep it."""
    marked, progress = mark(question, text), Progress()
    progress.keep(f"question {question.id}", bool(marked.right))
    progress.save()
    return marked


def _shape(question: Question, text: str, answer: str) -> Marked:
    wanted, written = (dimensions(shape, question.symbols) for shape in (answer, text))
    if len(wanted) != len(written):
        return Marked(False, f"the shape has {len(wanted)} dimensions, and yours {len(written)}.")
    for axis, (want, have) in enumerate(zip(wanted, written, strict=True)):
        if not equal(have, want, question.symbols, question.where):
            return Marked(False, f"dimension {axis + 1} is another one.")
    return Marked(True)


def _blank(question: Question, text: str) -> Marked:
    """Fill the blank with both answers and compare what comes out, on random tensors."""
    from regard.checking.child.messages import Answer, Case, Cell, Order
    from regard.checking.compare import same
    from regard.checking.trials import Draw

    draw = Draw({}, 11)
    case = Case(tuple(draw.normal(*shape) for shape in question.sizes.values()))
    runs = []
    for part in (question.answer, text):
        source = (
            "import math\nimport torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\n"
            f"def blank({', '.join(question.sizes)}):\n"
            f"    return {question.code.replace('____', f'({part})')}\n"
        )
        try:
            compile(source, "<blank>", "exec")
        except (SyntaxError, ValueError):
            return Marked(False, "that is no Python expression.")
        answer = Answer([Cell("", source)], {"blank": -1})
        runs.append(warm_runner().run(answer, [Order(0, case)]).runs.get(0))
    wanted, got = runs
    if wanted is None or got is None or got.error is not None:
        error = None if got is None else got.error
        reason = f"{error.type} {error.message}".strip() if error is not None else "it could not be run"
        return Marked(False, f"filled in, it fails: {reason}.")
    if same(wanted.value, got.value, 1e-5):
        return Marked(True)
    return Marked(False, "filled in, it runs, and gives something else.")


@cache
def warm_runner() -> Runner:
    """One worker, kept until Python ends."""
    from regard.checking.runner import Runner

    runner = Runner()
    atexit.register(runner.__exit__)
    return runner


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
    both = {**about, **table, "text": " ".join(part["text"] for part in (about, table) if part)}
    both |= {key: tuple(both.get(key, ())) for key in ("symbols", "rubric")}
    return Question(id=id, **both)


def question(id: str) -> Question:
    """The question of that id."""
    if id not in questions():
        raise ArgumentError(no_such("question", id, questions()))
    return questions()[id]
