"""`regard exercises`, `start`, `check`, `hint`, `author` and `quiz`: write attention yourself."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from regard.commands.options import AsJson, Folder, Group, JsonFlag, NewFile, command, print_json
from regard.commands.printing import print_table
from regard.errors import ArgumentError

if TYPE_CHECKING:
    from regard.checking.check import Result
    from regard.checking.runner import Runner

MOST_WORKERS = 4

CheckSeed = Annotated[
    int | None, "--seed", click.IntRange(0, 2**31 - 1), "Repeat a check's inputs; fresh ones without it."
]
From = Annotated[
    Folder | None,
    "--from",
    "A folder with exercises of your own. Their trials.py and drive.py are run as programs.",
]
Strict = Annotated[bool, "Only the task's own choice passes where it leaves one open."]
HideSolutions = Annotated[bool, "Run no answer that could read our solutions."]


@contextlib.contextmanager
def workers(n: int, *, must_confine: bool = False) -> Iterator[Runner]:
    """Workers, forked from this process when it has imported torch and nothing of ours has run."""
    from regard.checking.child.confine import landlock_version
    from regard.checking.runner import Limits, Runner

    if must_confine and not landlock_version():
        raise ArgumentError("--hide-solutions needs Linux with Landlock: answers could read any file here.")
    with Runner(n, Limits(must_confine=must_confine), fork_here=True) as runner:
        import torch

        torch.set_num_threads(1)  # the work is small, and the workers need the cores
        yield runner


@command
def exercises(*, folder: From) -> AsJson:
    """Show the exercises as a path: how hard and long each is, how far you are, what comes next."""
    from regard.checking import catalogue, progress

    kept, path = progress.Progress(), catalogue.tracks(catalogue.entries(folder))
    reached = {stop.exercise.id: kept.status(stop.exercise.id) for track in path for stop in track.stops}
    upcoming = catalogue.next_stop(path, [id for id, status in reached.items() if status == "passed"])
    rows = []
    for track in path:
        lines = []
        for stop in track.stops:
            id, title, status = stop.exercise.id, stop.exercise.title, reached[stop.exercise.id]
            row: dict[str, object] = {"exercise": id, "title": title, "names": stop.exercise.names}
            row |= {"progress": status, "track": track.title, "level": stop.level, "minutes": stop.minutes}
            rows.append({**row, "after": stop.after, "next": stop is upcoming})
            mark = "✓" if status == "passed" else "→" if stop is upcoming else " "
            hard = f"{'●' * stop.level}{'○' * (3 - stop.level)} {stop.minutes:3} min" if stop.level else ""
            lines.append((mark, f"{id:25}", hard, title, status))
        minutes = sum(stop.minutes for stop in track.stops if reached[stop.exercise.id] != "passed")
        click.echo(f"{track.title}: {track.about}" + (f" ({minutes} minutes left)" if minutes else ""))
        print_table([""] * 5, lines)
        click.echo()
    click.echo(f"Next: regard start {upcoming.exercise.id}" if upcoming else "All exercises are passed.")
    return rows


@command
def start(
    id: str,
    *,
    notebook: Annotated[bool, "Write a notebook (.ipynb) in place of a script."],
    out: Annotated[NewFile | None, "Where to write it."],
    force: Annotated[bool, "Write over a file that is there."],
    folder: From,
) -> None:
    """Write the starter of exercise ID: its task and its signature."""
    from regard.checking import catalogue, starters

    exercise = catalogue.find(id, folder)
    as_notebook = notebook or (out is not None and out.suffix == ".ipynb")
    path = out or Path(starters.file_name(exercise, ".ipynb" if as_notebook else ".py"))
    if path.exists() and not force:
        raise ArgumentError(f"{path} is there already: give --out another name, or --force to write over it.")
    written = starters.notebook if as_notebook else starters.script
    text = written(exercise, path.name)
    path.write_text(text, encoding="utf-8")
    click.echo(f"{path} is yours to fill in. Then: regard check {path}")


@command
def check(
    files: Annotated[tuple[Path, ...], click.Path(path_type=Path)],
    *,
    only: Annotated[str | None, "--exercise", "The exercise that is answered, where names do not tell."],
    watch: Annotated[bool, "Check again whenever a file is saved."],
    html: Annotated[NewFile | None, "Write a report with pictures."],
    junit: Annotated[NewFile | None, "Write JUnit XML."],
    comments: Annotated[bool, "Wrong shape comments fail the check."],
    strict: Strict,
    portable: Annotated[bool, "Slips that only another device or half precision shows fail the check."],
    hide_solutions: HideSolutions,
    seed: CheckSeed,
    folder: From,
    as_json: JsonFlag,
) -> None:
    """Check every exercise that FILES (scripts, notebooks, folders of them) answer, and name the mistakes.

    Answers run in processes of their own, with limits on time and memory. On Linux they can read neither our
    files nor yours, but for the folder they lie in, and reach no network; elsewhere the report says so.

    Exit code 0: all passed; 1: something failed; 2: the command could not be carried out.
    """
    paths, maybe = _files(files)
    n_worker = min(len(paths), os.cpu_count() or 1, MOST_WORKERS)
    with workers(n_worker, must_confine=hide_solutions) as runner:
        from regard.checking import catalogue
        from regard.checking.check import Checker

        known = catalogue.catalogue(folder)
        if only is not None:
            catalogue.pick(known, only)

        def once() -> bool:
            counted = known if portable else ()
            checker = Checker(known, runner, seed, comments_count=comments, strict=strict, portable=counted)
            return _report(checker.check_files(paths, only, maybe), html, junit, as_json)

        before, passed = _times(paths), once()
        if watch:
            click.echo("Watching: save a file to check again, Ctrl-C ends.", err=True)
        with contextlib.suppress(KeyboardInterrupt):
            while watch:
                time.sleep(0.3)
                if (now := _times(paths)) != before and all(now):
                    before = now
                    once()
    raise SystemExit(0 if passed else 1)


def _times(paths: list[str]) -> list[float]:
    """When each file was last changed; 0 where it is not there, as while it is written."""
    return [os.path.getmtime(path) if os.path.isfile(path) else 0.0 for path in paths]


def _files(named: tuple[Path, ...]) -> tuple[list[str], set[str]]:
    """The files to check, and those of them that lie in a folder that was named: they may answer nothing."""
    if missing := [str(path) for path in named if not path.exists()]:
        raise ArgumentError(f"no such file: {', '.join(missing)}.")
    paths: list[str] = []
    for path in named:
        inside = [file for file in sorted(path.rglob("*")) if file.suffix in (".py", ".ipynb")]
        parts = {str(file): file.relative_to(path).parts for file in inside}
        kept = [file for file in parts if not any(part.startswith((".", "__")) for part in parts[file])]
        if path.is_dir() and not kept:
            raise ArgumentError(f"{path} holds no .py or .ipynb file.")
        paths += kept if path.is_dir() else [str(path)]
    return paths, set(paths) - set(map(str, named))


def _report(results: Iterator[Result], page: Path | None, junit: Path | None, as_json: bool) -> bool:
    """Print, keep and write results as they come: broken off, it loses a second's. Whether all passed."""
    from regard.checking.progress import Progress
    from regard.checking.reports import ci, html, terminal

    progress, width = Progress(), shutil.get_terminal_size().columns
    done: list[Result] = []
    noted: dict[str, set[str]] = {}  # notes of each file, printed once

    def write() -> float:
        for path, text_of in ((page, html.page), (junit, ci.junit)):
            if path is not None:
                path.write_text(text_of(done), encoding="utf-8", errors="backslashreplace")
        return time.monotonic()

    written = 0.0
    try:
        for result in results:
            done.append(result)
            progress.note(result)
            if as_json:
                click.echo(("[" if len(done) == 1 else ", ") + json.dumps(result.as_json()), nl=False)
            else:
                click.echo(terminal.report(result, width, noted.setdefault(result.file, set())))
                noted[result.file] |= set(result.notes)
            if time.monotonic() > written + 1:
                written = write()
    finally:
        progress.save()
        write()
        if as_json and done:
            click.echo("]")
    if not done:  # a folder without a single answer
        raise ArgumentError("no file there answers an exercise: regard exercises lists what to define.")
    failed = [result for result in done if not result.passed]
    if not as_json and (len(done) != 1 or failed):
        hint = next((f" A hint: regard hint {result.exercise}" for result in failed if result.exercise), "")
        click.echo(f"{len(done) - len(failed)} of {len(done)} passed.{hint}")
    return not failed


@command
def hint(id: str, *, folder: From) -> AsJson:
    """Reveal the next hint for exercise ID: symptom, place, cause, then fix.

    After a check that named your mistake, the hints are about it.
    """
    from regard.checking import catalogue, progress

    kept = progress.Progress()
    grade, text, mistake = kept.next_hint(catalogue.find(id, folder))
    if reason := kept.save():
        click.echo(f"The next hint will be this one again: {reason}", err=True)
    click.echo(f"{grade} ({mistake}): {text}" if mistake else f"{grade}: {text}")
    return {"exercise": id, "mistake": mistake, "grade": grade, "hint": text}


@click.group(cls=Group)
def author() -> None:
    """For teachers: make an exercise, and prove it before students see it."""


@author.add
def author_new(id: str, *, parent: Annotated[Folder, "--in", "Where to put it."] = Path()) -> None:
    """Write a small exercise called ID into a folder of that name, to be replaced part by part."""
    from regard.checking import starters

    folder = parent / id.replace("-", "_")
    if folder.exists():
        raise ArgumentError(f"{folder} is there already: give another ID, or another place with --in.")
    starters.new_exercise(id, folder)
    click.echo(f"{folder}/ is a whole exercise. Change it, then: regard author check {id} --from {parent}")


@author.add
def author_check(id: str, *, seed: CheckSeed, folder: From, as_json: JsonFlag) -> None:
    """Prove exercise ID: right variants pass, the starter fails, every mistake is caught and named."""
    with workers(2) as runner:
        from regard.checking import author, catalogue

        proof = author.prove(catalogue.pick(catalogue.catalogue(folder), id), runner, seed or 0)
    if as_json:
        print_json({"exercise": id, "holds": proof.holds, "lines": proof.lines})
    else:
        from regard.checking.reports.terminal import proved

        click.echo(proved(proof))
    raise SystemExit(0 if proof.holds else 1)


@command
def quiz(
    id: str | None,
    *,
    answer: Annotated[str | None, "Answer question ID without being asked."],
    as_list: Annotated[bool, "--list", "List the questions."],
    as_json: JsonFlag,
) -> None:
    """Answer written questions on shapes, costs and reasons; equivalent forms count.

    Without ID all of them come in turn; an empty answer skips one. Blanks are run, in a process of their own.
    """
    from regard.checking.progress import Progress
    from regard.checking.quiz import answered, question, questions

    if answer is not None:
        if id is None:
            raise ArgumentError("--answer needs the ID of a question: regard quiz --list shows them.")
        marked = answered(question(id), answer)
        if as_json:
            print_json({"question": id, "right": marked.right, "message": marked.message})
        else:
            click.echo(marked.message)
        raise SystemExit(1 if marked.right is False else 0)
    asked = list(questions().values()) if id is None or as_list or as_json else [question(id)]
    if as_list or as_json:
        progress = Progress()
        right = {one.id: progress.status(f"question {one.id}") == "passed" for one in asked}
        if as_json:
            about = ({"question": one.id, "kind": one.kind, "text": one.text} for one in asked)
            print_json([{**row, "right": right[row["question"]]} for row in about])
        else:
            rows = [("✓" * right[one.id], one.id, one.kind, one.text) for one in asked]
            print_table(("", "question", "kind", "text"), rows)
        return
    n_right = n_marked = 0
    for now in asked:
        code = f"\n    {now.code}" if now.code else ""
        click.echo(f"\n{now.id}: {now.text}{code}")
        try:
            typed = click.prompt("", default="", show_default=False, prompt_suffix="> ")
            reply = answered(now, typed) if typed.strip() else None
        except click.Abort:  # nobody is there, or has had enough
            click.echo()
            break
        except ArgumentError as error:
            click.echo(str(error))
            continue
        if reply is not None:
            n_marked += reply.right is not None
            n_right += bool(reply.right)
            shows = f" The experiment that shows it: regard lab {now.lab}"
            click.echo(reply.message + (shows if now.lab and reply.right is False else ""))
    click.echo(f"\n{n_right} of {n_marked} right.")
