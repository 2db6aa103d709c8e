"""Sums of products of sizes: one object that prints as a formula and gives the number.

    b, n, d = symbols("b n d")
    work = 2 * b * n * d + b * d**2
    str(work), work.value({"b": 8, "n": 100, "d": 64})

So what is shown and what is computed cannot differ. Powers may be negative: d / h is the size of a head.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from regard.errors import ArgumentError

Powers = tuple[tuple[str, int], ...]  # symbol and its power, in the order of writing; no power is 0

_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
# How a term is written: how many times first, sizes last.
_ORDER = {symbol: place for place, symbol in enumerate("L E b t n w m h g p c r k v f d V".split())}


@dataclass(frozen=True, slots=True)
class Formula:
    """A sum of terms, each a number times symbols with whole powers."""

    terms: tuple[tuple[Powers, Fraction], ...] = ()

    def __add__(self, other: Formula | int) -> Formula:
        return _gathered([*self.terms, *_formula(other).terms])

    __radd__ = __add__

    def __mul__(self, other: Formula | int) -> Formula:
        others = _formula(other).terms
        return _gathered((left + right, by * times) for left, by in self.terms for right, times in others)

    __rmul__ = __mul__

    def __truediv__(self, other: Formula | int) -> Formula:
        """Division by one term."""
        below = _formula(other)
        if len(below.terms) != 1:
            raise ArgumentError(f"a formula is divided by one term that is not 0. Got {below}.")
        ((powers, by),) = below.terms
        return self * Formula(((tuple((symbol, -power) for symbol, power in powers), 1 / by),))

    def __pow__(self, power: int) -> Formula:
        return math.prod([self] * power, start=_formula(1))

    def value(self, sizes: Mapping[str, int]) -> int:
        """The whole number it is for these sizes."""
        total = Fraction(0)
        for powers, factor in self.terms:
            for symbol, power in powers:
                if symbol not in sizes:
                    raise ArgumentError(f"the formula needs {symbol!r}. Got sizes of {', '.join(sizes)}.")
                factor *= Fraction(sizes[symbol]) ** power
            total += factor
        if total.denominator != 1:
            raise ArgumentError(f"{self} is no whole number for {dict(sizes)}: {total}.")
        return int(total)

    def substituted(self, replaced: Mapping[str, Formula | int]) -> Formula:
        """The formula with these symbols replaced."""
        out = Formula()
        for powers, factor in self.terms:
            term = Formula((((), factor),))
            for symbol, power in powers:
                by = _formula(replaced.get(symbol, symbols(symbol)[0]))
                term = term * by**power if power > 0 else term / by**-power
            out = out + term
        return out

    def leading(self) -> Formula:
        """The terms that no other can be shown to cover, without their numbers: what stands inside O( ).

        Every size is at least 1, except n, which may be 0; g is at most h, and h at most d.

        >>> b, n, d, h = symbols("b n d h")
        >>> str((b * d * d + 7 * b * n * d + b * n * h + b * d).leading())
        'b n d + b d²'
        """
        bare = [Formula(((powers, Fraction(1)),)) for powers, factor in self.terms if factor > 0]
        return sum((term for term in bare if not any(_covers(other, term) for other in bare)), Formula())

    def __str__(self) -> str:
        return " + ".join(_written(powers, factor) for powers, factor in self.terms) or "0"


def symbols(names: str) -> tuple[Formula, ...]:
    """One formula for each name.

    >>> b, d = symbols("b d")
    >>> str(2 * b * d * (d + 3))
    '6 b d + 2 b d²'
    """
    return tuple(Formula(((((name, 1),), Fraction(1)),)) for name in names.split())


def _formula(value: Formula | int) -> Formula:
    return value if isinstance(value, Formula) else _gathered([((), Fraction(value))])


def _gathered(terms: Iterable[tuple[Powers, Fraction]]) -> Formula:
    """The sum of terms, in which a symbol may come again; the fewest sizes first, as one writes by hand."""
    total: defaultdict[Powers, Fraction] = defaultdict(Fraction)
    for factors, number in terms:
        powers: defaultdict[str, int] = defaultdict(int)
        for symbol, power in factors:
            powers[symbol] += power
        total[tuple(sorted(((s, p) for s, p in powers.items() if p), key=_place))] += number
    kept = [(powers, number) for powers, number in total.items() if number]
    kept.sort(key=lambda term: (sum(power for _, power in term[0]), [_place(factor) for factor in term[0]]))
    return Formula(tuple(kept))


def _place(factor: tuple[str, int]) -> tuple[int, str]:
    return _ORDER.get(factor[0], len(_ORDER)), factor[0]


def _covers(large: Formula, small: Formula) -> bool:
    """Whether a term is at least as large as another one, whatever the sizes."""
    powers = dict((large / small).terms[0][0])
    for few, many in pairwise("ghd"):
        if powers.get(few, 0) < 0:
            powers[many] = powers.get(many, 0) + powers.pop(few)
    return large != small and "n" not in powers and all(power >= 0 for power in powers.values())


def _written(powers: Powers, number: Fraction) -> str:
    above = [s if p == 1 else s + str(p).translate(_SUPERSCRIPT) for s, p in powers if p > 0]
    below = [s if p == -1 else s + str(-p).translate(_SUPERSCRIPT) for s, p in powers if p < 0]
    if number.numerator != 1 or not above:
        above.insert(0, str(number.numerator))
    if number.denominator != 1:
        below.insert(0, str(number.denominator))
    text = " ".join(above)
    return text if not below else f"{text} / {below[0] if len(below) == 1 else '(' + ' '.join(below) + ')'}"
