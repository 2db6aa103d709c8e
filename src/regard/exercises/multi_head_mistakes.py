"""The right answer that the mistakes of `multi-head` edit, and the mistakes."""

from __future__ import annotations

from regard.exercises.spec import Mistake

STEPS = """import math
import torch
from torch import nn

class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = nn.Dropout(dropout)
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_k = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_v = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)

    def transpose_qkv(self, X):
        X = X.reshape(X.shape[0], X.shape[1], self.num_heads, -1)
        X = X.permute(0, 2, 1, 3)
        return X.reshape(-1, X.shape[2], X.shape[3])

    def transpose_output(self, X):
        X = X.reshape(-1, self.num_heads, X.shape[1], X.shape[2])
        X = X.permute(0, 2, 1, 3)
        return X.reshape(X.shape[0], X.shape[1], -1)

    def forward(self, queries, keys, values, valid_lens):
        q = self.transpose_qkv(self.W_q(queries))
        k = self.transpose_qkv(self.W_k(keys))
        v = self.transpose_qkv(self.W_v(values))
        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1])
        if valid_lens is not None:
            lens = torch.repeat_interleave(valid_lens, self.num_heads, dim=0)
            if lens.dim() == 1:
                lens = lens[:, None]
            hidden = torch.arange(k.shape[1], device=k.device) >= lens[:, :, None]
            scores = scores.masked_fill(hidden, -1e9)
        weights = torch.softmax(scores, dim=-1)
        out = torch.bmm(self.dropout(weights), v)
        return self.W_o(self.transpose_output(out))
"""


def _mistake(name: str, symptom: str, place: str, cause: str, fix: str, *edits: tuple[str, str]) -> Mistake:
    return Mistake(name, (symptom, place, cause, fix), edits=edits)


_SCALE = " / math.sqrt(q.shape[-1])"
_SPLIT = "        X = X.permute(0, 2, 1, 3)\n        return X.reshape(-1, X.shape[2], X.shape[3])"
_JOIN = "        X = X.permute(0, 2, 1, 3)\n        return X.reshape(X.shape[0], X.shape[1], -1)"

MISTAKES = (
    _mistake(
        "attention without its scale",
        "The weights are too sharp: the scores have the variance of the head's size.",
        "Look at the scores before the softmax.",
        "A sum of d products has variance d.",
        "Divide the scores by sqrt(num_hiddens / num_heads).",
        (_SCALE, ""),
    ),
    _mistake(
        "scaled by the whole width instead of one head's",
        "The weights are too flat, by the square root of the number of heads.",
        "Look at the number below the square root.",
        "Each score is a sum over one head's dimensions, not over num_hiddens.",
        "Divide by sqrt(num_hiddens / num_heads), the last size of the split queries.",
        (_SCALE, " / math.sqrt(queries.shape[-1])"),
    ),
    _mistake(
        "divided by the size instead of its square root",
        "The weights are too flat.",
        "Look at the number the scores are divided by.",
        "The scale undoes a standard deviation, which is sqrt(d), not d.",
        "Divide by the square root of the head's size.",
        (_SCALE, " / q.shape[-1]"),
    ),
    _mistake(
        "multiplied by the square root instead of divided",
        "The weights are nearly one-hot.",
        "Look at the sign of the scale's power.",
        "The scores grow where they should shrink.",
        "Divide by the square root of the head's size.",
        (_SCALE, " * math.sqrt(q.shape[-1])"),
    ),
    _mistake(
        "`repeat` instead of `repeat_interleave` over the heads",
        "Sample 1 is using sample 0's lengths.",
        "Look at how the lengths get a copy for each head.",
        "`repeat` gives a, b, a, b, but the heads of one sequence lie next to one another: a, a, b, b.",
        "Use repeat_interleave(valid_lens, num_heads, dim=0).",
        (
            "torch.repeat_interleave(valid_lens, self.num_heads, dim=0)",
            "valid_lens.repeat(self.num_heads, *[1] * (valid_lens.dim() - 1))",
        ),
    ),
    _mistake(
        "heads split by a reshape without moving the axis",
        "Each head mixes positions: a query sees parts of other positions.",
        "Look at transpose_qkv.",
        "A reshape to (batch * heads, n, size) cuts the memory in order, across positions.",
        "Reshape to (batch, n, heads, size), then permute heads before n.",
        (_SPLIT, "        return X.reshape(-1, X.shape[1], X.shape[3])"),
    ),
    _mistake(
        "heads joined without moving the axis back",
        "The output of one position holds numbers of others.",
        "Look at transpose_output.",
        "Heads still stand before positions when they are joined.",
        "Permute back to (batch, n, heads, size) before the last reshape.",
        (_JOIN, "        return X.reshape(X.shape[0], X.shape[2], -1)"),
    ),
    _mistake(
        "dimensions dealt to the heads in turn",
        "Head 0 has dimensions 0, h, 2h, ... in place of the first ones.",
        "Look at the order of heads and size in the reshape.",
        "(size, heads) cuts every head out of scattered dimensions.",
        "Reshape to (batch, n, heads, size): neighbouring dimensions share a head.",
        (
            "X.reshape(X.shape[0], X.shape[1], self.num_heads, -1)",
            "X.reshape(X.shape[0], X.shape[1], -1, self.num_heads).transpose(2, 3)",
        ),
    ),
    _mistake(
        "softmax over the queries instead of the keys",
        "The weights of one key sum to 1 over the queries.",
        "Look at the axis of the softmax.",
        "Axis 1 of (batch * heads, queries, keys) runs over queries.",
        "Take the softmax over the last axis.",
        ("torch.softmax(scores, dim=-1)", "torch.softmax(scores, dim=1)"),
    ),
    _mistake(
        "keys and values swapped",
        "The values are compared and the keys are averaged.",
        "Look at what goes into W_k and W_v.",
        "The inputs of the two projections are exchanged.",
        "Project keys with W_k and values with W_v.",
        ("self.W_k(keys)", "self.W_k(values)"),
        ("self.W_v(values)", "self.W_v(keys)"),
    ),
    _mistake(
        "the queries projected with W_k",
        "W_q has no say, and gets no gradient.",
        "Look at the projections.",
        "One layer is used twice.",
        "Use W_q for the queries.",
        ("self.W_q(queries)", "self.W_k(queries)"),
    ),
    _mistake(
        "the output projection left out",
        "The joined heads are returned as they are.",
        "Look at the last line.",
        "W_o, which mixes the heads, is not applied.",
        "Return W_o of the joined heads.",
        ("self.W_o(self.transpose_output(out))", "self.transpose_output(out)"),
    ),
    _mistake(
        "the lengths ignored",
        "Padding gets weight.",
        "Look at what happens to valid_lens.",
        "No score is hidden.",
        "Hide the scores of keys at or past each length before the softmax.",
        ("scores = scores.masked_fill(hidden, -1e9)", "pass"),
    ),
    _mistake(
        "one key too many is visible",
        "Each row gives weight to the first key of the padding.",
        "Look at the comparison of positions with lengths.",
        "Positions count from 0, so the key at position `length` is already padding.",
        "Hide where position >= length.",
        (">= lens[:, :, None]", "> lens[:, :, None]"),
    ),
    _mistake(
        "the mask is upside down",
        "Only the padding gets weight.",
        "Look at the comparison of positions with lengths.",
        "The valid keys are hidden.",
        "Hide where position >= length.",
        (">= lens[:, :, None]", "< lens[:, :, None]"),
    ),
    _mistake(
        "bias asked for and not given",
        "With bias=True the layers have no biases.",
        "Look at how the layers are made.",
        "The argument is not passed on.",
        "Pass bias=bias to every layer.",
        (
            "self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=bias)",
            "self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=False)",
        ),
        (
            "self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)",
            "self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=False)",
        ),
    ),
    _mistake(
        "biases nobody asked for",
        "Every layer has a bias although bias is False.",
        "Look at how the layers are made.",
        "nn.Linear has a bias unless it is told otherwise.",
        "Pass bias=bias to every layer.",
        (
            "self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=bias)",
            "self.W_q = nn.Linear(num_hiddens, num_hiddens)",
        ),
        (
            "self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)",
            "self.W_o = nn.Linear(num_hiddens, num_hiddens)",
        ),
    ),
    _mistake(
        "no dropout on the weights",
        "Train mode gives what eval mode gives.",
        "Look at where dropout is applied.",
        "The weights meet the values without it.",
        "Apply dropout to the weights after the softmax.",
        ("self.dropout(weights)", "weights"),
    ),
    _mistake(
        "dropout on the output instead of the weights",
        "In train mode numbers of the output vanish one by one.",
        "Look at where dropout is applied.",
        "It is applied after the last projection.",
        "Apply dropout to the weights after the softmax.",
        ("self.dropout(weights)", "weights"),
        ("self.W_o(self.transpose_output(out))", "self.dropout(self.W_o(self.transpose_output(out)))"),
    ),
    _mistake(
        "dropout on in eval mode",
        "Two calls in eval mode differ.",
        "Look at how dropout is called.",
        "The function drops unless it is told training=False.",
        "Use an nn.Dropout layer, which knows the mode.",
        ("self.dropout(weights)", "nn.functional.dropout(weights, self.dropout.p)"),
    ),
    _mistake(
        "positions on the wrong device",
        "Right on the CPU, an error on any other device.",
        "Look at torch.arange.",
        "A new tensor is on the CPU unless it is told otherwise.",
        "Write torch.arange(..., device=k.device).",
        (", device=k.device", ""),
    ),
)
