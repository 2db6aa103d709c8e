"""Formulas as people type them: are two of them the same, exactly or in big-O?

`2d`, `b n d`, `d^2/h`, `bnd`, `sqrt(d)` are read as they are meant. Exact equality is tried at random points,
where different formulas of this length do not agree. Big-O compares the terms that no other term outgrows.
"""

import ast
import math
import random
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from regard.checking.syntax import parsed
from regard.errors import ArgumentError

Functions = dict[str, Callable[..., Any]]
FUNCTIONS: Functions = {"sqrt": math.sqrt, "log": math.log, "max": max, "min": min}
# Greek letters have a space beside them, so that they do not run into the next letter.
PLAIN = str.maketrans(
    {"·": "*", "×": "*", "−": "-", "²": "^2", "⁴": "^4", "√": "sqrt", "[": "(", "]": ")"}
    | {"μ": " mu ", "σ": " sigma ", "λ": " lambda ", "φ": " phi "}
)
MOST_CHARACTERS = 300
LARGEST_POWER = 12
N_POINT = 8
NO_VALUE = "it has no value: something is divided by 0, or is the root of a negative number."


def dimensions(text: str, symbols: Iterable[str]) -> list[str]:
    """A shape's dimensions, or a formula alone, as Python that holds nothing but arithmetic of `symbols`.

    >>> dimensions("[b h, n, d^2]", ["b", "d", "h", "n"])
    ['b * h', 'n', 'd ** 2.0']
    """
    if len(text) > MOST_CHARACTERS:
        raise ArgumentError(f"a formula has at most {MOST_CHARACTERS} characters. Got {len(text)}.")
    known = sorted(symbols)
    plain = re.sub(r"√\s*([A-Za-z0-9]+)", r"sqrt(\1)", text.strip()).translate(PLAIN)
    plain = re.sub(r"^[OoΘ]\s*\((.*)\)$", r"\1", plain)
    names = "|".join(map(re.escape, sorted([*known, *FUNCTIONS], key=len, reverse=True)))
    # What lies between the tokens is none: `bnd` is three of them, and `d2` one and a stray number.
    pieces = re.split(rf"((?<![A-Za-z_])\d+(?:\.\d+)?|{names}|\*\*|[-+*/^(),])", plain)
    if stray := "".join(f" {piece} " for piece in pieces[::2]).split():
        raise ArgumentError(f"{stray[0]!r} in {text!r} is no number, sign or symbol: use {', '.join(known)}.")
    joined: list[str] = []
    for token in pieces[1::2]:
        ends = bool(joined) and (joined[-1] == ")" or joined[-1][0].isalnum()) and joined[-1] not in FUNCTIONS
        if ends and (token == "(" or token[0].isalnum()):
            joined.append("*")
        # Whole numbers could grow without end; what is too large as a float is an error.
        joined.append("**" if token == "^" else f"{float(token)}" if token[0].isdigit() else token)
    try:
        body = parsed(" ".join(joined), "eval").body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ArgumentError(
            f"{text!r} is no formula: write it as in 2*d + n^2, or a shape as in (b, n, d/h), with "
            f"{', '.join(known)}."
        ) from error
    parts = body.elts if isinstance(body, ast.Tuple) else [body]
    if max(map(_degree, parts), default=0.0) > LARGEST_POWER:
        raise ArgumentError(f"{text!r}: powers must be numbers, and at most {LARGEST_POWER} in all.")
    return [ast.unparse(part) for part in parts]


def parse(text: str, symbols: Iterable[str]) -> str:
    """One formula as Python.

    >>> parse("2d + b n d^2", ["b", "d", "n"])
    '2.0 * d + b * n * d ** 2.0'
    """
    parts = dimensions(text, symbols)
    if len(parts) != 1:
        raise ArgumentError(f"{text!r} must be one formula. Got {len(parts)}.")
    return parts[0]


def _degree(node: ast.expr) -> float:
    """How many factors multiply at the most: written out, a formula grows with it. A power that is no number
    has no end.
    """
    match node:
        case ast.BinOp(left, ast.Pow(), right):
            with suppress(ArithmeticError, NameError, TypeError, ValueError):
                power = abs(float(evaluated(ast.unparse(right), {})))
                return power * max(1.0, _degree(left))
            return math.inf
        case ast.BinOp(left, ast.Mult() | ast.Div(), right):
            return _degree(left) + _degree(right)
        case ast.BinOp(left, _, right):
            return max(_degree(left), _degree(right))
        case ast.UnaryOp(_, inside):
            return _degree(inside)
        case ast.Call(_, inside):
            return max(map(_degree, inside), default=0.0)
    return float(isinstance(node, ast.Name))


def evaluated(formula: str, at: Mapping[str, Any], functions: Functions = FUNCTIONS) -> Any:
    """The value of what `parse` returned, where each symbol has a value."""
    return eval(formula, {"__builtins__": {}}, {**functions, **at})


def equal(first: str, second: str, symbols: Iterable[str], where: Mapping[str, str] | None = None) -> bool:
    """Whether two formulas agree wherever `where` holds, which writes some symbols in terms of others.

    >>> equal("d (s^4 + 2 m^2 s^2)", "d*s^2*(s^2+2m^2)", ["d", "s", "m"])
    True
    """
    names = list(symbols)
    formulas = [parse(text, names) for text in (first, second)]
    bound = {name: parse(text, names) for name, text in (where or {}).items()}
    source = random.Random(7)
    for _ in range(N_POINT):
        at = {name: source.uniform(1.5, 4.5) for name in names}
        for name, formula in bound.items():
            at[name] = evaluated(formula, at)
        try:
            if not math.isclose(*(evaluated(formula, at) for formula in formulas), rel_tol=1e-9):
                return False
        except (ArithmeticError, ValueError, TypeError):
            return False
    return True


def _symbolic(
    texts: Iterable[str], symbols: Iterable[str], where: Mapping[str, str] | None, **functions: Any
) -> list[Any]:
    """Formulas as sympy has them, of positive symbols; `functions` stand in the place of sympy's own."""
    import sympy  # slow to import

    names = list(symbols)
    at = {name: sympy.Symbol(name, positive=True) for name in names}
    known = {"sqrt": sympy.sqrt, "log": sympy.log, "max": sympy.Max, "min": sympy.Min, **functions}
    for name, text in (where or {}).items():
        at[name] = evaluated(parse(text, names), at, known)
    return [sympy.nsimplify(evaluated(parse(text, names), at, known), rational=True) for text in texts]


def difference(text: str, wanted: str, symbols: Iterable[str], where: Mapping[str, str] | None = None) -> str:
    """How a formula differs from the right one: by a factor, by terms, and at which values.

    >>> difference("d s^2", "d s^4", ["d", "s"])
    'it lacks a factor s^2. At d = 2, s = 3 yours is 18, where it should be 162.'
    """
    import sympy  # slow to import

    try:
        mine, right = _symbolic((text, wanted), symbols, where)
    except ArithmeticError:  # 0/0 of plain numbers
        return NO_VALUE
    if mine.has(sympy.nan, sympy.zoo, sympy.oo, sympy.I):
        return NO_VALUE
    factor = sympy.simplify(right / mine) if mine != 0 else sympy.Integer(0)
    if factor != 0 and not factor.has(sympy.Add):
        named = zip(("lacks a factor", "has a factor too many:"), sympy.fraction(factor), strict=True)
        wrong = [f"{words} {_written(part)}" for words, part in named if part != 1]
    else:
        wrong = []
        terms = [sympy.expand(formula).as_coefficients_dict() for formula in (mine, right)]
        for term in sorted({*terms[0], *terms[1]} - {0}, key=str):
            have, want = (some.get(term, 0) for some in terms)
            if have != want:
                words = (
                    "lacks a" if not have else "has another factor at the" if want else "should not have a"
                )
                wrong.append(f"{words} {'constant term' if term == 1 else f'term in {_written(term)}'}")
    return f"it {' and '.join(wrong)}. {_apart(mine, right, list(symbols))}".rstrip()


def _apart(mine: Any, right: Any, names: list[str]) -> str:
    """Values at which two formulas of sympy differ, the first of a few at which both have a value."""
    free = sorted(mine.free_symbols | right.free_symbols, key=lambda symbol: names.index(symbol.name))
    for first in range(4):
        values = dict(zip(free, (2, 3, 5, 7, 11, 13, 17, 19, 23)[first:], strict=False))
        with suppress(TypeError):  # divided by 0 there, or the root of a negative number
            have, want = (float(formula.subs(values)) for formula in (mine, right))
            if have != want:
                shown = ", ".join(f"{symbol} = {value}" for symbol, value in values.items())
                start = f"At {shown} y" if shown else "Y"
                return f"{start}ours is {have:.4g}, where it should be {want:.4g}."
    return ""


def _written(formula: Any) -> str:
    return str(formula).replace("**", "^").replace("*", " ")


def same_order(
    first: str, second: str, symbols: Iterable[str], where: Mapping[str, str] | None = None
) -> bool:
    """Whether two formulas are the same in big-O, all symbols at least 1.

    >>> same_order("O(b d^2 + 3 b n d + b d)", "bd(n + d)", ["b", "n", "d"])
    True
    >>> same_order("n^2 d", "n d", ["n", "d"])
    False
    """
    import sympy  # slow to import

    def root(part: Any) -> Any:
        return sum(map(sympy.sqrt, sympy.Add.make_args(part)))

    def largest(*parts: Any) -> Any:
        return sum(parts)

    def outgrows(large: Any, small: Any) -> bool:
        return all(power >= 0 for power in (large / small).as_powers_dict().values())

    try:
        orders = []
        for whole in _symbolic((first, second), symbols, where, sqrt=root, max=largest, min=None):
            terms = {term.as_coeff_Mul()[1] for term in sympy.Add.make_args(sympy.expand(whole))}
            if any(base.has(sympy.Add) for term in terms for base in term.as_powers_dict()):
                raise ValueError("divided by a sum")
            smaller = {term for term in terms if any(outgrows(other, term) for other in terms - {term})}
            orders.append(terms - smaller)
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ArgumentError(
            "in big-O write a sum of products, divided by single terms, as in b n d / h + d^2."
        ) from error
    return orders[0] == orders[1]
