"""Python's parser, one thread at a time: it counts its depth for the whole process.

Two threads that parse at once may get "SystemError: AST constructor recursion depth mismatch" (CPython 3.11).
"""

import ast
import threading
from collections.abc import Mapping
from typing import Any, Literal, overload

_lock = threading.Lock()


@overload
def parsed(source: str, mode: Literal["exec"] = "exec") -> ast.Module: ...
@overload
def parsed(source: str, mode: Literal["eval"]) -> ast.Expression: ...
def parsed(source: str, mode: Literal["exec", "eval"] = "exec") -> ast.AST:
    """The syntax tree of a source."""
    with _lock:
        return ast.parse(source, mode=mode)


def formula_names(formulas: Mapping[str, Any]) -> list[str]:
    """The names of all formulas, those in tables too."""
    inside = [name for part in formulas.values() if isinstance(part, dict) for name in formula_names(part)]
    return [*(key.partition("(")[0] for key in formulas), *inside]
