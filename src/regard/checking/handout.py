"""What an assignment gives out: the student's notebook or folder, and what each grader wants of a teacher."""

import json
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from regard import __version__
from regard.checking import starters
from regard.checking.assignment import HANDOUTS, Assignment, Part
from regard.checking.starters import Cell, cell

Files = dict[str, str]  # texts by their names
NAME = "assignment.toml"  # what it is called where a grader reads it


def example(title: str, ids: list[str]) -> str:
    """An assignment that sets these exercises, in which every key is explained."""
    return _text(NAME, title) + "".join(f"\n[exercise.{id}]\npoints = 10\n" for id in ids)


def notebook(assignment: Assignment) -> Files:
    """The student's notebook: each task, and its starter to fill in."""
    return _notebook(assignment, _task)


def folder(assignment: Assignment) -> Files:
    """The student's folder: a script for each exercise, with its task above it."""
    exercises = assignment.exercises.values()
    return {starters.file_name(exercise): starters.script(exercise) for exercise in exercises}


def gradescope(assignment: Assignment) -> Files:
    """What Gradescope's autograder is configured with, to be zipped."""
    return {name: _text(name) for name in ("setup.sh", "run_autograder")} | _graded(assignment)


def github(assignment: Assignment) -> Files:
    """A repository for students, in which every push is graded."""
    workflow = {".github/workflows/regard.yml": _text("regard.yml", assignment.title)}
    return folder(assignment) | workflow | _graded(assignment)


def nbgrader(assignment: Assignment) -> Files:
    """An instructor's notebook: below each starter stands a locked cell that gives points and reasons."""

    def cells(part: Part) -> list[Cell]:
        id = part.exercise.id
        about = {"grade_id": id, "points": part.points, "cell_type": "code", "schema_version": 3}
        about |= {"grade": True, "solution": False, "task": False, "locked": True}
        source = f'from regard.checking.session import points\n\npoints("{NAME}", "{id}")'
        return [*_task(part), cell("code", source, nbgrader=about)]

    return _notebook(assignment, cells) | _graded(assignment)


def otter(assignment: Assignment) -> Files:
    """A master notebook for `otter assign`: right answers, and a test for each kind of check."""
    graded = _graded(assignment)
    config = _text("otter.yml", assignment.title) + "".join(f"  - {name}\n" for name in graded)
    return _notebook(assignment, _otter_question, cell("raw", config)) | graded


def _otter_question(part: Part) -> list[Cell]:
    task, starter = _task(part)
    # Otter takes the lines between these away; the block alone would leave them to students.
    right = f"# BEGIN SOLUTION NO PROMPT\n{part.exercise.right[0].strip()}\n# END SOLUTION"
    answer = cell("code", f"{starter['source']}\n\n\n{right}")
    present = {*part.kinds.values()} - (set() if part.comments == "required" else {"comments"})
    weights = {kind: weight for kind, weight in part.weights.items() if kind in present and weight}
    tests = []
    for kind, weight in weights.items():
        points = part.points * weight / sum(weights.values())
        config = f"points: {points!r}\nhidden: {str(kind in part.hidden).lower()}"
        call = f'require("{NAME}", "{part.exercise.id}", "{kind}")'
        body = f"from regard.checking.session import require; {call}"
        text = f'""" # BEGIN TEST CONFIG\n{config}\n""" # END TEST CONFIG\ndef test_{kind}(env):\n    {body}'
        tests.append(cell("code", text))
    inside = [task, *_between("SOLUTION", [answer]), *_between("TESTS", tests)]
    return _between("QUESTION", inside, f"\nname: {part.exercise.id}")


def _between(what: str, cells: list[Cell], config: str = "") -> list[Cell]:
    return [cell("raw", f"# BEGIN {what}{config}"), *cells, cell("raw", f"# END {what}")]


FORMS: dict[str, Callable[[Assignment], Files]] = {
    form.__name__: form for form in (notebook, folder, gradescope, github, otter, nbgrader)
}


def write(files: Files, out: Path, wheel: Path | None = None) -> None:
    """Write into a zip, a single file or a folder, by what `out` is called; a wheel goes into a zip."""
    if out.suffix == ".zip":
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in files.items():
                info = zipfile.ZipInfo(name)
                info.external_attr = (0o100755 if text.startswith("#!") else 0o100644) << 16
                archive.writestr(info, text)
            if wheel is not None:
                archive.write(wheel, wheel.name)
        return
    for name, text in files.items():
        path = out if out.suffix and len(files) == 1 else out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _text(name: str, title: str = "") -> str:
    """A file of handouts/, for this assignment; a JSON string is one of YAML and TOML too."""
    text = (HANDOUTS / name).read_text(encoding="utf-8").replace("VERSION", __version__)
    return text.replace('"TITLE"', "TITLE").replace("TITLE", json.dumps(title))


def _graded(assignment: Assignment) -> Files:
    """The assignment itself and exercises of its own, for where answers are graded."""
    here = assignment.path.resolve().parent
    paths = {path.relative_to(here).as_posix(): path for path in assignment.own_files}
    return {name: path.read_text(encoding="utf-8") for name, path in {NAME: assignment.path, **paths}.items()}


def _task(part: Part) -> list[Cell]:
    title = f"## {part.exercise.title} ({part.points:g} points)"
    task = part.exercise.task_text(fixed=part.conventions == "fixed")
    return [cell("markdown", f"{title}\n\n{task}"), cell("code", part.exercise.starter)]


def _notebook(assignment: Assignment, cells_of: Callable[[Part], Iterable[Cell]], *first: Cell) -> Files:
    cells = [*first, cell("markdown", f"# {assignment.title}")]
    cells += [one for part in assignment.parts.values() for one in cells_of(part)]
    return {f"{assignment.path.stem}.ipynb": starters.notebook_of(cells)}
