"""What an experiment asks of a model: one number of its output, and how it changes under an intervention."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.shapes import whole_index
from regard.decoding.prompts import encoded
from regard.errors import ArgumentError, UnsupportedError
from regard.files.loading import Loaded
from regard.heads.model import loaded_of
from regard.tracing.interventions import Run, intervene

Token = int | str
Change = Callable[[Run], None]


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A model, the ids it reads, and what is asked of it: the score of a token at a position."""

    loaded: Loaded
    ids: Int[Tensor, "1 position"]
    token: int
    against: int | None  # the token whose score is taken away; None: the log-probability is asked for
    position: int

    @classmethod
    def about(
        cls,
        model: Loaded | nn.Module,
        text: Any,
        token: Token | None,
        against: Token | None,
        position: int | None,
        tokenizer: Any = None,
    ) -> Asked:
        """A text or ids, and a token or its text; by default the likeliest after the last, or at the mask."""
        loaded = loaded_of(model, tokenizer)
        if loaded.model.head == "none" or loaded.model.kind == "encoder-decoder":
            raise UnsupportedError(
                f"{loaded.facts.name} is {loaded.model.kind} with head {loaded.model.head!r}: this needs one "
                "that foretells a token after one text."
            )
        ids = encoded(text, loaded.tokenizer, loaded.device).ids
        if ids.shape[0] != 1:
            raise ArgumentError(f"one text is asked about. Got {ids.shape[0]}.")
        if position is None:
            position = _mask(loaded, ids) if loaded.model.head == "masked" else ids.shape[1] - 1
        position = whole_index("position", position, ids.shape[1])
        chosen = _token(loaded, token, "target")
        if chosen is None:
            with torch.no_grad():
                chosen = int(loaded.model(ids).logits[0, position].argmax())
        return cls(loaded, ids, chosen, _token(loaded, against, "against"), position)

    def score(self, logits: Float[Tensor, "1 position vocab"]) -> Float[Tensor, ""]:
        """The number that is asked for."""
        row = logits[0, self.position].float()
        if self.against is None:
            return row.log_softmax(-1)[self.token]
        return row[self.token] - row[self.against]

    def run(self, change: Change) -> float:
        """The score under a change."""
        return float(self.run_each([change])[0])

    @torch.no_grad()
    def run_each(self, changes: Iterable[Change]) -> Float[Tensor, "change"]:
        """The score under each of several changes."""
        values = []
        for change in changes:
            with intervene(self.loaded) as run:
                change(run)
                values.append(self.score(self.loaded.model(self.ids).logits))
        return torch.stack(values).double()

    def name(self, token: int) -> str:
        """A token as a person reads it."""
        tokenizer = self.loaded.tokenizer
        return str(token) if tokenizer is None else tokenizer.tokens([token])[0]


def _token(loaded: Loaded, token: Token | None, what: str) -> int | None:
    """A token's id, given as it is or as its text, which must be one token."""
    vocab = loaded.model.sizes.vocab
    if isinstance(token, int) and vocab and not 0 <= token < vocab:
        raise ArgumentError(f"{what} must lie between 0 and {vocab - 1}. Got {token}.")
    if token is None or isinstance(token, int):
        return token
    if loaded.tokenizer is None:
        raise ArgumentError(f"{loaded.facts.name} has no tokenizer: give {what} as an id.")
    # As it stands within a text, after a space, where there is such a token.
    spelled = [loaded.tokenizer.encode(text, add_special=False) for text in (f" {token}", token)]
    whole = [ids[0] for ids in spelled if len(ids) == 1]
    if not whole:
        pieces = loaded.tokenizer.tokens(spelled[1])
        raise ArgumentError(
            f"{what} must be one token, and {token!r} is {len(pieces)}: {' | '.join(pieces)}."
        )
    return whole[0]


def _mask(loaded: Loaded, ids: Tensor) -> int:
    mask = None if loaded.tokenizer is None else loaded.tokenizer.special.mask
    places = [] if mask is None else (ids[0] == mask).nonzero()[:, 0].tolist()
    if len(places) != 1:
        raise ArgumentError(f"the text must hide one word, with the model's mask token. Got {len(places)}.")
    return int(places[0])
