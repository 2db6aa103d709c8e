"""Students' files as they have them, scripts and notebooks: read without being run, and what they answer."""

import ast
import builtins
import difflib
import json
import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from symtable import SymbolTable, symtable

from regard.checking.child.loader import defined_in
from regard.checking.child.messages import Cell
from regard.checking.spec import OURS, Exercise
from regard.checking.syntax import parsed
from regard.errors import ArgumentError, LoadError

MOST_BYTES = 1 << 25
MAGIC = re.compile(r"^([ \t]*)([%!?].*|[\w.]+\?{1,2}[ \t]*)$", re.MULTILINE)  # `%time x()`, `torch.exp?`
ASSIGNED_MAGIC = re.compile(r"^([ \t]*[\w, ]+=[ \t]*)[!%].*$", re.MULTILINE)  # `files = !ls`
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
        known: dict[str, Node] = {}
        statements = [(cell, statement) for cell in self.cells for statement in tree_of(cell).body]
        for number, (cell, statement) in enumerate(statements):
            nodes = {node.name: node for node in defined_in(statement)}
            nodes = nodes or self._imported(statement) or _named(statement, known)
            known |= nodes
            definitions += [Definition(name, number, node, cell) for name, node in nodes.items()]
        return tuple(definitions)

    def _imported(self, statement: ast.stmt) -> dict[str, Node]:
        """What a statement imports from a file beside this one."""
        if not isinstance(statement, ast.ImportFrom) or not statement.module or not self.folder:
            return {}
        path = Path(self.folder, *statement.module.split(".")).with_suffix(".py")
        try:
            beside = replace(read(path), folder="")  # what that file imports in turn is not followed
        except LoadError:
            return {}
        there = {definition.name: definition.node for definition in beside.definitions}
        if statement.names[0].name == "*":
            return there
        aliases = {alias.asname or alias.name: alias.name for alias in statement.names}
        return {name: there[meant] for name, meant in aliases.items() if meant in there}

    @cached_property
    def imported(self) -> tuple[str, ...]:
        """What the file imports, by its first name and by its whole name."""
        nodes = [node for cell in self.cells for node in ast.walk(tree_of(cell))]
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
        names += [node.module for node in froms if node.module]
        return tuple(dict.fromkeys([*(name.partition(".")[0] for name in names), *names]))

    @cached_property
    def undefined(self) -> frozenset[str]:
        """Names that the file uses and nowhere defines."""
        names = [names_in(statement) for cell in self.cells for statement in tree_of(cell).body]
        bound = {*dir(builtins), "get_ipython", "display", "__file__"}.union(*(binds for binds, _ in names))
        used = frozenset[str]().union(*(uses for _, uses in names))
        return frozenset() if "*" in bound else used - bound  # anything may come from a star


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
    try:
        notebook = json.loads(text)
        cells = notebook["cells"] if "cells" in notebook else notebook["worksheets"][0]["cells"]
        code = [cell for cell in cells if cell.get("cell_type") == "code"]
        sources = ["".join(cell.get("source", cell.get("input", ""))) for cell in code]  # of lines, or a text
    except (*UNPARSED, KeyError, TypeError, AttributeError, IndexError) as error:
        raise LoadError(f"{path} is no notebook: {str(error) or type(error).__name__}.") from error
    parsed, notes, broken = as_cells(sources)
    return Submission(str(path), parsed, notes, folder, broken)


def from_source(text: str, path: str = "answer.py", folder: str = "") -> Submission:
    """The submission of a script's text; `LoadError` where it is no Python."""
    cell, notes = _cell("", text, path)
    return Submission(path, (cell,), notes, folder)


def as_cells(sources: Iterable[str]) -> tuple[tuple[Cell, ...], tuple[str, ...], tuple[str, ...]]:
    """A notebook's cells, what was left out of them, and those that are no Python."""
    cells: list[Cell] = []
    notes: list[str] = []
    broken: list[str] = []
    for number, source in enumerate(sources, 1):
        try:
            cell, dropped = _cell(f"cell {number}, ", source, f"cell {number}")
        except LoadError as error:
            broken.append(str(error))
            continue
        cells.append(cell)
        notes += dropped
    return tuple(cells), tuple(dict.fromkeys(notes)), tuple(broken)


def _cell(label: str, source: str, where: str) -> tuple[Cell, tuple[str, ...]]:
    """A piece that parses, and what was left out of it; `LoadError` where it is no Python."""
    clean, notes = _without_magics(source)
    cell = Cell(label, clean)
    try:
        tree_of(cell)
    except UNPARSED as error:
        complaint = str(error) or "it is nested too deeply"
        if isinstance(error, SyntaxError):
            text = f": `{error.text.strip()[:80]}`" if error.text else ""
            complaint = f"line {error.lineno}: {error.msg}{text}"
        raise LoadError(f"{where} is no Python: {complaint}.") from error
    return cell, notes


def names_in(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """The names that a statement at the top binds (`*` for unknown ones), and those that it uses."""
    try:
        table = symtable(ast.unparse(statement), "answer", "exec")
    except SyntaxError:  # it parses and does not compile, so it was never executed
        return {getattr(statement, "name", "")}, set()
    top = table.get_symbols()
    bound = {symbol.get_name() for symbol in top if symbol.is_assigned() or symbol.is_imported()}
    stars = {node.name for node in ast.walk(statement) if isinstance(node, ast.alias) and node.name == "*"}
    return bound | stars, _globals(table)


def _globals(table: SymbolTable) -> set[str]:
    """The names that a piece of code and all within it read from the top: not those of its own variables."""
    outside = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module")
    }
    return outside.union(*map(_globals, table.get_children()))


def _without_magics(text: str) -> tuple[str, tuple[str, ...]]:
    """The text with a notebook's magics blanked out, line by line, so that line numbers stay.

    Inside a block `pass` stands for one, and `files = !ls` becomes `files = []`.

    >>> _without_magics("%matplotlib inline\\nx = 1")
    ('\\nx = 1', ('magics were dropped (%matplotlib).',))
    """
    try:
        parsed(text)
        return text, ()
    except UNPARSED:
        pass
    first = next(iter(text.split(maxsplit=1)), "")
    if first.startswith("%%") and first not in PYTHON_CELLS:
        return "", (f"a {first} cell was dropped.",)
    dropped = dict.fromkeys(magic[2].split()[0] for magic in MAGIC.finditer(text))
    notes = (f"magics were dropped ({', '.join(dropped)}).",) if dropped else ()
    plain = MAGIC.sub(lambda magic: magic[1] and f"{magic[1]}pass", text)
    return ASSIGNED_MAGIC.sub(r"\1[]", plain), notes


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
        exercises = {only: exercises[only]}
    chosen: dict[tuple[str, int], Answered] = {}
    by_names: dict[tuple[str, ...], list[Exercise]] = {}
    for exercise in exercises.values():
        by_names.setdefault(exercise.names, []).append(exercise)
    for names, rivals in by_names.items():
        if len(rivals) == 1:
            places = {name: _place(submission, rivals[0], name) for name in names}
            subjects = {name: place for name, place in places.items() if place is not None}
            if len(subjects) == len(names):
                chosen[rivals[0].id, 0] = Answered(rivals[0], subjects)
            continue
        for definition in submission.definitions:
            if definition.name != names[0]:
                continue
            scores = {rival.id: likeness(definition.node, rival) for rival in rivals}
            near = [rival for rival in rivals if scores[rival.id] > max(scores.values()) - TIE]
            near.sort(key=lambda rival: rival.folder.parent == OURS)  # a teacher's own first
            stem = Path(submission.path).stem.lower().replace("-", "_")
            titled = [rival for rival in near if rival.id.replace("-", "_") in stem]
            first, *others = titled if len(titled) == 1 else near
            # A later definition of the same exercise replaces an earlier one; where several exercises fit,
            # only running both definitions can tell.
            place = definition.number if others else 0
            chosen[first.id, place] = Answered(first, {definition.name: definition.number}, tuple(others))
    if only is not None and not chosen:
        raise ArgumentError(
            f"{submission.path} does not answer {only!r}: it must define {', '.join(exercises[only].names)}. "
            f"{_defines(submission, exercises)}"
        )
    order = list(exercises)
    return [chosen[key] for key in sorted(chosen, key=lambda key: (order.index(key[0]), key[1]))]


def _place(submission: Submission, exercise: Exercise, name: str) -> int | None:
    """The statement that defines a name of the exercise: the last, or the class that looks most like it."""
    there = [definition for definition in submission.definitions if definition.name == name]
    # A starter that was left standing above the answer is none.
    starter = ast.dump(exercise.definitions[name])
    there = [definition for definition in there if ast.dump(definition.node) != starter] or there
    if len(there) > 1 and isinstance(there[-1].node, ast.ClassDef):
        there.sort(key=lambda definition: likeness(definition.node, exercise))
    return there[-1].number if there else None


def unanswered(submission: Submission, exercises: Mapping[str, Exercise]) -> str:
    """What to tell about a file in which no exercise is answered."""
    return f"no exercise is answered here. {_defines(submission, exercises)}"


def _defines(submission: Submission, exercises: Mapping[str, Exercise]) -> str:
    """What a file defines, and which name was probably meant."""
    names = list(dict.fromkeys(definition.name for definition in submission.definitions))
    wanted = [name for exercise in exercises.values() for name in exercise.names]
    plain = {name.lower().replace("_", ""): name for name in wanted}
    for name in names:
        near = difflib.get_close_matches(name.lower().replace("_", ""), plain, 1, NEAR)
        if near:
            return f"It defines {name}: did you mean {plain[near[0]]}?"
    return f"It defines {', '.join(names) or 'nothing'}."


def likeness(node: Node, exercise: Exercise) -> float:
    """How much a definition looks like the starter's: constructor, methods, arguments, layers."""
    mine, theirs = _signatures(node), _signatures(exercise.definitions[exercise.names[0]])
    # The constructor's arguments and their order say most; a teacher's layers are named in the task alone.
    score = 4.0 * (mine.get("__init__", []) == theirs.get("__init__", [])) + 2.0 * _overlap(mine, theirs)
    for method in ("__init__", "forward"):
        have, want = mine.get(method, []), theirs.get(method, [])
        score += 1.0 * (len(have) == len(want)) + 2.0 * _overlap(have, want)
    attributes = [part for part in ast.walk(node) if isinstance(part, ast.Attribute)]
    layers = {part.attr for part in attributes if isinstance(part.ctx, ast.Store)}
    return score + 0.5 * sum(layer in exercise.task for layer in layers) / max(1, len(layers))


def _signatures(node: Node) -> dict[str, list[str]]:
    """The arguments of each method, but `self`; a function is a `forward`."""
    if isinstance(node, ast.FunctionDef):
        return {"forward": _arguments(node)}
    return {part.name: _arguments(part)[1:] for part in node.body if isinstance(part, ast.FunctionDef)}


def _arguments(node: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def _overlap(mine: Collection[str], theirs: Collection[str]) -> float:
    both = {name.lower() for name in mine} & {name.lower() for name in theirs}
    return 2 * len(both) / max(1, len(mine) + len(theirs))
