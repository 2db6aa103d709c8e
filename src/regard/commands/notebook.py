"""`%load_ext regard`: the commands a notebook has. `%%check` above a cell, `%quiz` and `%lab` in a line."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import click

from regard.commands.exercises import CheckSeed
from regard.commands.options import Seed, command
from regard.errors import ArgumentError


@dataclass(frozen=True)
class Shown:
    """What a line of a notebook shows."""

    text: str
    html: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


def _check(
    exercise: str | None,
    *,
    seed: CheckSeed,
    strict: Annotated[bool, "Conventions other than the task's fail the check."],
) -> object:
    """Run the cell, then check what it defines."""
    from regard.checking.catalogue import catalogue, pick
    from regard.checking.session import check_cell

    if exercise is not None:
        pick(catalogue(), exercise)
    shell, source = click.get_current_context().obj
    if shell.should_run_async(source, transformed_cell=shell.transform_cell(source)):
        raise ArgumentError("a cell that awaits cannot be checked: put the answer into a cell of its own.")
    if not shell.run_cell(source).success:
        return None
    return check_cell(source, exercise, seed=seed, strict=strict)


def quiz(line: str) -> Shown:
    """Show the question that a line names, or mark the answer that follows its name."""
    from regard.checking.quiz import answered, question
    from regard.drawing.html import fragment, tag

    id, _, answer = line.strip().partition(" ")
    asked = question(id)
    if answer.strip():
        result = answered(asked, answer.strip())
        colour = "note" if result.right is None else "good" if result.right else "bad"
        return Shown(result.message, fragment(tag("p", result.message, class_=colour)))
    parts = [tag("p", tag("strong", "Question. "), asked.text)]
    if asked.code:
        parts.append(tag("pre", asked.code))
    parts.append(tag("details", tag("summary", "The answer"), tag("p", asked.answer)))
    parts.append(tag("p", f"Yours: %quiz {id} ...", class_="dim"))
    return Shown(f"{asked.text}\n{asked.code}".strip(), fragment(tag("div", *parts)))


def _lab(
    name: tuple[str, ...],
    *,
    full: Annotated[bool, "--full/--quick", "The whole run, or the quick one, as without it."],
    seed: Seed = 0,
) -> Shown:
    """Run an experiment: prediction, measurement, figure and verdict."""
    from regard.lab.catalogue import find
    from regard.lab.pages import cell
    from regard.lab.spec import perform

    done = perform(find(" ".join(name)), quick=not full, seed=seed)
    return Shown(done.sentence, cell(done))


def load(shell: Any) -> None:
    """Give a notebook its magics."""

    def called(name: str, function: Callable[..., object], line: str, cell: object = None) -> object:
        try:
            return command(function).main(shlex.split(line), obj=(shell, cell), standalone_mode=False)
        except click.ClickException as error:
            raise ArgumentError(f"{name}: {error.format_message()}") from None

    shell.register_magic_function(partial(called, "%%check", _check), "cell", "check")
    shell.register_magic_function(partial(called, "%lab", _lab), "line", "lab")
    shell.register_magic_function(quiz, "line", "quiz")
