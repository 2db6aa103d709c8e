"""The mean and variance of q . k, and why scores are divided by sqrt(d) (Vaswani et al. 2017, 3.2.1)."""

from __future__ import annotations

import torch

from regard.attention.scores import ScoreRule
from regard.lab.drawing import draw, finish, panels
from regard.lab.spec import Check, Experiment, Measurement, Result, near


def _sample(d: int, mu: float, sigma: float, n_pair: int, scale: float | None) -> torch.Tensor:
    """Scores of independent pairs, as the library makes them."""
    q, k = (mu + sigma * torch.randn(n_pair, 1, 1, d, dtype=torch.float64) for _ in range(2))
    return ScoreRule(scale=scale).scores(q, k).flatten()


def _moments(name: str, values: torch.Tensor) -> tuple[Measurement, Measurement]:
    """Mean and variance; the variance's interval is that of the mean of squared deviations."""
    mean = Measurement.mean(f"mean, {name}", values.tolist())
    variance = Measurement.mean(f"variance, {name}", ((values - values.mean()) ** 2).tolist())
    return mean, variance


def run(quick: bool, seed: int) -> Result:
    n_pair = 4_000 if quick else 60_000
    dims = (16, 64) if quick else (8, 16, 32, 64, 128, 256)
    cases = ((0.0, 1.0), (0.5, 1.0)) if quick else ((0.0, 1.0), (0.5, 1.0), (0.5, 0.5))
    checks: list[Check] = []
    measured: list[Measurement] = []
    figure, (mean_ax, variance_ax, scaled_ax) = panels("Mean of q . k", "Variance of q . k", "After scaling")
    for index, (mu, sigma) in enumerate(cases):
        name = f"mu {mu}, sigma {sigma}"
        means, variances = zip(
            *(_moments(f"{name}, d {d}", _sample(d, mu, sigma, n_pair, 1.0)) for d in dims), strict=True
        )
        of_mean = [d * mu**2 for d in dims]
        of_variance = [d * (sigma**4 + 2 * mu**2 * sigma**2) for d in dims]
        for mean, variance, first, second in zip(means, variances, of_mean, of_variance, strict=True):
            checks.append(near(f"{mean.name} is d mu^2", mean, first))
            checks.append(near(f"{variance.name} is d (sigma^4 + 2 mu^2 sigma^2)", variance, second))
        measured += [*means, *variances]
        for ax, points, predicted in ((mean_ax, means, of_mean), (variance_ax, variances, of_variance)):
            draw(ax, dims, points, name, index)
            draw(ax, dims, predicted, "_", index, dashed=True)
    scaled = []
    for d in dims:
        mean, variance = _moments(f"scaled, d {d}", _sample(d, 0.0, 1.0, n_pair, None))
        scaled.append(variance)
        checks.append(near(f"{variance.name} is 1", variance, 1.0))
        measured += [mean, variance]
    draw(scaled_ax, dims, scaled, "measured", 0)
    draw(scaled_ax, dims, [1.0] * len(dims), "predicted", 1, dashed=True)
    scaled_ax.set_ylim(0, 2)
    d = dims[-1]
    once, twice = (_moments(f"d {size}, mu 0", _sample(size, 0.0, 1.0, n_pair, 1.0)) for size in (d, 2 * d))
    checks.append(near("doubling d leaves the mean at 0", twice[0], 0.0))
    low, high = twice[1].low / once[1].high, twice[1].high / once[1].low
    ratio = Measurement("variance at 2d over d", twice[1].value / once[1].value, low, high)
    checks.append(near("doubling d doubles the variance", ratio, 2.0))
    measured += [*twice, ratio]
    for ax in (mean_ax, variance_ax, scaled_ax):
        finish(ax, "dimension d", "", doublings=dims)
    return Result(
        measured,
        checks,
        figure,
        f"after dividing by sqrt(d) the variance is {scaled[-1]} at d = {dims[-1]}, and doubling d "
        f"multiplies the unscaled variance by {ratio.value:.2f} and leaves the mean at {twice[0].value:.2f}",
        notes=(
            "Dashed lines are predictions. Doubling d does not double the mean where mu is 0: it stays 0.",
        ),
    )


EXPERIMENT = Experiment(
    "variance",
    "For independent q and k of mean mu and deviation sigma, E[q.k] = d mu^2 and Var[q.k] = d (sigma^4 + 2 "
    "mu^2 sigma^2); dividing by sqrt(d) makes the variance 1 for mu = 0, sigma = 1.",
    "Every mean and variance has the formula's value in its interval; scaled, the variance is 1 at every d; "
    "doubling d keeps the mean at 0 and doubles the variance.",
    run,
)
