"""What a model is given to read: text or ids as one rectangle, padded. The one padding of the package."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.errors import ArgumentError

Prompt = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]] | Tensor
Side = Literal["left", "right"]  # pad on the left what is gone on with, on the right what is read


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Texts as token ids.

    Attributes:
        ids: ``(batch, position)``.
        key_mask: ``(batch, position)``, False where a token is padding; None: there is no padding.
        texts: The texts, where all were given as text.
    """

    ids: Int[Tensor, "batch position"]
    key_mask: Bool[Tensor, "batch position"] | None  # False: padding; None: there is none
    texts: tuple[str, ...] | None = None  # where all were given as text

    def __repr__(self) -> str:
        return f"Encoded({self.ids.shape[0]} sequences of at most {self.ids.shape[1]} tokens)"


def encoded(
    given: Prompt,
    tokenizer: Any,
    device: torch.device | str = "cpu",
    *,
    side: Side = "right",
    filler: int | None = None,
) -> Encoded:
    """Arrange a text, several, lists of ids or a tensor of ids as one rectangle of ids.

    Args:
        given: A text, several texts, lists of ids, or ids ``(position,)`` or ``(batch, position)``.
        tokenizer: Ours, one of the `tokenizers` library or one of transformers'; None where ids are given.
        device: Where the ids go.
        side: Where shorter rows are padded: "left" before what is continued, "right" after what is read.
        filler: The id of padding, which is masked. Default: the tokenizer's.

    Returns:
        The ids, and which of them are padding.

    Raises:
        ArgumentError: If nothing is given, or a text without a tokenizer.
    """
    if isinstance(given, Tensor | np.ndarray):
        given = torch.as_tensor(given)
        ids = given[None] if given.dim() == 1 else given
        if ids.dim() != 2 or ids.is_floating_point() or not ids.numel():
            raise ArgumentError(
                "ids must be whole numbers, (position) or (batch, position), at least one. "
                f"Got shape {tuple(given.shape)} and dtype {given.dtype}."
            )
        return Encoded(ids.to(device), None)
    one = isinstance(given, str) or (len(given) > 0 and all(isinstance(token, int) for token in given))
    rows: list[Any] = [given] if one else list(given)
    texts = tuple(row for row in rows if isinstance(row, str))
    if texts and tokenizer is None:
        raise ArgumentError("a text needs a tokenizer: give token ids, or a `tokenizer`.")
    lists = [_ids(tokenizer, row) if isinstance(row, str) else [int(token) for token in row] for row in rows]
    if not lists or not all(lists):
        raise ArgumentError("the input is empty: at least one token is needed to start from.")
    if filler is None:
        special = getattr(tokenizer, "special", None)
        filler = getattr(tokenizer, "pad_token_id", None) if special is None else special.pad
    key_mask = rectangle([[1] * len(row) for row in lists], 0, side=side).bool()
    return Encoded(
        rectangle(lists, filler or 0, side=side).to(device),
        None if bool(key_mask.all()) else key_mask.to(device),
        texts if len(texts) == len(rows) else None,
    )


def rectangle(
    rows: Sequence[Sequence[int] | np.ndarray], filler: int, *, side: Side = "right"
) -> Int[Tensor, "batch position"]:
    """Rows of different lengths as one tensor, filled up on one side.

    >>> rectangle([[5, 7], [9]], 0, side="left").tolist()
    [[5, 7], [0, 9]]
    """
    longest = max(map(len, rows))
    filled = np.full((len(rows), longest), filler, dtype=np.int64)
    for index, row in enumerate(rows):
        start = longest - len(row) if side == "left" else 0
        filled[index, start : start + len(row)] = row
    return torch.from_numpy(filled)


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids = tokenizer.encode(text)
    return list(getattr(ids, "ids", ids))
