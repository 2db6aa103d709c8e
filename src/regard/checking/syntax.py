"""Python's parser, one thread at a time: it counts its depth for the whole process.

Two threads that parse at once may get "SystemError: AST constructor recursion depth mismatch" (CPython 3.11).
"""

from __future__ import annotations

import ast
import threading
from typing import Literal, overload

_lock = threading.Lock()


@overload
def parsed(source: str, mode: Literal["exec"] = "exec") -> ast.Module: ...
@overload
def parsed(source: str, mode: Literal["eval"]) -> ast.Expression: ...
def parsed(source: str, mode: Literal["exec", "eval"] = "exec") -> ast.AST:
    """The syntax tree of a source."""
    with _lock:
        return ast.parse(source, mode=mode)
