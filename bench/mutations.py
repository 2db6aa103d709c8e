"""One-edit mechanical mutations of a source: what a slip of the hand makes of a right answer."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt,),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.MatMult: (),
}


@dataclass(frozen=True)
class Mutation:
    """A source with one edit."""

    what: str
    source: str


def mutations(source: str) -> list[Mutation]:
    """Every one-edit mutation: an operator flipped, a constant or an axis changed, a term dropped."""
    tree = ast.parse(source)
    original = ast.unparse(tree)
    found: dict[str, Mutation] = {}
    for position, node in enumerate(ast.walk(tree)):
        for what, change in _changes(node):
            copied = copy.deepcopy(tree)
            target = list(ast.walk(copied))[position]
            replacement = change(target)
            if replacement is not None:
                _Swap(target, replacement).visit(copied)
            text = ast.unparse(ast.fix_missing_locations(copied))
            if text != original and text not in found:
                line = getattr(node, "lineno", 0)
                found[text] = Mutation(f"line {line}: {what}", text)
    return list(found.values())


class _Swap(ast.NodeTransformer):
    """Puts one node in the place of another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


Change = Callable[[ast.AST], ast.AST | None]


def _changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    if isinstance(node, ast.BinOp):
        for other in OPERATORS.get(type(node.op), ()):
            yield f"{_short(node)}: {_sign(node.op)} becomes {_sign(other())}", _with("op", other)
        if isinstance(node.op, ast.Add | ast.Sub):
            yield f"{_short(node)}: the right term dropped", lambda target: target.left  # type: ignore[attr-defined]
            if isinstance(node.op, ast.Add):
                yield f"{_short(node)}: the left term dropped", lambda target: target.right  # type: ignore[attr-defined]
        if isinstance(node.op, ast.Mult | ast.Div):
            yield f"{_short(node)}: the right factor dropped", lambda target: target.left  # type: ignore[attr-defined]
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in OPERATORS.get(type(node.ops[0]), ()):
            yield f"{_short(node)}: {_sign(node.ops[0])} becomes {_sign(other())}", _first_operator(other)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        yield f"{_short(node)}: negation dropped", lambda target: target.operand  # type: ignore[attr-defined]
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield f"{node.value} becomes {not node.value}", _with("value", lambda: not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        for step in (1, -1):
            number = node.value + step
            yield f"{node.value} becomes {number}", _with("value", partial(int, number))
    elif isinstance(node, ast.Constant) and type(node.value) is float and abs(node.value) < 1e3:
        yield f"{node.value} becomes {node.value + 1}", _with("value", lambda: node.value + 1)  # type: ignore[operator]


def _with(field: str, make: Callable[[], object]) -> Change:
    def change(target: ast.AST) -> None:
        setattr(target, field, make())

    return change


def _first_operator(make: Callable[[], ast.AST]) -> Change:
    def change(target: ast.AST) -> None:
        target.ops = [make()]  # type: ignore[attr-defined]

    return change


def _short(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 50 else text[:47] + "..."


def _sign(operator: ast.AST) -> str:
    return {
        ast.Add: "+",
        ast.Sub: "-",
        ast.Mult: "*",
        ast.Div: "/",
        ast.Lt: "<",
        ast.LtE: "<=",
        ast.Gt: ">",
        ast.GtE: ">=",
        ast.Eq: "==",
        ast.NotEq: "!=",
    }.get(type(operator), type(operator).__name__)
