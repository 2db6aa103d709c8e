"""Exercise: features whose dot product is (q . k + 1) squared."""

from __future__ import annotations

from torch import Tensor

from regard.attention.feature_maps import Quadratic
from regard.exercises.spec import Case, Draw, Exercise, Mistake, Probe, Right, Trial

TASK = """
Find features phi(x) of a vector x such that, for every q and k,

    phi(q) . phi(k) = (q . k + 1)^2

Multiply the square out: it is a sum of products of something of q with the same something of k.

- `quadratic_features(x)`: x (..., d) -> (..., D), on the last axis; whatever stands before it is kept. x
  may be a single vector (d,).
- Any order of the features and any D that works is right: 1 + d + d^2, (d + 1)^2, 1 + d + d(d + 1)/2, ...
  We compare the dot products of features.
"""

STARTER = '''import torch


def quadratic_features(x):
    """x (..., d) -> features (..., D) with phi(q) . phi(k) = (q . k + 1)^2."""
    raise NotImplementedError
'''

STEPS = """import torch

def quadratic_features(x):
    d = x.shape[-1]
    constant = torch.ones_like(x[..., :1])
    linear = 2 ** 0.5 * x
    squares = x ** 2
    i, j = torch.triu_indices(d, d, offset=1, device=x.device)
    crossed = 2 ** 0.5 * x[..., i] * x[..., j]
    return torch.cat([constant, linear, squares, crossed], dim=-1)
"""

OUTER = """import torch

def quadratic_features(x):
    one = torch.ones(*x.shape[:-1], 1, dtype=x.dtype, device=x.device)
    y = torch.cat([x, one], dim=-1)
    return torch.einsum("...i,...j->...ij", y, y).flatten(-2)
"""

LOOP = """import math
import torch

def quadratic_features(x):
    columns = [torch.ones_like(x[..., 0])]
    for i in range(x.shape[-1]):
        columns.append(math.sqrt(2) * x[..., i])
        for j in range(x.shape[-1]):
            columns.append(x[..., i] * x[..., j])
    return torch.stack(columns, -1)
"""

EACH_VECTOR = """import numpy as np
import torch

def quadratic_features(x):
    rows = []
    for v in x.reshape(-1, x.shape[-1]):
        d = v.shape[0]
        root = float(np.sqrt(2))
        pairs = torch.stack([v[i] * v[j] * (1.0 if i == j else root) for i in range(d) for j in range(i + 1)])
        rows.append(torch.cat([pairs, v * 1.4142135623730951, v.new_tensor([1.0])]))
    return torch.stack(rows).reshape(*x.shape[:-1], -1)
"""

DRIVE = """
def drive(answer, q, k):
    first, second = answer(q), answer(k)
    for x, features in ((q, first), (k, second)):
        if features.dim() != x.dim() or features.shape[:-1] != x.shape[:-1]:
            raise ValueError(f"features of x {tuple(x.shape)} must be of shape {tuple(x.shape[:-1])} + (D,), "
                             f"and yours are {tuple(features.shape)}.")
    if q.dim() == 1:
        return first @ second
    return first @ second.transpose(-1, -2)
"""


def reference(case: Case) -> Tensor:
    """Products of our own features."""
    q, k = case.args
    phi = Quadratic(1.0).phi
    if q.dim() == 1:
        return (phi(q[None]) @ phi(k[None]).mT)[0, 0]
    return phi(q) @ phi(k).mT


def pairs(draw: Draw) -> Case:
    return Case((draw.normal("n", "d"), draw.normal("m", "d")))


def batched(draw: Draw) -> Case:
    return Case((draw.normal("batch", "head", "n", "d"), draw.normal("batch", "head", "m", "d")))


def single(draw: Draw) -> Case:
    return Case((draw.normal("d"), draw.normal("d")))


def row_changed(draw: Draw) -> tuple[Case, ...]:
    base = pairs(draw)
    q = base.args[0].clone()
    q[0] += 1.5
    return base, base.with_args(q, base.args[1])


LINEAR = "linear = 2 ** 0.5 * x"
CROSSED = "crossed = 2 ** 0.5 * x[..., i] * x[..., j]"
ALL = "[constant, linear, squares, crossed]"

EXERCISE = Exercise(
    id="quadratic-features",
    title="Features of the quadratic kernel",
    names=("quadratic_features",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    drive=DRIVE,
    right=(
        Right("each kind of term", STEPS),
        Right("outer product with a 1 at the end", OUTER),
        Right("all ordered pairs, in a loop", LOOP),
        Right("one vector at a time", EACH_VECTOR),
    ),
    words={"": ("query", "key")},
    trials=(
        Trial("queries and keys", pairs, {"n": 5, "m": 7, "d": 3}, variants=True),
        Trial("more axes", batched, {"batch": 2, "head": 3, "n": 5, "m": 7, "d": 2}, variants=True),
        Trial("two single vectors", single, {"d": 5}),
        Trial("one dimension", pairs, {"n": 3, "m": 2, "d": 1}),
        Trial("many dimensions", pairs, {"n": 2, "m": 3, "d": 11}),
        Trial("as many vectors as dimensions", pairs, {"n": 5, "m": 5, "d": 5}),
    ),
    probes=(
        Probe(
            "a vector stands alone",
            row_changed,
            {"n": 5, "m": 7, "d": 3},
            says="one query was changed: the products of the others may not move.",
        ),
    ),
    hints=(
        "Your features' dot product is not (q . k + 1)^2.",
        "Take d = 1 and q = 2, k = 3: you need 49. Then d = 2.",
        "(q . k)^2 + 2 q . k + 1: each of the three parts needs features of its own.",
        "1, then sqrt(2) x_i, then x_i x_j for all ordered pairs (or x_i^2, and sqrt(2) x_i x_j for i < j).",
    ),
    mistakes=(
        Mistake(
            "the constant is missing",
            (
                "All products are too small by 1.",
                "Look at q = k = 0: the product must be 1.",
                "(0 + 1)^2 is 1, and no feature stands for it.",
                "Add a feature that is 1.",
            ),
            edits=((ALL, "[linear, squares, crossed]"),),
        ),
        Mistake(
            "the linear terms are missing",
            (
                "All products are too small by 2 q . k.",
                "Look at the middle term of the square.",
                "(s + 1)^2 = s^2 + 2s + 1, and 2s is missing.",
                "Add sqrt(2) x_i.",
            ),
            edits=((ALL, "[constant, squares, crossed]"),),
        ),
        Mistake(
            "the squares are missing",
            (
                "All products are too small by the sum of q_i^2 k_i^2.",
                "Look at d = 1.",
                "The pairs i = j belong to (q . k)^2 too.",
                "Add x_i^2.",
            ),
            edits=((ALL, "[constant, linear, crossed]"),),
        ),
        Mistake(
            "the cross terms are missing",
            (
                "Right for d = 1 only.",
                "Look at d = 2.",
                "(q . k)^2 is a double sum: it has terms with i different from j.",
                "Add sqrt(2) x_i x_j for i < j.",
            ),
            edits=((ALL, "[constant, linear, squares]"),),
        ),
        Mistake(
            "linear terms without their root of 2",
            (
                "All products are too small by q . k.",
                "Look at the factor of the linear features.",
                "2 q . k needs a factor 2 in the product, so its root in each feature.",
                "Use sqrt(2) x_i.",
            ),
            edits=((LINEAR, "linear = x"),),
        ),
        Mistake(
            "linear terms with 2 instead of its root",
            (
                "All products are too large by 2 q . k.",
                "Look at the factor of the linear features.",
                "A factor 2 in both features is 4 in their product.",
                "Use sqrt(2) x_i.",
            ),
            edits=((LINEAR, "linear = 2 * x"),),
        ),
        Mistake(
            "cross terms without their root of 2",
            (
                "Right for d = 1 only.",
                "Look at the factor of the cross features.",
                "The pair (i, j) occurs twice in the double sum, and you have it once.",
                "Use sqrt(2) x_i x_j for i < j.",
            ),
            edits=((CROSSED, "crossed = x[..., i] * x[..., j]"),),
        ),
        Mistake(
            "cross terms with 2 instead of its root, or a root of 2 on pairs in both orders",
            (
                "Right for d = 1 only.",
                "Look at the factor of the cross features.",
                "A factor 2 in both features is 4 in their product; pairs in both orders are there "
                "twice already.",
                "Use sqrt(2) x_i x_j for i < j alone, or all ordered pairs without a factor.",
            ),
            edits=((CROSSED, "crossed = 2 * x[..., i] * x[..., j]"),),
        ),
        Mistake(
            "squares with a root of 2",
            (
                "All products are too large by the sum of q_i^2 k_i^2.",
                "Look at the pairs i = j.",
                "Only i < j occurs twice; i = j occurs once.",
                "Use x_i^2 without a factor.",
            ),
            edits=(("squares = x ** 2", "squares = 2 ** 0.5 * x ** 2"),),
        ),
        Mistake(
            "the features of (q . k)^2",
            (
                "All products are too small by 2 q . k + 1.",
                "Look at the + 1.",
                "Constant and linear features are missing.",
                "Add 1 and sqrt(2) x_i.",
            ),
            edits=((ALL, "[squares, crossed]"),),
        ),
        Mistake(
            "the features of q . k + 1",
            (
                "Your products are the root of the right ones.",
                "Look at the square.",
                "x with a 1 at its end gives q . k + 1; its square needs pairs of those numbers.",
                "Take all products of two numbers of (x, 1).",
            ),
            edits=((ALL, "[constant, x]"),),
        ),
        Mistake(
            "the constant is d",
            (
                "All products are too large, the more so the wider x is.",
                "Look at the constant feature.",
                "There is a 1 for each dimension, where one is enough.",
                "One feature that is 1.",
            ),
            edits=(("constant = torch.ones_like(x[..., :1])", "constant = torch.ones_like(x)"),),
        ),
        Mistake(
            "the gradient is cut",
            (
                "The numbers are right, but no gradient reaches x.",
                "Look for detach, .data, .item() or no_grad.",
                "Features made of a detached x are constants to autograd.",
                "Use x itself.",
            ),
            edits=(("d = x.shape[-1]", "x = x.detach()\n    d = x.shape[-1]"),),
        ),
        Mistake(
            "features over the first axis",
            (
                "Vectors are mixed with one another.",
                "Look at the axis that is taken for the dimensions.",
                "The last axis holds the numbers of a vector; the first may be a batch.",
                "Index with x[..., i].",
            ),
            edits=(
                ("d = x.shape[-1]", "x = x.transpose(0, -1)\n    d = x.shape[-1]"),
                (f"return torch.cat({ALL}, dim=-1)", f"return torch.cat({ALL}, dim=-1).transpose(0, -1)"),
            ),
        ),
    ),
)
