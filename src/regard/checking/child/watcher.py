"""Records the shapes around commented lines while an answer runs."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from .messages import Seen, ShapeNote

MOST_SEEN = 2000


class Watcher:
    """Records, for each time a commented line runs, the shapes before and after it, while it is active."""

    def __init__(self, notes: list[ShapeNote]) -> None:
        self.notes = notes
        self.at = {(f"<answer {note.label}>", note.start): index for index, note in enumerate(notes)}
        self.files = {file for file, _ in self.at}
        self.n_call = 0
        self.records: list[Seen] = []

    def __enter__(self) -> Watcher:
        if self.notes:
            sys.settrace(self._called)
        return self

    def __exit__(self, *error: object) -> None:
        if self.notes:
            sys.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        """What follows a call of a function of the answer, line by line."""
        file = frame.f_code.co_filename
        if file not in self.files:
            return None
        self.n_call += 1
        call = self.n_call
        running: list[tuple[int, dict[str, list[int] | None]]] = []  # the commented line that is being run

        def follow(frame: FrameType, event: str, argument: Any) -> Any:
            for index, before in running:
                target = self.notes[index].target
                value = argument if not target and event == "return" else _lookup(frame, target)
                if event != "exception" and len(self.records) < MOST_SEEN:
                    self.records.append(Seen(index, call, before, _shape(value)))
            running.clear()
            if event == "line" and (file, frame.f_lineno) in self.at:
                index = self.at[file, frame.f_lineno]
                before = {name: _shape(_lookup(frame, name)) for name in self.notes[index].loads}
                running.append((index, before))
            return follow

        return follow


def _lookup(frame: FrameType, name: str) -> Any:
    head, *rest = name.split(".")
    value = frame.f_locals.get(head)
    for part in rest:
        value = getattr(value, part, None)
    return value


def _shape(value: Any) -> list[int] | None:
    shape = getattr(value, "shape", None)
    try:
        return [int(size) for size in shape] if shape is not None else None
    except (TypeError, ValueError):
        return None
