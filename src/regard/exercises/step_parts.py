"""What `mha-step` and `mqa-step` share: mistakes that edit lines both have, trials, and the "
"question of scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from regard.exercises.spec import Case, Convention, Draw, Mistake, Probe, Trial

GROW_K = "new_K = torch.cat([prev_K, k.unsqueeze(-2)], dim=-2)"
GROW_V = "new_V = torch.cat([prev_V, v.unsqueeze(-2)], dim=-2)"
SOFTMAX = "weights = torch.softmax(logits, dim=-1)"
OUT = 'y = torch.einsum("bhv,hvd->bd", o, W_o)'
RETURN = "return y, new_K, new_V"

SCALE = Convention(
    "scale",
    {
        "none": "the logits are not scaled.",
        "root": "the logits are divided by the square root of k; we leave them unscaled, as the "
        "paper's step does.",
    },
)

WORDS = {"0": ("batch", "model_dim")}

HINTS = (
    "The output of the step, or one of the caches, is not what attention over all tokens so far gives.",
    "Compare the caches first: they must be the old ones with one entry more at the end. Then the "
    "logits, then y.",
    "The new token's own key and value take part, every head sums over all positions, and y sums "
    "over the heads.",
    "Project x, append k and v to the caches, softmax over the positions, average the values, sum "
    "W_o over heads.",
)

MISTAKES = (
    Mistake(
        "the new token does not see itself",
        (
            "The newest position gets no weight.",
            "Look at which keys the query is compared with.",
            "The logits are made with the cache from before this step.",
            "Append the new key and value first, then attend over the longer cache.",
        ),
        edits=(("q, new_K)", "q, prev_K)"), ("weights, new_V)", "weights, prev_V)")),
    ),
    Mistake(
        "the new key and value are put in front",
        (
            "y is right, but the caches are in another order.",
            "Look at the order inside torch.cat.",
            "The newest entry stands before the oldest.",
            "Append at the end: cat of the old cache, then the new entry.",
        ),
        edits=(
            (GROW_K, "new_K = torch.cat([k.unsqueeze(-2), prev_K], dim=-2)"),
            (GROW_V, "new_V = torch.cat([v.unsqueeze(-2), prev_V], dim=-2)"),
        ),
    ),
    Mistake(
        "the old caches are returned",
        (
            "The caches do not grow.",
            "Look at the return.",
            "What comes back is what came in, so the next step forgets this token.",
            "Return the longer caches.",
        ),
        edits=((RETURN, "return y, prev_K, prev_V"),),
    ),
    Mistake(
        "only the new key and value are returned",
        (
            "The caches hold one position.",
            "Look at the return.",
            "The new entries come back without those before them.",
            "Return the whole caches.",
        ),
        edits=((RETURN, "return y, k.unsqueeze(-2), v.unsqueeze(-2)"),),
    ),
    Mistake(
        "the caches are returned the wrong way round",
        (
            "Keys come back where values should, and values where keys should.",
            "Look at the return.",
            "The order is y, keys, values.",
            "Return y, new_K, new_V.",
        ),
        edits=((RETURN, "return y, new_V, new_K"),),
    ),
    Mistake(
        "the oldest position is dropped",
        (
            "The caches keep their length: the first entry is gone.",
            "Look at how the caches grow.",
            "The new entry replaces the oldest, as in a sliding window.",
            "Keep all of the old cache.",
        ),
        edits=(
            (GROW_K, "new_K = torch.cat([prev_K[..., 1:, :], k.unsqueeze(-2)], dim=-2)"),
            (GROW_V, "new_V = torch.cat([prev_V[..., 1:, :], v.unsqueeze(-2)], dim=-2)"),
        ),
    ),
    Mistake(
        "the new key and value replace the newest in the cache",
        (
            "The caches keep their length: the last entry is overwritten.",
            "Look at how the caches grow.",
            "The position before this one is lost.",
            "Append after all of the old cache.",
        ),
        edits=(
            (GROW_K, "new_K = torch.cat([prev_K[..., :-1, :], k.unsqueeze(-2)], dim=-2)"),
            (GROW_V, "new_V = torch.cat([prev_V[..., :-1, :], v.unsqueeze(-2)], dim=-2)"),
        ),
    ),
    Mistake(
        "softmax over the heads instead of the positions",
        (
            "For one position the weights of all heads sum to 1.",
            "Look at the axis of the softmax.",
            "The logits are (batch, head, position), and axis 1 runs over the heads.",
            "Take the softmax over the last axis.",
        ),
        edits=((SOFTMAX, "weights = torch.softmax(logits, dim=1)"),),
    ),
    Mistake(
        "softmax over the batch",
        (
            "Sequences share their weights among one another.",
            "Look at the axis of the softmax.",
            "Axis 0 runs over the batch.",
            "Take the softmax over the last axis.",
        ),
        edits=((SOFTMAX, "weights = torch.softmax(logits, dim=0)"),),
    ),
    Mistake(
        "no softmax",
        (
            "Weights are negative, and do not sum to 1.",
            "Look at what lies between logits and values.",
            "The logits themselves multiply the values.",
            "Take the softmax of the logits over the positions.",
        ),
        edits=((SOFTMAX, "weights = logits"),),
    ),
    Mistake(
        "scaled by the model's width",
        (
            "The weights are too flat.",
            "Look at what the logits are divided by.",
            "A logit sums over the k numbers of a query; d plays no part in it.",
            "Leave the logits as they are (or, by another convention, divide by the root of k).",
        ),
        edits=((SOFTMAX, "weights = torch.softmax(logits / x.shape[-1] ** 0.5, dim=-1)"),),
    ),
    Mistake(
        "the logits are divided by k instead of its root",
        (
            "The weights are too flat.",
            "Look at what the logits are divided by.",
            "Scaling, where it is done, is by the square root.",
            "Leave the logits as they are (or, by another convention, divide by the root of k).",
        ),
        edits=((SOFTMAX, "weights = torch.softmax(logits / q.shape[-1], dim=-1)"),),
    ),
    Mistake(
        "the heads are averaged instead of summed",
        (
            "y is the right one divided by the number of heads.",
            "Look at the output projection.",
            "W_o sums over heads; nothing is divided.",
            "Sum over head and v in one einsum.",
        ),
        edits=((OUT, OUT + " / W_o.shape[0]"),),
    ),
    Mistake(
        "only the first head reaches the output",
        (
            "Most of W_o has no effect.",
            "Look at the output projection.",
            "One head is projected, the others are dropped.",
            "Sum over all heads.",
        ),
        edits=((OUT, "y = o[:, 0] @ W_o[0]"),),
    ),
    Mistake(
        "heads joined number by number before `W_o`",
        (
            "Shapes are right, numbers are not: W_o meets the heads in another order.",
            "Look at how head and v become one axis.",
            "o is flattened with v as the slower axis, W_o with head as the slower axis.",
            "Flatten both as (head, v), or sum over both with einsum.",
        ),
        edits=((OUT, "y = o.transpose(1, 2).flatten(1) @ W_o.flatten(0, 1)"),),
    ),
    Mistake(
        "a residual nobody asked for",
        (
            "y is the right one plus x.",
            "Look at the last lines.",
            "The step returns attention alone; a block adds x.",
            "Return the sum over W_o alone.",
        ),
        edits=((OUT, OUT + " + x"),),
    ),
    Mistake(
        "the gradient is cut at the cache",
        (
            "The numbers are right, but no gradient reaches the old keys.",
            "Look for detach, .data or no_grad.",
            "A detached cache is a constant to autograd.",
            "Use the cache as it is given.",
        ),
        edits=((GROW_K, GROW_K.replace("prev_K,", "prev_K.detach(),")),),
    ),
)


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
