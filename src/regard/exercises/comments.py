"""Shape comments such as `# [b, s, h] -> [b, h, s]`, compared with the shapes at run time.

`found` reads them from a source (in the checker); `Watcher` records shapes (in the child process).
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from typing import Any

SHAPE = re.compile(r"[\[(]\s*([A-Za-z0-9_.*/+\- ]+(?:,[A-Za-z0-9_.*/+\- ]*)*)\s*[\])]")
COMMENT = re.compile(
    r"#\s*(?:shape\s*:?\s*)?([\[(][^\])]*[\])])(?:\s*(?:->|=>|→)\s*([\[(][^\])]*[\])]))?\s*$"
)
WORD = re.compile(r"^[A-Za-z_][A-Za-z0-9_.]*$|^\d+$")


def dims(text: str) -> list[str] | None:
    """The dimensions of "[b, s, h]", or None when it is something else.

    >>> dims("(batch, 2*d)")
    ['batch', '2*d']
    """
    inside = SHAPE.fullmatch(text.strip())
    if inside is None:
        return None
    parts = [part.strip() for part in inside[1].split(",") if part.strip()]
    return parts if parts and all(re.fullmatch(r"[A-Za-z0-9_.*/+\- ]+", part) for part in parts) else None


def found(source: str, label: str) -> list[dict[str, Any]]:
    """Every shape comment that stands beside an assignment or a return."""
    statements: dict[int, tuple[str, list[str], int]] = {}  # last line -> target, names used, first line
    for node in ast.walk(ast.parse(source)):
        if (
            not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return)
            or node.value is None
        ):
            continue
        targets: list[ast.expr] = []
        if not isinstance(node, ast.Return):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if len(targets) > 1 or (targets and not isinstance(targets[0], ast.Name | ast.Attribute)):
            continue
        loads = sorted({each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)})
        target = ast.unparse(targets[0]) if targets else ""
        statements[node.end_lineno or node.lineno] = (target, loads, node.lineno)
    notes = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        match = COMMENT.match(token.string)
        line = token.start[0]
        if match is None or line not in statements:
            continue
        first, second = dims(match[1]), dims(match[2]) if match[2] else None
        if first is None or (match[2] and second is None):
            continue
        target, loads, start = statements[line]
        notes.append(
            {
                "label": label,
                "start": start,
                "line": line,
                "text": token.string.lstrip("# "),
                "target": target,
                "loads": loads,
                "before": first if second is not None else None,
                "after": second if second is not None else first,
            }
        )
    return notes


class Watcher:
    """Records, for each commented line, the shapes before and after it, while it is active."""

    def __init__(self, notes: list[dict[str, Any]]) -> None:
        self.notes = notes
        self.at = {(f"<answer {note['label']}>", note["start"]): index for index, note in enumerate(notes)}
        self.files = {file for file, _ in self.at}
        self.pending: dict[int, tuple[int, dict[str, Any]]] = {}
        self.records: list[dict[str, Any]] = []
        self.calls: dict[int, int] = {}
        self.n_call = 0

    def __enter__(self) -> Watcher:
        if self.notes:
            sys.settrace(self._trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def seen(self) -> list[dict[str, Any]]:
        """One record for each time a commented line ran."""
        return self.records[:2000]

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
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
            value = argument if not note["target"] and event == "return" else _lookup(frame, note["target"])
            self.records.append(
                {
                    "note": index,
                    "call": self.calls.get(id(frame), 0),
                    "before": before,
                    "after": _shape(value),
                }
            )
        if event == "line":
            key = (frame.f_code.co_filename, frame.f_lineno)
            if key in self.at:
                note = self.notes[self.at[key]]
                before = {name: _shape(_lookup(frame, name)) for name in note["loads"]}
                self.pending[id(frame)] = (self.at[key], before)
        return self._trace


def _lookup(frame: Any, name: str) -> Any:
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


def disagreements(notes: list[dict[str, Any]], records: list[dict[str, Any]]) -> dict[int, str]:
    """A sentence on each comment that the shapes contradict; a symbol keeps its size within one call.

    >>> note = {"label": "", "line": 3, "text": "[b, s]", "before": None, "after": ["b", "s"]}
    >>> disagreements([note], [{"note": 0, "call": 1, "before": {}, "after": [2, 3, 5]}])
    {0: 'line 3 says [b, s], and the shape is [2, 3, 5].'}
    """
    told: dict[int, str] = {}
    sizes: dict[int, dict[str, int]] = {}
    for record in records:
        note = notes[record["note"]]
        known = sizes.setdefault(record["call"], {})
        where = f"{note['label']}line {note['line']}"
        if note["before"] is not None:
            candidates = [shape for shape in record["before"].values() if shape is not None]
            fits = [
                trial for shape in candidates if (trial := _bind(note["before"], shape, known)) is not None
            ]
            if candidates and not fits:
                shown = " or ".join(str(shape) for shape in candidates)
                told.setdefault(record["note"], f"{where} says {note['text']}, and it starts from {shown}.")
            elif fits:
                known.update(fits[0])
        if record["after"] is not None:
            bound = _bind(note["after"], record["after"], known)
            if bound is None:
                told.setdefault(
                    record["note"], f"{where} says {note['text']}, and the shape is {record['after']}."
                )
            else:
                known.update(bound)
    return told


def _bind(dimensions: list[str], shape: list[int], known: dict[str, int]) -> dict[str, int] | None:
    """The sizes that make `dimensions` equal to `shape`, or None when nothing does."""
    if len(dimensions) != len(shape):
        return None
    bound = dict(known)
    later = []
    for word, size in zip(dimensions, shape, strict=True):
        if not WORD.match(word):
            later.append((word, size))
        elif word.isdigit():
            if int(word) != size:
                return None
        elif bound.setdefault(word, size) != size:
            return None
    for expression, size in later:
        names = set(re.findall(r"[A-Za-z_][A-Za-z0-9_.]*", expression))
        if names <= set(bound):
            value = _evaluate(expression, bound)
            if value is None or value != size:
                return None
    return bound


def _evaluate(expression: str, known: dict[str, int]) -> float | None:
    """The value of sums, products and quotients of known sizes."""
    operators: dict[type, Any] = {
        ast.Add: lambda a, b: a + b,
        ast.Sub: lambda a, b: a - b,
        ast.Mult: lambda a, b: a * b,
        ast.Div: lambda a, b: a / b,
        ast.FloorDiv: lambda a, b: a // b,
    }

    def value(node: ast.AST) -> float:
        if isinstance(node, ast.BinOp) and type(node.op) in operators:
            return float(operators[type(node.op)](value(node.left), value(node.right)))
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return float(node.value)
        return float(known[ast.unparse(node)])

    try:
        return value(ast.parse(expression, mode="eval").body)
    except (SyntaxError, KeyError, ZeroDivisionError, ValueError):
        return None
