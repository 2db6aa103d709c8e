"""`%load_ext regard`: the commands a notebook has. `%%check` above a cell, `%quiz` and `%lab` in a line."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import click

from regard.checking.catalogue import catalogue, pick
from regard.checking.quiz import answered, question, questions
from regard.checking.session import check_cell
from regard.commands.exercises import CheckSeed, Strict
from regard.commands.options import Seed, command
from regard.drawing.html import fragment, table, tag
from regard.errors import ArgumentError
from regard.lab.catalogue import find
from regard.lab.pages import cell
from regard.lab.spec import perform


@dataclass(frozen=True)
class Shown:
    """What a line of a notebook shows."""

    text: str
    html: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


def _check(exercise: str | None, *, seed: CheckSeed, strict: Strict) -> object:
    """Run the cell, then check what it defines."""
    if exercise is not None:
        pick(catalogue(), exercise)
    shell, source = click.get_current_context().obj
    if shell.should_run_async(source, transformed_cell=shell.transform_cell(source)):
        raise ArgumentError("a cell that awaits cannot be checked: put the answer into a cell of its own.")
    return check_cell(source, exercise, seed=seed, strict=strict) if shell.run_cell(source).success else None


def _quiz(line: str) -> Shown:
    """Show the question that a line names, or mark the answer that follows its name; alone, list all."""
    id, _, answer = line.strip().partition(" ")
    if not id:
        rows = [(one.id, one.kind, one.text) for one in questions().values()]
        listed = table(("question", "kind", "text"), rows)
        return Shown("\n".join(f"{name}: {text}" for name, _, text in rows), fragment(listed))
    asked = question(id)
    if answer.strip():
        marked = answered(asked, answer.strip())
        colour = "note" if marked.right is None else "good" if marked.right else "bad"
        return Shown(marked.message, fragment(tag("p", marked.message, class_=colour)))
    code = [tag("pre", asked.code)] if asked.code else []
    answers = tag("details", tag("summary", "The answer"), tag("p", asked.answer))
    yours = tag("p", f"Yours: %quiz {id} ...", class_="dim")
    page = tag("div", tag("p", tag("strong", "Question. "), asked.text), *code, answers, yours)
    return Shown(f"{asked.text}\n{asked.code}".strip(), fragment(page))


def _lab(name: tuple[str, ...], *, full: Annotated[bool, "--full/--quick"], seed: Seed = 0) -> Shown:
    """Run an experiment: prediction, measurement, figure and verdict; the quick run unless --full is said."""
    done = perform(find(" ".join(name)), quick=not full, seed=seed)
    return Shown(done.sentence, cell(done))


def load(shell: Any) -> None:
    """Give a notebook its magics."""

    def called(name: str, function: Callable[..., object], line: str, source: object = None) -> object:
        try:
            return command(function).main(shlex.split(line), obj=(shell, source), standalone_mode=False)
        except click.ClickException as error:
            raise ArgumentError(f"{name}: {error.format_message()}") from None

    shell.register_magic_function(partial(called, "%%check", _check), "cell", "check")
    shell.register_magic_function(partial(called, "%lab", _lab), "line", "lab")
    shell.register_magic_function(_quiz, "line", "quiz")
