"""What `mha-step` and `mqa-step` share: calls and probes of one step with a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from regard.checking.trials import Case, Draw, Probe, Trial


def past_changed(make: Callable[[Draw], Case]) -> Callable[[Draw], tuple[Case, ...]]:
    """The first sequence's cache and token changed: the others may not move, nor may the old cache "
    "entries."""

    def changed(draw: Draw) -> tuple[Case, ...]:
        base = make(draw)
        args = [arg.clone() for arg in base.args]
        for arg in args[:3]:
            arg[0] = arg[0].flip(-1) + 1.0
        return base, base.with_args(*args)

    return changed


def empty_cache(make: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
    """The first step, before which nothing is cached."""

    def emptied(draw: Draw) -> Case:
        base = make(draw)
        x, keys, values, *rest = base.args
        return base.with_args(x, keys[..., :0, :].clone(), values[..., :0, :].clone(), *rest)

    return emptied


def reordered(make: Callable[[Draw], Case]) -> Callable[[Draw], tuple[Case, ...]]:
    """The order of what is cached has no say in y."""

    def changed(draw: Draw) -> tuple[Case, ...]:
        base = make(draw)
        x, keys, values, *rest = base.args
        order = torch.arange(draw["past"]).flip(0)
        return base, replace(base, args=(x, keys[..., order, :], values[..., order, :], *rest))

    return changed


def large_logits(make: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
    def enlarged(draw: Draw) -> Case:
        base = make(draw)
        x, keys, *rest = base.args
        return base.with_args(15.0 * x, 15.0 * keys, *rest)

    return enlarged


SIZES = {"batch": 2, "past": 5, "head": 3, "model_dim": 7, "qk_dim": 5, "v_dim": 11}


def trials(make: Callable[[Draw], Case]) -> tuple[Trial, ...]:
    """The trials of a step."""
    return (
        Trial("one step", make, SIZES, variants=True),
        Trial("another step", make, {**SIZES, "batch": 3, "past": 2, "head": 5, "v_dim": 2}, variants=True),
        Trial("all of one width", make, {**SIZES, "model_dim": 6, "head": 3, "qk_dim": 2, "v_dim": 2}),
        Trial("as many sequences as heads", make, {**SIZES, "batch": 3}),
        Trial("as many positions as heads", make, {**SIZES, "past": 3}),
        Trial("keys as wide as values", make, {**SIZES, "v_dim": 5}),
        Trial("batch of one", make, {**SIZES, "batch": 1}),
        Trial("one head", make, {**SIZES, "head": 1}),
        Trial("an empty cache", empty_cache(make), {**SIZES, "past": 1}),
        Trial(
            "large logits",
            large_logits(make),
            SIZES,
            grad=False,
            kind="fragile",
            says="exp of a large logit is infinite: subtract the row's maximum first, as torch.softmax does.",
        ),
    )


def probes(make: Callable[[Draw], Case]) -> tuple[Probe, ...]:
    """The perturbations of a step."""
    return (
        Probe(
            "a neighbour in the batch has no say",
            past_changed(make),
            SIZES,
            says="sequence 0 was changed: sequence 1 may not move.",
        ),
        Probe(
            "the order of the cache has no say in y",
            reordered(make),
            SIZES,
            says="the cached positions were put in another order: y may not move.",
        ),
    )
