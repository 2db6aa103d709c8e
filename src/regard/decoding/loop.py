"""Text from a model, token by token: one loop for every model and every way of choosing.

A model takes part by having `begin(prompt, visible, start_token=...)`, which reads the prompt and returns
the scores of the next token and a `Decoding` that is fed one token at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from regard.decoding.beam import Beams
from regard.decoding.prompts import Prompt
from regard.decoding.sampling import Choice, Sampler
from regard.decoding.start import Decodable, Start
from regard.errors import ArgumentError, UnsupportedError
from regard.files.loading import Loaded
from regard.layers.eviction import Evict


@dataclass(frozen=True, slots=True)
class Generated:
    """What was generated for each prompt; stop tokens are not in it."""

    tokens: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...] | None  # None for a model without tokenizer
    log_probabilities: tuple[float, ...]  # of the whole continuation, the stop token included


@torch.no_grad()
def _decode(start: Start, chooser: Sampler | Beams) -> Iterator[None]:
    """The loop: choose a token for each sequence, feed them, until all have stopped or `max_new`."""
    scores, decoding = start.begin()
    for length in range(1, start.max_new + 1):
        step = chooser.choose(scores, length)
        yield
        if step.over or length == start.max_new:
            return
        if step.order is not None:
            decoding.reorder(step.order)
        scores = decoding.next(step.tokens)


def generate(
    model: Loaded | Decodable,
    prompt: Prompt,
    *,
    max_new: int = 64,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    n_beam: int = 1,
    length_penalty: float = 1.0,
    stop: Sequence[int] | None = None,
    start_token: int | None = None,
    seed: int | None = None,
    cache: Evict | None = None,
) -> Generated:
    """Continue each prompt, or answer it where the model is an encoder-decoder.

    `prompt` is a text, several texts, lists of token ids, or a tensor of ids. Greedy by default; a
    `temperature` samples; `n_beam` above 1 searches. Prompts of different lengths are padded, which does not
    change what comes out. `cache` says what is let go of what has been read; by default, nothing is.
    """
    choice = Choice(temperature, top_k, top_p, repetition_penalty)
    start = Start.of(model, prompt, max_new, stop, start_token, cache)
    if n_beam < 1:
        raise ArgumentError(f"n_beam must be at least 1. Got {n_beam}.")
    if n_beam > 1 and temperature > 0:
        raise ArgumentError("beam search takes the likeliest: give n_beam or temperature, not both.")
    chooser = Sampler(start, choice, seed) if n_beam == 1 else Beams(start, choice, n_beam, length_penalty)
    for _ in _decode(start, chooser):
        pass
    tokens, totals = chooser.best()
    tokenizer = model.tokenizer if isinstance(model, Loaded) else None
    texts = None if tokenizer is None else tuple(tokenizer.decode(text) for text in tokens)
    return Generated(tuple(map(tuple, tokens)), texts, tuple(totals))


def stream(
    model: Loaded,
    prompt: str,
    *,
    max_new: int = 64,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: Sequence[int] | None = None,
    seed: int | None = None,
    cache: Evict | None = None,
) -> Iterator[str]:
    """The pieces of text of one continuation, as they come; together they are what `generate` gives."""
    if model.tokenizer is None:
        raise UnsupportedError("this model has no tokenizer: use generate with token ids.")
    start = Start.of(model, prompt, max_new, stop, cache=cache)
    sampler = Sampler(start, Choice(temperature, top_k, top_p, repetition_penalty), seed)
    text = shown = ""
    for _ in _decode(start, sampler):
        text = model.tokenizer.decode(sampler.texts[0])
        # A character of several bytes may still be incomplete: hold it back until it is whole.
        if len(text) > len(shown) and not text.endswith("\ufffd") and text.startswith(shown):
            yield text[len(shown) :]
            shown = text
    if len(text) > len(shown):
        yield text[len(shown) :]
