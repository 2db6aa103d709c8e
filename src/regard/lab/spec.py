"""What an experiment is, and the rules that turn measurements into a verdict.

An experiment is a file with its CLAIM, its PREDICTION and `run(lab)`, which measures, draws and checks with
the `Lab`. Its docstring says how it is done, in the report too. What is checked last is said in the sentence
of the verdict, which is computed: "confirmed" where every prediction holds by its rule, else "refuted". The
rules:

    near     the predicted number lies within the measurement's interval, widened by a stated slack
    equal    the same up to rounding
    above    the whole interval of one measurement lies above the other's
    below    likewise
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.lab.drawing import Number, Panels, interval

Verdict = Literal["confirmed", "refuted"]
# Half an interval in standard errors. Chance alone leaves it once in sixteen thousand where values are many,
# and three times in a hundred where they are only four (Student's t).
Z = 4.0
TOLD = 3  # checks that the sentence of a verdict tells


class Measurement(float):
    """A number with a name and an interval; one counted, not sampled, has no width."""

    name: str
    low: float
    high: float
    unit: str

    def __new__(
        cls, name: str, value: Number, low: Number | None = None, high: Number | None = None, unit: str = ""
    ) -> Measurement:
        self = super().__new__(cls, value)
        self.name, self.unit = name, unit
        self.low, self.high = (float(value if end is None else end) for end in (low, high))
        return self

    def __str__(self) -> str:
        number = f"{self:.4g}{self.unit and ' ' + self.unit}"
        return number if self.low == self.high else f"{number} ({self.low:.3g} to {self.high:.3g})"

    def as_json(self) -> dict[str, float | str | None]:
        """For a script; a number that is not finite is None."""
        ends = {"value": float(self), "low": self.low, "high": self.high}
        finite = {key: number if math.isfinite(number) else None for key, number in ends.items()}
        return {"name": self.name, **finite, "unit": self.unit}


@dataclass(frozen=True, slots=True)
class Check:
    """One prediction and whether it holds, with the rule that decided."""

    what: str
    rule: str
    measured: str
    holds: bool


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
    checks: list[Check] = field(default_factory=list)
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
        """`predicted` lies in the interval, widened by a share `slack` of it where theory is approximate."""
        room, (low, high) = slack * abs(predicted), interval(number)
        holds = low - room <= predicted <= high + room  # NaN never holds
        rule = f"{predicted:.4g} lies in the interval" + (f", widened by {slack:.0%}" if slack else "")
        self.checks.append(Check(what, rule, _said(number), holds))

    def equal(self, what: str, number: Number, predicted: Number, *, rounding: float = 0.0) -> None:
        """The same, up to `rounding` of it (of 1 where it is smaller)."""
        holds = abs(number - predicted) <= rounding * max(1.0, abs(predicted))
        rule = f"equals {predicted:.6g}" + (f" to {rounding:.0e}" if rounding else " exactly")
        self.checks.append(Check(what, rule, f"{number:.6g}", holds))

    def above(self, what: str, number: Number, other: Number) -> None:
        """Surely larger: even its lower end is above the other's upper end."""
        self._compare(what, "above", number, other, interval(number)[0] > interval(other)[1])

    def below(self, what: str, number: Number, other: Number) -> None:
        """Surely smaller."""
        self._compare(what, "below", number, other, interval(number)[1] < interval(other)[0])

    def _compare(self, what: str, how: str, number: Number, other: Number, holds: bool) -> None:
        name = f"{other.name}, " if isinstance(other, Measurement) else ""
        self.checks.append(Check(what, f"surely {how} {name}{_said(other)}", _said(number), holds))

    @property
    def verdict(self) -> Verdict:
        """Computed from the checks alone."""
        return "confirmed" if all(check.holds for check in self.checks) else "refuted"

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        failed = [check for check in self.checks if not check.holds]
        if not failed:
            seen = [f"{check.what}: {check.measured}, {check.rule}" for check in self.checks[-TOLD:]]
            return f"Confirmed: {'; '.join(seen)}."
        first = failed[0]
        return (
            f"Refuted: {len(failed)} of {len(self.checks)} predictions fail, first that {first.what} "
            f"({first.rule}): measured {first.measured}."
        )

    def as_json(self) -> dict[str, object]:
        """All numbers, for a script."""
        return {
            **{name: getattr(self.experiment, name) for name in ("id", "claim", "prediction")},
            "verdict": self.verdict,
            "sentence": self.sentence,
            "measurements": [measurement.as_json() for measurement in self.measurements],
            "checks": [asdict(check) for check in self.checks],
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
