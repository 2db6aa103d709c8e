"""The path through the exercises: tracks, how hard and long each one is, what comes before it and next."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from regard.checking.spec import Entry

PATH = Path(__file__).parent.parent / "exercises" / "path.toml"


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


def tracks(exercises: Mapping[str, Entry], path: Path = PATH) -> list[Track]:
    """All exercises in their tracks, those that no track has last: a teacher's own."""
    listed = tomllib.loads(path.read_text(encoding="utf-8"))
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
