"""Records the shapes around commented lines while an answer runs."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from .messages import Seen, ShapeNote

MOST_SEEN = 2000


class Watcher:
    """Records, for each commented line, the shapes before and after it, while it is active."""

    def __init__(self, notes: list[ShapeNote]) -> None:
        self.notes = notes
        self.at = {(f"<answer {note.label}>", note.start): index for index, note in enumerate(notes)}
        self.files = {file for file, _ in self.at}
        self.pending: dict[int, tuple[int, dict[str, list[int] | None]]] = {}
        self.records: list[Seen] = []
        self.calls: dict[int, int] = {}
        self.n_call = 0

    def __enter__(self) -> Watcher:
        if self.notes:
            sys.settrace(self._trace)
        return self

    def __exit__(self, *error: object) -> None:
        if self.notes:
            sys.settrace(None)

    def seen(self) -> list[Seen]:
        """One record for each time a commented line ran."""
        return self.records[:MOST_SEEN]

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        if event == "call":
            self.n_call += 1
            self.calls[id(frame)] = self.n_call
            return self._trace
        pending = self.pending.pop(id(frame), None)
        if pending is not None and event in ("line", "return"):
            index, before = pending
            note = self.notes[index]
            value = argument if not note.target and event == "return" else _lookup(frame, note.target)
            self.records.append(Seen(index, self.calls.get(id(frame), 0), before, _shape(value)))
        if event == "line":
            key = (frame.f_code.co_filename, frame.f_lineno)
            if key in self.at:
                note = self.notes[self.at[key]]
                before = {name: _shape(_lookup(frame, name)) for name in note.loads}
                self.pending[id(frame)] = (self.at[key], before)
        return self._trace


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
