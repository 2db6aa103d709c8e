"""The axes of a mask, as an answer is given it and as the formulas read it."""

from types import EllipsisType
from typing import Any

from torch import Tensor


def as_offered(mask: Tensor | EllipsisType, axes: str) -> dict[str, Any]:
    """Return the keyword `mask` of a call, with an axis for the heads where `axes` is "broadcast"."""
    if isinstance(mask, EllipsisType):
        return {}
    if axes == "broadcast":
        mask = (mask if mask.dim() == 3 else mask[None])[:, None]
    return {"mask": mask}


def without_heads(mask: Tensor | None) -> Tensor | None:
    """Return the mask as (query, key) or (batch, query, key)."""
    return mask[:, 0] if mask is not None and mask.dim() == 4 else mask
