"""The mean and variance of q . k, and why scores are divided by sqrt(d) (Vaswani et al. 2017, 3.2.1).

Dashed lines are predictions. Doubling d does not double the mean where mu is 0: it stays 0.
"""

import torch

from regard.attention import ScoreRule
from regard.lab.spec import Lab, Measurement

CLAIM = """For independent q and k of mean mu and deviation sigma, E[q.k] = d mu^2 and Var[q.k] = d (sigma^4 +
2 mu^2 sigma^2); dividing by sqrt(d) makes the variance 1 for mu = 0, sigma = 1."""
PREDICTION = """Every mean and variance has the formula's value in its interval; scaled, the variance is 1 at
every d; doubling d keeps the mean at 0 and doubles the variance."""


def _moments(
    lab: Lab, name: str, d: int, mu: float = 0.0, sigma: float = 1.0, scale: float | None = 1.0
) -> tuple[Measurement, Measurement]:
    """Mean and variance of scores of independent pairs, as the library makes them.

    The variance's interval is that of the mean of squared deviations.
    """
    n_pair = 4_000 if lab.quick else 60_000
    q, k = (mu + sigma * torch.randn(n_pair, 1, 1, d, dtype=torch.float64) for _ in range(2))
    scores = ScoreRule(scale=scale).scores(q, k).flatten()
    mean = lab.mean(f"mean, {name}", scores.tolist())
    return mean, lab.mean(f"variance, {name}", ((scores - scores.mean()) ** 2).tolist())


def run(lab: Lab) -> None:
    dims = (16, 64) if lab.quick else (8, 16, 32, 64, 128, 256)
    cases = ((0.0, 1.0), (0.5, 1.0)) if lab.quick else ((0.0, 1.0), (0.5, 1.0), (0.5, 0.5))
    means: dict[str, tuple[Measurement, ...]] = {}
    variances: dict[str, tuple[Measurement, ...]] = {}
    of_mean, of_variance = [], []
    for mu, sigma in cases:
        name = f"mu {mu}, sigma {sigma}"
        moments = [_moments(lab, f"{name}, d {d}", d, mu, sigma) for d in dims]
        means[name], variances[name] = zip(*moments, strict=True)
        of_mean.append([d * mu**2 for d in dims])
        of_variance.append([d * (sigma**4 + 2 * mu**2 * sigma**2) for d in dims])
    scaled = {"measured": tuple(_moments(lab, f"scaled, d {d}", d, scale=None)[1] for d in dims)}
    panels = (
        ("Mean of q . k", "d mu^2", means, of_mean),
        ("Variance of q . k", "d (sigma^4 + 2 mu^2 sigma^2)", variances, of_variance),
        ("After scaling", "1", scaled, [[1.0] * len(dims)]),
    )
    for title, law, lines, formulas in panels:
        ax = lab.draw.lines(title, dims, lines, "dimension d", "", log="x")
        for index, (numbers, formula) in enumerate(zip(lines.values(), formulas, strict=True)):
            lab.draw.predicted(dims, formula, index=index)
            for number, expected in zip(numbers, formula, strict=True):
                lab.near(f"{number.name} is {law}", number, expected)
    ax.set_ylim(0, 2)
    d = dims[-1]
    (_, once), (mean, twice) = (_moments(lab, f"d {size}, mu 0", size) for size in (d, 2 * d))
    ratio = Measurement("variance at 2d over d", twice / once, twice.low / once.high, twice.high / once.low)
    lab.keep(ratio)
    lab.near("doubling d leaves the mean at 0", mean, 0.0)
    lab.near("doubling d doubles the variance", ratio, 2.0)
