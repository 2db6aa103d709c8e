"""Exercise: a whole encoder layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.attention.visibility import Visibility
from regard.exercises.block_parts import (
    DROPOUT_PROBES,
    LAYERS,
    MISTAKES,
    SIZES,
    block,
    inputs,
    neighbour_changed,
    our_block,
)
from regard.exercises.spec import Case, Convention, Draw, Exercise, Mistake, Probe, Right, Trial

TASK = """
The encoder layer of the original Transformer: self-attention, then a feed-forward part, each with a residual
and a norm after it:

    x = norm1(x + dropout(attention(x)))
    x = norm2(x + dropout(linear2(relu(linear1(x)))))

- `EncoderLayer(d_model, num_heads, d_ff, dropout)` with `W_q`, `W_k`, `W_v`, `W_o` (`nn.Linear` from d_model
  to d_model, bias=False), `linear1` (d_model to d_ff) and `linear2` (d_ff to d_model) with biases, `norm1`
  and `norm2` (`nn.LayerNorm`). Head i takes neighbouring numbers; scores are divided by
  sqrt(d_model / num_heads).
- `forward(x, valid_lens=None)`: x (batch, n, d_model), valid_lens (batch,): only the first valid_lens[b]
  positions may be looked at; None hides nothing. Padding positions are computed like all others, they are
  only not looked at. Returns (batch, n, d_model).
- Dropout works on each sublayer's result, before it is added; elsewhere inside a sublayer you may use it too.
"""

STARTER = '''import torch
from torch import nn


class EncoderLayer(nn.Module):
    """Layers W_q, W_k, W_v, W_o (no bias), linear1, linear2, norm1, norm2."""

    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        raise NotImplementedError

    def forward(self, x, valid_lens=None):
        """x (batch, n, d_model), valid_lens (batch,) -> (batch, n, d_model)."""
        raise NotImplementedError
'''

TOP = f"""import math
import torch
from torch import nn

class EncoderLayer(nn.Module):
{LAYERS}"""

STEPS = f"""{TOP}
    def split_heads(self, x):
        B, T = x.shape[0], x.shape[1]
        x = x.reshape(B, T, self.num_heads, -1)
        return x.transpose(1, 2)

    def combine_heads(self, x):
        B, T = x.shape[0], x.shape[2]
        x = x.transpose(1, 2)
        return x.reshape(B, T, -1)

    def forward(self, x, valid_lens=None):
        q = self.split_heads(self.W_q(x))
        k = self.split_heads(self.W_k(x))
        v = self.split_heads(self.W_v(x))
        scores = q @ k.transpose(-2, -1)
        scores = scores / math.sqrt(q.shape[-1])
        if valid_lens is not None:
            hidden = torch.arange(x.shape[1], device=x.device) >= valid_lens[:, None]
            scores = scores.masked_fill(hidden[:, None, None, :], float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        heads = weights @ v
        joined = self.combine_heads(heads)
        attended = self.W_o(joined)
        x = x + self.dropout(attended)
        x = self.norm1(x)
        activation = torch.relu
        hidden = activation(self.linear1(x))
        fed = self.linear2(hidden)
        x = x + self.dropout(fed)
        x = self.norm2(x)
        return x
"""

KERNEL = f"""{TOP}
    def self_attention(self, x, valid_lens):
        b, n, d = x.shape
        layers = (self.W_q, self.W_k, self.W_v)
        q, k, v = (w(x).view(b, n, self.num_heads, -1).permute(0, 2, 1, 3) for w in layers)
        mask = None
        if valid_lens is not None:
            mask = (torch.arange(n, device=x.device)[None, :] < valid_lens[:, None])[:, None, None, :]
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.W_o(out.permute(0, 2, 1, 3).contiguous().view(b, n, d))

    def forward(self, x, valid_lens=None):
        x = self.norm1(x + self.dropout(self.self_attention(x, valid_lens)))
        return self.norm2(x + self.dropout(self.linear2(self.dropout(nn.functional.relu(self.linear1(x))))))
"""

EACH_HEAD = f"""{TOP}
    def forward(self, x, valid_lens=None):
        b, n, d = x.shape
        w = d // self.num_heads
        Q, K, V = self.W_q(x), self.W_k(x), self.W_v(x)
        seen = torch.ones(b, 1, n, dtype=torch.bool, device=x.device)
        if valid_lens is not None:
            seen = torch.arange(n, device=x.device).expand(b, n).unsqueeze(1) < valid_lens.reshape(b, 1, 1)
        out = []
        for h in range(self.num_heads):
            part = slice(h * w, h * w + w)
            s = torch.bmm(Q[:, :, part], K[:, :, part].mT) / w ** 0.5
            a = torch.softmax(torch.where(seen, s, torch.full_like(s, -1e4)), dim=-1)
            out.append(torch.bmm(self.dropout(a), V[:, :, part]))
        y = self.norm1(x + self.dropout(self.W_o(torch.cat(out, dim=-1))))
        z = torch.clamp(self.linear1(y), min=0)
        return self.norm2(y + self.dropout(self.linear2(z)))
"""

BEFORE = f"""{TOP}
    def attend(self, x, lens):
        cut = lambda t: torch.stack(t.chunk(self.num_heads, dim=-1))
        s = torch.einsum("hbqd,hbkd->hbqk", cut(self.W_q(x)), cut(self.W_k(x)))
        s = s * (x.shape[-1] / self.num_heads) ** -0.5
        if lens is not None:
            seen = torch.arange(x.shape[1], device=x.device) < lens[:, None]
            s = s + torch.where(seen, 0.0, -1e4)[:, None].to(s)
        return self.W_o(torch.cat(list(s.softmax(-1) @ cut(self.W_v(x))), dim=-1))

    def forward(self, x, valid_lens=None):
        x = x + self.dropout(self.attend(self.norm1(x), valid_lens))
        return x + self.dropout(self.linear2(self.linear1(self.norm2(x)).relu()))
"""


def reference(case: Case, *, norm: str = "after") -> Tensor:
    """Our own block."""
    lens = case.kwargs.get("valid_lens")
    visible = Visibility() if lens is None else Visibility(lengths=lens)
    return our_block(case, visible, causal=False, norm_first=norm == "before", activation="relu")


def unpadded(draw: Draw, **kwargs: Any) -> Case:
    return block(draw, inputs(draw), **kwargs)


def padded(draw: Draw) -> Case:
    lens = draw.integers(1, draw["position"], "batch")
    if draw["batch"] > 1:
        lens[0], lens[1] = max(1, draw["position"] // 2), draw["position"]
    else:
        lens[0] = max(1, draw["position"] - 2)
    return block(draw, inputs(draw), valid_lens=lens)


def train_without_dropout(draw: Draw) -> Case:
    return unpadded(draw, train=True)


def eval_with_dropout(draw: Draw) -> Case:
    return unpadded(draw, dropout=0.5)


def padding_changed(draw: Draw) -> tuple[Case, ...]:
    base = padded(draw)
    x = base.args[0]
    beyond = torch.arange(draw["position"])[None, :, None] >= base.kwargs["valid_lens"][:, None, None]
    return base, base.with_args(torch.where(beyond, x.flip(-1) + 1.0, x))


MASKED = 'scores = scores.masked_fill(hidden[:, None, None, :], float("-inf"))'
NORM1, NORM2 = "x = self.norm1(x)", "x = self.norm2(x)"
LENGTHS = ">= valid_lens[:, None]"

EXERCISE = Exercise(
    id="encoder-layer",
    title="A whole encoder layer",
    names=("EncoderLayer",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    right=(
        Right("small steps", STEPS),
        Right("scaled_dot_product_attention", KERNEL),
        Right("one head after the other", EACH_HEAD),
        Right("norms before the sublayers", BEFORE),
    ),
    conventions=(
        Convention(
            "norm",
            {
                "after": "the norm comes after the residual.",
                "before": "your norms come before the sublayers, as later models have it; the task "
                "has them after.",
            },
        ),
    ),
    needs=("masked-softmax",),
    words={"": ("batch", "position", "model_dim")},
    trials=(
        Trial("no padding", unpadded, SIZES, variants=True),
        Trial("padding", padded, SIZES, variants=True),
        Trial("as many sequences as heads", padded, {**SIZES, "batch": 3}),
        Trial("batch of one", padded, {**SIZES, "batch": 1}),
        Trial("one head", padded, {**SIZES, "head": 1, "head_dim": 5}),
        Trial("one position", unpadded, {**SIZES, "position": 1}),
        Trial("as wide inside as outside", unpadded, {**SIZES, "head": 2, "head_dim": 3, "ff_dim": 6}),
        Trial("train mode without dropout", train_without_dropout, SIZES, kind="train mode"),
        Trial("eval mode with dropout", eval_with_dropout, SIZES, kind="train mode"),
    ),
    probes=(
        Probe(
            "padding has no say",
            padding_changed,
            SIZES,
            says="positions past a sequence's length were changed: the others may not move.",
        ),
        Probe(
            "a neighbour in the batch has no say",
            neighbour_changed(padded),
            SIZES,
            says="sequence 0 was changed: sequence 1 may not move.",
        ),
        *DROPOUT_PROBES,
    ),
    hints=(
        "The layer's output is not that of attention and feed-forward with their residuals and norms.",
        "Set W_o to 0 and check the feed-forward half alone; then set linear2 to 0 and check the attention.",
        "Each half is norm(x + sublayer(x)), and the second starts from what the first gave.",
        "x = norm1(x + dropout(attention(x))); x = norm2(x + dropout(linear2(relu(linear1(x))))).",
    ),
    mistakes=(
        *MISTAKES,
        Mistake(
            "the first norm is missing",
            (
                "norm1 has no effect.",
                "Look at what follows the first residual.",
                "The sum goes on without being normalised.",
                "x = norm1(x + attention).",
            ),
            edits=((NORM1, "x = x"),),
        ),
        Mistake(
            "the second norm is missing",
            (
                "norm2 has no effect: the output's mean and deviation are not even.",
                "Look at the end of forward.",
                "The last sum is returned without being normalised.",
                "x = norm2(x + feed-forward).",
            ),
            edits=((NORM2, "x = x"),),
        ),
        Mistake(
            "the norms are put on the sublayers, not on the sums",
            (
                "The output is not normalised, its parts are.",
                "Look at what is inside norm1 and norm2.",
                "x + norm(sublayer) leaves the residual outside the norm.",
                "norm(x + sublayer).",
            ),
            edits=(
                ("x = x + self.dropout(attended)\n        x = self.norm1(x)", "x = x + self.norm1(attended)"),
                ("x = x + self.dropout(fed)\n        x = self.norm2(x)", "x = x + self.norm2(fed)"),
            ),
        ),
        Mistake(
            "GELU instead of ReLU",
            (
                "The output is close to the right one, but not equal.",
                "Look at the activation.",
                "GELU is what later models use.",
                "Use ReLU.",
            ),
            edits=(("activation = torch.relu", "activation = nn.functional.gelu"),),
        ),
        Mistake(
            "tanh instead of ReLU",
            (
                "The feed-forward part is too tame.",
                "Look at the activation.",
                "tanh stays between -1 and 1.",
                "Use ReLU.",
            ),
            edits=(("activation = torch.relu", "activation = torch.tanh"),),
        ),
        Mistake(
            "the lengths are ignored",
            (
                "Padding gets weight.",
                "Look at what forward does with valid_lens.",
                "The scores go into the softmax unmasked.",
                "Hide the keys at or past the length with -inf.",
            ),
            edits=((MASKED, "scores = scores"),),
        ),
        Mistake(
            "the mask is upside down",
            (
                "The weight lies on the padding.",
                "Look at the comparison of positions with lengths.",
                "The valid keys are hidden.",
                "Hide positions at or past the length.",
            ),
            edits=((LENGTHS, "< valid_lens[:, None]"),),
        ),
        Mistake(
            "one key too many is visible",
            (
                "Each sequence gives weight to one key past its length.",
                "Look at the comparison of positions with lengths.",
                "Positions count from 0, so the key at position `length` is padding.",
                "Hide where position >= length.",
            ),
            edits=((LENGTHS, "> valid_lens[:, None]"),),
        ),
        Mistake(
            "`repeat` instead of `repeat_interleave` over the heads",
            (
                "Sequence 1 is using sequence 0's length in some of its heads.",
                "Look at how one length per sequence becomes one per sequence and head.",
                "`repeat` gives a, b, a, b; with heads as the faster axis the order is a, a, b, b.",
                "Use repeat_interleave, or give the mask an axis of 1 for the heads.",
            ),
            edits=(
                (LENGTHS, ">= valid_lens.repeat(self.num_heads)[:, None]"),
                ("hidden[:, None, None, :]", "hidden.reshape(x.shape[0], self.num_heads, 1, -1)"),
            ),
        ),
        Mistake(
            "padding queries are hidden instead of padding keys",
            (
                "Padding still gets weight, and padded rows look at everything alike.",
                "Look at the axis of the scores that the mask runs along.",
                "The scores are (batch, head, query, key), and the mask runs along the queries.",
                "Hide along the last axis.",
            ),
            edits=((MASKED, "scores = scores.masked_fill(hidden[:, None, :, None], -1e4)"),),
        ),
        Mistake(
            "the feed-forward part sees the layer's input",
            (
                "The two sublayers work side by side, not one after the other.",
                "Look at the input of linear1.",
                "It is the input of the layer, not what the attention's half gave.",
                "Give it the result of norm1.",
            ),
            edits=(
                ("q = self.split_heads", "given = x\n        q = self.split_heads"),
                ("self.linear1(x)", "self.linear1(given)"),
            ),
        ),
    ),
)
