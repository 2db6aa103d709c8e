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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
    bar = other.high if isinstance(other, Measurement) else other
    against = f"{other.name}, {other}" if isinstance(other, Measurement) else f"{other:.4g}"
    return Check(what, f"surely above {against}", str(measured), measured.low > bar)


def below(what: str, measured: Measurement, other: Measurement | float | int) -> Check:
    """Surely smaller."""
    bar = other.low if isinstance(other, Measurement) else other
    against = f"{other.name}, {other}" if isinstance(other, Measurement) else f"{other:.4g}"
    return Check(what, f"surely below {against}", str(measured), measured.high < bar)


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What an experiment found."""

    measurements: tuple[Measurement, ...]
    checks: tuple[Check, ...]
    figure: Figure
    found: str  # what was seen, in numbers: the second half of the sentence
    notes: tuple[str, ...] = ()

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
            return f"Confirmed: {self.found}."
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


def perform(experiment: Experiment, *, quick: bool = False, seed: int = 0) -> Result:
    """Run it: the seed alone decides what is drawn, and the caller's random numbers go on undisturbed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return experiment.run(quick, seed)


def as_json(
    experiment: Experiment, result: Result, *, quick: bool, seed: int, seconds: float
) -> dict[str, Any]:
    """All numbers, for a script; a number that is not finite is None."""
    return {
        "id": experiment.id,
        "claim": experiment.claim,
        "prediction": experiment.prediction,
        "verdict": result.verdict,
        "sentence": result.sentence,
        "measurements": [
            {
                "name": each.name,
                "value": _finite(each.value),
                "low": _finite(each.low),
                "high": _finite(each.high),
                "unit": each.unit,
            }
            for each in result.measurements
        ],
        "checks": [
            {"what": each.what, "rule": each.rule, "measured": each.measured, "holds": each.holds}
            for each in result.checks
        ],
        "notes": list(result.notes),
        "quick": quick,
        "seed": seed,
        "seconds": round(seconds, 2),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
