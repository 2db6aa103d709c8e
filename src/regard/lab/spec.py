"""What an experiment is, and the rules that turn measurements into a verdict.

An experiment is a file with its CLAIM, its PREDICTION and `run(lab)`, which measures, draws and checks with
the `Lab` and returns what was seen, as half a sentence. A verdict is computed: "confirmed" where every
prediction holds by its rule, else "refuted". The rules:

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
from dataclasses import asdict, dataclass, field
from typing import Literal

import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.lab.drawing import Panels
from regard.lab.measurement import Check, Measurement, Number, measured

Verdict = Literal["confirmed", "refuted"]
# Half an interval in standard errors. Chance alone leaves it once in sixteen thousand where values are many,
# and three times in a hundred where they are only four (Student's t).
Z = 4.0


@dataclass(frozen=True, slots=True)
class Experiment:
    """A claim that can be tested; `run` says what was seen, in numbers: the second half of a sentence."""

    id: str
    claim: str
    prediction: str
    run: Callable[[Lab], str]


@dataclass(slots=True, eq=False)
class Lab:
    """One run of an experiment: what it measured and drew, and which of its predictions hold."""

    experiment: Experiment
    quick: bool = False
    seed: int = 0
    measurements: list[Measurement] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    draw: Panels = field(default_factory=Panels)
    notes: list[str] = field(default_factory=list)
    summary: str = ""
    seconds: float = 0.0

    def exact(self, name: str, value: float | int, unit: str = "") -> Measurement:
        """A number that is counted or computed."""
        return self.keep(Measurement.exact(name, value, unit))

    def mean(self, name: str, values: Sequence[float | int], unit: str = "") -> Measurement:
        """The mean of independent values, with `Z` standard errors on either side."""
        values = [float(value) for value in values]
        if len(values) < 2:
            raise ArgumentError(f"an uncertainty needs two values at least. Got {len(values)} for {name!r}.")
        if not all(map(math.isfinite, values)):  # nothing holds of what could not be measured
            return self.exact(name, math.nan, unit)
        value = statistics.fmean(values)
        half = Z * statistics.stdev(values) / math.sqrt(len(values))
        return self.keep(Measurement(name, value, value - half, value + half, unit))

    def difference(
        self, name: str, values: Sequence[float], others: Sequence[float], unit: str = ""
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

    def near(self, what: str, number: Number, predicted: float | int, *, slack: float = 0.0) -> None:
        """`predicted` lies in the interval, widened by a share `slack` of it where theory is approximate."""
        room, number = slack * abs(predicted), measured(number)
        holds = number.low - room <= predicted <= number.high + room  # NaN never holds
        rule = f"{predicted:.4g} lies in the interval" + (f", widened by {slack:.0%}" if slack else "")
        self.checks.append(Check(what, rule, str(number), holds))

    def equal(self, what: str, number: Number, predicted: float | int, *, rounding: float = 0.0) -> None:
        """The same, up to `rounding` of it (of 1 where it is smaller)."""
        value = measured(number).value
        holds = abs(value - predicted) <= rounding * max(1.0, abs(predicted))
        rule = f"equals {predicted:.6g}" + (f" to {rounding:.0e}" if rounding else " exactly")
        self.checks.append(Check(what, rule, f"{value:.6g}", holds))

    def above(self, what: str, number: Number, other: Number) -> None:
        """Surely larger: even its lower end is above the other's upper end."""
        self._compare(what, "above", number, other, measured(number).low > measured(other).high)

    def below(self, what: str, number: Number, other: Number) -> None:
        """Surely smaller."""
        self._compare(what, "below", number, other, measured(number).high < measured(other).low)

    def _compare(self, what: str, how: str, number: Number, other: Number, holds: bool) -> None:
        bar = measured(other)
        name = bar.name and f"{bar.name}, "  # a plain number needs no name
        self.checks.append(Check(what, f"surely {how} {name}{bar}", str(measured(number)), holds))

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

    def as_json(self) -> dict[str, object]:
        """All numbers, for a script; a number that is not finite is None."""
        return {
            "id": self.experiment.id,
            "claim": self.experiment.claim,
            "prediction": self.experiment.prediction,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "measurements": [
                {key: None if value in (math.inf, -math.inf) or value != value else value
                 for key, value in asdict(measurement).items()}
                for measurement in self.measurements
            ],
            "checks": [asdict(check) for check in self.checks],
            "notes": self.notes,
            "quick": self.quick,
            "seed": self.seed,
            "seconds": round(self.seconds, 2),
        }  # fmt: skip


def perform(experiment: Experiment, *, quick: bool = False, seed: int = 0) -> Lab:
    """Run it: the seed alone decides what is drawn, and the caller's random numbers go on undisturbed."""
    lab = Lab(experiment, quick, seed)
    began = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        lab.summary = experiment.run(lab)
    lab.seconds = time.perf_counter() - began
    if not lab.checks:
        raise ArgumentError("an experiment without a prediction that can fail has no verdict.")
    lab.draw.arrange()
    return lab
