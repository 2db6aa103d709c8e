"""Plain code lent to files that leave a part out: what `d2l` gives such homework, and earlier answers.

It lies in `exercises/lent/` as files that need torch alone, separate from the references; an exercise under
check never gets its own name from there. The `d2l` names behave as that package's do: DotProductAttention
returns one tensor.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from regard.checking.child.messages import Lent
from regard.checking.syntax import parsed

FOLDER = Path(__file__).parent.parent / "exercises" / "lent"
IMPORTS = {
    "torch": "import torch",
    "nn": "from torch import nn",
    "F": "from torch.nn import functional as F",
    "math": "import math",
    "np": "import numpy as np",
}
PARTS = ("masked_softmax", "rnn_step", "lstm_step", "gru_step", "DotProductAttention", "AdditiveAttention")
# A part that is made of another.
USES = {"DotProductAttention": ("masked_softmax",), "AdditiveAttention": ("masked_softmax",)}
FRAME = "d2l"  # the classes and functions around the parts in that package


@cache
def _source(name: str) -> str:
    return (FOLDER / f"{name}.py").read_text(encoding="utf-8")


def lent(undefined: frozenset[str], under_check: tuple[str, ...]) -> list[Lent]:
    """What a file uses without defining it, never what is under check.

    >>> [part.name for part in lent(frozenset({"masked_softmax", "torch"}), ("rnn_step",))]
    ['torch', 'masked_softmax']
    """
    wanted = undefined - set(under_check)
    parts = [Lent(name, source) for name, source in IMPORTS.items() if name in wanted]
    for name in PARTS:
        if name in wanted:
            # Helpers of a lent part are its own, and hidden from the file unless it asks for them.
            inner = "".join(_source(helper) for helper in USES.get(name, ()))
            source = inner + _source(name)
            parts.append(Lent(name, _enclosed(name, source) if inner else source))
    frame = [
        Lent(node.name, _enclosed(node.name, _source(FRAME)))
        for node in parsed(_source(FRAME)).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in wanted
    ]
    return parts + frame


def d2l() -> list[str]:
    """The sources that make the lent `d2l`; what is under check is withheld by the loader."""
    return [_source(name) for name in (FRAME, "masked_softmax", "DotProductAttention", "AdditiveAttention")]


def _enclosed(name: str, source: str) -> str:
    """Source that defines `name` alone, with its helpers out of sight."""
    return f"_scope = {{}}\nexec({source!r}, _scope)\n{name} = _scope[{name!r}]\ndel _scope\n"
