"""What scaling does to the softmax: its entropy and its largest weight.

Queries and 64 keys are standard normal. The model's size is that of 8 heads.
"""

import math

import torch

from regard.attention import ScoreRule, weights
from regard.lab.spec import Lab, Measurement

CLAIM = """Scaled by the root of the head's size, softmax is as sharp at any d; unscaled it saturates as d
grows; scaled by the model's size it is too flat."""
PREDICTION = """Entropy log n - 1/2 at every d when scaled, log n - 1/(2h) by the model's size; unscaled it
falls below a tenth of log n, and the largest weight nears 1."""

N_KEY = 64
N_HEAD = 8  # scaling by model size divides by sqrt(N_HEAD d) for heads of size d
SCALINGS = ("scaled by the head's size", "not scaled", "scaled by the model's size")


def _sharpness(lab: Lab, scaling: str, d: int) -> dict[str, Measurement]:
    """Measure the entropy and the largest weight, means over rows."""
    n_row = 400 if lab.quick else 3000
    scales = (None, 1.0, 1 / math.sqrt(N_HEAD * d))
    rule = ScoreRule(scale=scales[SCALINGS.index(scaling)])
    q = torch.randn(n_row, 1, 1, d, dtype=torch.float64)
    k = torch.randn(n_row, 1, N_KEY, d, dtype=torch.float64)
    table = weights(q, k, rule)[:, 0, 0]
    rows = {
        "entropy": -(table * table.clamp(min=1e-300).log()).sum(-1),
        "largest weight": table.amax(-1),
    }
    return {what: lab.mean(f"{what}, {scaling}, d {d}", of_row.tolist()) for what, of_row in rows.items()}


def run(lab: Lab) -> None:
    dims = (16, 1024) if lab.quick else (4, 16, 64, 256, 1024)
    rows = {scaling: [_sharpness(lab, scaling, d) for d in dims] for scaling in SCALINGS}
    log_n = math.log(N_KEY)
    for what in ("entropy", "largest weight"):
        lines = {scaling: [row[what] for row in of_scaling] for scaling, of_scaling in rows.items()}
        lab.draw.lines(
            f"{what.capitalize()} of a row", dims, lines, "size of a head, d", "", log="x"
        ).set_ylim(bottom=0)
        if what == "entropy":
            lab.draw.level(log_n, "uniform")
    # For scores of variance s^2 and many keys the entropy is log n - s^2 / 2; 64 keys are not quite many.
    for d, sharp, _, even in zip(dims, *rows.values(), strict=True):
        law, flat_law = log_n - 0.5, log_n - 0.5 / N_HEAD
        lab.near(f"scaled, the entropy at d = {d} is log n - 1/2", sharp["entropy"], law, slack=0.02)
        what = f"by the model's size, it is log n - 1/(2 h) at d = {d}"
        lab.near(what, even["entropy"], flat_law, slack=0.02)
    ours, bare, flat = (of_scaling[-1] for of_scaling in rows.values())
    lab.below("unscaled, the entropy at the largest d is a tenth of uniform", bare["entropy"], 0.1 * log_n)
    lab.above("unscaled, the largest weight at the largest d is near 1", bare["largest weight"], 0.8)
    lab.above("by the model's size, a row is flatter than by the head's", flat["entropy"], ours["entropy"])
