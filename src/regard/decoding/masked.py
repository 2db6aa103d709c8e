"""What a masked model puts in the place of a masked token."""

from dataclasses import dataclass

import torch

from regard.errors import ArgumentError, UnsupportedError
from regard.files.loading import Loaded


@dataclass(frozen=True, slots=True)
class FilledMask:
    """What a masked model puts in the place of one masked token.

    Attributes:
        position: Where the mask is, among the tokens.
        tokens: The likeliest, likeliest first.
        probabilities: Of each.
    """

    position: int
    tokens: tuple[str, ...]  # likeliest first
    probabilities: tuple[float, ...]


@torch.no_grad()
def fill_mask(model: Loaded, text: str, *, top: int = 5) -> list[FilledMask]:
    """Return the likeliest words for each mask in a text.

    Args:
        model: A model with a masked head, such as BERT.
        text: With the tokenizer's mask token where a word is wanted.
        top: How many words for each mask.

    Returns:
        One entry for each mask, in order.

    Raises:
        UnsupportedError: If the model has no masked head, or its tokenizer no mask token.
        ArgumentError: If the text has no mask.
    """
    tokenizer = model.tokenizer
    if tokenizer is None or tokenizer.special.mask is None:
        raise UnsupportedError("this model's tokenizer has no mask token.")
    if model.model.lm_head != "masked":
        raise UnsupportedError(
            f"{model.facts.name} has lm_head {model.model.lm_head!r}: it must be 'masked'."
        )
    ids, special, mask = tokenizer.encode(text), tokenizer.special, tokenizer.special.mask
    spelled = tokenizer.tokens([mask])[0]
    if mask not in ids and spelled in text:  # a tokenizer of bytes reads the name as text
        pieces = [tokenizer.encode(piece, add_special=False) for piece in text.split(spelled)]
        inner = [token for piece in pieces for token in (*piece, mask)][:-1]
        ids = [token for token in (special.cls, *inner, special.sep) if token is not None]
    places = [index for index, token in enumerate(ids) if token == mask]
    if not places:
        raise ArgumentError(f"the text has no mask: write {spelled} where a word is wanted. Got {text!r}.")
    logits = model.model(torch.tensor([ids], device=model.device)).logits[0, places].float()
    probabilities, tokens = logits.softmax(-1).topk(min(top, logits.shape[-1]), dim=-1)
    return [
        FilledMask(place, tuple(tokenizer.tokens(tokens[row])), tuple(probabilities[row].tolist()))
        for row, place in enumerate(places)
    ]
