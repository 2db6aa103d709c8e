"""What a student has passed so far, and which hint comes next: one small file in the user's state folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.checking.spec import GRADES, Exercise

if TYPE_CHECKING:
    from regard.checking.check import Result


def _number(value: object) -> float:
    """The number, or 0 for what a damaged file holds instead."""
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e9 else 0.0


class Progress:
    """The state file, below $XDG_STATE_HOME or ~/.local/state; a broken or missing one is no progress."""

    def __init__(self) -> None:
        base = os.environ.get("XDG_STATE_HOME")
        folder = Path(base) if base else Path.home() / ".local" / "state"
        self.path = folder / "regard" / "exercises.json"
        self.entries: dict[str, dict[str, Any]] = {}
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if isinstance(kept, dict):
            self.entries = {id: entry for id, entry in kept.items() if isinstance(entry, dict)}

    def status(self, id: str) -> str:
        """One word for the list of exercises."""
        entry = self.entries.get(id)
        if entry is None:
            return ""
        return "passed" if entry.get("passed") else f"{round(100 * _number(entry.get('share')))} %"

    def keep(self, id: str, passed: bool, share: float = 0.0, mistake: str | None = None) -> None:
        """Remember what was reached, which stays reached; hints start again when the mistake is another."""
        old = self.entries.get(id, {})
        self.entries[id] = {
            "passed": passed or bool(old.get("passed")),
            "share": max(round(share, 4), _number(old.get("share"))),
            "mistake": mistake,
            "shown": old.get("shown", 0) if old.get("mistake") == mistake else 0,
        }

    def note(self, result: Result) -> None:
        """Remember a result."""
        if result.exercise is not None:
            mistake = result.mistakes[0].mistakes[0].name if result.mistakes else None
            self.keep(result.exercise, result.passed, result.share, mistake)

    def next_hint(self, exercise: Exercise) -> tuple[str, str, str | None]:
        """The next grade, its hint, and the mistake it is about (None for the exercise in general)."""
        entry = self.entries.setdefault(exercise.id, {})
        hints = {mistake.name: mistake.hints for mistake in exercise.mistakes}
        name = str(entry.get("mistake"))
        shown = min(int(_number(entry.get("shown"))), len(GRADES) - 1)
        entry["shown"] = shown + 1
        return GRADES[shown], hints.get(name, exercise.hints)[shown], name if name in hints else None

    def save(self) -> str | None:
        """Write the state file; why it cannot be written, where it cannot: that must not stop a check."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_suffix(f".{os.getpid()}.part")
            partial.write_text(json.dumps(self.entries, indent=1), encoding="utf-8")
            partial.replace(self.path)
        except OSError as error:
            return f"cannot keep progress in {self.path}: {error.strerror}."
        return None
