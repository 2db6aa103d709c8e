"""Sums of products of sizes: one object that prints as a formula and gives the number.

    b, n, d = symbols("b n d")
    work = 2 * b * n * d + b * d**2
    str(work), work.value({"b": 8, "n": 100, "d": 64})

So what is shown and what is computed cannot differ. Powers may be negative: d / h is the size of a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from regard.errors import ArgumentError

Powers = tuple[tuple[str, int], ...]  # symbol and its power, sorted by symbol; no power is 0

_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
# How a term is written: how many times first, sizes last.
ORDER = "L W E b t n w m h g p c r k v f d V".split()


@dataclass(frozen=True, slots=True)
class Formula:
    """A sum of terms, each a number times symbols with whole powers."""

    terms: tuple[tuple[Powers, Fraction], ...] = ()

    def __add__(self, other: Formula | int) -> Formula:
        return _gathered([*self.terms, *_formula(other).terms])

    __radd__ = __add__

    def __mul__(self, other: Formula | int) -> Formula:
        found = []
        for left, by in self.terms:
            for right, times in _formula(other).terms:
                powers = dict(left)
                for symbol, power in right:
                    powers[symbol] = powers.get(symbol, 0) + power
                found.append((_sorted(powers), by * times))
        return _gathered(found)

    __rmul__ = __mul__

    def __truediv__(self, other: Formula | int) -> Formula:
        """Division by one term."""
        below = _formula(other)
        if len(below.terms) != 1 or not below.terms[0][1]:
            raise ArgumentError(f"a formula is divided by one term that is not 0. Got {below}.")
        ((powers, by),) = below.terms
        return self * Formula(((_sorted({symbol: -power for symbol, power in powers}), 1 / by),))

    def __pow__(self, power: int) -> Formula:
        out = _formula(1)
        for _ in range(power):
            out = out * self
        return out

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

    def leading(self, *, maybe_zero: str = "n", ascending: str = "g h d") -> Formula:
        """The terms that no other can be shown to cover, without their numbers: what stands inside O( ).

        Every size is at least 1, except `maybe_zero`; each of `ascending` is at most the next.

        >>> b, n, d, h = symbols("b n d h")
        >>> str((b * d * d + 7 * b * n * d + b * n * h + b * d).leading())
        'b n d + b d²'
        """
        bare = [Formula(((powers, Fraction(1)),)) for powers, factor in self.terms if factor > 0]

        def covers(large: Formula, small: Formula) -> bool:
            powers = dict((large / small).terms[0][0])
            for few, many in pairwise(ascending.split()):
                if powers.get(few, 0) < 0:
                    powers[many] = powers.get(many, 0) + powers.pop(few)
            return powers.get(maybe_zero, 0) == 0 and all(power >= 0 for power in powers.values())

        kept = [
            each
            for index, each in enumerate(bare)
            if not any(
                covers(other, each) and (not covers(each, other) or place < index)
                for place, other in enumerate(bare)
                if place != index
            )
        ]
        return sum(kept, Formula())

    def __str__(self) -> str:
        return " + ".join(_written(powers, factor) for powers, factor in self.terms) or "0"


def symbols(names: str) -> tuple[Formula, ...]:
    """One formula for each name.

    >>> b, d = symbols("b d")
    >>> str(2 * b * d * (d + 3))
    '6 b d + 2 b d²'
    """
    return tuple(Formula((((((name, 1),), Fraction(1))),)) for name in names.split())


def _formula(value: Formula | int) -> Formula:
    return value if isinstance(value, Formula) else Formula((((), Fraction(value)),))


def _place(symbol: str) -> tuple[int, str]:
    return (ORDER.index(symbol) if symbol in ORDER else len(ORDER), symbol)


def _sorted(powers: Mapping[str, int]) -> Powers:
    return tuple(sorted(((s, p) for s, p in powers.items() if p), key=lambda each: _place(each[0])))


def _gathered(terms: list[tuple[Powers, Fraction]]) -> Formula:
    total: dict[Powers, Fraction] = {}
    for powers, factor in terms:
        total[powers] = total.get(powers, Fraction(0)) + factor
    kept = [(powers, factor) for powers, factor in total.items() if factor]
    # The fewest sizes first, as one would write it by hand.
    kept.sort(key=lambda each: (sum(p for _, p in each[0]), [_place(s) for s, _ in each[0]]))
    return Formula(tuple(kept))


def _written(powers: Powers, factor: Fraction) -> str:
    above = [s if p == 1 else s + str(p).translate(_SUPERSCRIPT) for s, p in powers if p > 0]
    below = [s if p == -1 else s + str(-p).translate(_SUPERSCRIPT) for s, p in powers if p < 0]
    if factor.numerator != 1 or not above:
        above.insert(0, str(factor.numerator))
    if factor.denominator != 1:
        below.insert(0, str(factor.denominator))
    text = " ".join(above)
    return text if not below else f"{text} / {below[0] if len(below) == 1 else '(' + ' '.join(below) + ')'}"
