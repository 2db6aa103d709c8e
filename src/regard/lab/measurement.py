"""Numbers with their intervals, and predictions that hold or fail."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measurement:
    """A number with an interval; one counted, not sampled, has no width."""

    name: str
    value: float
    low: float
    high: float
    unit: str = ""

    @classmethod
    def exact(cls, name: str, value: float | int, unit: str = "") -> Measurement:
        """A number that is counted or computed."""
        return cls(name, float(value), float(value), float(value), unit)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec) if spec else str(self)

    def __str__(self) -> str:
        number = f"{self.value:.4g}{self.unit and ' ' + self.unit}"
        if self.low == self.high:
            return number
        return f"{number} ({self.low:.3g} to {self.high:.3g})"


Number = Measurement | float | int


def measured(number: Number) -> Measurement:
    """A plain number as a measurement without a name."""
    return number if isinstance(number, Measurement) else Measurement.exact("", number)


@dataclass(frozen=True, slots=True)
class Check:
    """One prediction and whether it holds, with the rule that decided."""

    what: str
    rule: str
    measured: str
    holds: bool
