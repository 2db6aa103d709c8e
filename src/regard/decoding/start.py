"""Everything a decode starts from: the prompt as ids, how far it may go, what ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decoding.prompts import Prompt, Side, encoded
from regard.errors import ArgumentError, UnsupportedError
from regard.files.loading import Loaded
from regard.layers.eviction import Evict
from regard.models.model import Decoding
from regard.models.transformer import Transformer


@runtime_checkable
class Decodable(Protocol):
    """A model that can be decoded."""

    def begin(
        self, prompt: Tensor, visible: Tensor | None = None, *, start_token: int | None = None
    ) -> tuple[Tensor, Decoding]:
        """Read the prompt: the scores of the next token, and the decode that goes on."""


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """What a decode starts from."""

    model: Decodable
    prompt: Int[Tensor, "batch position"]
    visible: Bool[Tensor, "batch position"] | None
    max_new: int
    stop: frozenset[int]
    start_token: int | None
    cache: Evict | None = None

    @classmethod
    def of(
        cls,
        model: Loaded | Decodable,
        prompt: Prompt,
        max_new: int,
        stop: Sequence[int] | None = None,
        start_token: int | None = None,
        cache: Evict | None = None,
    ) -> Start:
        """What is given, completed by what the model says of itself."""
        if max_new < 1:
            raise ArgumentError(f"max_new must be at least 1. Got {max_new}.")
        loaded = model if isinstance(model, Loaded) else None
        decodable = model if loaded is None else loaded.model
        if not isinstance(decodable, Decodable):
            raise UnsupportedError(f"{type(decodable).__name__} cannot be decoded: it has no `begin`.")
        if cache is not None and not isinstance(decodable, Transformer):
            raise UnsupportedError(
                f"a {type(decodable).__name__} has no cache to evict from: `cache` is for our Transformer."
            )
        parameter = next(iter(getattr(decodable, "parameters", list)()), None)
        device = torch.device("cpu") if parameter is None else parameter.device
        # An encoder reads, a decoder goes on at the end.
        side: Side = "left" if getattr(decodable, "encoder", None) is None else "right"
        tokenizer = None if loaded is None else loaded.tokenizer
        # Some tokenizers have a padding token that their model has no vector for: 0 is always one.
        given = encoded(prompt, tokenizer, device, side=side, filler=0)
        known = loaded or decodable
        start_token = getattr(known, "start_token", None) if start_token is None else start_token
        stop = getattr(known, "stop_tokens", ()) if stop is None else stop
        limit = None if loaded is None or side == "right" else loaded.model.sizes.n_position
        if limit is not None:
            n_prompt = given.ids.shape[1]
            if n_prompt >= limit:
                raise ArgumentError(
                    f"the prompt has {n_prompt} tokens, the model's limit is {limit}: "
                    "nothing can follow. Shorten the prompt."
                )
            if cache is None or not cache.moves(getattr(decodable, "rotary", None) is not None):
                max_new = min(max_new, limit - n_prompt)
        return cls(decodable, given.ids, given.visible, max_new, frozenset(stop), start_token, cache)

    def begin(self) -> tuple[Float[Tensor, "batch vocab"], Decoding]:
        """The scores of the first token, and the decode that goes on."""
        if getattr(self.model, "training", False):
            raise ArgumentError(
                "the model is in training mode, where dropout is on: call model.eval() first."
            )
        if self.cache is None:
            return self.model.begin(self.prompt, self.visible, start_token=self.start_token)
        assert isinstance(self.model, Transformer)  # `of` made sure
        return self.model.begin(self.prompt, self.visible, start_token=self.start_token, cache=self.cache)

    def seen(self, vocab: int) -> Bool[Tensor, "batch vocab"]:
        """Which tokens each text holds, for the repetition penalty."""
        seen = torch.zeros(self.prompt.shape[0], vocab, dtype=torch.bool, device=self.prompt.device)
        if self.start_token is not None:  # the prompt is another text than the answer
            seen[:, self.start_token] = True
            return seen
        real = torch.ones_like(self.prompt, dtype=torch.bool) if self.visible is None else self.visible
        return seen.scatter_reduce(1, self.prompt, real, reduce="amax")
