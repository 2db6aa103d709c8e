"""What an experiment asks of a model: one number of its output, and how it changes under an intervention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.shapes import whole_index
from regard.errors import ArgumentError, UnsupportedError
from regard.files.loading import Loaded
from regard.heads.model import layers_of, loaded_of
from regard.tracing.calls import Called
from regard.tracing.changes import Change
from regard.tracing.interventions import Run, intervene

Token = int | str


@dataclass(frozen=True, slots=True, eq=False)
class Objective:
    """The score of a token at a position: against another's, or as a log-probability."""

    token: int
    against: int | None
    position: int

    def of(self, logits: Float[Tensor, "batch position vocab"]) -> Float[Tensor, "batch"]:
        """The number, for each sequence."""
        row = logits[:, self.position].float()
        if self.against is None:
            return row.log_softmax(-1)[:, self.token]
        return row[:, self.token] - row[:, self.against]


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A model, the ids it reads, and what is asked of it."""

    loaded: Loaded
    ids: Int[Tensor, "1 position"]
    objective: Objective

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
        ids = _ids(loaded, text)
        if position is None:
            position = _mask(loaded, ids) if loaded.model.head == "masked" else ids.shape[1] - 1
        position = whole_index("position", position, ids.shape[1])
        chosen = token_of(loaded, token, "target")
        if chosen is None:
            with torch.no_grad():
                chosen = int(loaded.model(ids).logits[0, position].argmax())
        return cls(loaded, ids, Objective(chosen, token_of(loaded, against, "against"), position))

    @torch.no_grad()
    def run(self, change: Callable[[Run], None] | None = None) -> float:
        """The objective, with a change or without."""
        return float(self.run_each([change or _nothing])[0])

    @torch.no_grad()
    def run_each(self, changes: list[Callable[[Run], None]]) -> Float[Tensor, "change"]:
        """The objective under each of several changes."""
        values = []
        for change in changes:
            with intervene(self.loaded) as run:
                change(run)
                values.append(self.objective.of(self.loaded.model(self.ids).logits)[0])
        return torch.stack(values).double()

    def name(self, token: int | None) -> str:
        """A token as a person reads it."""
        if token is None or self.loaded.tokenizer is None:
            return str(token)
        return self.loaded.tokenizer.tokens([token])[0]


def token_of(loaded: Loaded, token: Token | None, what: str) -> int | None:
    """A token's id, given as it is or as its text, which must be one token."""
    vocab = loaded.model.sizes.vocab
    if isinstance(token, int) and vocab and not 0 <= token < vocab:
        raise ArgumentError(f"{what} must lie between 0 and {vocab - 1}. Got {token}.")
    if token is None or isinstance(token, int):
        return token
    if loaded.tokenizer is None:
        raise ArgumentError(f"{loaded.facts.name} has no tokenizer: give {what} as an id.")
    spelled = {text: loaded.tokenizer.encode(text, add_special=False) for text in (token, f" {token}")}
    whole = [ids[0] for ids in spelled.values() if len(ids) == 1]
    if not whole:
        pieces = loaded.tokenizer.tokens(spelled[token])
        raise ArgumentError(
            f"{what} must be one token, and {token!r} is {len(pieces)}: {' | '.join(pieces)}."
        )
    return whole[-1]  # as it stands within a text, after a space, where there is such a token


def _ids(loaded: Loaded, text: Any) -> Int[Tensor, "1 position"]:
    if isinstance(text, str):
        if loaded.tokenizer is None:
            raise ArgumentError(f"{loaded.facts.name} has no tokenizer: give ids.")
        text = loaded.tokenizer.encode(text)
    ids = torch.as_tensor(text, dtype=torch.long, device=loaded.device)
    ids = ids[None] if ids.dim() == 1 else ids
    if ids.dim() != 2 or ids.shape[0] != 1 or not ids.shape[1]:
        raise ArgumentError(f"one text is asked about, as text or ids (position). Got {tuple(ids.shape)}.")
    return ids


def _mask(loaded: Loaded, ids: Tensor) -> int:
    special = None if loaded.tokenizer is None else loaded.tokenizer.special
    places = (
        [] if special is None or special.mask is None else (ids[0] == special.mask).nonzero()[:, 0].tolist()
    )
    if len(places) != 1:
        raise ArgumentError(f"the text must hide one word, with the model's mask token. Got {len(places)}.")
    return int(places[0])


def _nothing(run: Run) -> None:
    """No change."""


@dataclass(slots=True, eq=False)
class _Note(Change):
    """Keeps what a layer's heads gave, in the graph where there is one."""

    out: Tensor | None = None

    def __call__(self, called: Called, out: Tensor) -> Tensor:
        self.times += 1
        self.out = out if out.requires_grad or not torch.is_grad_enabled() else out.requires_grad_()
        return self.out

    def new(self, called: Called, out: Tensor, heads: list[int], rows: slice, first: int) -> Tensor:
        return out


@contextmanager
def noting(loaded: Loaded) -> Iterator[dict[str, _Note]]:
    """A block in which the outputs of all heads are kept, by layer."""
    notes = {name: _Note(name) for name in layers_of(loaded)}
    with intervene(loaded) as run:
        run.changes.extend(notes.values())
        yield notes
