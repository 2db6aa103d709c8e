"""Torch without its compiler: the same results, without minutes of compiling and seconds of importing."""

import importlib
import sys
from types import ModuleType
from typing import Any

import torch
from torch import nn

SHAPES = "torch.fx.experimental.symbolic_shapes"


class _Later(ModuleType):
    """Stands for a module that is slow to import, until more than a few names are asked of it."""

    def __getattr__(self, name: str) -> Any:
        if name == "__path__" and self.__name__ == SHAPES:
            raise AttributeError(name)  # it is no package, as `from ... import` asks first
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def _as_it_is(model: Any = None, *args: Any, **options: Any) -> Any:
    """What decorates a function, or with options alone a decorator, that changes nothing."""
    return (lambda inner: inner) if model is None else model


def _plain(sizes: Any) -> Any:
    return tuple(map(_plain, sizes)) if isinstance(sizes, list | tuple) else sizes


# What the meta device, for sizes that are plain numbers, and the optimizers ask of each module.
KNOWN: dict[str, dict[str, Any]] = {
    "torch._dynamo": {**dict.fromkeys(("disable", "allow_in_graph"), _as_it_is), "graph_break": lambda: None},
    "sympy": {"Basic": type("Basic", (), {})},
    SHAPES: {
        **dict.fromkeys(("guard_or_false", "guard_or_true", "guard_size_oblivious"), bool),
        **dict.fromkeys(("statically_known_true", "expect_true"), bool),
        "is_nested_int": lambda size: False,
        "guarding_hint_or_throw": int,
        "has_guarding_hint": lambda size: True,
        "sym_and": lambda *truths: all(truths),
        "sym_or": lambda *truths: any(truths),
        "sym_eq": lambda first, second: _plain(first) == _plain(second),
    },
}


def leave_out_the_compiler() -> None:
    """Make `torch.compile` give back what it is given, and leave what it needs unimported.

    The meta device asks the compiler to leave its kernels alone, and sympy whether sizes are symbols. The two
    take as long to import as torch itself.
    """
    torch.compile = _as_it_is
    nn.Module.compile = lambda self, *args, **options: None  # type: ignore[method-assign]
    for name, known in KNOWN.items():
        if name not in sys.modules:
            sys.modules[name] = later = _Later(name)
            later.__dict__.update(known)
    torch._dynamo = sys.modules["torch._dynamo"]
