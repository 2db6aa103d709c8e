"""`regard exercises`, `start`, `check`, `hint`, `author` and `quiz`: write attention yourself."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from regard.commands.options import Command, Group, NewFile, json_option
from regard.commands.printing import print_table
from regard.errors import ArgumentError

if TYPE_CHECKING:
    from regard.checking.check import Result
    from regard.checking.quiz import Marked, Question
    from regard.checking.runner import Runner
    from regard.checking.spec import Exercise

MOST_WORKERS = 4


def from_option(command: Command) -> Command:
    """`--from`."""
    return click.option(
        "--from",
        "folder",
        type=click.Path(file_okay=False, path_type=Path),
        help="A folder with exercises of your own. Their trials.py are run as programs.",
    )(command)


def seed_option(command: Command) -> Command:
    """`--seed`."""
    return click.option(
        "--seed", type=click.IntRange(0, 2**31 - 1), help="Repeat a check's inputs; fresh ones without it."
    )(command)


def _runner(n_job: int) -> Runner:
    """Workers, started before this process imports torch itself, so that all load side by side.

    Two for a single job too: known mistakes are tried on both.
    """
    from regard.checking.runner import Runner

    return Runner(max(1, min(max(n_job, 2), os.cpu_count() or 1, MOST_WORKERS)))


@click.command()
@from_option
@json_option
def exercises(folder: Path | None, as_json: bool) -> None:
    """List the exercises, and how far you are."""
    from regard.checking.catalogue import catalogue
    from regard.checking.progress import Progress

    progress = Progress()
    listed = catalogue(folder)
    if as_json:
        rows = [
            {
                "exercise": id,
                "title": exercise.title,
                "names": list(exercise.names),
                "progress": progress.status(id),
            }
            for id, exercise in listed.items()
        ]
        click.echo(json.dumps(rows))
        return
    from rich.table import Table

    table = Table(box=None)
    for title in ("exercise", "write", "about", "progress"):
        table.add_column(title)
    for id, exercise in listed.items():
        table.add_row(id, ", ".join(exercise.names), exercise.title, progress.status(id))
    print_table(table)
    click.echo("\nBegin with: regard start masked-softmax")


@click.command()
@click.argument("id")
@click.option("--notebook", is_flag=True, help="Write a notebook (.ipynb) in place of a script.")
@click.option("--out", type=NewFile(), help="Where to write it.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@from_option
def start(id: str, notebook: bool, out: Path | None, force: bool, folder: Path | None) -> None:
    """Write the starter of exercise ID: its task and its signature."""
    from regard.checking import starters
    from regard.checking.catalogue import catalogue, pick

    exercise = pick(catalogue(folder), id)
    as_notebook = notebook or (out is not None and out.suffix == ".ipynb")
    path = out or Path(starters.file_name(exercise, ".ipynb" if as_notebook else ".py"))
    _write(path, starters.notebook(exercise) if as_notebook else starters.script(exercise), force)
    click.echo(f"{path} is yours to fill in. Then: regard check {path}")


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--exercise", "only", help="The exercise that is answered, where names do not tell.")
@click.option("--watch", is_flag=True, help="Check again whenever a file is saved.")
@click.option("--html", type=NewFile(), help="Write a report with pictures.")
@click.option("--junit", type=NewFile(), help="Write JUnit XML.")
@click.option("--gradescope", type=NewFile(), help="Write a results.json.")
@click.option(
    "--points", type=click.FloatRange(min=0), default=10.0, show_default=True, help="For each exercise."
)
@click.option("--comments", is_flag=True, help="Wrong shape comments fail the check.")
@seed_option
@from_option
@json_option
def check(
    files: tuple[Path, ...],
    only: str | None,
    watch: bool,
    html: Path | None,
    junit: Path | None,
    gradescope: Path | None,
    points: float,
    comments: bool,
    seed: int | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Check every exercise that FILES (scripts or notebooks) answer, and name the mistakes.

    Answers run in processes of their own, with limits on time and memory. That protects the check from
    accidents. It is no security sandbox: check only files you would run yourself.

    Exit code 0: all passed; 1: something failed; 2: the command could not be carried out.
    """
    missing = [str(path) for path in files if not path.is_file()]
    if missing:
        raise ArgumentError(f"no such file: {', '.join(missing)}.")
    paths = [str(path) for path in files]
    with _runner(len(paths)) as runner:
        from regard.checking.catalogue import catalogue, pick

        known = catalogue(folder)
        if only is not None:
            pick(known, only)

        def once() -> list[Result]:
            results = _checked(runner, known, paths, only, seed, comments)
            _report(results, html, junit, gradescope, points, as_json)
            return results

        results = once()
        if watch:
            with contextlib.suppress(KeyboardInterrupt):
                _watch(files, once)
    raise SystemExit(0 if all(result.passed for result in results) else 1)


def _checked(
    runner: Runner,
    exercises: dict[str, Exercise],
    paths: list[str],
    only: str | None,
    seed: int | None,
    comments: bool,
) -> list[Result]:
    import torch

    from regard.checking.check import Checker
    from regard.checking.progress import Progress

    torch.set_num_threads(1)  # the work is small, and the workers need the cores
    # A seed nobody can know beforehand: results cannot be prepared for it.
    fresh = secrets.randbelow(2**31) if seed is None else seed
    checker = Checker(exercises, runner, fresh, comments_count=comments)
    results = checker.check_files(paths, only)
    progress = Progress()
    for result in results:
        progress.note(result)
    with contextlib.suppress(ArgumentError):  # a home that cannot be written to must not stop a check
        progress.save()
    return results


def _report(
    results: list[Result],
    html: Path | None,
    junit: Path | None,
    gradescope: Path | None,
    points: float,
    as_json: bool,
) -> None:
    from regard.checking.reports import ci
    from regard.checking.reports import html as pages

    if html is not None:
        _write(html, pages.page(results), True)
    if junit is not None:
        _write(junit, ci.junit(results), True)
    if gradescope is not None:
        _write(gradescope, ci.gradescope(results, points), True)
    if as_json:
        click.echo(json.dumps([result.as_json() for result in results]))
        return
    from rich.console import Console

    from regard.checking.reports.terminal import print_result

    console = Console(highlight=False)
    told: dict[str, set[str]] = {}  # notes of each file, said once
    for result in results:
        known = told.setdefault(result.file, set())
        print_result(console, result, known)
        known |= set(result.notes)
    n_passed = sum(result.passed for result in results)
    seeds = {result.seed for result in results if result.exercise is not None and result.seed}
    again = f" Repeat with --seed {seeds.pop()}." if seeds and n_passed < len(results) else ""
    console.print(f"\n{n_passed} of {len(results)} passed.{again}")
    if n_passed < len(results):
        first = next(result for result in results if not result.passed)
        if first.exercise is not None:
            console.print(f"A hint: regard hint {first.exercise}", style="dim")


def _watch(files: tuple[Path, ...], once: Callable[[], object]) -> None:
    """Run `once` again whenever a file's time of change is another."""

    def times() -> list[float]:
        return [path.stat().st_mtime if path.is_file() else 0.0 for path in files]

    click.echo("Watching: save a file to check again, Ctrl-C ends.", err=True)
    before = times()
    while True:
        time.sleep(0.3)
        now = times()
        if now != before and all(now):
            before = now
            once()


@click.command()
@click.argument("id")
@from_option
@json_option
def hint(id: str, folder: Path | None, as_json: bool) -> None:
    """Reveal the next hint for exercise ID: symptom, place, cause, then fix.

    After a check that named your mistake, the hints are about it.
    """
    from regard.checking.catalogue import catalogue, pick
    from regard.checking.progress import Progress

    exercise = pick(catalogue(folder), id)
    progress = Progress()
    grade, text, mistake = progress.next_hint(exercise)
    try:
        progress.save()
    except ArgumentError as error:  # the hint is shown all the same
        click.echo(f"The next hint will be this one again: {error}", err=True)
    if as_json:
        click.echo(json.dumps({"exercise": id, "mistake": mistake, "grade": grade, "hint": text}))
        return
    about = f" ({mistake})" if mistake else ""
    click.echo(f"{grade}{about}: {text}")


@click.group(cls=Group)
def author() -> None:
    """For teachers: make an exercise, and prove it before students see it."""


@author.command("new")
@click.argument("id")
@click.option(
    "--in", "parent", type=click.Path(file_okay=False, path_type=Path), default=".", help="Where to put it."
)
def author_new(id: str, parent: Path) -> None:
    """Write a small exercise called ID into a folder of that name, to be replaced part by part."""
    from regard.checking import starters

    folder = parent / id.replace("-", "_")
    if folder.exists():
        raise ArgumentError(f"{folder} is there already: give another ID, or another place with --in.")
    starters.new_exercise(id, folder)
    click.echo(f"{folder}/ is a whole exercise. Change it, then: regard author check {id} --from {parent}")


@author.command("check")
@click.argument("id")
@seed_option
@from_option
@json_option
def author_check(id: str, seed: int | None, folder: Path | None, as_json: bool) -> None:
    """Prove exercise ID: right variants pass, the starter fails, every mistake is caught and named."""
    with _runner(1) as runner:
        import torch

        from regard.checking.author import prove
        from regard.checking.catalogue import catalogue, pick

        torch.set_num_threads(1)
        proof = prove(pick(catalogue(folder), id), runner, 0 if seed is None else seed)
    if as_json:
        lines = [{"what": line.what, "holds": line.holds, "detail": line.detail} for line in proof.lines]
        click.echo(json.dumps({"exercise": id, "holds": proof.holds, "lines": lines}))
    else:
        from rich.console import Console

        from regard.checking.reports.terminal import print_proof

        print_proof(Console(highlight=False), proof)
    raise SystemExit(0 if proof.holds else 1)


def _write(path: Path, text: str, force: bool) -> None:
    """Write a file, over one that is there only by force."""
    if path.exists() and not force:
        raise ArgumentError(f"{path} is there already: give --out another name, or --force to write over it.")
    path.write_text(text, encoding="utf-8")


@click.command()
@click.argument("id", required=False)
@click.option("--answer", help="Answer question ID without being asked.")
@click.option("--list", "as_list", is_flag=True, help="List the questions.")
@json_option
def quiz(id: str | None, answer: str | None, as_list: bool, as_json: bool) -> None:
    """Answer written questions on shapes, costs and reasons; equivalent forms count.

    Without ID all of them come in turn; an empty answer skips one. Blanks are run, in a process of their own.
    """
    from regard.checking.quiz import question, questions

    if answer is not None and id is None:
        raise ArgumentError("--answer needs the ID of a question: regard quiz --list shows them.")
    if as_list or (as_json and answer is None):
        _list_questions(list(questions().values()), as_json)
        return
    asked = list(questions().values()) if id is None else [question(id)]
    if answer is not None:
        marked = _marked(asked[0], answer)
        if as_json:
            click.echo(json.dumps({"question": id, "right": marked.right, "message": marked.message}))
        else:
            click.echo(marked.message)
        raise SystemExit(1 if marked.right is False else 0)
    n_right = n_marked = 0
    for question_asked in asked:
        code = f"\n    {question_asked.code}" if question_asked.code else ""
        click.echo(f"\n{question_asked.id}: {question_asked.text}{code}")
        try:
            given = click.prompt("", default="", show_default=False, prompt_suffix="> ")
        except click.Abort:  # nobody is there, or has had enough
            click.echo()
            break
        if not given.strip():
            continue
        try:
            marked = _marked(question_asked, given)
        except ArgumentError as error:
            click.echo(str(error))
            continue
        n_marked += marked.right is not None
        n_right += bool(marked.right)
        shows = f" The experiment that shows it: regard lab {question_asked.lab}"
        click.echo(marked.message + (shows if question_asked.lab and marked.right is False else ""))
    click.echo(f"\n{n_right} of {n_marked} right.")


def _list_questions(questions: list[Question], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([{"question": q.id, "kind": q.kind, "text": q.text} for q in questions]))
        return
    from rich.table import Table

    table = Table(box=None)
    for title in ("question", "kind", "text"):
        table.add_column(title)
    for question in questions:
        table.add_row(question.id, question.kind, question.text)
    print_table(table)


def _marked(asked: Question, given: str) -> Marked:
    from regard.checking.quiz import mark

    if asked.kind != "blank":
        return mark(asked, given)
    with _runner(1) as runner:
        return mark(asked, given, runner)
