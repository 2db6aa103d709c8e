"""What an experiment is, and the rules that turn measurements into a verdict.

A verdict is computed: "confirmed" where every prediction holds by its rule, else "refuted". The rules:

    near     the predicted number lies within the measurement's interval, widened by a stated slack
    equal    the same up to rounding
    above    the whole interval of one measurement lies above the other's
    below    likewise
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch
from matplotlib.figure import Figure

from regard.errors import ArgumentError

Verdict = Literal["confirmed", "refuted"]
# Half an interval in standard errors. Chance alone leaves it once in sixteen thousand where values are many,
# and three times in a hundred where they are only four (Student's t).
Z = 4.0


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

    @classmethod
    def mean(cls, name: str, values: Sequence[float | int], unit: str = "") -> Measurement:
        """The mean of independent values, with `Z` standard errors on either side."""
        values = [float(value) for value in values]
        if len(values) < 2:
            raise ArgumentError(f"an uncertainty needs two values at least. Got {len(values)} for {name!r}.")
        if not all(map(math.isfinite, values)):  # nothing holds of what could not be measured
            return cls(name, math.nan, math.nan, math.nan, unit)
        value = statistics.fmean(values)
        half = Z * statistics.stdev(values) / math.sqrt(len(values))
        return cls(name, value, value - half, value + half, unit)

    @classmethod
    def difference(
        cls, name: str, values: Sequence[float], others: Sequence[float], unit: str = ""
    ) -> Measurement:
        """The mean of how much larger each value is than the other that belongs to it."""
        return cls.mean(name, [a - b for a, b in zip(values, others, strict=True)], unit)

    @classmethod
    def share(cls, name: str, n_right: int, n: int) -> Measurement:
        """A share of independent trials, with Wilson's interval at `Z`."""
        if not 0 <= n_right <= n or not n:
            raise ArgumentError(f"a share needs 0 <= n_right <= n, n above 0. Got {n_right} of {n}.")
        rate, spread = n_right / n, Z * Z / n
        middle = (rate + spread / 2) / (1 + spread)
        half = Z * math.sqrt(rate * (1 - rate) / n + spread / (4 * n)) / (1 + spread)
        return cls(name, rate, min(rate, middle - half), max(rate, middle + half))

    def __str__(self) -> str:
        number = f"{self.value:.4g}{self.unit and ' ' + self.unit}"
        if self.low == self.high:
            return number
        return f"{number} ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True, slots=True)
class Check:
    """One prediction and whether it holds, with the rule that decided."""

    what: str
    rule: str
    measured: str
    holds: bool


def near(what: str, measured: Measurement, predicted: float | int, *, slack: float = 0.0) -> Check:
    """`predicted` lies in the interval, widened by `slack`, a share of it, where theory is approximate."""
    room = slack * abs(predicted)
    holds = measured.low - room <= predicted <= measured.high + room  # NaN never holds
    rule = f"{predicted:.4g} lies in the interval" + (f", widened by {slack:.0%}" if slack else "")
    return Check(what, rule, str(measured), holds)


def equal(what: str, measured: float | int, predicted: float | int, *, rounding: float = 0.0) -> Check:
    """The same, up to `rounding` of it (of 1 where it is smaller)."""
    holds = abs(measured - predicted) <= rounding * max(1.0, abs(predicted))
    rule = f"equals {predicted:.6g}" + (f" to {rounding:.0e}" if rounding else " exactly")
    return Check(what, rule, f"{measured:.6g}", holds)


def above(what: str, measured: Measurement, other: Measurement | float | int) -> Check:
    """Surely larger: even its lower end is above the other's upper end."""
    bar = _bar(other)
    return Check(what, f"surely above {bar.name}{bar}", str(measured), measured.low > bar.high)


def below(what: str, measured: Measurement, other: Measurement | float | int) -> Check:
    """Surely smaller."""
    bar = _bar(other)
    return Check(what, f"surely below {bar.name}{bar}", str(measured), measured.high < bar.low)


def _bar(other: Measurement | float | int) -> Measurement:
    """What a measurement is compared with, named for a sentence; a plain number needs no name."""
    if isinstance(other, Measurement):
        return replace(other, name=f"{other.name}, ")
    return Measurement.exact("", other)


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What an experiment measured, and which of its predictions hold."""

    measurements: Sequence[Measurement]
    checks: Sequence[Check]
    figure: Figure
    summary: str  # what was seen, in numbers: the second half of the sentence
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.checks:
            raise ArgumentError("an experiment without a prediction that can fail has no verdict.")

    @property
    def verdict(self) -> Verdict:
        """Computed from the checks alone."""
        return "confirmed" if all(check.holds for check in self.checks) else "refuted"

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        failed = [check for check in self.checks if not check.holds]
        if not failed:
            return f"Confirmed: {self.summary}."
        first = failed[0]
        return (
            f"Refuted: {len(failed)} of {len(self.checks)} predictions fail, first that {first.what} "
            f"({first.rule}): measured {first.measured}."
        )


@dataclass(frozen=True, slots=True)
class Experiment:
    """A claim that can be tested."""

    id: str
    claim: str
    prediction: str
    run: Callable[[bool, int], Result]  # (quick, seed)
    needs: tuple[str, ...] = ()  # models to be downloaded


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """An experiment that was run."""

    experiment: Experiment
    result: Result
    quick: bool
    seed: int
    seconds: float

    def as_json(self) -> dict[str, object]:
        """All numbers, for a script; a number that is not finite is None."""
        return {
            "id": self.experiment.id,
            "claim": self.experiment.claim,
            "prediction": self.experiment.prediction,
            "verdict": self.result.verdict,
            "sentence": self.result.sentence,
            "measurements": [
                {key: None if value in (math.inf, -math.inf) or value != value else value
                 for key, value in asdict(measurement).items()}
                for measurement in self.result.measurements
            ],
            "checks": [asdict(check) for check in self.result.checks],
            "notes": list(self.result.notes),
            "quick": self.quick,
            "seed": self.seed,
            "seconds": round(self.seconds, 2),
        }  # fmt: skip


def perform(experiment: Experiment, *, quick: bool = False, seed: int = 0) -> Done:
    """Run it: the seed alone decides what is drawn, and the caller's random numbers go on undisturbed."""
    began = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        result = experiment.run(quick, seed)
    return Done(experiment, result, quick, seed, time.perf_counter() - began)
