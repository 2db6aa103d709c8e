"""Records the shapes around commented lines while an answer runs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import Any

from .messages import SeenShapes, ShapeNote

MOST_SEEN = 2000


@contextmanager
def watched(notes: list[ShapeNote]) -> Iterator[list[SeenShapes]]:
    """A list that gets, each time a commented line runs inside, the shapes before and after it."""
    at = {(f"<answer {note.label}>", note.start): index for index, note in enumerate(notes)}
    files = {file for file, _ in at}
    records: list[SeenShapes] = []
    calls = count(1)

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        """What follows a call of a function of the answer, line by line."""
        file = frame.f_code.co_filename
        if file not in files:
            return None
        call = next(calls)
        running: list[tuple[int, dict[str, list[int] | None]]] = []  # the commented line that is being run

        def follow(frame: FrameType, event: str, argument: Any) -> Any:
            for index, before in running:
                target = notes[index].target
                value = argument if not target and event == "return" else _lookup(frame, target)
                if event != "exception" and len(records) < MOST_SEEN:
                    records.append(SeenShapes(index, call, before, _shape(value)))
            running.clear()
            if event == "line" and (index := at.get((file, frame.f_lineno), -1)) >= 0:
                running.append((index, {name: _shape(_lookup(frame, name)) for name in notes[index].loads}))
            return follow

        return follow

    before = sys.gettrace()
    if notes:
        sys.settrace(called)
    try:
        yield records
    finally:
        sys.settrace(before)


def _lookup(frame: FrameType, name: str) -> Any:
    head, *rest = name.split(".")
    value = frame.f_locals.get(head)
    for part in rest:
        value = getattr(value, part, None)
    return value


def _shape(value: Any) -> list[int] | None:
    try:
        return [int(size) for size in value.shape]
    except (AttributeError, TypeError, ValueError):
        return None
