"""Exercise: a causal language-model block."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard.attention.visibility import Visibility
from regard.exercises.block_parts import (
    ADD_ATTENDED,
    ADD_FED,
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
A block of a language model as in GPT-2: causal self-attention, then a feed-forward part, each with a residual
and a norm before it:

    x = x + dropout(attention(norm1(x)))
    x = x + dropout(linear2(gelu(linear1(norm2(x)))))

- `DecoderBlock(d_model, num_heads, d_ff, dropout)` with `W_q`, `W_k`, `W_v`, `W_o` (`nn.Linear` from
  d_model to
  d_model, bias=False), `linear1` (d_model to d_ff) and `linear2` (d_ff to d_model) with biases, `norm1` and
  `norm2` (`nn.LayerNorm`). Head i takes neighbouring numbers; scores are divided by sqrt(d_model /
  num_heads).
- `forward(x)`: x (batch, n, d_model) -> (batch, n, d_model). Position i looks at positions 0 .. i.
- Dropout works on each sublayer's result, before it is added; elsewhere inside a sublayer you may use it too.
"""

STARTER = '''import torch
from torch import nn


class DecoderBlock(nn.Module):
    """Layers W_q, W_k, W_v, W_o (no bias), linear1, linear2, norm1, norm2."""

    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        raise NotImplementedError

    def forward(self, x):
        """x (batch, n, d_model) -> (batch, n, d_model); position i looks at positions 0 .. i."""
        raise NotImplementedError
'''

TOP = f"""import math
import torch
from torch import nn
from torch.nn import functional as F

class DecoderBlock(nn.Module):
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

    def forward(self, x):
        normed = self.norm1(x)
        q = self.split_heads(self.W_q(normed))
        k = self.split_heads(self.W_k(normed))
        v = self.split_heads(self.W_v(normed))
        scores = q @ k.transpose(-2, -1)
        scores = scores / math.sqrt(q.shape[-1])
        n = x.shape[1]
        future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        heads = weights @ v
        joined = self.combine_heads(heads)
        attended = self.W_o(joined)
        x = x + self.dropout(attended)
        normed = self.norm2(x)
        activation = F.gelu
        hidden = activation(self.linear1(normed))
        fed = self.linear2(hidden)
        x = x + self.dropout(fed)
        return x
"""

KERNEL = f"""{TOP}
    def attention(self, x):
        b, n, d = x.size()
        heads = [w(x).view(b, n, self.num_heads, d // self.num_heads).transpose(1, 2)
                 for w in (self.W_q, self.W_k, self.W_v)]
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.W_o(y.transpose(1, 2).contiguous().view(b, n, d))

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.linear2(F.gelu(self.linear1(self.norm2(x)), approximate="tanh")))
"""

ROWS = f"""{TOP}
    def forward(self, x):
        h = self.norm1(x)
        w = x.shape[-1] // self.num_heads
        Q, K, V = self.W_q(h), self.W_k(h), self.W_v(h)
        rows = []
        for i in range(x.shape[1]):
            parts = []
            for a in range(0, x.shape[-1], w):
                s = torch.einsum("bd,bjd->bj", Q[:, i, a:a + w], K[:, :i + 1, a:a + w]) / math.sqrt(w)
                parts.append(torch.einsum("bj,bjd->bd", F.softmax(s, dim=1), V[:, :i + 1, a:a + w]))
            rows.append(torch.cat(parts, dim=-1))
        x = x + self.dropout(self.W_o(torch.stack(rows, dim=1)))
        u = self.linear1(self.norm2(x))
        u = u * 0.5 * (1 + torch.erf(u / math.sqrt(2)))
        return x + self.dropout(self.linear2(u))
"""

AFTER = f"""{TOP}
    def forward(self, x):
        b, n, d = x.shape
        i = torch.arange(n, device=x.device)
        heads = lambda t: t.reshape(b, n, self.num_heads, -1).permute(2, 0, 1, 3)
        s = heads(self.W_q(x)) @ heads(self.W_k(x)).mT * (d // self.num_heads) ** -0.5
        s = torch.where(i[:, None] < i, torch.full_like(s, -1e4), s)
        a = (self.dropout(s.softmax(-1)) @ heads(self.W_v(x))).permute(1, 2, 0, 3).flatten(2)
        x = self.norm1(x + self.dropout(self.W_o(a)))
        return self.norm2(x + self.dropout(self.linear2(nn.GELU()(self.linear1(x)))))
"""


def reference(case: Case, *, norm: str = "before", gelu: str = "exact") -> Tensor:
    """Our own block."""
    activation = "gelu" if gelu == "exact" else "gelu_tanh"
    return our_block(case, Visibility(), causal=True, norm_first=norm == "before", activation=activation)


def plain(draw: Draw, **kwargs: Any) -> Case:
    return block(draw, inputs(draw), **kwargs)


def train_without_dropout(draw: Draw) -> Case:
    return plain(draw, train=True)


def eval_with_dropout(draw: Draw) -> Case:
    return plain(draw, dropout=0.5)


def future_changed(draw: Draw) -> tuple[Case, ...]:
    base = plain(draw)
    x = base.args[0].clone()
    x[:, draw["position"] // 2 :] += 1.0 + x[:, draw["position"] // 2 :].flip(-1)
    return base, base.with_args(x)


FUTURE = "future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)"
MASKED = 'scores = scores.masked_fill(future, float("-inf"))'
NORM1, NORM2 = "normed = self.norm1(x)", "normed = self.norm2(x)"
MASK_PLACE = "Look at the mask."

EXERCISE = Exercise(
    id="decoder-block",
    title="A causal language-model block",
    names=("DecoderBlock",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    right=(
        Right("small steps", STEPS),
        Right("scaled_dot_product_attention, GELU by tanh", KERNEL),
        Right("row by row, GELU by hand", ROWS),
        Right("norms after the residuals", AFTER),
    ),
    conventions=(
        Convention(
            "norm",
            {
                "before": "the norm comes before the sublayer.",
                "after": "your norms come after the residuals, as in the first Transformer; the task "
                "has them before.",
            },
        ),
        Convention(
            "gelu",
            {
                "exact": "GELU is exact.",
                "tanh": "your GELU is the approximation by tanh, as in GPT-2; ours is exact.",
            },
        ),
    ),
    words={"": ("batch", "position", "model_dim")},
    trials=(
        Trial("a batch", plain, SIZES, variants=True),
        Trial("other sizes", plain, {"batch": 5, "position": 3, "head": 2, "head_dim": 5, "ff_dim": 11}),
        Trial("as many sequences as heads", plain, {**SIZES, "batch": 3}),
        Trial("as many positions as heads", plain, {**SIZES, "position": 3}),
        Trial("batch of one", plain, {**SIZES, "batch": 1}),
        Trial("one head", plain, {**SIZES, "head": 1, "head_dim": 5}),
        Trial("one position", plain, {**SIZES, "position": 1}),
        Trial("train mode without dropout", train_without_dropout, SIZES, kind="train mode"),
        Trial("eval mode with dropout", eval_with_dropout, SIZES, kind="train mode"),
    ),
    probes=(
        Probe(
            "the future has no say",
            future_changed,
            SIZES,
            says="later positions were changed: earlier ones may not move.",
        ),
        Probe(
            "a neighbour in the batch has no say",
            neighbour_changed(plain),
            SIZES,
            says="sequence 0 was changed: sequence 1 may not move.",
        ),
        *DROPOUT_PROBES,
    ),
    hints=(
        "The block's output is not that of causal attention and feed-forward with their residuals and norms.",
        "Set W_o to 0 and check the feed-forward half alone; then set linear2 to 0 and check the attention.",
        "Each half is x + sublayer(norm(x)): what is added to is not normalised, what goes in is.",
        "x = x + dropout(attention(norm1(x))); x = x + dropout(linear2(gelu(linear1(norm2(x))))).",
    ),
    mistakes=(
        *MISTAKES,
        Mistake(
            "the first norm is missing",
            (
                "norm1 has no effect.",
                "Look at what goes into the attention.",
                "It sees x as it is.",
                "Give it norm1(x).",
            ),
            edits=((NORM1, "normed = x"),),
        ),
        Mistake(
            "the second norm is missing",
            (
                "norm2 has no effect.",
                "Look at what goes into the feed-forward part.",
                "It sees x as it is.",
                "Give it norm2(x).",
            ),
            edits=((NORM2, "normed = x"),),
        ),
        Mistake(
            "the residuals add the normed x",
            (
                "The output does not hold the input itself, but its norm.",
                "Look at what the sublayers' results are added to.",
                "They are added to norm(x), where x is wanted.",
                "x + sublayer(norm(x)).",
            ),
            edits=(
                (ADD_ATTENDED, "x = normed + self.dropout(attended)"),
                (ADD_FED, "x = normed + self.dropout(fed)"),
            ),
        ),
        Mistake(
            "values and keys are not normed",
            (
                "Only the queries come from norm1(x).",
                "Look at what goes into W_k and W_v.",
                "They see x as it is: in self-attention all three come from the same normed x.",
                "Give norm1(x) to W_q, W_k and W_v.",
            ),
            edits=(("self.W_k(normed)", "self.W_k(x)"), ("self.W_v(normed)", "self.W_v(x)")),
        ),
        Mistake(
            "the future is visible",
            (
                "Earlier positions change with later ones.",
                MASK_PLACE,
                "Nothing is hidden.",
                "Hide keys after the query with -inf.",
            ),
            edits=((MASKED, "scores = scores"),),
        ),
        Mistake(
            "the past is hidden instead of the future",
            (
                "Each position sees itself and later ones.",
                MASK_PLACE,
                "The lower triangle is hidden.",
                "Hide the upper triangle: key position > query position.",
            ),
            edits=((FUTURE, FUTURE.replace("triu(1)", "tril(-1)")),),
        ),
        Mistake(
            "one step of the future is visible",
            (
                "Each position sees the next one.",
                MASK_PLACE,
                "The triangle starts one diagonal too late.",
                "triu(1): everything above the diagonal.",
            ),
            edits=((FUTURE, FUTURE.replace("triu(1)", "triu(2)")),),
        ),
        Mistake(
            "a position does not see itself",
            (
                "Position 0 sees nothing.",
                MASK_PLACE,
                "The diagonal is hidden too.",
                "triu(1): the diagonal stays visible.",
            ),
            edits=((FUTURE, FUTURE.replace("triu(1)", "triu(0)")),),
        ),
        Mistake(
            "masked after the softmax",
            (
                "Rows sum to less than 1.",
                "Look at the order of mask and softmax.",
                "The future is zeroed only after it took its share.",
                "Hide the scores with -inf first.",
            ),
            edits=(
                (MASKED, "scores = scores"),
                ("heads = weights @ v", "heads = weights.masked_fill(future, 0.0) @ v"),
            ),
        ),
        Mistake(
            "hidden scores are set to 0 instead of -inf",
            (
                "Earlier positions change with later ones.",
                MASK_PLACE,
                "exp(0) is 1: a score of 0, or one multiplied by a mask, hides nothing.",
                "Use -inf.",
            ),
            edits=((MASKED, "scores = scores.masked_fill(future, 0.0)"),),
        ),
        Mistake(
            "ReLU instead of GELU",
            (
                "The output is close to the right one, but not equal.",
                "Look at the activation.",
                "ReLU is what the first Transformer used.",
                "Use GELU.",
            ),
            edits=(("activation = F.gelu", "activation = F.relu"),),
        ),
        Mistake(
            "SiLU instead of GELU",
            (
                "The output is close to the right one, but not equal.",
                "Look at the activation.",
                "x sigmoid(x) is SiLU, which gated models use.",
                "Use GELU.",
            ),
            edits=(("activation = F.gelu", "activation = F.silu"),),
        ),
        Mistake(
            "the feed-forward part sees the block's input",
            (
                "The two sublayers work side by side, not one after the other.",
                "Look at the input of norm2.",
                "It is the input of the block, not what the attention's half gave.",
                "Give it x after the first residual.",
            ),
            edits=((NORM1, "given = x\n        " + NORM1), (NORM2, "normed = self.norm2(given)")),
        ),
        Mistake(
            "the causal mask is made on the CPU",
            (
                "Right on the CPU, an error on any other device.",
                "Look at torch.ones.",
                "A new tensor is on the CPU unless it is told otherwise.",
                "Write device=x.device.",
            ),
            edits=((", device=x.device", ""),),
        ),
    ),
)
