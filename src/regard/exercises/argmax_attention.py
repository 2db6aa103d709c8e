"""Exercise: attention that takes the value of the most similar key."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from regard.attention.softmax import attend_hard
from regard.exercises.spec import Case, Draw, Exercise, Mistake, Probe, Right, Trial

TASK = """
Hard attention of one query: the value whose key has the largest dot product with it.

    argmax_attention(q, K, V) = V[j],  j = argmax over i of q . K[i]

- `q`: (d,), `K`: (m, d), `V`: (m, v). Returns (v,), the row of V itself: not scaled, not mixed with others.
- The gradient reaches that row of V, and neither q nor K. No two keys tie.
"""

STARTER = '''import torch


def argmax_attention(q, K, V):
    """q (d,), K (m, d), V (m, v) -> the value of the most similar key, (v,)."""
    raise NotImplementedError
'''

STEPS = """import torch

def argmax_attention(q, K, V):
    scores = K @ q
    best = torch.argmax(scores)
    return V[best]
"""

ONE_HOT = """import torch
import torch.nn.functional as F

def argmax_attention(q, K, V):
    s = torch.einsum("d,md->m", q, K)
    alpha = F.one_hot(s.argmax(dim=0), num_classes=K.shape[0]).to(V.dtype)
    return alpha @ V
"""

LOOP = """import torch

def argmax_attention(q, K, V):
    winner, most = 0, None
    for i in range(len(K)):
        score = float((K[i] * q).sum())
        if most is None or score > most:
            winner, most = i, score
    return V[winner]
"""

SORTED = """import torch

def argmax_attention(q, K, V):
    scores = torch.mv(K, q) / K.shape[1] ** 0.5
    weights = torch.softmax(scores, dim=0)
    index = torch.topk(weights, 1).indices
    return V.index_select(0, index).squeeze(0)
"""

MASKED = """import torch

def argmax_attention(q, K, V):
    scores = torch.matmul(q.unsqueeze(0), K.T).squeeze(0)
    hit = scores == scores.max()
    return torch.where(hit[:, None], V, torch.zeros_like(V)).sum(dim=0)
"""


def reference(case: Case) -> Tensor:
    """Our hard attention, of one query of one head."""
    q, k, v = case.args
    return attend_hard(q[None, None, None], k[None, None], v[None, None])[0, 0, 0]


def one(draw: Draw, best: int | None = None, ahead: float = 1.0) -> Case:
    """Random keys, one of them made the best, ahead by so much that no rounding changes it."""
    q = draw.normal("d") + 0.5
    keys = draw.normal("m", "d")
    best = int(draw.integers(0, draw["m"] - 1)) if best is None else best % draw["m"]
    scores = keys @ q
    keys[best] += q * (scores.max() - scores[best] + ahead) / q.square().sum().clamp(min=1e-3)
    return Case((q, keys, draw.normal("m", "v")))


def uneven(draw: Draw) -> Case:
    """The longest key, the nearest, the best aligned and the most similar are different ones."""
    q = torch.zeros(draw["d"])
    q[0], q[1] = 2.0, 1.0
    aside = torch.zeros(draw["d"])
    aside[2] = 3.0
    aligned, nearest, similar, longest = q * 0.1, q * 0.9, q * 2 + aside, q * -8
    return Case((q, torch.stack([aligned, nearest, similar, aside * 2, longest]), draw.normal(5, "v")))


def negative(draw: Draw) -> Case:
    """All dot products are negative: a maximum that starts at 0 finds none."""
    q = draw.normal("d").abs() + 0.5
    keys = -draw.normal("m", "d").abs() - 0.5
    keys[-1] *= 0.1
    return Case((q, keys, draw.normal("m", "v")))


def loser_changed(draw: Draw) -> tuple[Case, ...]:
    base = one(draw)
    q, keys, values = base.args
    best = int((keys @ q).argmax())
    changed = values + 2.0
    changed[best] = values[best]
    return base, base.with_args(q, keys, changed), base.with_args(q * 3.0, keys, values)


PLACE = "Look at how the scores become one index."

EXERCISE = Exercise(
    id="argmax-attention",
    title="Attention by argmax",
    names=("argmax_attention",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    right=(
        Right("small steps", STEPS),
        Right("one-hot weights", ONE_HOT),
        Right("a loop", LOOP),
        Right("the largest softmax weight", SORTED),
        Right("a mask of the maximum", MASKED),
    ),
    words={"": ("v_dim",)},
    trials=(
        Trial("one query", one, {"d": 3, "m": 7, "v": 5}, variants=True),
        Trial("as many keys as dimensions", one, {"d": 5, "m": 5, "v": 5}, variants=True),
        Trial("as many values as keys", one, {"d": 2, "m": 3, "v": 3}),
        Trial("the first key is best", partial(one, best=0), {"d": 11, "m": 13, "v": 2}),
        Trial("the last key is best", partial(one, best=-1), {"d": 2, "m": 3, "v": 7}),
        Trial("a close second", partial(one, ahead=0.1), {"d": 5, "m": 23, "v": 3}),
        Trial("another close second", partial(one, ahead=0.1), {"d": 13, "m": 17, "v": 2}),
        Trial("keys of unequal length", uneven, {"d": 5, "v": 3}),
        Trial("negative scores", negative, {"d": 3, "m": 5, "v": 2}),
        Trial("one key", one, {"d": 3, "m": 1, "v": 2}),
        Trial("values of one number", one, {"d": 3, "m": 5, "v": 1}),
    ),
    probes=(
        Probe(
            "only the winner has a say",
            loser_changed,
            {"d": 3, "m": 7, "v": 5},
            says="the values of all other keys were changed, then the query made longer: nothing may move.",
        ),
    ),
    hints=(
        "The result is not a row of V, or not the right one.",
        "Print the scores, the index you take, and the row of V at that index.",
        "The index must be that of the largest dot product of q with a key.",
        "scores = K @ q; the result is V at the index of its largest entry.",
    ),
    mistakes=(
        Mistake(
            "softmax attention instead of argmax",
            (
                "The result mixes all values.",
                "Look at what the scores are used for.",
                "The softmax gives every key some weight; here the winner takes all.",
                "Take the value at the index of the largest score.",
            ),
            edits=(("return V[best]", "return torch.softmax(scores, dim=0) @ V"),),
        ),
        Mistake(
            "scaled softmax attention instead of argmax",
            (
                "The result mixes all values.",
                "Look at what the scores are used for.",
                "The scaled softmax gives every key some weight; here the winner takes all.",
                "Take the value at the index of the largest score.",
            ),
            edits=(("return V[best]", "return torch.softmax(scores / len(q) ** 0.5, dim=0) @ V"),),
        ),
        Mistake(
            "the least similar key",
            (
                "You return the value of the key with the smallest score.",
                PLACE,
                "argmin, or a sort in rising order, finds the worst key.",
                "Use argmax.",
            ),
            edits=(("torch.argmax(scores)", "torch.argmin(scores)"),),
        ),
        Mistake(
            "the winning key instead of its value",
            (
                "The result is a row of K.",
                "Look at the table from which the row is taken.",
                "The index is right and used on the keys.",
                "Take the row of V.",
            ),
            edits=(("return V[best]", "return K[best]"),),
        ),
        Mistake(
            "the value is multiplied by its score",
            (
                "The result is a row of V, stretched.",
                "Look at the last line.",
                "The winner's score is still in the product; its weight must be 1.",
                "Return the row of V itself.",
            ),
            edits=(("return V[best]", "return scores[best] * V[best]"),),
        ),
        Mistake(
            "the value is multiplied by its softmax weight",
            (
                "The result is a row of V, shrunk.",
                "Look at the last line.",
                "The softmax weight of the winner is below 1; hard attention gives it 1.",
                "Return the row of V itself.",
            ),
            edits=(("return V[best]", "return torch.softmax(scores, dim=0)[best] * V[best]"),),
        ),
        Mistake(
            "the largest score by size, whatever its sign",
            (
                "A key that points away from the query can win.",
                PLACE,
                "abs makes a strongly negative score a large one.",
                "Compare the scores with their signs.",
            ),
            edits=(("torch.argmax(scores)", "torch.argmax(scores.abs())"),),
        ),
        Mistake(
            "cosine similarity instead of the dot product",
            (
                "A short key that points the same way beats a longer, more similar one.",
                "Look at how the scores are made.",
                "Dividing by the keys' lengths changes which is largest.",
                "Use the plain dot product.",
            ),
            edits=(("scores = K @ q", "scores = torch.nn.functional.cosine_similarity(K, q[None], dim=1)"),),
        ),
        Mistake(
            "the nearest key instead of the most similar",
            (
                "The key at the smallest distance wins.",
                "Look at how the scores are made.",
                "Distance also counts the key's own length: |q - k|^2 = |q|^2 + |k|^2 - 2 q.k.",
                "Use the dot product.",
            ),
            edits=(("scores = K @ q", "scores = -(K - q).square().sum(dim=1)"),),
        ),
        Mistake(
            "the longest key, whatever the query",
            (
                "The query has no say.",
                "Look at how the scores are made.",
                "The keys are compared with themselves.",
                "Multiply the keys with q.",
            ),
            edits=(("scores = K @ q", "scores = K.square().sum(dim=1)"),),
        ),
        Mistake(
            "the largest number of each column of V",
            (
                "The result mixes rows: each number is the largest of its column.",
                "Look at the axis of the maximum.",
                "The maximum is taken over the values, column by column.",
                "Find one index from the scores, then take that row of V.",
            ),
            edits=(("return V[best]", "return V.max(dim=0).values"),),
        ),
        Mistake(
            "the largest single product of numbers wins",
            (
                "A key with one large number beats a more similar one.",
                "Look at the sum over d.",
                "The products q[j] K[i, j] are compared before they are added up.",
                "Sum over the last axis of K * q first.",
            ),
            edits=(("scores = K @ q", "scores = (K * q).max(dim=1).values"),),
        ),
        Mistake(
            "a maximum that starts at 0",
            (
                "Where all scores are negative, the first value is returned.",
                "Look at what the loop starts from.",
                "No negative score is above 0, so the first index stays.",
                "Start from the first score, or from minus infinity.",
            ),
            edits=(("winner, most = 0, None", "winner, most = 0, 0.0"),),
            of=2,
        ),
        Mistake(
            "the last key is never looked at",
            (
                "Wrong where the last key is the best.",
                "Look at the bounds of the loop.",
                "The loop ends one too early.",
                "Go over all len(K) keys.",
            ),
            edits=(("for i in range(len(K)):", "for i in range(len(K) - 1):"),),
            of=2,
        ),
        Mistake(
            "the result keeps an axis of 1",
            (
                "The shape is (1, v).",
                "Look at the index.",
                "An index that is itself a list of one keeps its axis.",
                "Index with one number, or squeeze the first axis.",
            ),
            edits=(("return V[best]", "return V[best:best + 1]"),),
        ),
        Mistake(
            "the gradient is cut at the value",
            (
                "The number is right, but no gradient reaches V.",
                "Look for detach, .data, .item(), no_grad or a new tensor made of numbers.",
                "A copy is a constant to autograd.",
                "Index V itself.",
            ),
            edits=(("return V[best]", "return V[best].detach().clone()"),),
        ),
    ),
)
