"""Plain code lent to files that leave a part out: what `d2l` gives such homework, and earlier answers.

`exercises/lent/lent.toml` says what is lent. Earlier answers are right variants of their exercises, and what
the package `d2l` has behaves as that package does: its DotProductAttention returns one tensor. An exercise
under check never gets its own name from there.
"""

import ast
import tomllib
from functools import cache
from typing import Any

from regard.checking.spec import OURS
from regard.checking.syntax import parsed


@cache
def _content() -> dict[str, dict[str, Any]]:
    """Return what lent.toml says: modules by their usual names, earlier answers, the files of d2l."""
    return tomllib.loads((OURS / "lent" / "lent.toml").read_text(encoding="utf-8"))


@cache
def _source(file: str) -> str:
    return (OURS / f"{file}.py").read_text(encoding="utf-8")


def lent(undefined: frozenset[str], under_check: tuple[str, ...]) -> dict[str, str]:
    """What a file uses without defining it, and source that defines it; never what is under check.

    >>> list(lent(frozenset({"masked_softmax", "torch"}), ("rnn_step",)))
    ['torch', 'masked_softmax']
    """
    together = "".join(d2l())
    nodes = [node for node in parsed(together).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    sources = {node.name: together for node in nodes}
    sources |= {name: _source(file) for name, file in _content()["answers"].items()}
    # Source that defines the name alone: what it is made of stays hidden from the file.
    alone = "_scope = {{}}\nexec({1!r}, _scope)\n{0} = _scope[{0!r}]\ndel _scope\n"
    parts = _content()["imports"] | {name: alone.format(name, source) for name, source in sources.items()}
    return {name: parts[name] for name in parts if name in undefined - set(under_check)}


def d2l() -> list[str]:
    """The sources that make the lent `d2l`; what is under check is withheld by the loader."""
    return [_source(file) for file in _content()["d2l"]["files"]]
