"""Known mistakes of dot-product attention, as edits of one right variant."""

from __future__ import annotations

from regard.exercises.spec import Mistake

STEPS = """import math
import torch
from torch import nn

class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        d = queries.shape[-1]
        scores = torch.bmm(queries, keys.transpose(1, 2))
        scores = scores / math.sqrt(d)
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
        return output, weights
"""

SCALED = "scores = scores / math.sqrt(d)"
SOFTMAX = "weights = torch.softmax(scores, dim=-1)"
SCALE_PLACE = "Look at the number that the scores are divided by."
MASK_PLACE = "Look at the comparison of positions with lengths."

MISTAKES = (
    Mistake(
        "attention without its scale",
        (
            "The weights are sharper than they should be, the more so the larger d is.",
            "Look at what happens to the scores between the product and the softmax.",
            "The dot product of two vectors of d numbers varies with d, and nothing evens that out.",
            "Divide the scores by sqrt(d).",
        ),
        edits=((SCALED, "scores = scores * 1.0"),),
    ),
    Mistake(
        "divided by d instead of its square root",
        (
            "The weights are flatter than they should be.",
            SCALE_PLACE,
            "The standard deviation of a score grows with sqrt(d), not with d.",
            "Divide by math.sqrt(d).",
        ),
        edits=((SCALED, "scores = scores / d"),),
    ),
    Mistake(
        "multiplied by the square root of d instead of divided",
        (
            "Nearly all weight lies on one key.",
            SCALE_PLACE,
            "The scores grow where they should shrink.",
            "Divide by math.sqrt(d).",
        ),
        edits=((SCALED, "scores = scores * math.sqrt(d)"),),
    ),
    Mistake(
        "scaled by the size of the values",
        (
            "Right only where values are as wide as queries.",
            SCALE_PLACE,
            "A score sums over the numbers of a query, and those of a value have no part in it.",
            "d is the last size of the queries.",
        ),
        edits=((SCALED, "scores = scores / math.sqrt(values.shape[-1])"),),
    ),
    Mistake(
        "scaled by the number of keys",
        (
            "The weights depend on how many keys there are beside the valid ones.",
            SCALE_PLACE,
            "A score sums over the numbers of a query, not over keys.",
            "d is the last size of the queries.",
        ),
        edits=((SCALED, "scores = scores / math.sqrt(keys.shape[1])"),),
    ),
    Mistake(
        "scaled after the softmax",
        (
            "The weights of a query sum to 1 / sqrt(d).",
            "Look at the order of scale and softmax.",
            "The scores are what is scaled, not the weights.",
            "Divide the scores, then take the softmax.",
        ),
        edits=(
            (SCALED, "scores = scores * 1.0"),
            (SOFTMAX, "weights = torch.softmax(scores, dim=-1) / math.sqrt(d)"),
        ),
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
        "softmax over the batch instead of the keys",
        (
            "The same cell of all sequences sums to 1: sequences share their weight.",
            "Look at the axis of the softmax.",
            "Axis 0 runs over the batch.",
            "Take the softmax over the last axis.",
        ),
        edits=((SOFTMAX, "weights = torch.softmax(scores, dim=0)"),),
    ),
    Mistake(
        "no softmax",
        (
            "Weights are negative, and do not sum to 1.",
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
        "hidden scores are multiplied by 0",
        (
            "Hidden keys get a share of the sum, which is then thrown away.",
            "Look at the number that hides.",
            "exp(0) is 1, so a hidden key still takes its share of the sum.",
            "Use -inf, or a large negative number.",
        ),
        edits=(('scores.masked_fill(hidden, float("-inf"))', "scores * ~hidden"),),
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
        "(weights, output) is returned in the place of (output, weights)",
        (
            "Both are right, and each stands where the other belongs.",
            "Look at the return.",
            "The output comes first.",
            "return output, weights.",
        ),
        edits=(("return output, weights", "return weights, output"),),
    ),
    Mistake(
        "the output alone is returned",
        (
            "The weights are missing from the result.",
            "Look at the return.",
            "Two tensors are asked for.",
            "return output, weights.",
        ),
        edits=(("return output, weights", "return output"),),
    ),
    Mistake(
        "scores are returned in the place of weights",
        (
            "What is returned beside the output does not sum to 1.",
            "Look at the return.",
            "These are the scores before the softmax.",
            "return output, weights.",
        ),
        edits=(("return output, weights", "return output, scores"),),
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
        "dropout on the scores",
        (
            "In train mode no weight is zero.",
            "Look at what dropout is applied to.",
            "A score of 0 is no weight of 0.",
            "Drop the weights, after the softmax.",
        ),
        edits=(
            ("self.dropout(weights)", "weights"),
            (SCALED, "scores = self.dropout(scores / math.sqrt(d))"),
        ),
    ),
    Mistake(
        "the queries are scaled in place",
        (
            "The numbers are right, but queries is another after the call.",
            "Look for /=, *=, or a method whose name ends in _.",
            "The caller's queries are overwritten.",
            "Make a new tensor: queries / sqrt(d).",
        ),
        edits=(
            ("return output, weights", "queries.data.div_(math.sqrt(d))\n        return output, weights"),
        ),
    ),
    Mistake(
        "the weights are cut off from the gradient",
        (
            "The numbers are right, and queries and keys get no gradient.",
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
