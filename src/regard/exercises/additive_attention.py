"""Exercise: additive attention with lengths, after d2l."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import linear

from regard.attention import softmax as attention
from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.exercises.additive_mistakes import MISTAKES, STEPS
from regard.exercises.dot_product_attention import (
    DROPOUT,
    EMPTY_ROW,
    drops_something,
    drops_weights,
    identity_values,
    lengths_of,
    with_empty_rows,
)
from regard.exercises.spec import ANYTHING, Case, Convention, Draw, Exercise, Probe, Right, Trial

TASK = """
Additive attention (Bahdanau et al. 2015), where queries and keys may be of different size:

    score(q, k) = w_v . tanh(W_q q + W_k k)
    output      = dropout(softmax(scores) over the first `valid_lens` keys of each row) values

- `AdditiveAttention(num_hiddens, dropout)` has three linear layers without bias: `W_q` and `W_k` to
  `num_hiddens`, `w_v` from `num_hiddens` to 1. The sizes of queries and keys are not told: `nn.LazyLinear`
  finds them.
- `forward(queries, keys, values, valid_lens)`: queries (batch, queries, query_size), keys (batch, keys,
  key_size), values (batch, keys, v). `valid_lens` is None, (batch,) with one length for all queries of a
  sequence, or (batch, queries). A row of length 0 gives 0.
- Returns the output, (batch, queries, v); a pair (output, weights) is accepted too.
"""

STARTER = '''import torch
from torch import nn


class AdditiveAttention(nn.Module):
    def __init__(self, num_hiddens, dropout):
        super().__init__()
        raise NotImplementedError

    def forward(self, queries, keys, values, valid_lens):
        """(batch, queries, query_size), (batch, keys, key_size), (batch, keys, v) -> (batch, queries, v)."""
        raise NotImplementedError
'''

D2L = """import torch
from torch import nn

def masked_softmax(X, valid_lens):
    if valid_lens is None:
        return nn.functional.softmax(X, dim=-1)
    rows = X.reshape(-1, X.shape[-1])
    if valid_lens.dim() == 1:
        valid_lens = torch.repeat_interleave(valid_lens, X.shape[1])
    keep = torch.arange(rows.size(1), device=X.device)[None, :] < valid_lens.reshape(-1)[:, None]
    return nn.functional.softmax(torch.where(keep, rows, rows.new_full((), -1e6)).view(X.shape), dim=-1)

class AdditiveAttention(nn.Module):
    def __init__(self, num_hiddens, dropout, **kwargs):
        super().__init__(**kwargs)
        self.W_k = nn.LazyLinear(num_hiddens, bias=False)
        self.W_q = nn.LazyLinear(num_hiddens, bias=False)
        self.w_v = nn.LazyLinear(1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens):
        features = self.W_q(queries).unsqueeze(2) + self.W_k(keys).unsqueeze(1)
        self.attention_weights = masked_softmax(self.w_v(torch.tanh(features)).squeeze(-1), valid_lens)
        return torch.bmm(self.dropout(self.attention_weights), values)
"""

LOOP = """import torch
import torch.nn as nn

class AdditiveAttention(nn.Module):
    def __init__(self, num_hiddens, dropout):
        super().__init__()
        self.W_q = nn.LazyLinear(num_hiddens, bias=False)
        self.W_k = nn.LazyLinear(num_hiddens, bias=False)
        self.w_v = nn.Linear(num_hiddens, 1, bias=False)
        self.p = dropout

    def forward(self, queries, keys, values, valid_lens):
        k = self.W_k(keys)
        columns = []
        for q in self.W_q(queries).unbind(1):
            columns.append(self.w_v((q[:, None] + k).tanh())[..., 0])
        scores = torch.stack(columns, dim=1)
        if valid_lens is not None:
            lens = valid_lens.reshape(len(keys), -1, 1)
            scores = scores + torch.where(torch.arange(keys.shape[1], device=keys.device) < lens, 0.0, -1e4)
        weights = torch.softmax(scores.to(keys.dtype), -1)
        return nn.functional.dropout(weights, self.p, self.training) @ values
"""

PAIR = """import torch
from torch import nn
from torch.nn import functional as F

class AdditiveAttention(nn.Module):
    def __init__(self, num_hiddens, dropout=0.1):
        super().__init__()
        self.num_hiddens = num_hiddens
        self.W_q = nn.LazyLinear(num_hiddens, bias=False)
        self.W_k = nn.LazyLinear(num_hiddens, bias=False)
        self.w_v = nn.LazyLinear(1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def score(self, q, k):
        Q, K = q.shape[1], k.shape[1]
        left = self.W_q(q).repeat_interleave(K, dim=1)
        right = self.W_k(k).repeat(1, Q, 1)
        return self.w_v(torch.tanh(left + right)).view(-1, Q, K)

    def forward(self, queries, keys, values, valid_lens=None):
        scores = self.score(queries, keys)
        if valid_lens is not None:
            steps = torch.arange(keys.shape[1], device=scores.device)
            if valid_lens.dim() == 1:
                valid_lens = valid_lens[:, None]
            scores = scores.masked_fill(~(steps[None, None] < valid_lens[:, :, None]), float("-inf"))
        weights = F.softmax(scores, dim=2)
        context = torch.einsum("bqk,bkv->bqv", self.dropout(weights), values)
        return context, weights
"""

DRIVE = """
def drive(answer, what, *args):
    result = answer(*args)
    pair = isinstance(result, (tuple, list))
    if what == "output":
        return result[0] if pair else result
    return result[1] if pair else None
"""

BIASES = D2L.replace(", bias=False", "")


def reference(case: Case, *, empty_row: str = "zeros", returns: str = "output") -> Tensor | None:
    """Our own attention as one head, with additive scores."""
    what, queries, keys, values, lengths = case.args
    q, k = linear(queries, case.weights["W_q.weight"]), linear(keys, case.weights["W_k.weight"])
    rule = ScoreRule(additive=case.weights["w_v.weight"][0], visible=Visibility(lengths=lengths))
    q, k = q[:, None], k[:, None]
    if what == "weights":
        return None if returns == "output" else attention.weights(q, k, rule)[:, 0]
    output = attend(q, k, values[:, None], rule).out[:, 0]
    if case.train:  # the judge of dropout says more than a comparison
        return torch.full_like(output, ANYTHING)
    if lengths is None:
        return output
    return with_empty_rows(output, values.mean(1, keepdim=True), lengths, empty_row)


def layer(draw: Draw, *, dropout: float = 0.0, train: bool = False) -> Case:
    weights = {
        "W_q.weight": draw.weight("hidden", "query_dim"),
        "W_k.weight": draw.weight("hidden", "key_dim"),
        "w_v.weight": draw.normal(1, "hidden", scale=1.5),
    }
    return Case(init=(draw["hidden"], dropout), weights=weights, train=train)


def inputs(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys = draw.normal("batch", "query", "query_dim"), draw.normal("batch", "key", "key_dim")
    return queries, keys, draw.normal("batch", "key", "value_dim")


def no_lengths(draw: Draw) -> Case:
    return layer(draw).with_args("output", *inputs(draw), None)


def per_sequence(draw: Draw) -> Case:
    return layer(draw).with_args("output", *inputs(draw), lengths_of(draw))


def per_query(draw: Draw) -> Case:
    lengths = draw.integers(1, draw["key"], "batch", "query")
    return layer(draw).with_args("output", *inputs(draw), lengths)


def all_valid(draw: Draw) -> Case:
    return layer(draw).with_args("output", *inputs(draw), torch.full((draw["batch"],), draw["key"]))


def with_empty(draw: Draw) -> Case:
    lengths = lengths_of(draw)
    lengths[0] = 0
    return layer(draw).with_args("output", *inputs(draw), lengths)


def the_weights(draw: Draw) -> Case:
    return layer(draw).with_args("weights", *inputs(draw), lengths_of(draw))


def evaluated(draw: Draw) -> Case:
    return replace(per_sequence(draw), init=(draw["hidden"], 0.7))


def dropped(draw: Draw) -> tuple[Case, ...]:
    queries, keys, _ = inputs(draw)
    trained = layer(draw, dropout=DROPOUT, train=True).with_args(
        "output", queries, keys, identity_values(draw), None
    )
    return trained, replace(trained, train=False)


def padding_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_sequence(draw)
    what, queries, keys, values, lengths = base.args
    beyond = (torch.arange(draw["key"]) >= lengths[:, None])[..., None]
    return base, base.with_args(
        what, queries, *(torch.where(beyond, x + 2.0, x) for x in (keys, values)), lengths
    )


def neighbour_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_sequence(draw)
    what, *tensors = base.args
    other = [x.clone() for x in tensors]
    for x in other[:3]:
        x[0] += 1.0
    other[3][0] = max(1, int(other[3][0]) - 1)
    return base, base.with_args(what, *other)


def query_changed(draw: Draw) -> tuple[Case, ...]:
    base = per_query(draw)
    queries = base.args[1].clone()
    queries[:, 0] *= -2
    return base, base.with_args("output", queries, *base.args[2:])


SIZES = {"batch": 2, "query": 3, "key": 7, "hidden": 5, "query_dim": 11, "key_dim": 13, "value_dim": 17}
ALIKE = {**SIZES, "query": 5, "key": 5, "query_dim": 5, "key_dim": 5}
DROPPED = {**SIZES, "batch": 3, "query": 11}

EXERCISE = Exercise(
    id="additive-attention",
    title="Additive attention",
    names=("AdditiveAttention",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    needs=("masked-softmax",),
    drive=DRIVE,
    right=(
        Right("step by step", STEPS),
        Right("with a masked softmax, as a textbook has it", D2L),
        Right("a loop over queries, and a finite number that hides", LOOP),
        Right("pairs written out, and the weights returned too", PAIR),
        Right("layers with biases", BIASES),
    ),
    mistakes=MISTAKES,
    conventions=(
        EMPTY_ROW,
        Convention(
            "returns",
            {
                "output": "the output alone is returned.",
                "pair": "you return (output, weights), as dot-product-attention does; we return "
                "the output alone.",
            },
        ),
    ),
    words={"": ("batch", "query", "value")},
    trials=(
        Trial("no lengths", no_lengths, SIZES, variants=True),
        Trial("one length for each sequence", per_sequence, SIZES, variants=True),
        Trial("one length for each query", per_query, SIZES, variants=True),
        Trial("every key valid", all_valid, SIZES),
        Trial("batch of one", per_sequence, {**SIZES, "batch": 1}),
        Trial("one query", per_query, {**SIZES, "query": 1}),
        Trial("as many queries as keys, all of one size", per_sequence, ALIKE),
        Trial("as many sequences as queries", per_sequence, {**ALIKE, "batch": 5}),
        Trial("a length of 0", with_empty, SIZES, grad=False),
        Trial("weights, where they are returned", the_weights, SIZES, grad=False),
        Trial(
            "dropout in eval mode",
            evaluated,
            SIZES,
            kind="train mode",
            says="In eval mode dropout does nothing.",
        ),
    ),
    probes=(
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
            says="query 0 was changed: the outputs of the others may not move.",
        ),
        Probe("dropout in train mode", dropped, DROPPED, drops_something, kind="train mode"),
        Probe("dropout drops weights", dropped, DROPPED, drops_weights, kind="train mode"),
    ),
    hints=(
        "Some row of the output is not the mixture of values that the formula gives.",
        "Take one query and one key: W_q q + W_k k is a vector, its tanh times w_v a number.",
        "Each query meets each key: the sum needs an axis for queries and one for keys, before the tanh.",
        "(batch, queries, 1, hiddens) + (batch, 1, keys, hiddens), tanh, w_v, masked softmax, dropout, bmm.",
    ),
)
