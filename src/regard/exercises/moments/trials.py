"""Reference, calls and probes of `moments`."""

from __future__ import annotations

import math

from regard.checking.trials import Case, Draw, Trial


def reference(case: Case, *, scale: str = "root of the variance") -> tuple[float, float, float]:
    """Worked by hand: E[qk] = mu^2 and E[q^2 k^2] = (sigma^2 + mu^2)^2 for each of d independent products."""
    mu, sigma, d = case.args
    variance = d * (sigma**4 + 2 * mu**2 * sigma**2)
    scales = {
        "root of the variance": math.sqrt(variance),
        "one over it": 1 / math.sqrt(variance),
        "root of d": math.sqrt(d),
        "one over the root of d": 1 / math.sqrt(d),
    }
    return float(d * mu**2), float(variance), scales[scale]


def given(mu: float | int, sigma: float | int, d: int) -> Trial:
    """A trial of three numbers."""

    def make(draw: Draw) -> Case:
        return Case((mu, sigma, draw["d"]))

    return Trial(f"mu {mu}, sigma {sigma}, d {d}", make, {"d": d}, grad=False)


TRIALS = (
    given(0.0, 1.0, 64),
    given(0.0, 1.0, 1),
    given(0.0, 0.5, 7),
    given(0.0, 3.0, 5),
    given(1.5, 1.0, 3),
    given(-2.0, 0.7, 11),
    given(0.3, 2.0, 1),
    given(1, 2, 13),
)
