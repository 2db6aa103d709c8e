"""Reference, calls and probes of `moments`."""

from __future__ import annotations

import math

from regard.checking.trials import Case, Trial

Three = tuple[float, float, float]


def reference(
    case: Case,
    *,
    scale: str = "root of the variance",
    mean: str = "d mu^2",
    one: str = "sigma^4 + 2 mu^2 sigma^2",
    times: str = "d",
    order: str = "mean first",
) -> Three:
    """Worked by hand: E[qk] = mu^2 and E[q^2 k^2] = (sigma^2 + mu^2)^2 for each of d independent products."""
    mu, sigma, d = case.args
    means = {
        "d mu^2": d * mu**2,
        "mu^2": mu**2,
        "d mu": d * mu,
        "2 d mu": 2 * d * mu,
        "0": 0,
        "d (mu^2 + sigma^2)": d * (mu**2 + sigma**2),
    }
    of_one = {
        "sigma^4 + 2 mu^2 sigma^2": sigma**4 + 2 * mu**2 * sigma**2,
        "sigma^4": sigma**4,
        "sigma^4 + mu^2 sigma^2": sigma**4 + mu**2 * sigma**2,
        "(sigma^2 + mu^2)^2": (sigma**2 + mu**2) ** 2,
        "(sigma + mu^2)^2 - mu^4": (sigma + mu**2) ** 2 - mu**4,
        "sigma^2 + 2 mu^2 sigma^2": sigma**2 + 2 * mu**2 * sigma**2,
        "sigma^2": sigma**2,
        "sigma^4 + 4 mu^2 sigma^2": sigma**4 + 4 * mu**2 * sigma**2,
        "2 mu^2 sigma^2": 2 * mu**2 * sigma**2,
        "sigma^4 + mu^4": sigma**4 + mu**4,
        "sigma^2 + mu^2": sigma**2 + mu**2,
        "1": 1,
    }[one]
    less = d * (sigma**2 + mu**2) ** 2 - (d * mu**2) ** 2
    variance = {"1": of_one, "d^2": d**2 * of_one, "d, less the squared mean": less}.get(times, d * of_one)
    root = math.sqrt(variance) or math.nan
    scales = {
        "root of the variance": root,
        "one over it": 1 / root,
        "root of d": math.sqrt(d),
        "one over the root of d": 1 / math.sqrt(d),
        "the variance": variance,
        "root of the second moment": math.sqrt(variance + (d * mu**2) ** 2),
        "one over the variance": 1 / variance,
        "fourth root of the variance": math.sqrt(root),
        "d": d,
        "sigma^2 root of d": sigma**2 * math.sqrt(d),
        "sigma root of d": sigma * math.sqrt(d),
    }
    shown = root if times == "its root" else variance
    first, second = (shown, means[mean]) if order == "variance first" else (means[mean], shown)
    return float(first), float(second), float(scales[scale])


def given(mu: float | int, sigma: float | int, d: int) -> Trial:
    """A trial of three numbers."""
    name = f"mu {mu}, sigma {sigma}, d {d}"
    return Trial(name, lambda draw: Case((mu, sigma, draw["d"])), {"d": d}, grad=False)


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
