"""A softmax that is taken block by block, with its decisions as choices whose defaults are right."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.checking.trials import made

State = tuple[Tensor, Tensor, Tensor]  # largest score, sum of exponentials, sum of values with these weights


@dataclass(frozen=True)
class Online:
    """The decisions of one step."""

    largest: str = "of both"
    corrected: str = "both sums"
    correction: str = "old minus new"
    sums: str = "old and new"
    empty: str = "stays empty"
    block: str = "by the new largest"

    def __call__(self, state: State, scores: Tensor, values: Tensor) -> State:
        """The state after one more block of scores (..., query, key) and values (..., key, dim)."""
        m, total, out = state
        block = scores.amax(-1)
        new = made(
            {
                "of both": lambda: torch.maximum(m, block),
                "of the block": lambda: block,
                "of the first block": lambda: torch.where(m == -torch.inf, block, m),
                "none": lambda: torch.zeros_like(m),
            },
            self.largest,
        )
        if self.empty == "m is 0":
            new = torch.where(new == -torch.inf, 0.0, new)
        # A row that has seen nothing has no largest score: -inf minus -inf is NaN.
        anchor = new if self.empty == "nan" else torch.where(new == -torch.inf, 0.0, new)
        by = {"by its own largest": block.clamp(min=torch.finfo(block.dtype).min), "by the old largest": m}
        e = (scores - by.get(self.block, anchor)[..., None]).exp()
        old = torch.where(m == -torch.inf, 0.0, (m - anchor).exp())
        if self.largest == "none":
            old = torch.ones_like(old)
        if self.empty == "nan":
            old = (m - anchor).exp()
        if self.correction == "new minus old":
            old = torch.where(m == -torch.inf, 0.0, (anchor - m).exp())
        keep = old if self.corrected in ("both sums", "total") else torch.ones_like(old)
        keep_out = old if self.corrected in ("both sums", "values") else torch.ones_like(old)
        if self.sums == "the block alone":
            keep = keep_out = torch.zeros_like(old)
        more = e.sum(-1)
        added = e @ values
        if self.sums == "averages":
            added = added / more[..., None]
        return new, keep * total + more, keep_out[..., None] * out + added


def start(like: Tensor, width: int) -> State:
    """The state before the first block, for queries of shape (..., query, dim)."""
    rows = like.new_zeros(like.shape[:-1])
    return rows - torch.inf, rows, like.new_zeros(*like.shape[:-1], width)
