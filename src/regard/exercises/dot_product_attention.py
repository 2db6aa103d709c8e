"""Exercise: scaled dot-product attention with lengths, after d2l."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.attention import softmax as attention
from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.exercises.dot_product_mistakes import MISTAKES, STEPS
from regard.exercises.spec import ANYTHING, Case, Convention, Draw, Exercise, Probe, Right, Trial

TASK = """
Scaled dot-product attention over batches, with dropout on the weights:

    weights = softmax(queries keys^T / sqrt(d)) over the first `valid_lens` keys of each row
    output  = dropout(weights) values

- `DotProductAttention(dropout)` has no weights of its own.
- `forward(queries, keys, values, valid_lens=None)`: queries (batch, queries, d), keys (batch, keys, d),
  values (batch, keys, v). `valid_lens` is None, (batch,) with one length for all queries of a sequence, or
  (batch, queries).
- Returns `(output, weights)`: (batch, queries, v), and the weights before dropout, (batch, queries, keys).
  A row of length 0 has weights and output 0.
"""

STARTER = '''import torch
from torch import nn


class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        raise NotImplementedError

    def forward(self, queries, keys, values, valid_lens=None):
        """(batch, queries, d), (batch, keys, d), (batch, keys, v) -> (output, weights before dropout)."""
        raise NotImplementedError
'''

EINSUM = """import torch
import torch.nn as nn

class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.drop = nn.Dropout(p=dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        scores = torch.einsum("bqd,bkd->bqk", queries * queries.size(-1) ** -0.5, keys)
        if valid_lens is not None:
            if valid_lens.ndim == 1:
                valid_lens = valid_lens.unsqueeze(1).expand(-1, queries.size(1))
            mask = torch.arange(keys.size(1), device=keys.device).view(1, 1, -1) < valid_lens.unsqueeze(-1)
            scores = scores.masked_fill(mask == 0, -1e9)
        attention = scores.softmax(dim=-1)
        return torch.einsum("bqk,bkv->bqv", self.drop(attention), values), attention
"""

D2L = """import math
import torch
from torch import nn

def masked_softmax(X, valid_lens):
    if valid_lens is None:
        return nn.functional.softmax(X, dim=-1)
    rows = X.reshape(-1, X.shape[-1]).clone()
    if valid_lens.dim() == 1:
        valid_lens = torch.repeat_interleave(valid_lens, X.shape[1])
    lens = valid_lens.reshape(-1)
    keep = torch.arange(rows.size(1), dtype=torch.float32, device=X.device)[None, :] < lens[:, None]
    rows[~keep] = -1e6
    return nn.functional.softmax(rows.reshape(X.shape), dim=-1)

class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        d = queries.shape[-1]
        scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(d)
        self.attention_weights = masked_softmax(scores, valid_lens)
        return torch.bmm(self.dropout(self.attention_weights), values), self.attention_weights
"""

FUSED = """import torch
from torch import nn
from torch.nn import functional as F

class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.p = dropout

    def forward(self, queries, keys, values, valid_lens=None):
        added = None
        if valid_lens is not None:
            lens = valid_lens if valid_lens.dim() == 2 else valid_lens[:, None]
            see = torch.arange(keys.shape[1], device=keys.device) < lens[..., None]
            added = torch.zeros(see.shape, dtype=queries.dtype, device=keys.device)
            added = added.masked_fill(~see, torch.finfo(queries.dtype).min)
        p = self.p if self.training else 0.0
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=added, dropout_p=p)
        one_hot = torch.eye(keys.shape[1], dtype=keys.dtype, device=keys.device).expand(len(keys), -1, -1)
        return out, F.scaled_dot_product_attention(queries, keys, one_hot, attn_mask=added)
"""

LOOPS = """import torch
from torch import nn

class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = dropout

    def forward(self, queries, keys, values, valid_lens=None):
        B, Q, d = queries.shape
        weights = torch.zeros(B, Q, keys.shape[1], dtype=queries.dtype, device=queries.device)
        for b in range(B):
            for i in range(Q):
                n = keys.shape[1]
                if valid_lens is not None:
                    n = int(valid_lens[b] if valid_lens.dim() == 1 else valid_lens[b, i])
                weights[b, i, :n] = torch.softmax(keys[b, :n] @ queries[b, i] / d ** 0.5, dim=0)
        dropped = nn.functional.dropout(weights, self.dropout, training=self.training)
        return dropped @ values, weights
"""


def reference(
    case: Case, *, empty_row: str = "zeros", returned: str = "before dropout"
) -> tuple[Tensor, Tensor]:
    """Our own attention as one head; with all weights dropped, any output will do."""
    queries, keys, values = (x[:, None] for x in case.args[:3])
    lengths = case.kwargs.get("valid_lens")
    rule = ScoreRule(visible=Visibility(lengths=lengths))
    output, weights = (
        attend(queries, keys, values, rule).out[:, 0],
        attention.weights(queries, keys, rule)[:, 0],
    )
    if lengths is not None:
        output = with_empty_rows(output, case.args[2].mean(1, keepdim=True), lengths, empty_row)
        weights = with_empty_rows(weights, torch.full_like(weights, 1 / keys.shape[2]), lengths, empty_row)
    if case.train:  # everything is dropped; a dropout written by hand divides 0 by 0
        output = torch.full_like(output, ANYTHING)
        weights = weights if returned == "before dropout" else torch.zeros_like(weights)
    return output, weights


def with_empty_rows(result: Tensor, uniform: Tensor, lengths: Tensor, empty_row: str) -> Tensor:
    """The result with what the convention says in rows of length 0."""
    if empty_row == "zeros":
        return result
    empty = (lengths if lengths.dim() == 2 else lengths[:, None])[..., None] == 0
    instead = {
        "uniform": uniform,
        "nan": torch.full_like(result, torch.nan),
        "other": torch.full_like(result, ANYTHING),
    }[empty_row]
    return torch.where(empty, instead, result)


EMPTY_ROW = Convention(
    "empty_row",
    {
        "zeros": "a row of length 0 has weights and output 0.",
        "uniform": "a row of length 0 gives every key the same weight, because a large finite number hides; "
        "we give zeros.",
        "nan": "a row of length 0 is NaN, because all its scores are -inf; we give zeros.",
        "other": "a row of length 0 gives something of its own, such as a softmax over all keys when a "
        "finite number is added to its scores; we give zeros.",
    },
)


DROPOUT = 0.3  # not the 0.5 that nn.Dropout takes by itself


def inputs(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys = draw.normal("batch", "query", "dim", scale=1.5), draw.normal("batch", "key", "dim")
    return queries, keys, draw.normal("batch", "key", "value_dim")


def lengths_of(draw: Draw) -> Tensor:
    """One length for each sequence; the first two differ, or one could use the other's unnoticed."""
    lengths = draw.integers(1, draw["key"], "batch")
    if draw["batch"] > 1:
        lengths[0], lengths[1] = max(1, draw["key"] // 2), draw["key"]
    return lengths


def no_lengths(draw: Draw) -> Case:
    return Case(inputs(draw), init=(0.0,))


def per_sequence(draw: Draw) -> Case:
    return Case(inputs(draw), {"valid_lens": lengths_of(draw)}, init=(0.0,))


def per_query(draw: Draw) -> Case:
    lengths = draw.integers(1, draw["key"], "batch", "query")
    return Case(inputs(draw), {"valid_lens": lengths}, init=(0.0,))


def all_valid(draw: Draw) -> Case:
    return Case(inputs(draw), {"valid_lens": torch.full((draw["batch"],), draw["key"])}, init=(0.0,))


def with_empty(draw: Draw) -> Case:
    lengths = lengths_of(draw)
    lengths[0] = 0
    return Case(inputs(draw), {"valid_lens": lengths}, init=(0.0,))


def large_scores(draw: Draw) -> Case:
    """Whole numbers, and a scale of 2: the scores are exact in float32, and exp of them is infinite."""
    queries, keys = draw.integers(-15, 15, "batch", "query", 4), draw.integers(-15, 15, "batch", "key", 4)
    values = draw.normal("batch", "key", "value_dim")
    # No lengths: a maximum over hidden keys too, with these scores, leaves nothing of the visible ones.
    return Case((queries.float(), keys.float(), values), init=(0.0,))


def evaluated(draw: Draw) -> Case:
    return replace(per_sequence(draw), init=(0.7,))


def all_dropped(draw: Draw) -> Case:
    return replace(per_sequence(draw), init=(1.0,), train=True)


def identity_values(draw: Draw) -> Tensor:
    """Two identities side by side: the output is the dropped weights, twice."""
    return torch.eye(draw["key"]).repeat(1, 2).expand(draw["batch"], -1, -1).contiguous()


def dropped(draw: Draw) -> tuple[Case, ...]:
    queries, keys, _ = inputs(draw)
    trained = Case((queries, keys, identity_values(draw)), init=(DROPOUT,), train=True)
    return trained, replace(trained, train=False)


NONE_DROPPED = "in train mode no weight is 0, and the output is another: dropout belongs on the weights."


def drops_weights(results: list[Any]) -> str | None:
    """Whether the output in train mode is made of weights that are 0 or twice what they were."""
    trained, plain = (
        result[0].double() if isinstance(result, list | tuple) else result.double() for result in results
    )
    first, second = trained.chunk(2, dim=-1)
    if not torch.allclose(first, second, atol=1e-5):
        return "dropout must be applied to the weights: yours drops entries of the output."
    zero = first.abs() < 1e-7
    share = float(zero.double().mean())
    if share == 0:
        return None if torch.allclose(trained, plain, atol=1e-5) else NONE_DROPPED
    if share == 1:
        return f"in train mode with dropout {DROPOUT}, that share of the weights is dropped; yours drops all."
    kept = plain.chunk(2, dim=-1)[0] / (1 - DROPOUT)
    if float(torch.where(zero, 0.0, first - kept).abs().max()) > 1e-4:
        return f"in train mode a weight must be 0 or what it was over {1 - DROPOUT}; yours are neither."
    return None


def drops_something(results: list[Any]) -> str | None:
    """Whether train mode is another than eval mode."""
    trained, plain = (result[0] if isinstance(result, list | tuple) else result for result in results)
    if torch.allclose(trained, plain, atol=1e-5):
        return f"with dropout {DROPOUT}, train mode gives what eval mode gives: nothing is dropped."
    return None


def padding_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_sequence(draw)
    queries, keys, values = base.args
    beyond = (torch.arange(draw["key"]) >= base.kwargs["valid_lens"][:, None])[..., None]
    return base, base.with_args(queries, *(torch.where(beyond, x + 2.0, x) for x in (keys, values)))


def neighbour_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_sequence(draw)
    other = [x.clone() for x in base.args]
    for x in other:
        x[0] += 1.0
    shorter = base.kwargs["valid_lens"].clone()
    shorter[0] = max(1, int(shorter[0]) - 1)
    return base, replace(base.with_args(*other), kwargs={"valid_lens": shorter})


def query_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_query(draw)
    queries = base.args[0].clone()
    queries[:, 0] *= -2
    return base, base.with_args(queries, *base.args[1:])


def sums_to_one(results: list[Any]) -> str | None:
    total = results[0][1].double().sum(-1)
    if torch.allclose(total, torch.ones_like(total), atol=1e-5):
        return None
    return (
        f"the weights of a query must sum to 1; yours sum to between {total.min():.4g} and {total.max():.4g}."
    )


SIZES = {"batch": 2, "query": 3, "key": 7, "dim": 5, "value_dim": 11}
DROPPED = {"batch": 3, "query": 11, "key": 7, "dim": 5, "value_dim": 2}

EXERCISE = Exercise(
    id="dot-product-attention",
    title="Scaled dot-product attention",
    names=("DotProductAttention",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    needs=("masked-softmax",),
    right=(
        Right("step by step", STEPS),
        Right("einsum, and a large negative number", EINSUM),
        Right("with a masked softmax, as a textbook has it", D2L),
        Right("torch's fused attention", FUSED),
        Right("loops over queries", LOOPS),
    ),
    mistakes=MISTAKES,
    conventions=(
        EMPTY_ROW,
        Convention(
            "returned",
            {
                "before dropout": "the weights are returned as they are before dropout.",
                "after dropout": "in train mode your weights are returned after dropout; ours before it.",
            },
        ),
    ),
    words={"0": ("batch", "query", "value"), "1": ("batch", "query", "key")},
    trials=(
        Trial("no lengths", no_lengths, SIZES, variants=True),
        Trial("one length for each sequence", per_sequence, SIZES, variants=True),
        Trial("one length for each query", per_query, SIZES, variants=True),
        Trial("every key valid", all_valid, SIZES),
        Trial("batch of one", per_sequence, {**SIZES, "batch": 1}),
        Trial("one query", per_query, {**SIZES, "query": 1}),
        Trial("one key", per_sequence, {**SIZES, "key": 1}),
        Trial("all sizes alike", per_sequence, dict.fromkeys(SIZES, 3)),
        Trial("a length of 0", with_empty, SIZES, grad=False),
        Trial(
            "large scores",
            large_scores,
            SIZES,
            grad=False,
            kind="fragile",
            says="exp(200) is infinite: subtract the row's maximum first, as torch.softmax does.",
        ),
        Trial(
            "dropout in eval mode",
            evaluated,
            SIZES,
            kind="train mode",
            says="In eval mode dropout does nothing.",
        ),
        Trial(
            "weights in train mode",
            all_dropped,
            SIZES,
            grad=False,
            kind="train mode",
            says="With dropout 1 the weights before dropout are what they were.",
        ),
    ),
    probes=(
        Probe("weights sum to one", lambda draw: (per_query(draw),), SIZES, sums_to_one),
        Probe(
            "padding has no say",
            padding_changed,
            SIZES,
            says="keys and values past a sequence's length were changed: nothing may move.",
        ),
        Probe(
            "a neighbour has no say",
            neighbour_changed,
            {**SIZES, "batch": 3},
            says="sequence 0 was changed: the others may not move.",
        ),
        Probe(
            "a query stands alone",
            query_changed,
            SIZES,
            says="query 0 was changed: the rows of the others may not move.",
        ),
        Probe("dropout in train mode", dropped, DROPPED, drops_something, kind="train mode"),
        Probe("dropout drops weights", dropped, DROPPED, drops_weights, kind="train mode"),
    ),
    hints=(
        "Some row of the weights or of the output is not what the formula gives.",
        "Take one query: its scores, their softmax over its valid keys, the weighted sum of the values.",
        "Scores are divided by sqrt(d); the softmax runs over keys, and hidden ones count for nothing in it.",
        "bmm(queries, keys^T) / sqrt(d), masked softmax over the last axis, dropout, bmm with the values.",
    ),
)
