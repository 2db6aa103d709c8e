"""Attention against PyTorch's own and against the textbook's: ratios from one interleaved run.

Sizes are those of a small GPT-2: 12 heads of 64. "SDPA" is bare `F.scaled_dot_product_attention`; the
textbook computes softmax(q k^T) v with every weight in memory; the lean layer is four projections around
SDPA, the least a layer can do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from timing import Case, Goal, RatioTable, Row, interleaved, parse_options, report
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.layers.attention import MultiHeadAttention

N_HEAD, HEAD_DIM, MODEL_DIM = 12, 64, 768
LENGTHS = (512, 1024, 2048, 4096)
TEXTBOOK_UP_TO = 2048  # beyond it the textbook's backward pass alone would hold gigabytes
LAYER_LENGTH = 2048


def textbook(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Every score, every weight, in memory."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    return scores.softmax(-1) @ v


def attention_cases(n: int, causal: bool, backward: bool) -> dict[str, Case]:
    """The same inputs through three attentions."""
    q, k, v = (torch.randn(1, N_HEAD, n, HEAD_DIM, requires_grad=backward) for _ in range(3))
    grad = torch.randn(1, N_HEAD, n, HEAD_DIM)
    rule = ScoreRule(visible=Visibility(causal=causal))
    forwards: dict[str, Callable[[], Tensor]] = {
        "SDPA": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
        "attend": lambda: attend(q, k, v, rule).out,
    }
    if n <= TEXTBOOK_UP_TO:
        forwards["textbook"] = lambda: textbook(q, k, v, causal)
    if not backward:
        return dict(forwards)

    def there_and_back(forward: Callable[[], Tensor]) -> object:
        return torch.autograd.grad(forward(), (q, k, v), grad)

    return {name: partial(there_and_back, forward) for name, forward in forwards.items()}


def attention_table(lengths: tuple[int, ...], backward: bool, rounds: int) -> RatioTable:
    rows = []
    for n in lengths:
        for causal in (False, True):
            timings = interleaved(attention_cases(n, causal, backward), rounds)
            setting = f"N {n}{', causal' if causal else ''}"
            rows.append(Row(setting, timings, Goal("attend", "SDPA", 1.05)))
    what = "forward and backward" if backward else "forward"
    return RatioTable(f"attend, {what}, (1, {N_HEAD}, N, {HEAD_DIM})", "SDPA", rows)


class LeanLayer(nn.Module):
    """Four projections and SDPA: no options, no checks."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.query, self.key, self.value, self.out = (nn.Linear(MODEL_DIM, MODEL_DIM) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (N_HEAD, HEAD_DIM)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        merged: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return merged


def layer_table(n: int, rounds: int) -> RatioTable:
    """Self-attention layers of the same size, without gradients."""
    return RatioTable(
        f"Layer, eval forward, model_dim {MODEL_DIM}, {N_HEAD} heads",
        "MultiHeadAttention",
        [_layer_row(n, causal, rounds) for causal in (False, True)],
        note="nn is nn.MultiheadAttention, called with need_weights=False except where it says otherwise "
        "(as it is called by default, it returns the weights).",
    )


def _layer_row(n: int, causal: bool, rounds: int) -> Row:
    x = torch.randn(1, n, MODEL_DIM)
    ours = MultiHeadAttention(MODEL_DIM, N_HEAD, bias=True, causal=causal).eval()
    lean = LeanLayer(causal).eval()
    evaluating = nn.MultiheadAttention(MODEL_DIM, N_HEAD, batch_first=True).eval()
    training = nn.MultiheadAttention(MODEL_DIM, N_HEAD, batch_first=True).train()
    mask = nn.Transformer.generate_square_subsequent_mask(n) if causal else None
    cases: dict[str, Case] = {
        "MultiHeadAttention": lambda: ours(x),
        "lean SDPA layer": lambda: lean(x),
        "nn, eval": lambda: evaluating(x, x, x, attn_mask=mask, need_weights=False, is_causal=causal),
        "nn, eval, with weights": lambda: evaluating(x, x, x, attn_mask=mask),
        "nn, train": lambda: training(x, x, x, attn_mask=mask, need_weights=False, is_causal=causal),
        "nn, train, with weights": lambda: training(x, x, x, attn_mask=mask),
    }
    with torch.no_grad():
        timings = interleaved(cases, rounds)
    label = f"N {n}, causal" if causal else f"N {n}"
    return Row(label, timings, Goal("MultiHeadAttention", "nn, eval", 1 / 3))


def main() -> None:
    options = parse_options(__doc__)
    lengths = (64, 128) if options.quick else LENGTHS
    with torch.no_grad():
        forward = attention_table(lengths, backward=False, rounds=options.rounds)
    tables = [
        forward,
        attention_table(lengths, backward=True, rounds=options.rounds),
        layer_table(128 if options.quick else LAYER_LENGTH, options.rounds),
    ]
    report("Attention", tables, options)


if __name__ == "__main__":
    main()
