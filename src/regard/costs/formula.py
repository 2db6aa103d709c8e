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
    """A sum of terms, each a number times symbols with whole powers.

    Attributes:
        terms: The terms, each as (powers, factor): the symbols with their powers in the order of writing,
            and the number that multiplies them. No terms: 0.
    """

    terms: tuple[tuple[Powers, Fraction], ...] = ()

    def __add__(self, other: Formula | int) -> Formula:
        return _gathered([*self.terms, *_formula(other).terms])

    def __mul__(self, other: Formula | int) -> Formula:
        others = _formula(other).terms
        return _gathered((left + right, by * times) for left, by in self.terms for right, times in others)

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: Formula | int) -> Formula:
        """Divide by a formula of one term."""
        below = _formula(other)
        if len(below.terms) != 1:
            raise ArgumentError(f"a formula is divided by one term that is not 0. Got {below}.")
        return self * below**-1

    def __pow__(self, power: int) -> Formula:
        """Raise to a power: any whole one for a single term, at least 0 for a sum."""
        if len(self.terms) == 1:
            ((powers, by),) = self.terms
            return _gathered([(tuple((symbol, old * power) for symbol, old in powers), by**power)])
        return math.prod([self] * power, start=_formula(1))

    def value(self, sizes: Mapping[str, int]) -> int:
        """Compute the number that the formula gives for these sizes.

        Args:
            sizes: The value of each symbol; symbols that the formula does not have are ignored.

        Returns:
            A whole number.

        Raises:
            ArgumentError: If a symbol has no value, or the result is not a whole number.
        """
        missing = {symbol for powers, _ in self.terms for symbol, _ in powers} - set(sizes)
        if missing:
            raise ArgumentError(f"the formula needs {min(missing)!r}. Got sizes of {', '.join(sizes)}.")
        total = sum(by for _, by in self.substituted(sizes).terms)
        if total != int(total):
            raise ArgumentError(f"{self} is no whole number for {dict(sizes)}: {total}.")
        return int(total)

    def substituted(self, replaced: Mapping[str, Formula | int]) -> Formula:
        """Replace symbols by other formulas or numbers.

        Args:
            replaced: What to put in the place of each symbol; one term where the symbol has a negative power.

        Returns:
            The new formula. Symbols that are not named stay.
        """
        by_name = {name: _formula(value) for name, value in replaced.items()}
        terms = (
            math.prod(
                (by_name.get(s, symbols(s)[0]) ** power for s, power in powers), start=Formula((((), by),))
            )
            for powers, by in self.terms
        )
        return sum(terms, Formula())

    def leading(self) -> Formula:
        """Return the terms that no other term bounds, without their factors: what stands inside O( ).

        Every size is taken to be at least 1, except n, which may be 0; g is at most h, and h at most d.

        Returns:
            The sum of the leading terms.

        Example:
            >>> b, n, d, h = symbols("b n d h")
            >>> str((b * d * d + 7 * b * n * d + b * n * h + b * d).leading())
            'b n d + b d²'
        """
        bare = [Formula(((powers, Fraction(1)),)) for powers, factor in self.terms if factor > 0]
        return sum((term for term in bare if not any(_covers(other, term) for other in bare)), Formula())

    def __str__(self) -> str:
        return " + ".join(_written(powers, factor) for powers, factor in self.terms) or "0"


def symbols(names: str) -> tuple[Formula, ...]:
    """Make one formula for each name.

    Args:
        names: The names of the symbols, separated by spaces.

    Returns:
        The symbols in the same order, each a formula.

    Example:
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
