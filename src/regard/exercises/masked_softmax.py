"""Exercise: softmax over the first keys of each row only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.attention.softmax import masked_softmax
from regard.exercises.spec import Case, Convention, Draw, Exercise, Mistake, Probe, Right, Trial

TASK = """
Softmax over the last axis of `X`, in which every row looks at its first `valid_lens` keys only:

    weights[b, i, j] = exp(X[b, i, j]) / (sum over k < length of exp(X[b, i, k]))     where j < length
    weights[b, i, j] = 0                                                              elsewhere

- `X`: (batch, queries, keys), floating.
- `valid_lens`: None (every key counts), (batch,) one length for all queries of a sequence, or
  (batch, queries) one length for each query. A length may be 0: that row is all zeros.
- Returns (batch, queries, keys). `X` is left as it was.
"""

STARTER = '''import torch


def masked_softmax(X, valid_lens=None):
    """X (batch, queries, keys), lengths (batch,) or (batch, queries) -> weights (batch, queries, keys)."""
    raise NotImplementedError
'''

FLAT = """import torch

def masked_softmax(X, valid_lens=None):
    if valid_lens is None:
        return torch.softmax(X, dim=-1)
    if valid_lens.dim() == 1:
        lens = torch.repeat_interleave(valid_lens, X.shape[1])
    else:
        lens = valid_lens.reshape(-1)
    rows = X.reshape(-1, X.shape[-1])
    hidden = torch.arange(rows.shape[1], device=X.device)[None, :] >= lens[:, None]
    weights = torch.softmax(rows.masked_fill(hidden, float("-inf")), dim=-1)
    return weights.masked_fill(hidden, 0.0).reshape(X.shape)
"""

LOOP = """import torch

def masked_softmax(X, valid_lens=None):
    out = torch.zeros_like(X)
    for b in range(X.shape[0]):
        for i in range(X.shape[1]):
            n = X.shape[2]
            if valid_lens is not None:
                n = int(valid_lens[b] if valid_lens.dim() == 1 else valid_lens[b, i])
            if n > 0:
                out[b, i, :n] = torch.softmax(X[b, i, :n], -1)
    return out
"""

SUM = """import torch

def masked_softmax(X, valid_lens=None):
    keep = torch.ones_like(X)
    if valid_lens is not None:
        lens = valid_lens if valid_lens.dim() == 2 else valid_lens.unsqueeze(1)
        keep = (torch.arange(X.size(2), device=X.device) < lens.unsqueeze(2)).to(X.dtype).expand_as(X)
    e = torch.exp(X - X.max(dim=2, keepdim=True).values) * keep
    total = e.sum(dim=2, keepdim=True)
    return e / torch.where(total == 0, torch.ones_like(total), total)
"""

FINITE = """import torch
from torch import nn

def masked_softmax(X, valid_lens=None):
    if valid_lens is None:
        return nn.functional.softmax(X, dim=-1)
    shape = X.shape
    if valid_lens.dim() == 1:
        valid_lens = valid_lens.repeat_interleave(shape[1])
    else:
        valid_lens = valid_lens.flatten()
    X = X.reshape(-1, shape[-1]).clone()
    mask = torch.arange(shape[-1], dtype=torch.float32, device=X.device)[None] < valid_lens[:, None]
    X[~mask] = -1e6
    return nn.functional.softmax(X.view(shape), dim=-1)
"""


def reference(case: Case, *, empty_row: str = "zeros") -> Tensor:
    """Our own masked softmax, with an empty row as the convention says."""
    scores, valid_lens = (*case.args, None)[:2]
    out = masked_softmax(scores, valid_lens)
    if valid_lens is None or empty_row == "zeros":
        return out
    empty = (valid_lens if valid_lens.dim() == 2 else valid_lens[:, None])[..., None] == 0
    instead = {
        "uniform": torch.full_like(out, 1 / scores.shape[-1]),
        "nan": torch.full_like(out, torch.nan),
        "all keys": torch.softmax(scores, -1),
    }[empty_row]
    return torch.where(empty, instead, out)


def no_lengths(draw: Draw) -> Case:
    # None is given, because textbooks write the function without a default.
    return Case((draw.normal("batch", "query", "key"), None))


def per_sequence(draw: Draw) -> Case:
    lens = draw.integers(1, draw["key"], "batch")
    if draw["batch"] > 1:  # two sequences of different length, or neighbours could not be told apart
        lens[0], lens[1] = max(1, draw["key"] // 2), draw["key"]
    return Case((draw.normal("batch", "query", "key"), lens))


def per_query(draw: Draw) -> Case:
    return Case((draw.normal("batch", "query", "key"), draw.integers(1, draw["key"], "batch", "query")))


def with_empty(draw: Draw) -> Case:
    lens = draw.integers(1, draw["key"], "batch")
    lens[0] = 0
    # Quarters stay exact when a large number is added to them, which some answers do to hide.
    return Case((draw.integers(-8, 8, "batch", "query", "key") / 4, lens))


def large_scores(draw: Draw) -> Case:
    case = per_sequence(draw)
    return case.with_args(case.args[0] + 900.0, case.args[1])


def padding_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_sequence(draw)
    scores, lens = base.args
    beyond = torch.arange(draw["key"]) >= lens[:, None, None]
    return base, base.with_args(torch.where(beyond, scores + 3.0, scores), lens)


def neighbour_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_sequence(draw)
    scores, lens = base.args
    other = lens.clone()
    other[0] = max(1, int(lens[0]) - 1)
    return base, base.with_args(scores, other)


def query_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_query(draw)
    scores = base.args[0].clone()
    scores[0, 0] = scores[0, 0].flip(0) * 2
    return base, base.with_args(scores, base.args[1])


def sums_to_one(results: list[Any]) -> str | None:
    total = results[0].double().sum(-1)
    if torch.allclose(total, torch.ones_like(total), atol=1e-5):
        return None
    return f"each row must sum to 1; yours sum to between {total.min():.4g} and {total.max():.4g}."


EXERCISE = Exercise(
    id="masked-softmax",
    title="Masked softmax",
    names=("masked_softmax",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    right=(
        Right("rows made flat", FLAT),
        Right("loops over rows", LOOP),
        Right("exponentials times a mask", SUM),
        Right("a large negative number hides", FINITE),
    ),
    conventions=(
        Convention(
            "empty_row",
            {
                "zeros": "a row of length 0 is all zeros.",
                "uniform": "a row of length 0 gives every key the same weight, because a large finite number "
                "hides; we give zeros.",
                "nan": "a row of length 0 is NaN, because all its scores are -inf; we give zeros.",
                "all keys": "a row of length 0 looks at every key, because a finite number was "
                "added to all of its scores; we give zeros.",
            },
        ),
    ),
    words={"": ("batch", "query", "key")},
    trials=(
        Trial("no lengths", no_lengths, {"batch": 2, "query": 3, "key": 5}, variants=True),
        Trial(
            "one length for each sequence", per_sequence, {"batch": 3, "query": 2, "key": 7}, variants=True
        ),
        Trial("one length for each query", per_query, {"batch": 2, "query": 5, "key": 7}, variants=True),
        Trial("batch of one", per_sequence, {"batch": 1, "query": 3, "key": 5}),
        Trial("one query", per_query, {"batch": 3, "query": 1, "key": 5}),
        Trial("as many queries as keys", per_sequence, {"batch": 2, "query": 5, "key": 5}),
        Trial("as many sequences as queries", per_sequence, {"batch": 3, "query": 3, "key": 5}),
        Trial("a length of 0", with_empty, {"batch": 3, "query": 2, "key": 5}, grad=False),
        Trial(
            "large scores",
            large_scores,
            {"batch": 2, "query": 3, "key": 5},
            kind="fragile",
            says="exp(900) is infinite: subtract the row's maximum first, as torch.softmax does.",
        ),
    ),
    probes=(
        Probe(
            "rows sum to one",
            lambda draw: (per_query(draw),),
            {"batch": 2, "query": 3, "key": 5},
            sums_to_one,
        ),
        Probe(
            "padding has no say",
            padding_changed,
            {"batch": 3, "query": 2, "key": 7},
            says="scores past a sequence's length were changed: nothing may move.",
        ),
        Probe(
            "a neighbour's length has no say",
            neighbour_changed,
            {"batch": 3, "query": 2, "key": 7},
            says="the length of sequence 0 was changed: sequences 1 and 2 may not move.",
        ),
        Probe(
            "a query stands alone",
            query_changed,
            {"batch": 2, "query": 3, "key": 5},
            says="the scores of one query were changed: the other rows may not move.",
        ),
    ),
    hints=(
        "Some row spreads its weight differently from a softmax over its first keys.",
        "Compare one row by hand: cut X[b, i] to its length and take its softmax.",
        "A hidden key must count for nothing in the sum below the fraction too, not only in the result.",
        "Set the hidden scores to -inf before the softmax over the last axis.",
    ),
    mistakes=(
        Mistake(
            "softmax over the queries instead of the keys",
            (
                "Rows do not sum to 1; columns do.",
                "Look at the axis of the softmax.",
                "Axis 0 of the flat rows runs over queries: each query must share its weight among keys.",
                "Take the softmax over the last axis.",
            ),
            edits=(
                ('float("-inf")), dim=-1)', 'float("-inf")), dim=0)'),
                ("torch.softmax(X, dim=-1)", "torch.softmax(X, dim=1)"),
            ),
        ),
        Mistake(
            "masked after the softmax",
            (
                "Rows with hidden keys sum to less than 1.",
                "Look at the order of mask and softmax.",
                "The hidden keys are zeroed only after they took their share of the sum.",
                "Hide the scores with -inf first, then take the softmax.",
            ),
            edits=(
                (
                    'torch.softmax(rows.masked_fill(hidden, float("-inf")), dim=-1)',
                    "torch.softmax(rows, dim=-1)",
                ),
            ),
        ),
        Mistake(
            "the lengths ignored",
            (
                "Padding gets weight, as if every key counted.",
                "Look at what happens to valid_lens.",
                "No score is hidden.",
                "Set the scores at or past each length to -inf before the softmax.",
            ),
            edits=(
                ('rows.masked_fill(hidden, float("-inf"))', "rows"),
                ("weights.masked_fill(hidden, 0.0)", "weights"),
            ),
        ),
        Mistake(
            "the mask is upside down",
            (
                "The weight lies on the padding.",
                "Look at the comparison of positions with lengths.",
                "True means hidden here, and the comparison is true for the valid keys.",
                "Hide the positions at or past the length.",
            ),
            edits=((">= lens", "< lens"),),
        ),
        Mistake(
            "one key too many is visible",
            (
                "Each row gives weight to one key past its length.",
                "Look at the comparison of positions with lengths.",
                "Positions count from 0, so the key at position `length` is already padding.",
                "Hide where position >= length.",
            ),
            edits=((">= lens", "> lens"),),
        ),
        Mistake(
            "one key too few is visible",
            (
                "Each row gives nothing to its last valid key.",
                "Look at the comparison of positions with lengths.",
                "The last valid key is at position length - 1, and the comparison hides it.",
                "Hide where position >= length.",
            ),
            edits=(("lens[:, None]", "(lens[:, None] - 1)"),),
        ),
        Mistake(
            "`repeat` instead of `repeat_interleave` over the queries",
            (
                "Sequence 1 is using sequence 0's lengths.",
                "Look at how one length per sequence becomes one per row.",
                "`repeat` gives a, b, a, b; the flat rows are ordered a, a, b, b.",
                "Use repeat_interleave, or broadcast lengths of shape (batch, 1, 1).",
            ),
            edits=(("torch.repeat_interleave(valid_lens, X.shape[1])", "valid_lens.repeat(X.shape[1])"),),
        ),
        Mistake(
            "hidden scores are set to 0 instead of -inf",
            (
                "Rows with hidden keys sum to less than 1, by exp(0) for each hidden key.",
                "Look at the number the hidden scores are given.",
                "exp(0) is 1, so a hidden key still takes its share of the sum.",
                "Use -inf: exp(-inf) is 0.",
            ),
            edits=(('rows.masked_fill(hidden, float("-inf"))', "rows.masked_fill(hidden, 0.0)"),),
        ),
        Mistake(
            "hidden scores are set to a tiny number",
            (
                "Hidden keys get about the weight of a score of 0.",
                "Look at the number that hides.",
                "1e-9 is close to 0, not to minus infinity.",
                "Use -inf, or a large negative number such as -1e9.",
            ),
            edits=(
                ('rows.masked_fill(hidden, float("-inf"))', "rows.masked_fill(hidden, 1e-9)"),
                ("weights.masked_fill(hidden, 0.0)", "weights"),
            ),
        ),
        Mistake(
            "X is changed in place",
            (
                "The numbers are right, but X is another after the call.",
                "Look for an assignment into X, or a method whose name ends in _.",
                "A reshape shares its memory with X, so writing into it writes into X.",
                "Use masked_fill without the underscore, or clone first.",
            ),
            edits=(
                ("rows = X.reshape", "with torch.no_grad():\n        rows = X.reshape"),
                ("rows.masked_fill(hidden", "rows.masked_fill_(hidden"),
            ),
        ),
        Mistake(
            "lengths for each query are ignored",
            (
                "With lengths of shape (batch, queries) every query of a sequence has the same length.",
                "Look at the branch for 2-D lengths.",
                "Only the first query's length is used.",
                "Flatten the lengths: one for each row.",
            ),
            edits=(("valid_lens.reshape(-1)", "torch.repeat_interleave(valid_lens[:, 0], X.shape[1])"),),
        ),
        Mistake(
            "exponentials without subtracting the maximum",
            (
                "Right for small scores, NaN for large ones.",
                "Look at exp.",
                "exp(900) is infinite, and infinity over infinity is NaN.",
                "Subtract each row's maximum before exp, or use torch.softmax.",
            ),
            edits=(("torch.exp(X - X.max(dim=2, keepdim=True).values)", "torch.exp(X)"),),
            of=2,
        ),
        Mistake(
            "positions on the wrong device",
            (
                "Right on the CPU, an error on any other device.",
                "Look at torch.arange.",
                "A new tensor is on the CPU unless it is told otherwise.",
                "Write torch.arange(..., device=X.device).",
            ),
            edits=((", device=X.device", ""),),
        ),
        Mistake(
            "the softmax of the whole score table",
            (
                "All weights of a sequence together sum to 1, not those of each row.",
                "Look at what is flattened before the softmax.",
                "The softmax runs over queries and keys at once.",
                "Take it over the last axis only.",
            ),
            edits=(
                ("torch.softmax(X, dim=-1)", "torch.softmax(X.flatten(1), dim=-1).reshape(X.shape)"),
                (
                    'weights = torch.softmax(rows.masked_fill(hidden, float("-inf")), dim=-1)',
                    'rows = rows.masked_fill(hidden, float("-inf")).reshape(X.shape[0], -1)\n'
                    "    weights = torch.softmax(rows, dim=-1).reshape(hidden.shape)",
                ),
            ),
        ),
    ),
)
