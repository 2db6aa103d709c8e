"""`regard assignment new`, `build`, `grade`, `report`: from a file that sets exercises to a class's marks."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click

from regard.commands.exercises import HideSolutions, workers
from regard.commands.options import READABLE, File, Folder, Group, JsonFlag, NewFile, print_json
from regard.commands.printing import print_table
from regard.errors import ArgumentError, LoadError, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from regard.checking.assignment import Assignment
    from regard.checking.marks import Grade
    from regard.checking.runner import Runner

MOST_LISTED = 12  # mistakes, on the terminal


@click.group(cls=Group)
def assignment() -> None:
    """For teachers: set exercises, give them out, and mark what comes back."""


@assignment.add
def new(
    file: File = Path("assignment.toml"),
    *,
    exercise: Annotated[tuple[str, ...], "Set this one; may be given again and again."],
    title: Annotated[str | None, "What students read above it."],
) -> None:
    """Write an assignment into FILE, with every key explained."""
    from regard.checking import catalogue, handout

    if file.exists():
        raise ArgumentError(f"{file} is there already: give another name.")
    chosen = [catalogue.pick(catalogue.ours(), id).id for id in exercise or ("masked-softmax",)]
    file.write_text(handout.example(title or file.stem, chosen), encoding="utf-8")
    click.echo(f"{file} is yours to change. Then: regard assignment build {file}")


@assignment.add
def build(
    file: File,
    *,
    form: Annotated[
        Literal["notebook", "folder", "gradescope", "github", "otter", "nbgrader"], "--for"
    ] = "notebook",
    out: Annotated[Path | None, click.Path(path_type=Path), "Where to write it."],
    wheel: Annotated[Path | None, READABLE, "gradescope: install regard from this wheel, not by its name."],
) -> None:
    """Write what students get, or what a grader needs, for the assignment in FILE.

    \b
    notebook, folder     tasks and starters, without any solution
    gradescope           a zip: upload it as the autograder
    github               a repository for students, graded by GitHub Actions on each push
    otter                a master notebook for `otter assign`, with solutions
    nbgrader             a notebook for `nbgrader generate_assignment`, without solutions
    """
    from regard.checking import assignment, handout

    suffix = {"notebook": ".ipynb", "gradescope": "-gradescope.zip"}.get(form, f"-{form}")
    path = out or Path(file.stem + suffix)
    if path.exists():
        raise ArgumentError(f"{path} is there already: give --out another name.")
    handout.write(handout.FORMS[form](assignment.load(file)), path, wheel)
    click.echo(f"{path} is written.")


@assignment.add
def grade(
    file: File,
    submissions: Annotated[Path, click.Path(exists=True, path_type=Path)],
    *,
    out: Annotated[Folder, "The folder for marks and feedback."] = Path("marks"),
    jobs: Annotated[int | None, click.IntRange(1, 64), "Answers that run at once; by default, the cores."],
    hide_solutions: HideSolutions,
    gradescope: Annotated[NewFile | None, "SUBMISSIONS are one student's: write a results.json."],
    metadata: Annotated[File | None, "gradescope: a submission_metadata.json, for the time."],
    github: Annotated[bool, "SUBMISSIONS are one student's: annotate and summarise."],
    as_json: JsonFlag,
) -> None:
    """Mark SUBMISSIONS by the assignment in FILE: a folder, zip or file for each student.

    What is graded is written as it comes; a second call grades what is missing or has changed. With
    --github the exit code is 1 unless everything passed.
    """
    with workers(jobs or os.cpu_count() or 1, must_confine=hide_solutions) as runner:
        from regard.checking.assignment import load
        from regard.checking.grading import grade_one
        from regard.checking.reports import marks

        loaded = load(file)
        if gradescope is None and not github:
            _print(loaded.title, _graded(loaded, runner, submissions, out), as_json)
            if not as_json:
                click.echo(f"Marks: {out / 'marks.csv'}. For the next lecture: {out / 'summary.html'}.")
            return
        graded = grade_one(loaded, runner, submissions, _time(metadata))
    if gradescope is not None:
        gradescope.write_text(marks.gradescope(loaded, graded), encoding="utf-8", errors="replace")
    if as_json:
        print_json(graded.as_json())
    if github:
        click.echo(marks.github_annotations(graded), nl=False)
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            with open(summary, "a", encoding="utf-8") as step:
                step.write(marks.github_summary(loaded.title, graded))
    click.echo(f"{graded.points:g} of {graded.out_of:g} points.", err=True)
    raise SystemExit(0 if graded.passed or not github else 1)


def _graded(loaded: Assignment, runner: Runner, submissions: Path, out: Path) -> list[Grade]:
    """Return the class's grades, with a bar that shows how far it is."""
    from rich.console import Console
    from rich.progress import track

    from regard.checking import grading, handin, starters

    stems = [loaded.path.stem, *(starters.file_name(exercise, "") for exercise in loaded.exercises.values())]
    students = handin.hand_ins(submissions, stems)
    graded, console = grading.grade_class(loaded, runner, students, out), Console(stderr=True)
    made = list(track(graded, "Grading", total=len(students), console=console, transient=True))
    if n_old := sum(not new for _, new in made):
        click.echo(f"{n_old} of {len(students)} had not changed since the last time.", err=True)
    grades = {grade.student: grade for grade, _ in made}
    return [grades[student.student] for student in students]


def _time(metadata: Path | None) -> datetime | None:
    """Return when Gradescope says that it was handed in."""
    if metadata is None:
        return None
    try:
        return datetime.fromisoformat(json.loads(metadata.read_text(encoding="utf-8"))["created_at"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(f"{metadata} does not say when it was handed in, as created_at: {error}.") from error


@assignment.add
def report(
    folder: Annotated[Path, click.Path(exists=True, file_okay=False, path_type=Path)] = Path("marks"),
    *,
    as_json: JsonFlag,
) -> None:
    """Show what FOLDER holds, and write its CSV, JSON and page again from each student's marks."""
    from regard.checking.grading import kept, write_reports

    grades = [grade for path in sorted((folder / "students").glob("*.json")) if (grade := kept(path))]
    if not grades:
        raise ArgumentError(f"{folder} holds no marks: regard assignment grade writes them.")
    try:
        title = str(json.loads((folder / "marks.json").read_text(encoding="utf-8"))["title"])
    except (OSError, ValueError, KeyError, TypeError):
        title = folder.name
    write_reports(title, grades, folder)
    _print(title, grades, as_json)


def _print(title: str, grades: Sequence[Grade], as_json: bool) -> None:
    """Print the class: its mean, and the most frequent mistakes."""
    from regard.checking.reports import marks

    if as_json:
        click.echo(marks.json_of(title, grades), nl=False)
        return
    columns = ("students", "exercise", "mistake", "say")
    mean = sum(grade.points for grade in grades) / len(grades)
    click.echo(f"{title}: {plural(len(grades), 'student')}, mean {mean:.1f} of {grades[0].out_of:g} points.")
    if common := marks.common_mistakes(grades)[:MOST_LISTED]:
        rows = [(f"{row['students']} of {row['of']}", *(row[key] for key in columns[1:])) for row in common]
        print_table(columns, rows)
