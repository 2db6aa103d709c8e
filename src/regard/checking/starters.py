"""The files that `regard start` and `regard author new` write, and the notebooks that are given out."""

import json
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regard.checking.catalogue import TEMPLATE
from regard.checking.spec import Exercise
from regard.errors import ArgumentError

Cell = dict[str, Any]


def script(exercise: Exercise, file: str = "") -> str:
    """Return the starter as a script, with the task above it as a comment; `file` is where it is written."""
    task = [exercise.title, "", *exercise.task.strip().splitlines(), ""]
    comment = [*task, f"Check it with: regard check {file or file_name(exercise)}"]
    lines = [*(f"# {line}".rstrip() for line in comment), "", exercise.starter]
    if exercise.example:
        lines += ["", 'if __name__ == "__main__":', textwrap.indent(exercise.example.strip(), "    "), ""]
    return "\n".join(lines)


def notebook(exercise: Exercise, file: str = "") -> str:
    """Return the starter as a notebook: the task, then a cell to fill in; `file` is where it is written."""
    check = f"Check it with: `regard check {file or file_name(exercise, '.ipynb')}`"
    task = cell("markdown", f"# {exercise.title}\n\n{exercise.task.strip()}\n\n{check}")
    return notebook_of([task, *(cell("code", code) for code in (exercise.starter, exercise.example) if code)])


def cell(kind: str, text: str, **about: Any) -> Cell:
    """A cell of a notebook, with metadata."""
    code: Cell = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": about, "source": text.strip(), **code}


def notebook_of(cells: Iterable[Cell]) -> str:
    """The text of a notebook."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    numbered = [{**cell, "id": f"cell-{number}"} for number, cell in enumerate(cells)]
    page = {"cells": numbered, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(page, indent=1)


def file_name(exercise: Exercise, suffix: str = ".py") -> str:
    """The file that an answer is written to, unless told otherwise."""
    return exercise.id.replace("-", "_") + suffix


def new_exercise(id: str, folder: Path) -> None:
    """Write a small exercise that passes its own proof into a new folder, to be replaced part by part."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", id):
        raise ArgumentError(f"an id is lower-case words joined by '-', such as scaled-scores. Got {id!r}.")
    for path in sorted(TEMPLATE.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            copied = folder / path.relative_to(TEMPLATE)
            copied.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8").replace("double_it", id.replace("-", "_"))
            copied.write_text(text, encoding="utf-8")
