"""Calls, trials and probes that exercises share: sizes, lengths, and what dropout must do to weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Kind, Probe, Trial, changed, neighbour_probe

DROPOUT = 0.3  # not the 0.5 that nn.Dropout takes by itself
TRAINING: Kind = "train mode"
ONE = {"batch of one": "batch", "one head": "head", "one query": "query", "one position": "position"}
ALIKE = {
    "as many sequences as heads": ("batch", "head"),
    "as many sequences as queries": ("batch", "query"),
    "as many queries as keys": ("query", "key"),
    "as many positions as heads": ("position", "head"),
}

Make = Callable[[Draw], Case]
Edit = Callable[[Case, Draw], object]


def edited(make: Make, edit: Edit) -> Make:
    """The call as an edit leaves it."""
    return lambda draw: changed(make, edit)(draw)[1]


def edges(make: Make, sizes: dict[str, int]) -> Iterator[Trial]:
    """The call where one size is 1, and where two are alike that code may take for one another."""
    for name, word in ONE.items():
        if word in sizes:
            yield Trial(name, make, {**sizes, word: 1})
    for name, (word, other) in ALIKE.items():
        if word in sizes and other in sizes:
            yield Trial(name, make, {**sizes, word: sizes[other]})


def lengths_of(draw: Draw, word: str = "key") -> Tensor:
    """One length for each sequence; the first two differ, or one could use the other's unnoticed."""
    lengths = draw.integers(1, draw[word], "batch")
    if draw["batch"] > 1:
        lengths[0], lengths[1] = max(1, draw[word] // 2), draw[word]
    else:  # not full, or a table as wide as the longest sequence would look right
        lengths[0] = max(1, draw[word] - 2)
    return lengths


class WithLengths:
    """The calls of `make(draw, lengths)`, whose lengths are missing, or one for each sequence or query."""

    def __init__(self, make: Callable[..., Case]) -> None:
        self.make = make

    def without(self, draw: Draw) -> Case:
        return self.make(draw, None)

    def per_sequence(self, draw: Draw, **options: Any) -> Case:
        return self.make(draw, lengths_of(draw), **options)

    def per_query(self, draw: Draw) -> Case:
        return self.make(draw, draw.integers(1, draw["key"], "batch", "query"))

    def all_valid(self, draw: Draw) -> Case:
        return self.make(draw, torch.full((draw["batch"],), draw["key"]))

    def with_empty(self, draw: Draw) -> Case:
        lengths = lengths_of(draw)
        lengths[0] = 0
        return self.make(draw, lengths)

    def dropped(self, draw: Draw) -> Case:
        """A call in train mode whose values are two identities side by side for each head."""
        case = self.make(draw, None, dropout=DROPOUT)
        twice = torch.eye(draw["key"]).repeat(1, 2 * draw.sizes.get("head", 1))
        values = twice.expand(draw["batch"], -1, -1).contiguous()
        return replace(case, args=(*case.args[:2], values, *case.args[3:]), train=True)

    def trials(self, sizes: dict[str, int]) -> tuple[Trial, ...]:
        """The calls of everything that takes queries, keys and lengths."""
        return (
            Trial("no lengths", self.without, sizes, variants=True),
            Trial("one length for each sequence", self.per_sequence, sizes, variants=True),
            Trial("one length for each query", self.per_query, sizes, variants=True),
            Trial("every key valid", self.all_valid, sizes),
            *edges(self.per_sequence, sizes),
        )

    def probes(self, sizes: dict[str, int]) -> tuple[Probe, ...]:
        """What may not move a layer whose arguments are queries, keys, values and lengths."""
        return (
            padding_probe(self.per_sequence, sizes),
            neighbour_probe(self.per_sequence, sizes),
            query_probe(self.per_query, sizes),
        )


def change_padding(case: Case, draw: Draw) -> None:
    """Change what stands past the lengths in all arguments between the first and them."""
    _, *inputs, lengths = case.args[:4]
    for x in inputs:
        x[torch.arange(draw["key"]) >= lengths[:, None]] += 2.0


def padding_probe(make: Make, sizes: dict[str, int], edit: Edit = change_padding) -> Probe:
    """Whether padding leaves all else alone."""
    says = "what lies past a sequence's length was changed: nothing else may move."
    return Probe("padding has no say", changed(make, edit), sizes, says=says)


def query_probe(make: Make, sizes: dict[str, int]) -> Probe:
    """Whether a query leaves the others alone."""
    says = "query 0 was changed: the rows of the others may not move."
    calls = changed(make, lambda case, draw: case.args[0][:, 0].mul_(-2))
    return Probe("a query stands alone", calls, sizes, says=says)


def evaluated(make: Make, sizes: dict[str, int]) -> Trial:
    """A layer with dropout, in eval mode."""
    says = "In eval mode dropout does nothing."
    return Trial("dropout in eval mode", make, sizes, kind=TRAINING, says=says)


def weights_in_training(make: Make, sizes: dict[str, int]) -> Trial:
    """A layer that returns its weights, with dropout 1 in train mode."""
    says = "With dropout 1 the weights before dropout are what they were."
    return Trial("weights in train mode", make, sizes, grad=False, kind=TRAINING, says=says)


def large_scores(make: Make, sizes: dict[str, int], name: str = "large scores") -> Trial:
    """Scores of which the exponential is infinite."""
    says = "exp of a large score is infinite: subtract the row's maximum first, as torch.softmax does."
    return Trial(name, make, sizes, grad=False, kind="fragile", says=says)


def sums_to_one(results: list[Any]) -> str | None:
    """Whether the weights, the last of what is returned, are shares of 1."""
    weights = results[0][-1] if isinstance(results[0], list | tuple) else results[0]
    total = weights.double().sum(-1)
    if torch.allclose(total, torch.ones_like(total), atol=1e-5):
        return None
    return f"each row of weights must sum to 1; yours sum to {total.min():.4g} to {total.max():.4g}."


def dropout_probe(trained: Make, sizes: dict[str, int], n_head: int = 1) -> Probe:
    """A call in train mode whose output is the dropped weights, twice, beside the same one in eval mode."""

    def both(draw: Draw) -> tuple[Case, ...]:
        case = trained(draw)
        return case, replace(case, train=False)

    return Probe("dropout in train mode", both, sizes, partial(drops_weights, n_head=n_head), kind=TRAINING)


def drops_weights(results: list[Any], n_head: int) -> str | None:
    """Whether the output in train mode is made of weights that are 0 or what they were over 1 - dropout.

    Each head's values are two identities side by side, so that its output is its weights, twice.
    """
    outputs = [(result[0] if isinstance(result, list | tuple) else result).double() for result in results]
    trained, plain = (output.unflatten(-1, (n_head, 2, -1)) for output in outputs)
    if torch.allclose(trained, plain, atol=1e-5):
        return f"with dropout {DROPOUT}, train mode gives what eval mode gives: nothing is dropped."
    first, second = trained.unbind(-2)
    if not torch.allclose(first, second, atol=1e-5):
        return "dropout must be applied to the weights: yours drops entries of the output."
    zero = first.abs() < 1e-7
    if not zero.any():
        return "in train mode no weight is 0, and the output is another: dropout belongs on the weights."
    if zero.all():
        return f"in train mode with dropout {DROPOUT}, that share of the weights is dropped; yours drops all."
    kept = plain.select(-2, 0) / (1 - DROPOUT)
    if float(torch.where(zero, 0.0, first - kept).abs().max()) > 1e-4:
        return f"in train mode a weight must be 0 or what it was over {1 - DROPOUT}; yours are neither."
    return None
