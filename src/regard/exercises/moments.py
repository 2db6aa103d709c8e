"""Exercise: mean and variance of a dot product, and the scale that they call for."""

from __future__ import annotations

import math

from regard.exercises.spec import Case, Convention, Draw, Exercise, Mistake, Right, Trial

TASK = """
The numbers of a query q and a key k are all independent, each with mean `mu` and standard deviation `sigma`.
Work out, as formulas:

- `mean`: the expectation of q . k, a sum of `d` products,
- `variance`: its variance,
- `scale`: the number by which q . k is divided to have variance 1.

`dot_product_moments(mu, sigma, d)` returns `(mean, variance, scale)`. `mu` is any number, `sigma` above 0,
`d` a whole number from 1 up. For mu = 0 and sigma = 1 the scale is the well-known one. No random numbers are
drawn.
"""

STARTER = '''def dot_product_moments(mu, sigma, d):
    """(mean, variance, scale) of q . k, for vectors of d independent numbers of mean mu
    and deviation sigma.
    """
    raise NotImplementedError
'''

STEPS = """
def dot_product_moments(mu, sigma, d):
    mean_of_one = mu ** 2
    second_of_one = (sigma ** 2 + mu ** 2) ** 2
    variance_of_one = second_of_one - mu ** 4
    mean = d * mean_of_one
    variance = d * variance_of_one
    scale = variance ** 0.5
    return mean, variance, scale
"""

FORMULA = """import math

def dot_product_moments(mu, sigma, d):
    variance = d * sigma ** 2 * (sigma ** 2 + 2 * mu ** 2)
    return d * mu ** 2, variance, math.sqrt(variance)
"""

SUMS = """import torch

def dot_product_moments(mu, sigma, d):
    m = torch.full((d,), float(mu), dtype=torch.float64)
    s = torch.full((d,), float(sigma), dtype=torch.float64)
    mean = torch.dot(m, m)
    var = (s.pow(4) + 2 * m.pow(2) * s.pow(2)).sum()
    return mean, var, torch.sqrt(var)
"""

FACTOR = """import numpy as np

def dot_product_moments(mu, sigma, d):
    E = mu * mu
    Var = np.square(sigma * sigma) + 2 * E * sigma * sigma
    return d * E, d * Var, 1 / np.sqrt(d * Var)
"""

ROOT_D = """import math

def dot_product_moments(mu, sigma, d):
    mean, var = 0.0, 0.0
    for _ in range(d):
        mean += mu * mu
        var += sigma ** 4 + 2 * mu ** 2 * sigma ** 2
    return mean, var, math.sqrt(d)
"""


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


VARIANCE = "variance = d * variance_of_one"
SCALE = "scale = variance ** 0.5"
PRODUCT = "variance_of_one = second_of_one - mu ** 4"

EXERCISE = Exercise(
    id="moments",
    title="Moments of a dot product",
    names=("dot_product_moments",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    right=(
        Right("one product, then d of them", STEPS),
        Right("the formula", FORMULA),
        Right("sums over vectors", SUMS),
        Right("the scale as a factor", FACTOR),
        Right("the scale of the paper", ROOT_D),
    ),
    conventions=(
        Convention(
            "scale",
            {
                "root of the variance": "q . k is divided by the scale.",
                "one over it": "your scale multiplies q . k; ours divides it.",
                "root of d": "your scale is the root of d, which gives variance 1 for mu = 0 and "
                "sigma = 1 alone; "
                "ours is the root of the variance.",
                "one over the root of d": "your scale is one over the root of d, a factor that gives "
                "variance 1 for "
                "mu = 0 and sigma = 1 alone; ours is the root of the variance.",
            },
        ),
    ),
    trials=(
        given(0.0, 1.0, 64),
        given(0.0, 1.0, 1),
        given(0.0, 0.5, 7),
        given(0.0, 3.0, 5),
        given(1.5, 1.0, 3),
        given(-2.0, 0.7, 11),
        given(0.3, 2.0, 1),
        given(1, 2, 13),
    ),
    hints=(
        "One of the three numbers is wrong for some mu, sigma or d.",
        "Set d = 1 and work out E[qk] and E[(qk)^2] for two independent numbers.",
        "Independence gives E[qk] = E[q] E[k] and E[q^2 k^2] = E[q^2] E[k^2], with E[q^2] = sigma^2 + mu^2.",
        "Variance of one product: (sigma^2 + mu^2)^2 - mu^4. Mean and variance add up over d products.",
    ),
    mistakes=(
        Mistake(
            "the mean is not multiplied by d",
            (
                "The mean does not grow with d.",
                "Look at the mean.",
                "q . k is a sum of d products, and expectations add up.",
                "mean = d mu^2.",
            ),
            edits=(("mean = d * mean_of_one", "mean = mean_of_one"),),
        ),
        Mistake(
            "the mean is d mu, not d mu squared",
            (
                "The mean is wrong unless mu is 0 or 1, and has the wrong sign for negative mu.",
                "Look at the expectation of one product.",
                "E[qk] = E[q] E[k], a product of two means.",
                "mean = d mu^2.",
            ),
            edits=(("mean_of_one = mu ** 2", "mean_of_one = mu"),),
        ),
        Mistake(
            "the mean is taken to be 0",
            (
                "The mean is 0 whatever mu is.",
                "Look at the mean.",
                "That holds for mu = 0 alone.",
                "mean = d mu^2.",
            ),
            edits=(("mean = d * mean_of_one", "mean = 0.0"),),
        ),
        Mistake(
            "the mean of q times itself",
            (
                "The mean grows with sigma.",
                "Look at the expectation of one product.",
                "E[q^2] is sigma^2 + mu^2, but q and k are independent: E[qk] = mu^2.",
                "mean = d mu^2.",
            ),
            edits=(("mean_of_one = mu ** 2", "mean_of_one = mu ** 2 + sigma ** 2"),),
        ),
        Mistake(
            "the variance without its cross term",
            (
                "The variance is right for mu = 0 only.",
                "Look at the variance of one product.",
                "sigma^4 leaves out that a varying q is multiplied by the mean of k, and the other "
                "way round.",
                "Add 2 mu^2 sigma^2.",
            ),
            edits=((PRODUCT, "variance_of_one = sigma ** 4"),),
        ),
        Mistake(
            "the cross term is counted once",
            (
                "The variance is too small unless mu is 0.",
                "Look at the variance of one product.",
                "Both q and k vary around a mean: the cross term is there twice.",
                "sigma^4 + 2 mu^2 sigma^2.",
            ),
            edits=((PRODUCT, "variance_of_one = sigma ** 4 + mu ** 2 * sigma ** 2"),),
        ),
        Mistake(
            "the second moment instead of the variance",
            (
                "The variance is too large unless mu is 0.",
                "Look at what is subtracted.",
                "E[(qk)^2] is not yet the variance: the square of the mean has to go.",
                "Subtract mu^4 for each product.",
            ),
            edits=((PRODUCT, "variance_of_one = second_of_one"),),
        ),
        Mistake(
            "sigma squared instead of to the fourth",
            (
                "The variance is right for sigma = 1 only.",
                "Look at the powers of sigma.",
                "A product of two numbers of variance sigma^2 has variance sigma^4 (for mu = 0).",
                "E[q^2] E[k^2] has sigma^2 twice.",
            ),
            edits=((PRODUCT, "variance_of_one = sigma ** 2 + 2 * mu ** 2 * sigma ** 2"),),
        ),
        Mistake(
            "the variance is d sigma squared",
            (
                "The variance is right for mu = 0 and sigma = 1 only.",
                "Look at the variance of one product.",
                "That is the variance of a sum of d numbers, not of d products.",
                "Work out the variance of one product of two independent numbers.",
            ),
            edits=((PRODUCT, "variance_of_one = sigma ** 2"),),
        ),
        Mistake(
            "the variance is taken to be d",
            (
                "The variance is right for mu = 0 and sigma = 1 only.",
                "Look at where mu and sigma enter the variance.",
                "The well-known case is put in place of the general one.",
                "d (sigma^4 + 2 mu^2 sigma^2).",
            ),
            edits=((VARIANCE, "variance = float(d)"),),
        ),
        Mistake(
            "the variance is not multiplied by d",
            (
                "The variance does not grow with d.",
                "Look at the sum over d.",
                "Variances of independent products add up.",
                "Multiply the variance of one product by d.",
            ),
            edits=((VARIANCE, "variance = variance_of_one"),),
        ),
        Mistake(
            "the variance grows with d squared",
            (
                "The variance is right for d = 1 only.",
                "Look at the sum over d.",
                "d^2 is for d times the same product; these d products are independent.",
                "Multiply the variance of one product by d.",
            ),
            edits=((VARIANCE, "variance = d ** 2 * variance_of_one"),),
        ),
        Mistake(
            "the scale is the variance, not its root",
            (
                "Divided by your scale, q . k has a variance far below 1.",
                "Look at the scale.",
                "Dividing by s divides the variance by s^2.",
                "The scale is the square root of the variance.",
            ),
            edits=((SCALE, "scale = variance"),),
        ),
        Mistake(
            "the scale is one over the variance",
            (
                "Multiplied by your scale, q . k has a variance far below 1.",
                "Look at the scale.",
                "Multiplying by s multiplies the variance by s^2.",
                "Take the square root.",
            ),
            edits=((SCALE, "scale = 1 / variance"),),
        ),
        Mistake(
            "the scale is d, not its root",
            (
                "Divided by your scale, q . k has a variance of about 1 / d.",
                "Look at the scale.",
                "Dividing by s divides the variance by s^2.",
                "Take the square root.",
            ),
            edits=((SCALE, "scale = float(d)"),),
        ),
        Mistake(
            "the scale leaves mu out",
            (
                "The scale is right for mu = 0 only.",
                "Look at the scale.",
                "sigma^2 sqrt(d) is the deviation of q . k when both means are 0.",
                "Take the root of your own variance.",
            ),
            edits=((SCALE, "scale = sigma ** 2 * d ** 0.5"),),
        ),
        Mistake(
            "sigma is taken for the variance",
            (
                "The variance is right for sigma = 1 only.",
                "Look at the powers of sigma.",
                "sigma is the standard deviation: E[q^2] = sigma^2 + mu^2.",
                "Square it.",
            ),
            edits=(("(sigma ** 2 + mu ** 2) ** 2", "(sigma + mu ** 2) ** 2"),),
        ),
        Mistake(
            "mean and variance the wrong way round",
            (
                "The first number is the variance, the second the mean.",
                "Look at the return.",
                "The order is mean, variance, scale.",
                "Return mean, variance, scale.",
            ),
            edits=(("return mean, variance, scale", "return variance, mean, scale"),),
        ),
    ),
)
