"""What scaling does to the softmax: its entropy, its largest weight and the gradient through it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend, weights
from regard.lab.drawing import draw, finish, level, panels
from regard.lab.spec import Experiment, Measurement, Result, above, below, near

N_KEY = 64
WHAT = ("entropy", "largest weight", "gradient")
N_HEAD = 8  # scaling by model size divides by sqrt(N_HEAD d) for heads of size d


def _sharpness(d: int, scale: float | None, n_row: int) -> tuple[list[float], list[float], list[float]]:
    """Entropy, largest weight, and gradient to the scores relative to a softmax at ease, row by row."""
    q = torch.randn(n_row, 1, 1, d, dtype=torch.float64)
    k = torch.randn(n_row, 1, N_KEY, d, dtype=torch.float64)
    rule = ScoreRule(scale=scale)
    table = weights(q, k, rule)[:, 0, 0]
    entropy = -(table * table.clamp(min=1e-300).log()).sum(-1)
    # d out / d score_j = w_j (v_j - out): its norm for a value of one random number a key.
    value = torch.randn(n_row, 1, N_KEY, 1, dtype=torch.float64)
    out = attend(q, k, value, rule).out[:, 0, 0]
    slope = (table * (value[:, 0, :, 0] - out)).norm(dim=-1)
    return entropy.tolist(), table.amax(-1).tolist(), slope.tolist()


def run(quick: bool, seed: int) -> Result:
    dims = (16, 256) if quick else (4, 16, 64, 256, 1024)
    n_row = 400 if quick else 3000
    scalings: dict[str, Callable[[int], float | None]] = {
        "scaled by the head's size": lambda d: None,
        "not scaled": lambda d: 1.0,
        "scaled by the model's size": lambda d: 1 / math.sqrt(N_HEAD * d),
    }
    figure, axes = panels("Entropy of a row", "Largest weight", "Gradient to the scores")
    measured: dict[str, list[list[Measurement]]] = {}  # for each scaling and d: entropy, largest, gradient
    for index, (name, scale) in enumerate(scalings.items()):
        measured[name] = [
            [
                Measurement.mean(f"{what}, {name}, d {d}", values)
                for what, values in zip(WHAT, _sharpness(d, scale(d), n_row), strict=True)
            ]
            for d in dims
        ]
        for ax, points in zip(axes, zip(*measured[name], strict=True), strict=True):
            draw(ax, dims, points, name, index)
    for ax, label in zip(axes, ("nats", "weight", "norm"), strict=True):
        ax.set_ylim(bottom=0)
        finish(ax, "size of a head, d", label, legend=ax is axes[0], doublings=dims)
    level(axes[0], math.log(N_KEY), "uniform", dims[0])
    ours, bare, flat = (measured[name] for name in scalings)
    # For scores of variance s^2 and many keys the entropy is log n - s^2 / 2; 64 keys are not quite many.
    log_n = math.log(N_KEY)
    checks = [
        near(f"scaled, the entropy at d = {d} is log n - 1/2", entropy, log_n - 0.5, slack=0.02)
        for d, (entropy, _, _) in zip(dims, ours, strict=True)
    ]
    less = log_n - 0.5 / N_HEAD
    checks += [
        near(f"by the model's size, it is log n - 1/(2 h) at d = {d}", entropy, less, slack=0.02)
        for d, (entropy, _, _) in zip(dims, flat, strict=True)
    ]
    checks += [
        below("unscaled, the entropy at the largest d is a tenth of uniform", bare[-1][0], 0.1 * log_n),
        above("unscaled, the largest weight at the largest d is near 1", bare[-1][1], 0.8),
        below("unscaled, the gradient at the largest d is below the scaled one", bare[-1][2], ours[-1][2]),
        above("by the model's size, a row is flatter than by the head's", flat[-1][0], ours[-1][0]),
    ]
    return Result(
        [point for rows in measured.values() for row in rows for point in row],
        checks,
        figure,
        f"at d = {dims[-1]} the entropy is {ours[-1][0].value:.2f} nats scaled and {bare[-1][0].value:.2f} "
        f"not (uniform: {log_n:.2f}), and the gradient {ours[-1][2].value:.3f} against "
        f"{bare[-1][2].value:.3f}",
        notes=(
            f"{N_KEY} keys; q and k standard normal; {N_HEAD} heads where the model's size is divided by.",
        ),
    )


EXPERIMENT = Experiment(
    "temperature",
    "Scaled by the root of the head's size, softmax is as sharp at any d; unscaled it saturates as d grows "
    "and its gradient dies; scaled by the model's size it is too flat.",
    "Entropy log n - 1/2 at every d when scaled, log n - 1/(2h) by the model's size; unscaled it falls below "
    "a tenth of log n, the largest weight nears 1 and the gradient shrinks.",
    run,
)
