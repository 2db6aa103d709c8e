"""Known mistakes of additive attention, as edits of one right variant."""

from __future__ import annotations

from regard.exercises.spec import Mistake

STEPS = """import math
import torch
from torch import nn

class AdditiveAttention(nn.Module):
    def __init__(self, num_hiddens, dropout):
        super().__init__()
        self.W_q = nn.LazyLinear(num_hiddens, bias=False)
        self.W_k = nn.LazyLinear(num_hiddens, bias=False)
        self.w_v = nn.Linear(num_hiddens, 1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens):
        q = self.W_q(queries)
        k = self.W_k(keys)
        both = q[:, :, None, :] + k[:, None, :, :]
        active = torch.tanh(both)
        scores = self.w_v(active).squeeze(-1)
        hidden = torch.zeros_like(scores, dtype=torch.bool)
        if valid_lens is not None:
            if valid_lens.dim() == 1:
                lens = valid_lens[:, None]
            else:
                lens = valid_lens
            position = torch.arange(keys.shape[1], device=keys.device)
            hidden = (position >= lens[:, :, None]).expand_as(scores)
        scores = scores.masked_fill(hidden, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        weights = weights.masked_fill(hidden, 0.0)
        output = torch.bmm(self.dropout(weights), values)
        return output
"""

ACTIVE = "active = torch.tanh(both)"
BOTH = "both = q[:, :, None, :] + k[:, None, :, :]"
SCORES = "scores = self.w_v(active).squeeze(-1)"
SOFTMAX = "weights = torch.softmax(scores, dim=-1)"
MASK_PLACE = "Look at the comparison of positions with lengths."
TANH_PLACE = "Look at what happens between the sum and w_v."

MISTAKES = (
    Mistake(
        "no tanh",
        (
            "The query has no say: every query gives the same weights.",
            TANH_PLACE,
            "Without a tanh the query's part is the same number in every score, which a softmax ignores.",
            "Take tanh of the sum before w_v.",
        ),
        edits=((ACTIVE, "active = both"),),
    ),
    Mistake(
        "relu in the place of tanh",
        (
            "The scores are unbounded where they should not be.",
            TANH_PLACE,
            "Additive attention has a tanh.",
            "Take tanh of the sum before w_v.",
        ),
        edits=((ACTIVE, "active = torch.relu(both)"),),
    ),
    Mistake(
        "a sigmoid in the place of tanh",
        (
            "The scores differ less from one another than they should.",
            TANH_PLACE,
            "Additive attention has a tanh.",
            "Take tanh of the sum before w_v.",
        ),
        edits=((ACTIVE, "active = torch.sigmoid(both)"),),
    ),
    Mistake(
        "tanh of queries and keys before their sum",
        (
            "The query has no say: every query gives the same weights.",
            "Look at the order of sum and tanh.",
            "Query and key must meet inside the tanh.",
            "tanh(W_q q + W_k k), not tanh(W_q q) + tanh(W_k k).",
        ),
        edits=((ACTIVE, "active = torch.tanh(q)[:, :, None, :] + torch.tanh(k)[:, None, :, :]"),),
    ),
    Mistake(
        "queries and keys are multiplied instead of added",
        (
            "Where a query's hidden unit is 0, its keys do not matter.",
            "Look at how queries and keys meet.",
            "Additive attention adds them.",
            "tanh(W_q q + W_k k).",
        ),
        edits=((BOTH, "both = q[:, :, None, :] * k[:, None, :, :]"),),
    ),
    Mistake(
        "keys are subtracted",
        (
            "The scores compare queries with the negative of keys.",
            "Look at how queries and keys meet.",
            "Additive attention adds them.",
            "tanh(W_q q + W_k k).",
        ),
        edits=((BOTH, "both = q[:, :, None, :] - k[:, None, :, :]"),),
    ),
    Mistake(
        "`W_q` and `W_k` swapped",
        (
            "An error, or wrong weights where queries and keys are of one size.",
            "Look at which layer each input goes through.",
            "The queries go through the keys' layer and the keys through the queries'.",
            "W_q is for queries, W_k for keys.",
        ),
        edits=(("self.W_q(queries)", "self.W_k(queries)"), ("self.W_k(keys)", "self.W_q(keys)")),
    ),
    Mistake(
        "the axes of queries and keys are swapped",
        (
            "The scores are (batch, keys, queries).",
            "Look at where the two new axes are put.",
            "A softmax over the last axis then runs over queries.",
            "Queries get their axis at dim 2, keys at dim 1.",
        ),
        edits=((BOTH, "both = q[:, None, :, :] + k[:, :, None, :]"),),
    ),
    Mistake(
        "scores are summed without w_v",
        (
            "Every hidden unit counts the same.",
            "Look at how a vector becomes one score.",
            "w_v weighs the hidden units, and is not used.",
            "scores = w_v(tanh(...)).",
        ),
        edits=((SCORES, "scores = active.sum(-1)"),),
    ),
    Mistake(
        "scores divided by the square root of num_hiddens",
        (
            "The weights are flatter than they should be.",
            "Look at what happens to the scores before the softmax.",
            "The scale belongs to dot-product attention; here w_v learns it.",
            "Leave the scores as w_v gives them.",
        ),
        edits=((SCORES, "scores = self.w_v(active).squeeze(-1) / math.sqrt(q.shape[-1])"),),
    ),
    Mistake(
        "the dot product of the projections",
        (
            "w_v and the tanh have no part in the scores.",
            "Look at how the scores are made.",
            "This is dot-product attention.",
            "score = w_v . tanh(W_q q + W_k k).",
        ),
        edits=((SCORES, "scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1])"),),
    ),
    Mistake(
        "softmax over the queries instead of the keys",
        (
            "A query's weights do not sum to 1; those that a key receives do.",
            "Look at the axis of the softmax.",
            "The scores are (batch, query, key), and axis 1 runs over queries.",
            "Take the softmax over the last axis.",
        ),
        edits=((SOFTMAX, "weights = torch.softmax(scores, dim=1)"),),
    ),
    Mistake(
        "no softmax",
        (
            "The weights do not sum to 1.",
            "Look at what lies between scores and values.",
            "The scores themselves multiply the values.",
            "Take the softmax of the scores over the keys.",
        ),
        edits=((SOFTMAX, "weights = scores"),),
    ),
    Mistake(
        "lengths are ignored",
        (
            "Every query looks at the padding.",
            "Look for what valid_lens does.",
            "The scores of hidden keys go into the softmax as they are.",
            "Set them to -inf before the softmax.",
        ),
        edits=(
            ('scores.masked_fill(hidden, float("-inf"))', "scores"),
            ("weights.masked_fill(hidden, 0.0)", "weights"),
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
        edits=(('scores.masked_fill(hidden, float("-inf"))', "scores"),),
    ),
    Mistake(
        "hidden scores are set to 0 instead of -inf",
        (
            "Hidden keys get the weight of a score of 0.",
            "Look at the number that hides.",
            "exp(0) is 1, so a hidden key still takes its share.",
            "Use -inf, or a large negative number.",
        ),
        edits=(('hidden, float("-inf")', "hidden, 0.0"), ("weights.masked_fill(hidden, 0.0)", "weights")),
    ),
    Mistake(
        "the mask is upside down",
        (
            "The weight lies on the padding.",
            MASK_PLACE,
            "True means hidden here, and the comparison is true for the valid keys.",
            "Hide the positions at or past the length.",
        ),
        edits=(("position >= lens", "position < lens"),),
    ),
    Mistake(
        "one key too many is visible",
        (
            "Each row gives weight to one key past its length.",
            MASK_PLACE,
            "Positions count from 0, so the key at position `length` is already padding.",
            "Hide where position >= length.",
        ),
        edits=(("position >= lens", "position > lens"),),
    ),
    Mistake(
        "one key too few is visible",
        (
            "Each row gives nothing to its last valid key.",
            MASK_PLACE,
            "The last valid key stands at position length - 1, and the comparison hides it.",
            "Hide where position >= length.",
        ),
        edits=(("position >= lens", "position + 1 >= lens"),),
    ),
    Mistake(
        "every sequence has the first one's length",
        (
            "Sequence 1 is using sequence 0's length.",
            "Look at how one length for each sequence meets the scores.",
            "The lengths lost their batch axis on the way.",
            "Give them the shape (batch, 1, 1).",
        ),
        edits=(("lens = valid_lens[:, None]", "lens = valid_lens[:1, None]"),),
    ),
    Mistake(
        "lengths for each query are ignored",
        (
            "With lengths of shape (batch, queries) every query of a sequence has the same length.",
            "Look at the branch for 2-D lengths.",
            "Only the first query's length is used.",
            "Use all of them, as (batch, queries, 1).",
        ),
        edits=(("lens = valid_lens\n", "lens = valid_lens[:, :1]\n"),),
    ),
    Mistake(
        "keys in the place of values",
        (
            "The output is a mixture of keys.",
            "Look at the second product.",
            "The weights must meet the values.",
            "output = bmm(weights, values).",
        ),
        edits=(("torch.bmm(self.dropout(weights), values)", "torch.bmm(self.dropout(weights), keys)"),),
    ),
    Mistake(
        "no dropout",
        (
            "Train and eval mode give the same.",
            "Look at what multiplies the values.",
            "The weights are not dropped.",
            "output = bmm(self.dropout(weights), values).",
        ),
        edits=(("self.dropout(weights)", "weights"),),
    ),
    Mistake(
        "dropout in eval mode too",
        (
            "In eval mode the result differs from call to call.",
            "Look at how dropout is applied.",
            "nn.functional.dropout does not know of eval mode unless it is told.",
            "Use nn.Dropout, or pass training=self.training.",
        ),
        edits=(("self.dropout(weights)", "nn.functional.dropout(weights, self.dropout.p)"),),
    ),
    Mistake(
        "dropout on the output",
        (
            "In train mode entries of the output are zero, not weights.",
            "Look at what dropout is applied to.",
            "It belongs to the weights: a dropped key is missing from the whole output row.",
            "output = bmm(self.dropout(weights), values).",
        ),
        edits=(("torch.bmm(self.dropout(weights), values)", "self.dropout(torch.bmm(weights, values))"),),
    ),
    Mistake(
        "the weights are cut off from the gradient",
        (
            "The numbers are right, and no layer gets a gradient.",
            "Look for detach, .data or no_grad.",
            "Attention learns where to look through its weights.",
            "Use the weights as they are.",
        ),
        edits=((SOFTMAX, "weights = torch.softmax(scores, dim=-1).detach()"),),
    ),
    Mistake(
        "positions on the wrong device",
        (
            "Right on the CPU, an error on any other device.",
            "Look at torch.arange.",
            "A new tensor is on the CPU unless it is told otherwise.",
            "Write torch.arange(..., device=keys.device).",
        ),
        edits=((", device=keys.device", ""),),
    ),
)
