"""`regard exercises`, `start`, `check`, `hint`, `author` and `quiz`: write attention yourself."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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

MOST_WORKERS = 4
SECONDS_BETWEEN_REPORTS = 1.0


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


def workers(n: int, *, must_confine: bool = False) -> Runner:
    """Workers, forked from this process when it has imported torch and nothing of ours has run."""
    from regard.checking.child.confine import landlock_version
    from regard.checking.runner import Limits, Runner

    if must_confine and not landlock_version():
        raise ArgumentError(
            "--hide-solutions needs a Linux with Landlock: here answers could read every file."
        )
    return Runner(n, Limits(must_confine=must_confine), fork_here=True)


@click.command()
@from_option
@json_option
def exercises(folder: Path | None, as_json: bool) -> None:
    """Show the exercises as a path: how hard and long each is, how far you are, what comes next."""
    from regard.checking.catalogue import entries, next_stop, tracks
    from regard.checking.progress import Progress

    progress = Progress()
    path = tracks(entries(folder))
    stops = [(track, stop) for track in path for stop in track.stops]
    passed = {stop.exercise.id for _, stop in stops if progress.status(stop.exercise.id) == "passed"}
    upcoming = next_stop(path, passed)
    if as_json:
        rows = [
            {
                "exercise": stop.exercise.id,
                "title": stop.exercise.title,
                "names": list(stop.exercise.names),
                "progress": progress.status(stop.exercise.id),
                "track": track.title,
                "level": stop.level,
                "minutes": stop.minutes,
                "after": list(stop.after),
                "next": stop is upcoming,
            }
            for track, stop in stops
        ]
        click.echo(json.dumps(rows))
        return
    for track in path:
        minutes = sum(stop.minutes for stop in track.stops if stop.exercise.id not in passed)
        left = f" ({minutes} minutes left)" if minutes else ""
        click.echo(f"{track.title}: {track.about}{left}")
        lines = []
        for stop in track.stops:
            id = stop.exercise.id
            mark = "✓" if id in passed else "→" if stop is upcoming else " "
            time_needed = (
                f"{'●' * stop.level}{'○' * (3 - stop.level)} {stop.minutes:3} min" if stop.level else ""
            )
            lines.append((mark, f"{id:25}", time_needed, stop.exercise.title, progress.status(id)))
        print_table([""] * 5, lines)
        click.echo()
    click.echo(f"Next: regard start {upcoming.exercise.id}" if upcoming else "All exercises are passed.")


@click.command()
@click.argument("id")
@click.option("--notebook", is_flag=True, help="Write a notebook (.ipynb) in place of a script.")
@click.option("--out", type=NewFile(), help="Where to write it.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@from_option
def start(id: str, notebook: bool, out: Path | None, force: bool, folder: Path | None) -> None:
    """Write the starter of exercise ID: its task and its signature."""
    from regard.checking import starters
    from regard.checking.catalogue import find

    exercise = find(id, folder)
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
@click.option("--comments", is_flag=True, help="Wrong shape comments fail the check.")
@click.option("--strict", is_flag=True, help="Conventions other than the task's fail the check.")
@click.option("--hide-solutions", is_flag=True, help="Run no answer that could read our solutions.")
@seed_option
@from_option
@json_option
def check(
    files: tuple[Path, ...],
    only: str | None,
    watch: bool,
    html: Path | None,
    junit: Path | None,
    comments: bool,
    strict: bool,
    hide_solutions: bool,
    seed: int | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Check every exercise that FILES (scripts, notebooks, folders of them) answer, and name the mistakes.

    Answers run in processes of their own, with limits on time and memory. On Linux they can read neither our
    files nor yours, but for the folder they lie in, and reach no network; elsewhere the report says so.

    Exit code 0: all passed; 1: something failed; 2: the command could not be carried out.
    """
    paths, maybe = _files(files)
    n_worker = min(len(paths), os.cpu_count() or 1, MOST_WORKERS)
    with workers(n_worker, must_confine=hide_solutions) as runner:
        import torch

        from regard.checking.catalogue import catalogue, pick
        from regard.checking.check import Checker

        torch.set_num_threads(1)  # the work is small, and the workers need the cores
        known = catalogue(folder)
        if only is not None:
            pick(known, only)
        writer = _Writer(html, junit, as_json)

        def once() -> bool:
            # A seed nobody can know beforehand: results cannot be prepared for it.
            fresh = int.from_bytes(os.urandom(4), "big") >> 1 if seed is None else seed
            checker = Checker(known, runner, fresh, comments_count=comments, strict=strict)
            return writer.write(checker.check_files(paths, only, maybe))

        passed = once()
        if watch:
            with contextlib.suppress(KeyboardInterrupt):
                _watch([Path(path) for path in paths], once)
    raise SystemExit(0 if passed else 1)


def _files(given: tuple[Path, ...]) -> tuple[list[str], set[str]]:
    """The files to check, and those of them that lie in a given folder: they may answer nothing."""
    missing = [str(path) for path in given if not path.exists()]
    if missing:
        raise ArgumentError(f"no such file: {', '.join(missing)}.")
    paths: list[str] = []
    maybe: set[str] = set()
    for path in given:
        inside = [str(file) for file in sorted(path.rglob("*")) if _is_answer(file.relative_to(path))]
        if path.is_dir() and not inside:
            raise ArgumentError(f"{path} holds no .py or .ipynb file.")
        maybe |= set(inside)
        paths += inside if path.is_dir() else [str(path)]
    return paths, maybe


def _is_answer(path: Path) -> bool:
    """Whether a file of a folder may be an answer: a script or a notebook, in no hidden folder."""
    hidden = any(part.startswith((".", "__")) for part in path.parts)
    return path.suffix in (".py", ".ipynb") and not hidden


@dataclass
class _Writer:
    """Where results are written, as they come: a check that is broken off loses the one it was at."""

    html: Path | None
    junit: Path | None
    as_json: bool

    def write(self, results: Iterator[Result]) -> bool:
        """Print and keep each result; whether all passed."""
        from regard.checking.progress import Progress

        progress = Progress()
        done: list[Result] = []
        told: dict[str, set[str]] = {}  # notes of each file, said once
        written = time.monotonic()
        try:
            for result in results:
                done.append(result)
                self._print(result, told.setdefault(result.file, set()), first=len(done) == 1)
                progress.note(result)
                if time.monotonic() > written + SECONDS_BETWEEN_REPORTS:
                    self._files(done)
                    written = time.monotonic()
        finally:
            self._files(done)
            progress.save()
        if not done:  # a folder without a single answer
            raise ArgumentError("no file there answers an exercise: regard exercises lists what to define.")
        self._summary(done)
        return all(result.passed for result in done)

    def _files(self, done: list[Result]) -> None:
        from regard.checking.reports import ci
        from regard.checking.reports import html as pages

        if self.html is not None:
            _write(self.html, pages.page(done), True)
        if self.junit is not None:
            _write(self.junit, ci.junit(done), True)

    def _print(self, result: Result, told: set[str], *, first: bool) -> None:
        if self.as_json:
            click.echo(("[" if first else ", ") + json.dumps(result.as_json()), nl=False)
            return
        from rich.console import Console

        from regard.checking.reports.terminal import print_result

        print_result(Console(highlight=False), result, told)
        told |= set(result.notes)

    def _summary(self, done: list[Result]) -> None:
        if self.as_json:
            click.echo("]")
            return
        failed = [result for result in done if not result.passed]
        seeds = {result.seed for result in failed if result.seed}
        again = f" Repeat with --seed {seeds.pop()}." if seeds else ""
        hint = next((f" A hint: regard hint {result.exercise}" for result in failed if result.exercise), "")
        if len(done) != 1 or failed:
            click.echo(f"{len(done) - len(failed)} of {len(done)} passed.{again}{hint}")


def _watch(files: list[Path], once: Callable[[], object]) -> None:
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
    from regard.checking.catalogue import find
    from regard.checking.progress import Progress

    exercise = find(id, folder)
    progress = Progress()
    grade, text, mistake = progress.next_hint(exercise)
    if reason := progress.save():
        click.echo(f"The next hint will be this one again: {reason}", err=True)
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
@click.option("--in", "parent", type=click.Path(file_okay=False, path_type=Path), default=".",
              help="Where to put it.")  # fmt: skip
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
    with workers(2) as runner:
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
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


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
    from regard.checking.progress import Progress

    progress = Progress()
    right = {asked.id for asked in questions if progress.status(f"question {asked.id}") == "passed"}
    if as_json:
        rows = [{"question": q.id, "kind": q.kind, "text": q.text, "right": q.id in right} for q in questions]
        click.echo(json.dumps(rows))
        return
    listed = [("✓" if asked.id in right else "", asked.id, asked.kind, asked.text) for asked in questions]
    print_table(("", "question", "kind", "text"), listed)


def _marked(asked: Question, given: str) -> Marked:
    from regard.checking.progress import keep_answer
    from regard.checking.quiz import mark

    with workers(1) if asked.kind == "blank" else contextlib.nullcontext() as runner:
        marked = mark(asked, given, runner)
    keep_answer(asked.id, marked.right)
    return marked
