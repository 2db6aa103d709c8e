"""Reference, calls and probes of `moments`."""

from __future__ import annotations

from regard.checking.trials import Case, Trial, worked

# E[qk] = mu^2 and E[q^2 k^2] = (sigma^2 + mu^2)^2 for each of d independent products.
FORMULAS = {
    "mean": "d * mu**2",
    "one": "sigma**4 + 2 * mu**2 * sigma**2",
    "variance": "d * one",
    "shown": "variance",
    "scale": "variance**0.5",
    "order": "mean, shown, scale",
}


def reference(case: Case, **choices: str) -> tuple[float, ...]:
    """Mean and variance of a product of two vectors, and what brings the variance to 1."""
    mu, sigma, d = case.args
    return tuple(map(float, worked(FORMULAS, choices, mu=mu, sigma=sigma, d=d)))


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
