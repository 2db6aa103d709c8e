"""Students' files as they have them, scripts and notebooks: read without being run, and what they answer."""

from __future__ import annotations

import ast
import builtins
import difflib
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from symtable import SymbolTable, symtable

from regard.checking.child.loader import defined_in
from regard.checking.child.messages import Cell
from regard.checking.spec import Exercise
from regard.checking.syntax import parsed
from regard.errors import ArgumentError, LoadError

MOST_BYTES = 1 << 25
MAGIC = re.compile(r"^\s*(%|!|\?)|^\s*[\w.]+\?{1,2}\s*$")
# Cell magics whose cell is Python all the same.
PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%python", "%%python3", "%%check")
NEAR = 0.8  # how alike two names are, of which one was probably meant
TIE = 0.6  # below it, a signature tells nothing: more than the names of layers can make up


Node = ast.FunctionDef | ast.ClassDef
# What the parser of Python itself fails with: it gives up on deep nesting in several ways.
UNPARSED = (SyntaxError, ValueError, RecursionError, MemoryError)


@lru_cache
def tree_of(cell: Cell) -> ast.Module:
    """The parsed source of a whole script, or of a notebook's cell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an invalid escape in a student's string is no matter of ours
        return parsed(cell.source)


@dataclass(frozen=True)
class Definition:
    """A function or class at the top of the file."""

    name: str
    number: int  # of its statement, counted over all cells
    node: Node
    cell: Cell


@dataclass(frozen=True)
class Submission:
    """A student's file, ready to be run elsewhere."""

    path: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()
    folder: str = ""
    broken: tuple[str, ...] = ()  # cells that are no Python: where, and why

    @cached_property
    def definitions(self) -> tuple[Definition, ...]:
        """Every function and class at the top level, in order; later ones replace earlier ones.

        Lambdas and other names of a definition count too, and so does what a file beside this one defines.
        """
        definitions: list[Definition] = []
        number = -1
        for cell in self.cells:
            for statement in tree_of(cell).body:
                number += 1
                nodes = {node.name: node for node in defined_in(statement)}
                known = {definition.name: definition.node for definition in definitions}
                nodes = nodes or self._imported(statement) or _named(statement, known)
                definitions += [Definition(name, number, node, cell) for name, node in nodes.items()]
        return tuple(definitions)

    def _imported(self, statement: ast.stmt) -> dict[str, Node]:
        """What a statement imports from a file beside this one."""
        if not isinstance(statement, ast.ImportFrom) or not statement.module or not self.folder:
            return {}
        path = Path(self.folder, *statement.module.split(".")).with_suffix(".py")
        try:
            beside = replace(read(path), folder="")  # what that file imports in turn is not followed
            there = {definition.name: definition.node for definition in beside.definitions}
        except LoadError:
            return {}
        if statement.names[0].name == "*":
            return there
        pairs = ((alias.asname or alias.name, there.get(alias.name)) for alias in statement.names)
        return {name: node for name, node in pairs if node is not None}

    @cached_property
    def imported(self) -> tuple[str, ...]:
        """The packages that the file imports, by their first name."""
        return tuple(dict.fromkeys(name.partition(".")[0] for name in self.modules))

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """What the file imports, by its whole name."""
        names: dict[str, None] = {}
        for cell in self.cells:
            for node in ast.walk(tree_of(cell)):
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
            for node in ast.walk(tree_of(cell)):
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
            for node in ast.walk(tree_of(cell))
            if isinstance(node, ast.ClassDef)
            for part in node.body
            if isinstance(part, ast.FunctionDef)
        }
        top = {definition.name for definition in self.definitions}
        return frozenset(used - (bound - (methods - top)))


def _named(statement: ast.stmt, known: Mapping[str, Node]) -> dict[str, Node]:
    """The name that an assignment gives to a lambda, or to something made of a definition above it."""
    if not isinstance(statement, ast.Assign) or not isinstance(target := statement.targets[0], ast.Name):
        return {}
    value = statement.value
    if isinstance(value, ast.Lambda):
        body = ast.copy_location(ast.Return(value.body), value)
        node = ast.FunctionDef(target.id, value.args, [body], [])
        return {target.id: ast.copy_location(node, statement)}
    if isinstance(value, ast.Call) and value.args:
        value = value.args[0]
    return {target.id: known[value.id]} if isinstance(value, ast.Name) and value.id in known else {}


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
        tree_of(cell)
    except UNPARSED as error:
        raise LoadError(f"{path} is no Python: {_complaint(error)}.") from error
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
    except (*UNPARSED, KeyError, TypeError, AttributeError, IndexError) as error:
        raise LoadError(f"{path} is no notebook: {str(error) or type(error).__name__}.") from error
    parsed, notes, broken = as_cells(sources)
    return Submission(path, parsed, notes, folder, broken)


def as_cells(sources: Iterable[str]) -> tuple[tuple[Cell, ...], tuple[str, ...], tuple[str, ...]]:
    """A notebook's cells, what was left out of them, and those that are no Python."""
    parsed: list[Cell] = []
    notes: list[str] = []
    broken: list[str] = []
    for number, source in enumerate(sources, 1):
        clean, dropped = _without_magics(source)
        notes += dropped
        cell = Cell(f"cell {number}, ", clean)
        try:
            tree_of(cell)
        except UNPARSED as error:
            broken.append(f"cell {number} is no Python: {_complaint(error)}.")
            continue
        parsed.append(cell)
    return tuple(parsed), tuple(dict.fromkeys(notes)), tuple(broken)


def names_in(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """The names that a statement at the top binds (`*` for unknown ones), and those that it uses."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        try:
            return {statement.name}, _globals(symtable(ast.unparse(statement), "answer", "exec"))
        except SyntaxError:  # it parses and does not compile, so it was never defined
            return {statement.name}, set()
    nodes = list(ast.walk(statement))
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    aliases = [node for node in nodes if isinstance(node, ast.alias)]
    return bound | {(alias.asname or alias.name).partition(".")[0] for alias in aliases}, used


def _globals(table: SymbolTable) -> set[str]:
    """The names that a piece of code and all within it read from the top: not those of its own variables."""
    outside = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module")
    }
    return outside.union(*map(_globals, table.get_children()))


def _complaint(error: BaseException) -> str:
    """What the parser says: line, reason, and the line itself."""
    if not isinstance(error, SyntaxError):
        return str(error) or "it is nested too deeply"
    text = f": `{error.text.strip()[:80]}`" if error.text else ""
    return f"line {error.lineno}: {error.msg}{text}"


def _without_magics(text: str) -> tuple[str, tuple[str, ...]]:
    """The text with a notebook's magics blanked out, line by line, so that line numbers stay.

    >>> _without_magics("%matplotlib inline\\nx = 1")
    ('\\nx = 1', ('magics were dropped (%matplotlib).',))
    """
    try:
        parsed(text)
        return text, ()
    except UNPARSED:
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


@dataclass(frozen=True)
class Answered:
    """An exercise that a file answers, and where each of its names is defined."""

    exercise: Exercise
    subjects: dict[str, int]  # name -> the number of its statement
    rivals: tuple[Exercise, ...] = ()  # whose signature fits as well: then the parameters tell


def answered(
    submission: Submission, exercises: Mapping[str, Exercise], only: str | None = None
) -> list[Answered]:
    """The exercises that the file answers, in the catalogue's order.

    Several exercises may ask for a class of one name: its signature tells which is meant, then the name of
    the file. `only` settles it.
    """
    if only is not None:
        exercise = exercises[only]
        subjects = _places(submission, exercise)
        if subjects is None:
            raise ArgumentError(
                f"{submission.path} does not answer {only!r}: it must define {', '.join(exercise.names)}. "
                f"{_defines(submission, {only: exercise})}"
            )
        return [Answered(exercise, subjects)]
    chosen: dict[tuple[str, int], Answered] = {}
    by_names: dict[tuple[str, ...], list[Exercise]] = {}
    for exercise in exercises.values():
        by_names.setdefault(exercise.names, []).append(exercise)
    for wanted, rivals in by_names.items():
        if len(rivals) == 1:
            subjects = _places(submission, rivals[0])
            if subjects is not None:
                chosen[rivals[0].id, 0] = Answered(rivals[0], subjects)
            continue
        for definition in submission.definitions:
            if definition.name != wanted[0]:
                continue
            scores = {exercise.id: likeness(definition.node, exercise) for exercise in rivals}
            near = [rival for rival in rivals if scores[rival.id] > max(scores.values()) - TIE]
            stem = Path(submission.path).stem.lower().replace("-", "_")
            titled = [rival for rival in near if rival.id.replace("-", "_") in stem]
            near = titled if len(titled) == 1 else near
            # A later definition of the same exercise replaces an earlier one; where several exercises fit,
            # only running both definitions can tell.
            place = definition.number if len(near) > 1 else 0
            chosen[near[0].id, place] = Answered(
                near[0], {definition.name: definition.number}, tuple(near[1:])
            )
    order = list(exercises)
    return [chosen[key] for key in sorted(chosen, key=lambda key: (order.index(key[0]), key[1]))]


def unanswered(submission: Submission, exercises: Mapping[str, Exercise]) -> str:
    """What to tell about a file in which no exercise is answered."""
    return f"no exercise is answered here. {_defines(submission, exercises)}"


def _defines(submission: Submission, exercises: Mapping[str, Exercise]) -> str:
    """What a file defines, and which name was probably meant."""
    names = list(dict.fromkeys(definition.name for definition in submission.definitions))
    wanted = {_bare(name): name for exercise in exercises.values() for name in exercise.names}
    for name in names:
        near = difflib.get_close_matches(_bare(name), wanted, 1, NEAR)
        if near:
            return f"It defines {name}: did you mean {wanted[near[0]]}?"
    return f"It defines {', '.join(names) or 'nothing'}."


def _bare(name: str) -> str:
    return name.lower().replace("_", "")


def likeness(node: Node, exercise: Exercise) -> float:
    """How much a definition looks like the starter's: constructor, methods, arguments, layers."""
    starter = exercise.definitions[exercise.names[0]]
    mine, theirs = _features(node), _features(starter)
    # The constructor's arguments and their order say most; a teacher's layers are named in the task alone.
    score = 4.0 * (mine["init"] == theirs["init"])
    score += 2.0 * _overlap(mine["init"], theirs["init"])
    score += 1.0 * (len(mine["init"]) == len(theirs["init"]))
    score += 2.0 * _overlap(mine["methods"], theirs["methods"])
    score += 2.0 * _overlap(mine["forward"], theirs["forward"])
    score += 1.0 * (len(mine["forward"]) == len(theirs["forward"]))
    named = {f"{layer}" for layer in mine["layers"]}
    return score + 0.5 * sum(layer in exercise.task for layer in named) / max(1, len(named))


def _features(node: Node) -> dict[str, list[str]]:
    if isinstance(node, ast.FunctionDef):
        return {"init": [], "methods": [], "forward": _arguments(node), "layers": []}
    methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    layers = [
        target.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Assign)
        for target in part.targets
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    ]
    return {
        "init": _arguments(methods["__init__"])[1:] if "__init__" in methods else [],
        "methods": sorted(methods),
        "forward": _arguments(methods["forward"])[1:] if "forward" in methods else [],
        "layers": layers,
    }


def _arguments(node: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def _overlap(mine: list[str], theirs: list[str]) -> float:
    both = {name.lower() for name in mine} & {name.lower() for name in theirs}
    return 2 * len(both) / max(1, len(mine) + len(theirs))


def _places(submission: Submission, exercise: Exercise) -> dict[str, int] | None:
    """Where the file defines all names of the exercise: the last time of each, or None."""
    places: dict[str, int] = {}
    for name in exercise.names:
        there = [definition for definition in submission.definitions if definition.name == name]
        if not there:
            return None
        # A starter that was left standing above the answer is none.
        starter = ast.dump(exercise.definitions[name])
        there = [definition for definition in there if ast.dump(definition.node) != starter] or there
        best: Definition = there[-1]
        if len(there) > 1 and isinstance(best.node, ast.ClassDef):
            scores = {other.number: likeness(other.node, exercise) for other in there}
            best = max(there, key=lambda other: (scores[other.number], other.number))
        places[name] = best.number
    return places
