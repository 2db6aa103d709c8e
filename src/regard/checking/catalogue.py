"""Finds the exercises: ours, and a teacher's in any other folder."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from regard.checking.folder import load_folder
from regard.checking.spec import Exercise
from regard.errors import ArgumentError, LoadError, no_such

OURS = Path(__file__).parent.parent / "exercises"
TEMPLATE = OURS / "template"  # what `regard author new` copies


@cache
def ours() -> dict[str, Exercise]:
    """Every exercise of ours, by id."""
    return {id: exercise for id, exercise in from_folder(OURS).items() if exercise.folder != TEMPLATE}


def from_folder(folder: Path) -> dict[str, Exercise]:
    """Every exercise of a folder, by id: it holds a folder for each, or is one itself."""
    if not folder.is_dir():
        raise LoadError(f"{folder} is no folder: --from takes one that holds exercises.")
    folders = [folder] if (folder / "exercise.toml").is_file() else sorted(folder.iterdir())
    exercises = [load_folder(path) for path in folders if (path / "exercise.toml").is_file()]
    if not exercises:
        raise LoadError(f"{folder} holds no exercise: none of its folders has an exercise.toml.")
    return {exercise.id: exercise for exercise in exercises}


def catalogue(folder: Path | None = None) -> dict[str, Exercise]:
    """Our exercises and those of a folder; an id of the folder comes before ours."""
    return ours() if folder is None else {**ours(), **from_folder(folder)}


def pick(exercises: dict[str, Exercise], id: str) -> Exercise:
    """The exercise of that id."""
    if id not in exercises:
        raise ArgumentError(no_such("exercise", id, sorted(exercises)))
    return exercises[id]


def find(id: str, folder: Path | None = None) -> Exercise:
    """The exercise of that id, of the folder or of ours; the others are read only to say what there is."""
    path = OURS / id.replace("-", "_")
    alone = folder is None and path != TEMPLATE and (path / "exercise.toml").is_file()
    exercise = load_folder(path) if alone else None
    return exercise if exercise is not None and exercise.id == id else pick(catalogue(folder), id)
