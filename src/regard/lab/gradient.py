"""How fast the gradient through softmax falls with the size of a head, without and with the scaling.

Queries and 64 keys are standard normal. The gradient is that of the weights by the scores, diag(w) - w w^T,
and its size the Frobenius norm. A claim of textbooks that does not hold as it is said stands here as such.
"""

import math

import torch

from regard.attention import ScoreRule, weights
from regard.lab.spec import Lab, Measurement

CLAIM = """Without the division by the root of d, the gradient through softmax is smaller than with it at
every size of a head, and dies at least as fast as 1 / d."""
PREDICTION = """At every d the unscaled gradient is surely below the scaled one; from each d to four times it,
it falls at least to three eighths, half-way between the quarter of 1 / d and the half of 1 / sqrt(d)."""

N_KEY = 64
FALL = 3 / 8  # as d becomes 4 d: a quarter would be 1 / d, a half 1 / sqrt(d)


def _gradient(lab: Lab, name: str, scale: float | None, d: int, n_row: int) -> Measurement:
    """Measure the mean norm of the Jacobian of a row of weights by its scores."""
    q = torch.randn(n_row, 1, 1, d, dtype=torch.float64)
    k = torch.randn(n_row, 1, N_KEY, d, dtype=torch.float64)
    w = weights(q, k, ScoreRule(scale=scale))[:, 0, 0]
    # |diag(w) - w w^T|^2 = sum w^2 - 2 sum w^3 + (sum w^2)^2
    squares = w.square().sum(-1)
    norm = (squares - 2 * w.pow(3).sum(-1) + squares.square()).clamp(min=0).sqrt()
    return lab.mean(f"gradient, {name}, d = {d}", norm.tolist())


def run(lab: Lab) -> None:
    dims = (4, 16, 64, 256, 1024)
    n_row = 400 if lab.quick else 3000
    scaled = [_gradient(lab, "scaled", None, d, n_row) for d in dims]
    unscaled = [_gradient(lab, "unscaled", 1.0, d, n_row) for d in dims]
    lines = {"scaled": scaled, "not scaled": unscaled}
    lab.draw.lines("Gradient through softmax", dims, lines, "size of a head, d", "norm", log="xy")
    root = [unscaled[-1].plain * math.sqrt(dims[-1] / d) for d in dims]
    lab.draw.predicted(dims, root, "1 / sqrt(d)", 1)
    for d, bare, ours in zip(dims, unscaled, scaled, strict=True):
        lab.below(f"at d = {d} the unscaled gradient is smaller than the scaled one", bare, ours)
    for d, bare, further in zip(dims, unscaled, unscaled[1:], strict=False):
        what = f"from d = {d} to {4 * d} the unscaled gradient falls as 1 / d, or faster"
        lab.below(what, further, FALL * bare)
    fall = unscaled[-1] / unscaled[-2]
    lab.keep(Measurement("fall of the unscaled gradient from d = 256 to 1024", fall, fall.low, fall.high))
