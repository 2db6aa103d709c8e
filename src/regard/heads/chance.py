"""Whether a number says more than chance would: one function decides, wherever something is asserted.

Whoever looks at many heads and reports the largest must compare it with the largest that chance gives, not
with what chance gives one head. Three nulls are used:

    uniform     a head that looks at every visible key alike: the chance level of a measure
    permuted    the head's own weights, each row dealt out at random over the keys that it may look at
    random      the same architecture with random weights, several times: the largest of all their heads

The second is known without drawing: the moments of a permuted row are exact, and Bennett's inequality turns
them into a level that all heads and labels together exceed once in twenty times at most, rows being
independent. The third needs the model, and does not assume that rows are independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ArgumentError

LEAST_LIFT = 0.2  # the least effect worth a word: this share of the way from chance to the largest possible
ALPHA = 0.05  # how often chance alone may give anything at all, over everything that is looked at


def stands_out(
    value: float,
    chance: float,
    *nulls: float,
    most: float | None = 1.0,
    low: float = math.nan,
    least: float = LEAST_LIFT,
) -> bool:
    """Return whether a value is larger than chance gives to somebody who looks at many.

    Args:
        value: What was measured; NaN stands out from nothing.
        chance: What chance gives on average.
        nulls: The largest value that each null gave, over everything that was looked at. NaN: not known.
        most: The largest possible value; None if there is none, and then no least effect is asked for.
        low: The lower end of the value's confidence interval; NaN if there is none.
        least: The least effect, as a share of the way from `chance` to `most`.

    Returns:
        True if the value exceeds chance, every null and the least effect, and `low` is above chance.

    Example:
        >>> stands_out(0.6, 0.1, 0.35), stands_out(0.6, 0.1, 0.65), stands_out(0.2, 0.1)
        (True, False, False)
    """
    if math.isnan(value) or low <= chance or any(value <= null for null in nulls):
        return False
    needed = chance if most is None else chance + least * (most - chance)
    return value > chance and value >= needed


def largest_share(probabilities: list[float], n_looked: int) -> float:
    """Return the share of right answers that the best of many blind guessers hardly ever exceeds.

    Args:
        probabilities: For each question the probability that a blind guess is right.
        n_looked: How many guessers there are: the heads that were compared.

    Returns:
        The smallest share that a single guesser exceeds with probability ``ALPHA / n_looked`` at most.

    Example:
        >>> largest_share([0.25] * 8, 1), largest_share([0.25] * 8, 72)
        (0.5, 0.75)
    """
    if not probabilities or n_looked < 1:
        raise ArgumentError(f"there must be a question and a guesser. Got {len(probabilities)}, {n_looked}.")
    counts = [1.0]  # the probability of each number of right answers
    for p in probabilities:
        counts = [
            (counts[n] * (1 - p) if n < len(counts) else 0.0) + (counts[n - 1] * p if n else 0.0)
            for n in range(len(counts) + 1)
        ]
    beyond = 0.0
    for n in range(len(counts) - 1, -1, -1):
        beyond += counts[n]
        if beyond > ALPHA / n_looked:
            return min(1.0, n / len(probabilities))
    return 0.0


def largest_permuted(
    variance: Float[Tensor, "layer head"], step: Float[Tensor, "layer 1"], n_looked: int
) -> Float[Tensor, "layer head"]:
    """Return how far above its mean a mean of permuted rows stays, over everything looked at (Bennett 1962).

    Args:
        variance: Of the mean, rows being permuted independently of each other; ``(layer, head)``.
        step: How much a single row can change the mean; ``(layer, 1)``.
        n_looked: How many such means are looked at.

    Returns:
        The distance that all together exceed with probability `ALPHA` at most.
    """
    # P(mean - chance >= t) <= exp(-(V / b^2) h(b t / V)) with h(u) = (1 + u) log(1 + u) - u.
    wanted = math.log(n_looked / ALPHA) * step**2 / variance.clamp(min=1e-12)
    low, high = (
        torch.zeros_like(wanted),
        wanted + 2 * wanted.sqrt() + 4.0,
    )  # h(u) grows faster than that needs
    for _ in range(60):
        middle = (low + high) / 2
        reached = (1 + middle) * middle.log1p() - middle >= wanted
        low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
    return high * variance.clamp(min=1e-12) / step


@dataclass(frozen=True, slots=True)
class RandomNull:
    """What the heads of models with random weights reach.

    Attributes:
        lifts: For each measure the largest of all heads of all draws, as a share of the way from chance to 1;
            for uniformity how far below chance its lowest is.
        n_draw: How many models were drawn.
        n_head: How many heads each of them has.
        n_token: The length of the texts they read.
    """

    lifts: Mapping[str, float]
    n_draw: int
    n_head: int
    n_token: int

    def level(self, name: str, chance: float) -> float:
        """Return the score that a head must exceed: the largest of the null, and the least effect above it.

        Args:
            name: A measure.
            chance: Its chance level.

        Returns:
            A score; NaN where the null could not be measured.
        """
        lift = self.lifts.get(name, math.nan)
        return chance + (lift + LEAST_LIFT * (1 - lift)) * (1 - chance)
