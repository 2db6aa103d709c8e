"""What an experiment is, and the rules that turn measurements into a verdict.

An experiment is a file with its CLAIM, its PREDICTION and `run(lab)`, which measures, draws and checks with
the `Lab`. Its docstring says how it is done, in the report too. Every check is decided by intervals:

    near     the predicted number lies within the measurement's interval, widened by a stated slack
    equal    the same up to rounding
    above    holds if the whole interval of one measurement lies above the other's, fails if it lies
             below, and is undecided if they overlap
    below    likewise

The verdict is computed: "refuted" if any prediction fails, "undecided" if none fails and some cannot be
decided, "confirmed" if all hold. What is checked last is told in the verdict's sentence.
"""

from __future__ import annotations

import math
import operator
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import torch
from torch import Tensor

from regard.errors import ArgumentError, plural
from regard.lab.drawing import Number, Panels, interval

Verdict = Literal["confirmed", "refuted", "undecided"]
Outcome = Literal["holds", "fails", "undecided"]
# Half an interval in standard errors. Chance alone leaves it once in sixteen thousand where values are many,
# and three times in a hundred where they are only four (Student's t).
Z = 4.0
TOLD = 3  # checks that the sentence of a verdict tells


class Measurement(float):
    """A number with a name and an interval; one that is counted, not sampled, has no width.

    It is used as any number is, and sums, differences, products and ratios of it have intervals again. What
    is checked must not be made plain before: a test looks for `float` and `.plain` in the arguments.

    Attributes:
        name: What was measured.
        low: The lower end of its interval.
        high: The upper end.
        unit: What it is counted in.
    """

    name: str
    low: float
    high: float
    unit: str

    def __new__(
        cls, name: str, value: Number, low: Number | None = None, high: Number | None = None, unit: str = ""
    ) -> Measurement:
        number = _plain(value)
        self = super().__new__(cls, number)
        self.name, self.unit = name, unit
        self.low, self.high = (number if end is None else _plain(end) for end in (low, high))
        return self

    @property
    def plain(self) -> float:
        """Return the number without its interval."""
        return float.__float__(self)

    def _combined(
        self, other: object, how: Callable[[float, float], float], turned: bool = False
    ) -> Measurement:
        """Combine with a number or a measurement; every combination of their ends is in the interval."""
        if not isinstance(other, float | int):
            return NotImplemented  # type: ignore[no-any-return]
        ends = [(a, b) for a in interval(self) for b in interval(other)]
        values = [how(_plain(b), _plain(a)) if turned else how(_plain(a), _plain(b)) for a, b in ends]
        pair = (_plain(other), self.plain) if turned else (self.plain, _plain(other))
        return Measurement(self.name, how(*pair), min(values), max(values), self.unit)

    def __add__(self, other: object) -> Measurement:
        return self._combined(other, operator.add)

    def __radd__(self, other: object) -> Measurement:
        return self._combined(other, operator.add, turned=True)

    def __sub__(self, other: object) -> Measurement:
        return self._combined(other, operator.sub)

    def __rsub__(self, other: object) -> Measurement:
        return self._combined(other, operator.sub, turned=True)

    def __mul__(self, other: object) -> Measurement:
        return self._combined(other, operator.mul)

    def __rmul__(self, other: object) -> Measurement:
        return self._combined(other, operator.mul, turned=True)

    def __truediv__(self, other: object) -> Measurement:
        return self._combined(other, _ratio)

    def __rtruediv__(self, other: object) -> Measurement:
        return self._combined(other, _ratio, turned=True)

    def __str__(self) -> str:
        number = f"{self:.4g}{self.unit and ' ' + self.unit}"
        return number if self.low == self.high else f"{number} ({self.low:.3g} to {self.high:.3g})"

    def as_json(self) -> dict[str, float | str | None]:
        """Return it for a script; a number that is not finite is None."""
        ends = {"value": self.plain, "low": self.low, "high": self.high}
        finite = {key: number if math.isfinite(number) else None for key, number in ends.items()}
        return {"name": self.name, **finite, "unit": self.unit}


def _plain(number: Number) -> float:
    """Return a number without its interval, where it has one."""
    return number.plain if isinstance(number, Measurement) else float(number)


def _ratio(a: float, b: float) -> float:
    """Return a / b, and NaN for b = 0: an interval that reaches 0 bounds no ratio."""
    return a / b if b else math.nan


@dataclass(frozen=True, slots=True)
class LabCheck:
    """One prediction and whether it holds, with the rule that decided.

    Attributes:
        what: The prediction, as a sentence.
        rule: What must be so, as "above 0.5".
        measured: What was measured, with its interval.
        outcome: Whether it holds, fails or cannot be decided by these intervals.
    """

    what: str
    rule: str
    measured: str
    outcome: Outcome

    @property
    def holds(self) -> bool:
        """Return whether the prediction holds."""
        return self.outcome == "holds"


@dataclass(frozen=True, slots=True)
class Experiment:
    """A claim that can be tested."""

    id: str
    claim: str
    prediction: str
    run: Callable[[Lab], None]
    note: str = ""  # how it is done


@dataclass(slots=True, eq=False)
class Lab:
    """One run of an experiment: what it measured and drew, and which of its predictions hold."""

    experiment: Experiment
    quick: bool = False
    seed: int = 0
    measurements: list[Measurement] = field(default_factory=list)
    checks: list[LabCheck] = field(default_factory=list)
    draw: Panels = field(default_factory=Panels)
    seconds: float = 0.0

    def exact(self, name: str, value: Number, unit: str = "") -> Measurement:
        """A number that is counted or computed."""
        return self.keep(Measurement(name, value, unit=unit))

    def mean(self, name: str, values: Sequence[Number], unit: str = "") -> Measurement:
        """The mean of independent values, with `Z` standard errors on either side."""
        if len(values) < 2:
            raise ArgumentError(f"an uncertainty needs two values at least. Got {len(values)} for {name!r}.")
        if not all(map(math.isfinite, values)):  # nothing holds of what could not be measured
            return self.exact(name, math.nan, unit)
        value = statistics.fmean(values)
        half = Z * statistics.stdev(values) / math.sqrt(len(values))
        return self.keep(Measurement(name, value, value - half, value + half, unit))

    def means(self, name: str, columns: Mapping[int, Sequence[Number]]) -> list[Measurement]:
        """The mean of each column, its number after the name."""
        return [self.mean(f"{name} {number}", column) for number, column in columns.items()]

    def difference(
        self, name: str, values: Sequence[Number], others: Sequence[Number], unit: str = ""
    ) -> Measurement:
        """The mean of how much larger each value is than the other that belongs to it."""
        return self.mean(name, [a - b for a, b in zip(values, others, strict=True)], unit)

    def share(self, name: str, n_right: int, n: int) -> Measurement:
        """A share of independent trials, with Wilson's interval at `Z`."""
        if not 0 <= n_right <= n or not n:
            raise ArgumentError(f"a share needs 0 <= n_right <= n, n above 0. Got {n_right} of {n}.")
        rate, spread = n_right / n, Z * Z / n
        middle = (rate + spread / 2) / (1 + spread)
        half = Z * math.sqrt(rate * (1 - rate) / n + spread / (4 * n)) / (1 + spread)
        return self.keep(Measurement(name, rate, min(rate, middle - half), max(rate, middle + half)))

    def share_right(self, name: str, scores: Tensor, right: Tensor) -> Measurement:
        """The share of examples of which every answer, the one that scores highest, is right."""
        is_right = (scores.argmax(-1) == right).reshape(len(right), -1).all(-1)
        return self.share(name, int(is_right.sum()), len(right))

    def keep(self, measurement: Measurement) -> Measurement:
        """Report this measurement too."""
        self.measurements.append(measurement)
        return measurement

    def near(self, what: str, number: Number, predicted: Number, *, slack: float = 0.0) -> None:
        """Check that `predicted` lies in the interval, widened by a share `slack` of it."""
        room, (low, high) = slack * abs(predicted), interval(number)
        holds = low - room <= predicted <= high + room  # NaN never holds
        rule = f"within reach of {predicted:.4g}" + (f", widened by {slack:.0%}" if slack else "")
        self.checks.append(LabCheck(what, rule, _said(number), "holds" if holds else "fails"))

    def equal(self, what: str, number: Number, predicted: Number, *, rounding: float = 0.0) -> None:
        """Check that both are the same, up to `rounding` of it (of 1 where it is smaller)."""
        holds = abs(_plain(number) - predicted) <= rounding * max(1.0, abs(predicted))
        rule = f"equal to {predicted:.6g}" + (f" to {rounding:.0e}" if rounding else "")
        self.checks.append(LabCheck(what, rule, f"{_plain(number):.6g}", "holds" if holds else "fails"))

    def above(self, what: str, number: Number, other: Number) -> None:
        """Check that a number is surely larger: even its lower end is above the other's upper end."""
        self._compare(what, "above", number, other)

    def below(self, what: str, number: Number, other: Number) -> None:
        """Check that a number is surely smaller."""
        self._compare(what, "below", number, other)

    def _compare(self, what: str, how: Literal["above", "below"], number: Number, other: Number) -> None:
        smaller, larger = interval(number), interval(other)
        if how == "above":
            smaller, larger = larger, smaller
        outcome: Outcome = "undecided"
        if smaller[1] < larger[0]:
            outcome = "holds"
        elif smaller[0] >= larger[1] or any(math.isnan(end) for end in (*smaller, *larger)):
            outcome = "fails"  # surely the other way round, or not measurable at all
        name = f" (“{other.name}”)" if isinstance(other, Measurement) else ""
        self.checks.append(LabCheck(what, f"{how} {_said(other)}{name}", _said(number), outcome))

    @property
    def verdict(self) -> Verdict:
        """Return the verdict, computed from the checks alone."""
        outcomes = {check.outcome for check in self.checks}
        if "fails" in outcomes:
            return "refuted"
        return "undecided" if "undecided" in outcomes else "confirmed"

    @property
    def sentence(self) -> str:
        """Return the verdict in one sentence."""
        n = len(self.checks)
        if self.verdict == "confirmed":
            seen = [f"{check.what}: {check.measured}, {check.rule}" for check in self.checks[-TOLD:]]
            return f"Confirmed: {'; '.join(seen)}."
        wanted = "fails" if self.verdict == "refuted" else "undecided"
        these = [check for check in self.checks if check.outcome == wanted]
        first = these[0]
        if self.verdict == "refuted":
            verb = "fails" if len(these) == 1 else "fail"
            counted = f"{len(these)} of {plural(n, 'prediction')} {verb}"
            return (
                f"Refuted: {counted}. “{first.what}”: measured {first.measured}, which is not {first.rule}."
            )
        where = " at this length" if self.quick else ""
        counted = f"{len(these)} of {plural(n, 'prediction')} cannot be decided"
        may = f"measured {first.measured}, which may or may not be {first.rule}"
        return f"Undecided{where}: {counted}. “{first.what}”: {may}."

    def as_json(self) -> dict[str, object]:
        """All numbers, for a script."""
        return {
            **{name: getattr(self.experiment, name) for name in ("id", "claim", "prediction")},
            "verdict": self.verdict,
            "sentence": self.sentence,
            "measurements": [measurement.as_json() for measurement in self.measurements],
            "checks": [asdict(check) | {"holds": check.holds} for check in self.checks],
            "notes": [self.experiment.note],
            "quick": self.quick,
            "seed": self.seed,
            "seconds": round(self.seconds, 2),
        }


def _said(number: Number) -> str:
    return str(number) if isinstance(number, Measurement) else f"{number:.4g}"


def perform(experiment: Experiment, *, quick: bool = False, seed: int = 0) -> Lab:
    """Run it: the seed alone decides what is drawn, and the caller's random numbers go on undisturbed."""
    lab = Lab(experiment, quick, seed)
    began = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        experiment.run(lab)
    lab.seconds = time.perf_counter() - began
    if not lab.checks:
        raise ArgumentError("an experiment without a prediction that can fail has no verdict.")
    lab.draw.arrange()
    return lab
