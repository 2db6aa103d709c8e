"""Formulas as people type them: are two of them the same, exactly or in big-O?

`2d`, `b n d`, `d^2/h`, `bnd`, `sqrt(d)` are read as they are meant. Exact equality is tried at random points,
where different formulas of this length do not agree. Big-O compares the terms that no other term outgrows.
"""

from __future__ import annotations

import ast
import math
import random
import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

from regard.checking.syntax import parsed
from regard.errors import ArgumentError

FUNCTIONS: dict[str, Callable[..., float]] = {"sqrt": math.sqrt, "log": math.log, "max": max, "min": min}
TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?)|([A-Za-z_]+\d*)|(\*\*|[-+*/^(),]))")
MOST_CHARACTERS = 300
LARGEST_POWER = 12
N_POINT = 8

Monomial = tuple[tuple[str, Fraction], ...]


def parse(text: str, symbols: Iterable[str]) -> ast.expr:
    """The formula as a Python expression of `symbols`; an error in our style for anything else.

    >>> ast.unparse(parse("2d + b n d^2", ["b", "d", "n"]))
    '2 * d + b * n * d ** 2'
    """
    known = set(symbols)
    if len(text) > MOST_CHARACTERS:
        raise ArgumentError(f"a formula has at most {MOST_CHARACTERS} characters. Got {len(text)}.")
    plain = re.sub(r"√\s*([A-Za-z0-9]+)", r"sqrt(\1)", text.strip()).translate(
        {ord("·"): "*", ord("×"): "*", ord("−"): "-", ord("²"): "^2", ord("√"): "sqrt"}
    )
    wrapped = re.fullmatch(r"[OoΘ]\s*\((.*)\)", plain)
    tokens = _tokens(wrapped[1] if wrapped else plain, known)
    joined: list[str] = []
    for token in tokens:
        ends = bool(joined) and (joined[-1] == ")" or joined[-1][0].isalnum()) and joined[-1] not in FUNCTIONS
        if ends and (token == "(" or token[0].isalnum()):
            joined.append("*")
        joined.append("**" if token == "^" else token)
    try:
        tree = parsed(" ".join(joined), "eval").body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ArgumentError(
            f"{text!r} is no formula: write it as in 2*d + n^2, with {_list(known)}."
        ) from error
    _check(tree, text)
    return tree


def _tokens(text: str, known: set[str]) -> list[str]:
    found: list[str] = []
    position = 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            if not text[position:].strip():
                break
            raise ArgumentError(f"{text!r} is no formula: {text[position]!r} does not belong there.")
        number, name, sign = match.groups()
        if name and name not in known and name not in FUNCTIONS:
            letters = _split(name, known)
            if letters is None:
                raise ArgumentError(f"{name!r} is none of the symbols: use {_list(known)}.")
            found += letters
        else:
            found.append(number or name or sign)
        position = match.end()
    return found


def _split(name: str, known: set[str]) -> list[str] | None:
    """`bnd` as b, n, d, where each is a symbol."""
    if not name:
        return []
    for length in range(len(name), 0, -1):
        if name[:length] in known:
            rest = _split(name[length:], known)
            if rest is not None:
                return [name[:length], *rest]
    return None


def _check(tree: ast.expr, text: str) -> None:
    allowed = (
        ast.BinOp,
        ast.UnaryOp,
        ast.Constant,
        ast.Name,
        ast.Call,
        ast.Tuple,
        ast.Load,
        ast.operator,
        ast.unaryop,
    )
    for node in ast.walk(tree):
        if not isinstance(node, allowed):
            raise ArgumentError(f"{text!r} is no formula: only + - * / ^, sqrt, log, max and min are read.")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            power = _number(node.right)
            if power is None or abs(power) > LARGEST_POWER:
                raise ArgumentError(f"{text!r}: a power must be a number of at most {LARGEST_POWER}.")


def _number(node: ast.expr) -> Fraction | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        top, bottom = _number(node.left), _number(node.right)
        return None if top is None or not bottom else top / bottom
    return None


def value(tree: ast.expr, at: Mapping[str, float]) -> float:
    """The formula's value where each symbol has a value."""
    if isinstance(tree, ast.Constant):
        return float(tree.value)  # type: ignore[arg-type]
    if isinstance(tree, ast.Name):
        return at[tree.id]
    if isinstance(tree, ast.UnaryOp):
        inner = value(tree.operand, at)
        return -inner if isinstance(tree.op, ast.USub) else inner
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id in FUNCTIONS:
        return float(FUNCTIONS[tree.func.id](*(value(argument, at) for argument in tree.args)))
    if isinstance(tree, ast.BinOp):
        left, right = value(tree.left, at), value(tree.right, at)
        if isinstance(tree.op, ast.Pow):
            return float(left**right)
        if isinstance(tree.op, ast.Div):
            return left / right
        signs: dict[type, float] = {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}
        return signs[type(tree.op)]
    raise ArgumentError("this is no formula: only + - * / ^, sqrt, log, max and min are read.")


def equal(first: str, second: str, symbols: Iterable[str], where: Mapping[str, str] | None = None) -> bool:
    """Whether two formulas agree wherever `where` holds, which writes some symbols in terms of others.

    >>> equal("d (s^4 + 2 m^2 s^2)", "d*s^2*(s^2+2m^2)", ["d", "s", "m"])
    True
    """
    names = list(symbols)
    trees = [parse(text, names) for text in (first, second)]
    bound = {name: parse(text, names) for name, text in (where or {}).items()}
    source = random.Random(7)
    for _ in range(N_POINT):
        at = {name: source.uniform(1.5, 4.5) for name in names}
        for name, tree in bound.items():
            at[name] = value(tree, at)
        try:
            left, right = (value(tree, at) for tree in trees)
        except (ZeroDivisionError, ValueError, OverflowError, TypeError, KeyError):
            return False
        if not math.isclose(left, right, rel_tol=1e-9):
            return False
    return True


def same_order(
    first: str, second: str, symbols: Iterable[str], where: Mapping[str, str] | None = None
) -> bool:
    """Whether two formulas are the same in big-O, all symbols at least 1.

    >>> same_order("O(b d^2 + 3 b n d + b d)", "bd(n + d)", ["b", "n", "d"])
    True
    >>> same_order("n^2 d", "n d", ["n", "d"])
    False
    """
    names = list(symbols)
    bound = {name: parse(text, names) for name, text in (where or {}).items()}
    return _leading(parse(first, names), bound) == _leading(parse(second, names), bound)


def _leading(tree: ast.expr, bound: Mapping[str, ast.expr]) -> set[Monomial]:
    """The terms that no other outgrows."""
    terms = _terms(tree, bound)
    return {term for term in terms if not any(term != other and _outgrows(other, term) for other in terms)}


def _outgrows(large: Monomial, small: Monomial) -> bool:
    powers = dict(large)
    for name, power in small:
        powers[name] = powers.get(name, Fraction(0)) - power
    return all(power >= 0 for power in powers.values())


def _terms(tree: ast.expr, bound: Mapping[str, ast.expr]) -> set[Monomial]:
    """The formula as a sum of products of powers, without their factors."""
    if isinstance(tree, ast.Constant):
        return {()}
    if isinstance(tree, ast.Name):
        return _terms(bound[tree.id], bound) if tree.id in bound else {((tree.id, Fraction(1)),)}
    if isinstance(tree, ast.UnaryOp):
        return _terms(tree.operand, bound)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        if tree.func.id in ("max",):
            return set().union(*(_terms(argument, bound) for argument in tree.args))
        (inner,) = tree.args
        if tree.func.id == "sqrt":
            return {_power(term, Fraction(1, 2)) for term in _terms(inner, bound)}
        if tree.func.id == "log":
            return {((f"log {ast.unparse(inner)}", Fraction(1)),)}
    if isinstance(tree, ast.BinOp):
        left = _terms(tree.left, bound)
        if isinstance(tree.op, ast.Pow):
            power = _number(tree.right)
            assert power is not None
            if power.denominator == 1 and power > 0:
                product: set[Monomial] = {()}
                for _ in range(int(power)):
                    product = {_times(a, b) for a in product for b in left}
                return product
            return {_power(term, power) for term in left}
        right = _terms(tree.right, bound)
        if isinstance(tree.op, ast.Add | ast.Sub):
            return left | right
        if isinstance(tree.op, ast.Mult):
            return {_times(a, b) for a in left for b in right}
        if len(right) == 1:
            return {_times(a, _power(b, Fraction(-1))) for a in left for b in right}
    raise ArgumentError("in big-O write a sum of products, divided by single terms, as in b n d / h + d^2.")


def _times(first: Monomial, second: Monomial) -> Monomial:
    powers: dict[str, Fraction] = {}
    for name, power in (*first, *second):
        powers[name] = powers.get(name, Fraction(0)) + power
    return tuple(sorted((name, power) for name, power in powers.items() if power))


def _power(term: Monomial, power: Fraction) -> Monomial:
    return tuple((name, old * power) for name, old in term)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
