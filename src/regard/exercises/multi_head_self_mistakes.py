"""Known mistakes of multi-head self-attention, as edits of one right variant."""

from __future__ import annotations

from regard.exercises.spec import Mistake

STEPS = """import math
import torch
from torch import nn

class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        super().__init__()
        if hidden % num_heads != 0:
            raise ValueError("hidden must be a multiple of num_heads")
        self.hidden = hidden
        self.num_heads = num_heads
        self.causal = causal
        self.q = nn.Linear(input_size, hidden)
        self.k = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def split(self, y):
        B, T = y.shape[:2]
        y = y.reshape(B, T, self.num_heads, -1)
        return y.transpose(1, 2)

    def join(self, y):
        B, T = y.shape[0], y.shape[2]
        y = y.transpose(1, 2)
        return y.reshape(B, T, -1)

    def forward(self, x, return_attention=False):
        q = self.split(self.q(x))
        k = self.split(self.k(x))
        v = self.split(self.v(x))
        scores = torch.matmul(q, k.transpose(-2, -1))
        scores = scores / math.sqrt(q.shape[-1])
        if self.causal:
            ones = torch.ones(x.shape[1], x.shape[1], device=x.device)
            future = torch.triu(ones, diagonal=1).bool()
            scores = scores.masked_fill(future, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        heads = torch.matmul(self.dropout(weights), v)
        out = self.mix(self.join(heads))
        if return_attention:
            attention = weights.flatten(0, 1)
            return out, attention
        return out
"""

SCALED = "scores = scores / math.sqrt(q.shape[-1])"
SOFTMAX = "weights = torch.softmax(scores, dim=-1)"
SPLIT = "y = y.reshape(B, T, self.num_heads, -1)\n        return y.transpose(1, 2)"
JOIN = "y = y.transpose(1, 2)\n        return y.reshape(B, T, -1)"
HIDE = 'scores = scores.masked_fill(future, float("-inf"))'
SCALE_PLACE = "Look at the number that the scores are divided by."
MASK_PLACE = "Look at the diagonal that the mask begins at."

MISTAKES = (
    Mistake(
        "attention without its scale",
        (
            "The weights are sharper than they should be, the more so the wider a head is.",
            "Look at what happens to the scores between the product and the softmax.",
            "The dot product of two vectors of n numbers varies with n, and nothing evens that out.",
            "Divide the scores by sqrt(hidden / num_heads).",
        ),
        edits=((SCALED, "scores = scores * 1.0"),),
    ),
    Mistake(
        "scaled by hidden instead of a head's width",
        (
            "The weights are flatter than they should be, but for one head.",
            SCALE_PLACE,
            "A score sums over the numbers of one head's query, which are hidden / num_heads.",
            "Divide by sqrt(hidden / num_heads).",
        ),
        edits=((SCALED, "scores = scores / math.sqrt(self.hidden)"),),
    ),
    Mistake(
        "scaled by the input's size",
        (
            "The weights are flatter or sharper than they should be.",
            SCALE_PLACE,
            "A score sums over the numbers of one head's query, whatever the size of the input.",
            "Divide by sqrt(hidden / num_heads).",
        ),
        edits=((SCALED, "scores = scores / math.sqrt(x.shape[-1])"),),
    ),
    Mistake(
        "divided by the head's width instead of its square root",
        (
            "The weights are flatter than they should be.",
            SCALE_PLACE,
            "The standard deviation of a score grows with the root of the width, not with the width.",
            "Divide by sqrt(hidden / num_heads).",
        ),
        edits=((SCALED, "scores = scores / q.shape[-1]"),),
    ),
    Mistake(
        "multiplied by the scale instead of divided",
        (
            "Nearly all weight lies on one position.",
            SCALE_PLACE,
            "The scores grow where they should shrink.",
            "Divide by sqrt(hidden / num_heads).",
        ),
        edits=((SCALED, "scores = scores * math.sqrt(q.shape[-1])"),),
    ),
    Mistake(
        "heads cut by `view` without a transpose",
        (
            "A head mixes positions: its first row holds pieces of several.",
            "Look at how the heads are split.",
            "Reshaping (batch, seq, hidden) straight to (batch, heads, seq, size) cuts at other places.",
            "Reshape to (batch, seq, heads, size) first, then swap axes 1 and 2.",
        ),
        edits=((SPLIT, "return y.reshape(B, self.num_heads, T, -1)"),),
    ),
    Mistake(
        "heads joined without a transpose",
        (
            "Each output row holds one head's results for several positions.",
            "Look at how the heads are put together again.",
            "Reshaping (batch, heads, seq, size) straight to (batch, seq, hidden) keeps heads first.",
            "Swap axes 1 and 2, then reshape.",
        ),
        edits=((JOIN, "return y.reshape(B, T, -1)"),),
    ),
    Mistake(
        "heads split and joined by `view`, without any transpose",
        (
            "A head mixes positions, though the output has the right shape.",
            "Look at how the heads are split and joined.",
            "Neither reshape moves the head axis past the positions.",
            "Reshape to (batch, seq, heads, size), swap axes 1 and 2, and undo both in that order.",
        ),
        edits=((SPLIT, "return y.reshape(B, self.num_heads, T, -1)"), (JOIN, "return y.reshape(B, T, -1)")),
    ),
    Mistake(
        "a head takes every n-th number instead of neighbouring ones",
        (
            "The heads have the right shape and the wrong numbers in them.",
            "Look at the order of heads and size in the reshape.",
            "With (size, heads) in the place of (heads, size), head 0 gets numbers 0, n, 2n, ...",
            "Reshape to (batch, seq, heads, size): the head is the slower axis.",
        ),
        edits=((SPLIT, "y = y.reshape(B, T, -1, self.num_heads)\n        return y.permute(0, 3, 1, 2)"),),
    ),
    Mistake(
        "heads joined number by number",
        (
            "The mixing layer meets the heads' numbers in another order.",
            "Look at how the heads are put together again.",
            "The first number of each head comes first, then the second of each.",
            "Join to (batch, seq, heads, size) before the last two axes become one.",
        ),
        edits=((JOIN, "y = y.permute(0, 2, 3, 1)\n        return y.reshape(B, T, -1)"),),
    ),
    Mistake(
        "softmax over the queries instead of the keys",
        (
            "A position's weights do not sum to 1; those that it receives do.",
            "Look at the axis of the softmax.",
            "The scores are (..., query, key): the second axis from the end runs over queries.",
            "Take the softmax over the last axis.",
        ),
        edits=((SOFTMAX, "weights = torch.softmax(scores, dim=-2)"),),
    ),
    Mistake(
        "softmax over the heads instead of the keys",
        (
            "For one query and key the weights of all heads sum to 1.",
            "Look at the axis of the softmax.",
            "Axis 1 of (batch, heads, query, key) runs over the heads.",
            "Take the softmax over the last axis.",
        ),
        edits=((SOFTMAX, "weights = torch.softmax(scores, dim=1).nan_to_num()"),),
    ),
    Mistake(
        "causal is ignored",
        (
            "With causal=True a position sees the future.",
            "Look for what causal does.",
            "No score is hidden.",
            "Set the scores of later positions to -inf before the softmax.",
        ),
        edits=((HIDE, "scores = scores"),),
    ),
    Mistake(
        "always causal",
        (
            "With causal=False a position does not see the future.",
            "Look at when the mask is applied.",
            "It does not depend on causal.",
            "Hide the future only when self.causal is true.",
        ),
        edits=(("if self.causal:", "if True:"),),
    ),
    Mistake(
        "the past is hidden instead of the future",
        (
            "A position sees itself and those after it.",
            "Look at triu and tril.",
            "The mask marks the other triangle.",
            "Hide what lies above the diagonal.",
        ),
        edits=(("torch.triu(ones, diagonal=1)", "torch.tril(ones, diagonal=-1)"),),
    ),
    Mistake(
        "the mask is upside down",
        (
            "A position sees only what comes after it, and the last one nothing.",
            "Look at what True means in your mask.",
            "Where the mask is True the score is hidden, and yours is True for the visible ones.",
            "Hide what lies above the diagonal, or negate the mask.",
        ),
        edits=(("masked_fill(future,", "masked_fill(~future,"),),
    ),
    Mistake(
        "a position does not see itself",
        (
            "The diagonal of the weights is 0, and the first position sees nothing.",
            MASK_PLACE,
            "Diagonal 0 is the position itself, which it may see.",
            "Hide from diagonal 1 on.",
        ),
        edits=(("diagonal=1)", "diagonal=0)"),),
    ),
    Mistake(
        "a position sees one position of the future",
        (
            "One diagonal too many is visible.",
            MASK_PLACE,
            "Diagonal 1 is the next position, which is the future already.",
            "Hide from diagonal 1 on.",
        ),
        edits=(("diagonal=1)", "diagonal=2)"),),
    ),
    Mistake(
        "masked after the softmax",
        (
            "With causal=True the weights of early positions sum to less than 1.",
            "Look at the order of mask and softmax.",
            "The future is zeroed only after it took its share of the sum.",
            "Hide the scores with -inf first, then take the softmax.",
        ),
        edits=(
            (HIDE, "scores = scores"),
            (
                SOFTMAX,
                SOFTMAX + "\n        if self.causal:\n            weights = weights.masked_fill(future, 0.0)",
            ),
        ),
    ),
    Mistake(
        "hidden scores are set to 0 instead of -inf",
        (
            "The future gets the weight of a score of 0.",
            "Look at the number that hides.",
            "exp(0) is 1, so a hidden position still takes its share.",
            "Use -inf, or a large negative number.",
        ),
        edits=((HIDE, "scores = scores.masked_fill(future, 0.0)"),),
    ),
    Mistake(
        "the mixing layer is left out",
        (
            "The output is the joined heads.",
            "Look at the end of forward.",
            "`mix` is made and not called.",
            "out = self.mix(joined heads).",
        ),
        edits=(("out = self.mix(self.join(heads))", "out = self.join(heads)"),),
    ),
    Mistake(
        "the layers `q` and `k` are swapped",
        (
            "Each weight is that of the other direction: who looks is who is looked at.",
            "Look at which layer makes what.",
            "Queries are made by k and keys by q.",
            "The rows of the scores are queries, made by q.",
        ),
        edits=(
            ("q = self.split(self.q(x))", "q = self.split(self.k(x))"),
            ("k = self.split(self.k(x))", "k = self.split(self.q(x))"),
        ),
    ),
    Mistake(
        "the keys are the values",
        (
            "The layer v has no part in the output.",
            "Look at the second product.",
            "The weights meet the keys.",
            "heads = weights @ v.",
        ),
        edits=(("torch.matmul(self.dropout(weights), v)", "torch.matmul(self.dropout(weights), k)"),),
    ),
    Mistake(
        "the attention is returned as (batch, heads, seq, seq)",
        (
            "The attention has four axes.",
            "Look at the last lines.",
            "Batch and heads are asked for as one axis.",
            "Flatten the first two axes.",
        ),
        edits=(("weights.flatten(0, 1)", "weights"),),
    ),
    Mistake(
        "the attention is averaged over the heads",
        (
            "The attention has one table for each sequence.",
            "Look at the last lines.",
            "The heads are asked for one by one.",
            "Flatten batch and heads, without a mean.",
        ),
        edits=(("weights.flatten(0, 1)", "weights.mean(1)"),),
    ),
    Mistake(
        "the scores are returned in the place of the attention",
        (
            "What is returned beside the output does not sum to 1.",
            "Look at the last lines.",
            "These are the scores before the softmax.",
            "Return the weights.",
        ),
        edits=(("weights.flatten(0, 1)", "scores.flatten(0, 1)"),),
    ),
    Mistake(
        "the attention is always returned",
        (
            "A pair is returned where the output alone is asked for.",
            "Look at the return.",
            "It does not depend on return_attention.",
            "Return the pair only when return_attention is true.",
        ),
        edits=(("if return_attention:", "if True:"),),
    ),
    Mistake(
        "the attention is never returned",
        (
            "With return_attention=True the output alone is returned.",
            "Look at the return.",
            "It does not depend on return_attention.",
            "Return (output, attention) when return_attention is true.",
        ),
        edits=(("return out, attention", "return out"),),
    ),
    Mistake(
        "no ValueError where the heads do not divide",
        (
            "A layer is made with heads that cannot be of one size.",
            "Look at the beginning of __init__.",
            "hidden and num_heads are not compared.",
            "Raise ValueError when hidden % num_heads is not 0.",
        ),
        edits=(("if hidden % num_heads != 0:", "if False:"),),
    ),
    Mistake(
        "an assert in the place of a ValueError",
        (
            "The layer is refused, with another exception than was asked for.",
            "Look at the beginning of __init__.",
            "An assert raises AssertionError, and nothing when Python runs with -O.",
            "Raise ValueError when hidden % num_heads is not 0.",
        ),
        edits=(('raise ValueError("hidden', 'raise AssertionError("hidden'),),
    ),
    Mistake(
        "no dropout",
        (
            "Train and eval mode give the same.",
            "Look at what multiplies the values.",
            "The weights are not dropped.",
            "heads = self.dropout(weights) @ v.",
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
        "dropout on the output of the heads",
        (
            "In train mode entries of the output are zero, not weights.",
            "Look at what dropout is applied to.",
            "It belongs to the weights: a dropped key is missing from the head's whole row.",
            "heads = self.dropout(weights) @ v.",
        ),
        edits=(("torch.matmul(self.dropout(weights), v)", "self.dropout(torch.matmul(weights, v))"),),
    ),
    Mistake(
        "the weights are cut off from the gradient",
        (
            "The numbers are right, and q and k get no gradient.",
            "Look for detach, .data or no_grad.",
            "Attention learns where to look through its weights.",
            "Use the weights as they are.",
        ),
        edits=((SOFTMAX, "weights = torch.softmax(scores, dim=-1).detach()"),),
    ),
    Mistake(
        "the mask on the wrong device",
        (
            "Right on the CPU, an error on any other device.",
            "Look at where the mask is made.",
            "A new tensor is on the CPU unless it is told otherwise.",
            "Write torch.ones(..., device=x.device).",
        ),
        edits=((", device=x.device", ""),),
    ),
)
