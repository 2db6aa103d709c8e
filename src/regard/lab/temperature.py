"""What scaling does to the softmax: its entropy, its largest weight and the gradient through it."""

from __future__ import annotations

import math

import torch

from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend, weights
from regard.lab.measurement import Measurement
from regard.lab.spec import Lab

CLAIM = """Scaled by the root of the head's size, softmax is as sharp at any d; unscaled it saturates as d
grows and its gradient dies; scaled by the model's size it is too flat."""
PREDICTION = """Entropy log n - 1/2 at every d when scaled, log n - 1/(2h) by the model's size; unscaled it
falls below a tenth of log n, the largest weight nears 1 and the gradient shrinks."""

N_KEY = 64
N_HEAD = 8  # scaling by model size divides by sqrt(N_HEAD d) for heads of size d
SCALINGS = ("scaled by the head's size", "not scaled", "scaled by the model's size")


def _sharpness(lab: Lab, scaling: str, d: int) -> tuple[Measurement, Measurement, Measurement]:
    """Entropy, largest weight, and gradient to the scores, means over rows."""
    n_row = 400 if lab.quick else 3000
    scales = (None, 1.0, 1 / math.sqrt(N_HEAD * d))
    rule = ScoreRule(scale=scales[SCALINGS.index(scaling)])
    q = torch.randn(n_row, 1, 1, d, dtype=torch.float64)
    k = torch.randn(n_row, 1, N_KEY, d, dtype=torch.float64)
    table = weights(q, k, rule)[:, 0, 0]
    entropy = -(table * table.clamp(min=1e-300).log()).sum(-1)
    # d out / d score_j = w_j (v_j - out): its norm for a value of one random number a key.
    value = torch.randn(n_row, 1, N_KEY, 1, dtype=torch.float64)
    out = attend(q, k, value, rule).out[:, 0, 0]
    slope = (table * (value[:, 0, :, 0] - out)).norm(dim=-1)
    return (
        lab.mean(f"entropy, {scaling}, d {d}", entropy.tolist()),
        lab.mean(f"largest weight, {scaling}, d {d}", table.amax(-1).tolist()),
        lab.mean(f"gradient, {scaling}, d {d}", slope.tolist()),
    )


def run(lab: Lab) -> str:
    dims = (16, 256) if lab.quick else (4, 16, 64, 256, 1024)
    rows = {scaling: [_sharpness(lab, scaling, d) for d in dims] for scaling in SCALINGS}
    log_n = math.log(N_KEY)
    panels = (("Entropy of a row", "nats"), ("Largest weight", "weight"), ("Gradient to the scores", "norm"))
    for index, (title, unit) in enumerate(panels):
        lines = {scaling: [row[index] for row in rows[scaling]] for scaling in SCALINGS}
        ax = lab.draw.lines(title, dims, lines, "size of a head, d", unit, log_x=True)
        ax.set_ylim(bottom=0)
        if index == 0:
            lab.draw.level(log_n, "uniform")
    ours, bare, flat = rows.values()
    # For scores of variance s^2 and many keys the entropy is log n - s^2 / 2; 64 keys are not quite many.
    for d, (sharp, _, _), (even, _, _) in zip(dims, ours, flat, strict=True):
        lab.near(f"scaled, the entropy at d = {d} is log n - 1/2", sharp, log_n - 0.5, slack=0.02)
        less = log_n - 0.5 / N_HEAD
        lab.near(f"by the model's size, it is log n - 1/(2 h) at d = {d}", even, less, slack=0.02)
    lab.below("unscaled, the entropy at the largest d is a tenth of uniform", bare[-1][0], 0.1 * log_n)
    lab.above("unscaled, the largest weight at the largest d is near 1", bare[-1][1], 0.8)
    lab.below("unscaled, the gradient at the largest d is below the scaled one", bare[-1][2], ours[-1][2])
    lab.above("by the model's size, a row is flatter than by the head's", flat[-1][0], ours[-1][0])
    lab.notes += [
        f"{N_KEY} keys; q and k standard normal; {N_HEAD} heads where the model's size is divided by."
    ]
    return (
        f"at d = {dims[-1]} the entropy is {ours[-1][0]:.2f} nats scaled and {bare[-1][0]:.2f} not (uniform: "
        f"{log_n:.2f}), and the gradient {ours[-1][2]:.3f} against {bare[-1][2]:.3f}"
    )
