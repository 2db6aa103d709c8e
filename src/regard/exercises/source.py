"""Students' files as they have them: scripts and notebooks, read without being run."""

from __future__ import annotations

import ast
import builtins
import json
import re
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from regard.errors import LoadError

MOST_BYTES = 1 << 25
MAGIC = re.compile(r"^\s*(%|!|\?)|^\s*[\w.]+\?{1,2}\s*$")
# Cell magics whose cell is Python all the same.
PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%python", "%%python3")


@dataclass(frozen=True)
class Cell:
    """A piece of the file that parses on its own: a whole script, or a notebook's cell."""

    label: str  # "" for a script, "cell 3, " for a notebook
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed source."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in a student's string is no matter of ours
            return ast.parse(self.source)


@dataclass(frozen=True)
class Definition:
    """A function or class at the top of the file."""

    name: str
    number: int  # of its statement, counted over all cells
    node: ast.FunctionDef | ast.ClassDef
    cell: Cell


@dataclass(frozen=True)
class Submission:
    """A student's file, ready to be run elsewhere."""

    path: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()
    folder: str = ""
    _kept: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def definitions(self) -> tuple[Definition, ...]:
        """Every function and class at the top level, in order; later ones replace earlier ones."""
        found, number = [], -1
        for cell in self.cells:
            for node in cell.tree.body:
                number += 1
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    found.append(Definition(node.name, number, node, cell))
        return tuple(found)

    @cached_property
    def imported(self) -> tuple[str, ...]:
        """The packages that the file imports, by their first name."""
        return tuple(dict.fromkeys(name.partition(".")[0] for name in self.modules))

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """What the file imports, by its whole name."""
        names: dict[str, None] = {}
        for cell in self.cells:
            for node in ast.walk(cell.tree):
                if isinstance(node, ast.Import):
                    names |= dict.fromkeys(alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names[node.module] = None
        return tuple(names)

    @cached_property
    def undefined(self) -> frozenset[str]:
        """Names that the file uses and nowhere defines."""
        used: set[str] = set()
        bound: set[str] = set(dir(builtins)) | {"get_ipython", "display", "__file__"}
        for cell in self.cells:
            for node in ast.walk(cell.tree):
                if isinstance(node, ast.Name):
                    (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
                elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                    bound.add(node.name)
                elif isinstance(node, ast.arg):
                    bound.add(node.arg)
                elif isinstance(node, ast.alias):
                    bound.add((node.asname or node.name).partition(".")[0])
                    if node.name == "*":
                        return frozenset()  # anything may come from there
                elif isinstance(node, ast.ExceptHandler) and node.name:
                    bound.add(node.name)
        # A method's name is no top-level name: what only a class defines still counts as undefined.
        methods = {
            part.name
            for cell in self.cells
            for node in ast.walk(cell.tree)
            if isinstance(node, ast.ClassDef)
            for part in node.body
            if isinstance(part, ast.FunctionDef)
        }
        top = {each.name for each in self.definitions}
        return frozenset(used - (bound - (methods - top)))


def read(path: str | Path) -> Submission:
    """The submission in a `.py` or `.ipynb` file."""
    path = Path(path)
    if path.suffix not in (".py", ".ipynb"):
        raise LoadError(f"{path} is no .py or .ipynb file: only these can be checked.")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise LoadError(f"{path} is larger than {MOST_BYTES >> 20} MB: only smaller files are checked.")
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror}.") from error
    folder = str(path.resolve().parent)
    if path.suffix == ".py":
        return from_source(text, str(path), folder)
    return _notebook(text, str(path), folder)


def from_source(text: str, path: str = "answer.py", folder: str = "") -> Submission:
    """The submission of a script's text; `LoadError` where it is no Python."""
    clean, notes = _without_magics(text)
    cell = Cell("", clean)
    try:
        _ = cell.tree
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        where = f"line {line}: " if line else ""
        raise LoadError(f"{path} is no Python: {where}{getattr(error, 'msg', None) or error}.") from error
    return Submission(path, (cell,), notes, folder)


def _notebook(text: str, path: str, folder: str) -> Submission:
    try:
        notebook = json.loads(text)
        cells = notebook["cells"] if "cells" in notebook else notebook["worksheets"][0]["cells"]
        sources = [
            "".join(source)
            if isinstance(source := cell.get("source", cell.get("input", "")), list)
            else source
            for cell in cells
            if cell.get("cell_type") == "code"
        ]
        if not all(isinstance(source, str) for source in sources):
            raise TypeError("a cell's source is no text")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise LoadError(f"{path} is no notebook: {error}.") from error
    found: list[Cell] = []
    notes: list[str] = []
    for number, source in enumerate(sources, 1):
        clean, dropped = _without_magics(source)
        notes += dropped
        cell = Cell(f"cell {number}, ", clean)
        try:
            _ = cell.tree
        except (SyntaxError, ValueError, RecursionError) as error:
            notes.append(f"cell {number} is no Python and was skipped: {getattr(error, 'msg', error)}.")
            continue
        found.append(cell)
    return Submission(path, tuple(found), tuple(dict.fromkeys(notes)), folder)


def _without_magics(text: str) -> tuple[str, tuple[str, ...]]:
    """The text with a notebook's magics blanked out, line by line, so that line numbers stay.

    >>> _without_magics("%matplotlib inline\\nx = 1")
    ('\\nx = 1', ('magics were dropped (%matplotlib).',))
    """
    try:
        compile(text, "<answer>", "exec", ast.PyCF_ONLY_AST)
        return text, ()
    except (SyntaxError, ValueError, RecursionError):
        pass
    lines = text.splitlines()
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("%%") and first.split()[0] not in PYTHON_CELLS:
        return "", (f"a {first.split()[0]} cell was dropped.",)
    dropped = [line.split()[0] for line in lines if MAGIC.match(line)]
    kept = [_blank(line) if MAGIC.match(line) else _assigned(line) for line in lines]
    notes = (f"magics were dropped ({', '.join(dict.fromkeys(dropped))}).",) if dropped else ()
    return "\n".join(kept), notes


def _blank(line: str) -> str:
    """`pass` where a magic stood inside a block, nothing at the left margin."""
    indent = line[: len(line) - len(line.lstrip())]
    return f"{indent}pass" if indent else ""


def _assigned(line: str) -> str:
    """`files = !ls` as `files = []`."""
    return re.sub(r"^(\s*[\w, ]+=\s*)[!%].*$", r"\1[]", line)
