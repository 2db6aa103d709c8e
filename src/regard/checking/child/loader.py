"""Executes a student's file, statement by statement, as far as it goes, under a limit of time."""

import ast
import builtins
import codeop
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import linecache
import math
import os
import signal
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic, process_time
from typing import Any

from .messages import Answer, Failure, LoadReport, Statement
from .watcher import SoftmaxWatch

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
BLOCKS = (ast.If, ast.Try, ast.With)
STATEMENT_SECONDS = 1.5
NOT_LENT = "is not lent here"
LOAD_SECONDS = 4.0


class TimeLimit(BaseException):
    """An answer that took too long; no `except Exception` of the answer catches it."""


class Schedule:
    """What Linux says of this process's turns: how long it had a processor, or waited for one.

    It is opened before files are withheld. Where there is no such file, nothing is known.
    """

    def __init__(self) -> None:
        self.file = -1
        with contextlib.suppress(OSError):
            self.file = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def awake(self) -> float:
        """Return the seconds in which this process computed or waited for its turn; NaN if unknown."""
        try:
            computed, waited = os.pread(self.file, 100, 0).split()[:2]
        except (OSError, ValueError):
            return math.nan
        return (int(computed) + int(waited)) / 1e9


@contextlib.contextmanager
def time_limit(seconds: float, schedule: Schedule | None = None) -> Iterator[None]:
    """Raise `TimeLimit` inside after `seconds` of computing, or of sleeping.

    A busy machine makes a right answer slow by the clock, so time in which it waits for a processor does not
    count; where that is not known, an answer has three times as long by the clock. Where there are no timers
    (Windows), the checker's patience is the only limit.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return
    schedule = schedule or Schedule()
    began, awake = monotonic(), schedule.awake()

    def stop(number: int, frame: types.FrameType | None) -> None:
        if number == signal.SIGALRM:
            passed = monotonic() - began
            slept = passed - (schedule.awake() - awake)
            if slept < seconds or (math.isnan(slept) and passed < 3 * seconds):
                return
        raise TimeLimit(f"{seconds:g}")

    timers = (
        (signal.SIGPROF, signal.ITIMER_PROF, seconds),
        (signal.SIGALRM, signal.ITIMER_REAL, seconds),
    )
    before = [signal.signal(number, stop) for number, _, _ in timers]
    for _, timer, limit in timers:
        signal.setitimer(timer, limit, 0.5)  # again and again, for code that swallows it
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def failure(error: BaseException, kind: str = "error") -> Failure:
    """What is told of an exception: its type, its message and the answer's own line."""
    where, line = "", ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith("<answer"):
            where = f"{frame.filename[8:-1]}line {frame.lineno}"
            line = frame.line or ""
    if isinstance(error, TimeLimit):
        kind = "time"
    try:
        message = str(error)[:500]
    except BaseException:  # a class of the answer's own, whose text cannot be had
        message = ""
    return Failure(kind, type(error).__name__, message, where, line[:200])


class Stub(types.ModuleType):
    """Stands for what could not be imported: every attribute and call of it is another one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], Stub):
            return args[0]  # used as a decorator
        return Stub(f"{self.__name__}()")

    def __iter__(self) -> Any:
        return iter(())

    def __getitem__(self, key: Any) -> Any:
        return Stub(f"{self.__name__}[]")

    def __setitem__(self, key: Any, value: Any) -> None:
        """Nothing is kept."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to end."""

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return ()


class Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last: lends `d2l`, and stubs what the file itself imports and this machine does not have."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.stubbed: list[str] = []
        self.lent_d2l = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        top, imported = name.partition(".")[0], self.answer.imported
        # google.colab is missing where google is there: what the file itself names is stubbed too.
        asked = name in imported or isinstance(sys.modules.get(top), Stub)
        if top in imported and top != "regard" and asked:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "d2l":  # `from d2l import torch` means its module of that name
            module.__dict__["torch"] = importlib.import_module("d2l.torch")
        elif module.__name__.startswith("d2l."):
            self.lent_d2l = True
            for source in self.answer.d2l:
                exec(compile(source, "<lent d2l>", "exec"), module.__dict__)
            for name in self.answer.subjects:
                module.__dict__[name] = partial(_refuse, name)
            module.__dict__["__getattr__"] = _not_lent
        elif module.__name__ in self.answer.imported:
            self.stubbed.append(module.__name__)


def _refuse(name: str, *args: Any, **kwargs: Any) -> Any:
    raise NameError(f"d2l.{name} {NOT_LENT}: it is what this exercise asks you to write.")


def _not_lent(name: str) -> Any:
    """Stand in for what the lent package does not have; Python asks for names like `__path__` by itself."""
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(f"d2l.{name} {NOT_LENT}: Regard has only what homework uses of that package.")


def defined_in(statement: ast.stmt) -> list[ast.FunctionDef | ast.ClassDef]:
    """Functions and classes that a statement defines for the file, also inside of `if`, `try` and `with`."""
    if isinstance(statement, ast.AsyncFunctionDef):  # what it returns will tell the student
        plain = ast.FunctionDef(statement.name, statement.args, statement.body, statement.decorator_list)
        return [ast.copy_location(plain, statement)]
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement]
    if not isinstance(statement, BLOCKS):
        return []
    inner = [part for part in ast.iter_child_nodes(statement) if isinstance(part, ast.stmt)]
    for handler in getattr(statement, "handlers", []):
        inner += handler.body
    return [node for part in inner for node in defined_in(part)]


def _executed(statement: ast.stmt) -> ast.stmt:
    """The statement as it is executed: a block for `__main__` that defines something is entered."""
    if isinstance(statement, ast.If) and defined_in(statement):
        names = {node.id for node in ast.walk(statement.test) if isinstance(node, ast.Name)}
        if "__name__" in names:
            statement.test = ast.copy_location(ast.Constant(True), statement.test)
    if isinstance(statement, ast.ImportFrom) and statement.module:
        statement.level = 0  # the answer is in no package, and what lies beside it can be imported
    return statement


def load(
    answer: Answer, send: Callable[[Statement], None], schedule: Schedule | None = None
) -> tuple[LoadReport, dict[str, Any]]:
    """Execute the cells; a statement that fails is skipped and reported, and the rest goes on.

    Returns the report, and what is called, by name. A statement that may not end is announced before it runs.
    """
    sys.modules["answer"] = module = types.ModuleType("answer")
    names = module.__dict__
    names["__builtins__"] = builtins
    names["get_ipython"] = partial(Stub, "get_ipython")
    names["display"] = lambda *args, **kwargs: None
    finder = Missing(answer)
    sys.meta_path.append(finder)
    sys.path += [folder for folder in answer.folders if folder not in sys.path]
    for source in answer.lent.values():
        exec(compile(source, "<lent>", "exec"), names)
    sys.argv = ["answer.py"]
    bound: dict[tuple[str, int], Any] = {}
    skipped: list[Statement] = []
    left = LOAD_SECONDS
    softmaxes = SoftmaxWatch()
    compiled: Any = codeop.Compile()  # which remembers what a file imports from __future__
    statements = [(cell, statement) for cell in answer.cells for statement in ast.parse(cell.source).body]
    for number, (cell, statement) in enumerate(statements):
        if number in answer.skip:
            continue
        filename, where = f"<answer {cell.label}>", f"{cell.label}line {statement.lineno}"
        linecache.cache[filename] = (len(cell.source), None, cell.source.splitlines(True), filename)
        lambda_named = isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Lambda)
        defines = isinstance(statement, DEFINITIONS) or lambda_named
        if not defines:
            if left <= 0:
                skipped.append(Statement(where, number, "the statements before it took too long"))
                continue
            send(Statement(where, number))
        began = process_time()
        try:
            code = compiled(ast.Module([_executed(statement)], []), filename, "exec")
            limit = time_limit(LOAD_SECONDS if defines else min(left, STATEMENT_SECONDS), schedule)
            with limit, contextlib.nullcontext() if defines else softmaxes:
                exec(code, names)
        except BaseException as error:
            why = failure(error)
            reason = f"{why.type}: {why.message}" if why.message else why.type
            reason = "it takes too long for a check" if why.kind == "time" else reason
            skipped.append(Statement(where, number, reason))
        if not defines:
            left -= process_time() - began
        elif isinstance(statement, ast.FunctionDef | ast.ClassDef) and statement.name in names:
            bound[statement.name, number] = names[statement.name]
    sys.meta_path.remove(finder)
    subjects = {name: bound.get((name, at), names.get(name)) for name, at in answer.subjects.items()}
    missing = [name for name, value in subjects.items() if value is None]
    report = LoadReport(skipped, finder.stubbed, finder.lent_d2l, missing, doubled=softmaxes.lines)
    return report, subjects
