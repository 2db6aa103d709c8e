"""The logits of `sampling`."""

from types import EllipsisType

import torch
from torch import Tensor

from regard.checking.trials import Draw, Impossible


def spread(
    draw: Draw,
    batch: int,
    n: int,
    temperature: float | EllipsisType,
    top_k: int | EllipsisType,
    top_p: float | EllipsisType,
) -> Tensor:
    """Logits of which no two of a row, and no sum and top_p, are so close that rounding would tell."""
    heat = 1.0 if temperature is ... else temperature or 1.0
    for _ in range(500):
        gaps = torch.stack([draw.distinct(n, n) for _ in range(batch)])
        logits = gaps * 0.7 + draw.uniform(batch, n, high=0.3) - 0.35 * n
        if top_p is ... or top_p >= 1.0:
            return logits
        kept = [
            x.masked_fill(x < x.topk(k).values[:, -1:], -torch.inf).softmax(-1)
            for x in (logits, logits / heat)
            for k in (n, n if top_k is ... else min(top_k, n))
        ]
        sums = torch.stack(kept).sort(-1, descending=True).values.cumsum(-1)
        if float((sums - top_p).abs().min()) > 0.02:
            return logits
    raise Impossible
