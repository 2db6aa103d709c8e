"""Finds the exercises, ours and a teacher's in any other folder, and the path through them."""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from regard.checking.spec import OURS, Entry, Exercise, load_entry, load_folder
from regard.errors import ArgumentError, LoadError, no_such

TEMPLATE = OURS / "template"  # what `regard author new` copies
PATH = OURS / "path.toml"  # tracks, how hard and long each exercise is, what comes before it


@cache
def ours() -> dict[str, Exercise]:
    """Every exercise of ours, by id."""
    return from_folder(OURS)


def from_folder(folder: Path) -> dict[str, Exercise]:
    """Every exercise of a folder, by id."""
    return {exercise.id: exercise for exercise in map(load_folder, _folders(folder))}


def entries(folder: Path | None = None) -> dict[str, Entry]:
    """What a list says of our exercises and those of a folder; the rest is not read."""
    folders = _folders(OURS) + (_folders(folder) if folder else [])
    return {entry.id: entry for entry in map(load_entry, folders)}


def _folders(folder: Path) -> list[Path]:
    """The exercises of a folder: it holds a folder for each, or is one itself."""
    if not folder.is_dir():
        raise LoadError(f"{folder} is no folder: --from takes one that holds exercises.")
    folders = [folder] if (folder / "exercise.toml").is_file() else sorted(folder.iterdir())
    folders = [path for path in folders if (path / "exercise.toml").is_file() and path != TEMPLATE]
    if not folders:
        raise LoadError(f"{folder} holds no exercise: none of its folders has an exercise.toml.")
    return folders


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


@dataclass(frozen=True)
class Stop:
    """An exercise on the path. One that no track has is of unknown `level` and `minutes`: zero."""

    exercise: Entry
    level: int = 0  # 1 to 3
    minutes: int = 0
    after: tuple[str, ...] = ()  # ids of exercises to do before


@dataclass(frozen=True)
class Track:
    """Exercises that belong together, in their order."""

    title: str
    about: str
    stops: tuple[Stop, ...]


def tracks(exercises: Mapping[str, Entry]) -> list[Track]:
    """All exercises in their tracks, those that no track has last: a teacher's own."""
    listed = tomllib.loads(PATH.read_text(encoding="utf-8"))
    placed = {id for track in listed.values() for id in track["exercises"]}
    made = []
    for track in listed.values():
        stops = tuple(
            Stop(exercises[id], about["level"], about["minutes"], tuple(about.get("after", ())))
            for id, about in track["exercises"].items()
            if id in exercises
        )
        made.append(Track(track["title"], track["about"], stops))
    others = tuple(Stop(exercise) for id, exercise in exercises.items() if id not in placed)
    return [*made, *([Track("More", "Exercises of your own.", others)] if others else [])]


def next_stop(path: Collection[Track], passed: Collection[str]) -> Stop | None:
    """The first exercise that is not passed and whose predecessors are; None when all are done."""
    stops = [stop for track in path for stop in track.stops if stop.exercise.id not in passed]
    return next((stop for stop in stops if set(stop.after) <= set(passed)), stops[0] if stops else None)
