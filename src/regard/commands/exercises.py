"""`regard exercises`, `start`, `check`, `hint`, `author` and `quiz`: write attention yourself."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.commands import options
from regard.commands.options import FOLDER, Group, NewFile
from regard.commands.printing import print_table
from regard.errors import ArgumentError

if TYPE_CHECKING:
    from regard.checking.check import Result
    from regard.checking.quiz import Question
    from regard.checking.runner import Runner

MOST_WORKERS = 4
SECONDS_BETWEEN_REPORTS = 1.0

from_option = click.option(
    "--from", "folder", type=FOLDER,
    help="A folder with exercises of your own. Their trials.py and drive.py are run as programs.",
)  # fmt: skip
seed_option = click.option("--seed", type=click.IntRange(0, 2**31 - 1),
                           help="Repeat a check's inputs; fresh ones without it.")  # fmt: skip


@contextlib.contextmanager
def workers(n: int, *, must_confine: bool = False) -> Iterator[Runner]:
    """Workers, forked from this process when it has imported torch and nothing of ours has run."""
    from regard.checking.child.confine import landlock_version
    from regard.checking.runner import Limits, Runner

    if must_confine and not landlock_version():
        raise ArgumentError(
            "--hide-solutions needs a Linux with Landlock: here answers could read every file."
        )
    with Runner(n, Limits(must_confine=must_confine), fork_here=True) as runner:
        import torch

        torch.set_num_threads(1)  # the work is small, and the workers need the cores
        yield runner


@click.command()
@from_option
@options.as_json
def exercises(folder: Path | None, as_json: bool) -> None:
    """Show the exercises as a path: how hard and long each is, how far you are, what comes next."""
    from regard.checking.catalogue import entries, next_stop, tracks
    from regard.checking.progress import Progress

    progress, path = Progress(), tracks(entries(folder))
    reached = {stop.exercise.id: progress.status(stop.exercise.id) for track in path for stop in track.stops}
    upcoming = next_stop(path, [id for id, status in reached.items() if status == "passed"])
    rows = []
    for track in path:
        for stop in track.stops:
            exercise = stop.exercise
            row: dict[str, Any] = {"exercise": exercise.id, "title": exercise.title}
            row |= {"names": list(exercise.names), "progress": reached[exercise.id], "track": track.title}
            row |= {"level": stop.level, "minutes": stop.minutes, "after": list(stop.after)}
            rows.append({**row, "next": stop is upcoming})
    if as_json:
        click.echo(json.dumps(rows))
        return
    for track in path:
        listed = [row for row in rows if row["track"] == track.title]
        minutes = sum(row["minutes"] for row in listed if row["progress"] != "passed")
        click.echo(f"{track.title}: {track.about}" + (f" ({minutes} minutes left)" if minutes else ""))
        lines = []
        for row in listed:
            mark = "✓" if row["progress"] == "passed" else "→" if row["next"] else " "
            level, time_needed = row["level"], f"{row['minutes']:3} min"
            hard = f"{'●' * level}{'○' * (3 - level)} {time_needed}" if level else ""
            lines.append((mark, f"{row['exercise']:25}", hard, row["title"], row["progress"]))
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
    if path.exists() and not force:
        raise ArgumentError(f"{path} is there already: give --out another name, or --force to write over it.")
    path.write_text(
        starters.notebook(exercise) if as_notebook else starters.script(exercise), encoding="utf-8"
    )
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
@options.as_json
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
        from regard.checking.catalogue import catalogue, pick
        from regard.checking.check import Checker

        known = catalogue(folder)
        if only is not None:
            pick(known, only)

        def once() -> bool:
            # A seed nobody can know beforehand: results cannot be prepared for it.
            fresh = int.from_bytes(os.urandom(4), "big") >> 1 if seed is None else seed
            checker = Checker(known, runner, fresh, comments_count=comments, strict=strict)
            return _report(checker.check_files(paths, only, maybe), html, junit, as_json)

        passed = once()
        if watch:
            with contextlib.suppress(KeyboardInterrupt):
                _watch([Path(path) for path in paths], once)
    raise SystemExit(0 if passed else 1)


def _files(named: tuple[Path, ...]) -> tuple[list[str], set[str]]:
    """The files to check, and those of them that lie in a folder that was named: they may answer nothing."""
    if missing := [str(path) for path in named if not path.exists()]:
        raise ArgumentError(f"no such file: {', '.join(missing)}.")
    paths: list[str] = []
    maybe: set[str] = set()
    for path in named:
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


def _report(results: Iterator[Result], html: Path | None, junit: Path | None, as_json: bool) -> bool:
    """Print, keep and write results as they come: broken off, it loses only one. Whether all passed."""
    from rich.console import Console

    from regard.checking.progress import Progress
    from regard.checking.reports import ci
    from regard.checking.reports import html as pages
    from regard.checking.reports.terminal import print_result

    progress, console = Progress(), Console(highlight=False)
    done: list[Result] = []
    noted: dict[str, set[str]] = {}  # notes of each file, printed once

    def write_files() -> float:
        for path, text_of in ((html, pages.page), (junit, ci.junit)):
            if path is not None:
                path.write_text(text_of(done), encoding="utf-8", errors="backslashreplace")
        return time.monotonic()

    written = time.monotonic()
    try:
        for result in results:
            done.append(result)
            progress.note(result)
            if as_json:
                click.echo(("[" if len(done) == 1 else ", ") + json.dumps(result.as_json()), nl=False)
            else:
                print_result(console, result, noted.setdefault(result.file, set()))
                noted[result.file] |= set(result.notes)
            if time.monotonic() > written + SECONDS_BETWEEN_REPORTS:
                written = write_files()
    finally:
        write_files()
        progress.save()
    if not done:  # a folder without a single answer
        raise ArgumentError("no file there answers an exercise: regard exercises lists what to define.")
    failed = [result for result in done if not result.passed]
    if as_json:
        click.echo("]")
    elif len(done) != 1 or failed:
        seeds = {result.seed for result in failed if result.seed}
        again = f" Repeat with --seed {seeds.pop()}." if seeds else ""
        hint = next((f" A hint: regard hint {result.exercise}" for result in failed if result.exercise), "")
        click.echo(f"{len(done) - len(failed)} of {len(done)} passed.{again}{hint}")
    return not failed


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
@options.as_json
def hint(id: str, folder: Path | None, as_json: bool) -> None:
    """Reveal the next hint for exercise ID: symptom, place, cause, then fix.

    After a check that named your mistake, the hints are about it.
    """
    from regard.checking.catalogue import find
    from regard.checking.progress import Progress

    progress = Progress()
    grade, text, mistake = progress.next_hint(find(id, folder))
    if reason := progress.save():
        click.echo(f"The next hint will be this one again: {reason}", err=True)
    if as_json:
        click.echo(json.dumps({"exercise": id, "mistake": mistake, "grade": grade, "hint": text}))
        return
    click.echo(f"{grade} ({mistake}): {text}" if mistake else f"{grade}: {text}")


@click.group(cls=Group)
def author() -> None:
    """For teachers: make an exercise, and prove it before students see it."""


@author.command("new")
@click.argument("id")
@click.option("--in", "parent", type=FOLDER, default=".", help="Where to put it.")
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
@options.as_json
def author_check(id: str, seed: int | None, folder: Path | None, as_json: bool) -> None:
    """Prove exercise ID: right variants pass, the starter fails, every mistake is caught and named."""
    with workers(2) as runner:
        from regard.checking.author import prove
        from regard.checking.catalogue import catalogue, pick

        proof = prove(pick(catalogue(folder), id), runner, 0 if seed is None else seed)
    if as_json:
        lines = [{"what": line.what, "holds": line.holds, "detail": line.detail} for line in proof.lines]
        click.echo(json.dumps({"exercise": id, "holds": proof.holds, "lines": lines}))
    else:
        from rich.console import Console

        from regard.checking.reports.terminal import print_proof

        print_proof(Console(highlight=False), proof)
    raise SystemExit(0 if proof.holds else 1)


@click.command()
@click.argument("id", required=False)
@click.option("--answer", help="Answer question ID without being asked.")
@click.option("--list", "as_list", is_flag=True, help="List the questions.")
@options.as_json
def quiz(id: str | None, answer: str | None, as_list: bool, as_json: bool) -> None:
    """Answer written questions on shapes, costs and reasons; equivalent forms count.

    Without ID all of them come in turn; an empty answer skips one. Blanks are run, in a process of their own.
    """
    from regard.checking.quiz import answered, question, questions

    if answer is not None and id is None:
        raise ArgumentError("--answer needs the ID of a question: regard quiz --list shows them.")
    if as_list or (as_json and answer is None):
        _list_questions(list(questions().values()), as_json)
        return
    asked = list(questions().values()) if id is None else [question(id)]
    if answer is not None:
        marked = answered(asked[0], answer)
        result = {"question": id, "right": marked.right, "message": marked.message}
        click.echo(json.dumps(result) if as_json else marked.message)
        raise SystemExit(1 if marked.right is False else 0)
    n_right = n_marked = 0
    for now in asked:
        code = f"\n    {now.code}" if now.code else ""
        click.echo(f"\n{now.id}: {now.text}{code}")
        try:
            typed = click.prompt("", default="", show_default=False, prompt_suffix="> ")
        except click.Abort:  # nobody is there, or has had enough
            click.echo()
            break
        if not typed.strip():
            continue
        try:
            marked = answered(now, typed)
        except ArgumentError as error:
            click.echo(str(error))
            continue
        n_marked += marked.right is not None
        n_right += bool(marked.right)
        shows = f" The experiment that shows it: regard lab {now.lab}"
        click.echo(marked.message + (shows if now.lab and marked.right is False else ""))
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
