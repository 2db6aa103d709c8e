"""What a masked model puts in the place of a masked token."""

from dataclasses import dataclass

import torch

from regard.errors import ArgumentError, UnsupportedError
from regard.files.loading import Loaded
from regard.files.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class FilledMask:
    """What a masked model puts in the place of one masked token."""

    position: int
    tokens: tuple[str, ...]  # likeliest first
    probabilities: tuple[float, ...]


@torch.no_grad()
def fill_mask(model: Loaded, text: str, *, top: int = 5) -> list[FilledMask]:
    """The likeliest words for each mask in `text`, which is written as the tokenizer's mask token."""
    tokenizer = model.tokenizer
    if tokenizer is None or tokenizer.special.mask is None:
        raise UnsupportedError("this model's tokenizer has no mask token.")
    if model.model.head != "masked":
        raise UnsupportedError(
            f"{model.facts.name} has head {model.model.head!r}: only a masked language head does."
        )
    mask = tokenizer.special.mask
    ids = _encode_with_mask(tokenizer, text, mask)
    places = [index for index, token in enumerate(ids) if token == mask]
    if not places:
        name = tokenizer.tokens([mask])[0]
        raise ArgumentError(f"the text has no mask: write {name} where a word is wanted. Got {text!r}.")
    logits = model.model(torch.tensor([ids], device=model.device)).logits[0, places].float()
    probabilities, tokens = logits.softmax(-1).topk(min(top, logits.shape[-1]), dim=-1)
    return [
        FilledMask(place, tuple(tokenizer.tokens(tokens[row])), tuple(probabilities[row].tolist()))
        for row, place in enumerate(places)
    ]


def _encode_with_mask(tokenizer: TextTokenizer, text: str, mask: int) -> list[int]:
    """Token ids of a text in which the mask token may be only a spelling (byte-level tokenizers)."""
    ids = tokenizer.encode(text)
    spelled = tokenizer.tokens([mask])[0]
    if mask in ids or spelled not in text:
        return ids
    inner, *rest = (tokenizer.encode(piece, add_special=False) for piece in text.split(spelled))
    for piece in rest:
        inner = [*inner, mask, *piece]
    around = tokenizer.special.cls, tokenizer.special.sep
    first, last = ([] if token is None else [token] for token in around)
    return [*first, *inner, *last]
