"""How the next token is chosen: the likeliest, or drawn by its probability."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decoding.start import Start
from regard.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Choice:
    """How the next token is chosen. The default takes the likeliest."""

    temperature: float = 0.0  # 0: greedy; 1: the model's own probabilities
    top_k: int | None = None  # only the k likeliest
    top_p: float | None = None  # only the likeliest that together reach p
    repetition_penalty: float = 1.0  # scores of tokens already there are divided by it (Keskar et al. 2019)

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ArgumentError(f"temperature must be 0 (greedy) or above. Got {self.temperature}.")
        if self.top_k is not None and self.top_k < 1:
            raise ArgumentError(f"top_k must be at least 1. Got {self.top_k}.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ArgumentError(f"top_p must be above 0 and at most 1. Got {self.top_p}.")
        if not 0 < self.repetition_penalty < float("inf"):
            raise ArgumentError(f"repetition_penalty must be above 0. Got {self.repetition_penalty}.")

    def penalised(
        self, scores: Float[Tensor, "batch vocab"], seen: Bool[Tensor, "batch vocab"]
    ) -> Float[Tensor, "batch vocab"]:
        """Scores with those of tokens already seen made less likely."""
        if self.repetition_penalty == 1.0:
            return scores
        lowered = torch.where(scores > 0, scores / self.repetition_penalty, scores * self.repetition_penalty)
        return torch.where(seen, lowered, scores)

    def pick(
        self, scores: Float[Tensor, "batch vocab"], generator: torch.Generator | None
    ) -> Int[Tensor, "batch"]:
        """One token for each sequence."""
        if self.temperature == 0:
            return scores.argmax(-1)
        scores = scores.float() / self.temperature
        if self.top_k is not None and self.top_k < scores.shape[-1]:
            least = scores.topk(self.top_k, dim=-1).values[:, -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            ordered, index = scores.sort(dim=-1, descending=True)
            before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
            ordered = ordered.masked_fill(before >= self.top_p, -torch.inf)
            scores = torch.full_like(scores, -torch.inf).scatter(-1, index, ordered)
        return torch.multinomial(scores.softmax(-1).cpu(), 1, generator=generator)[:, 0].to(scores.device)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What is fed next: a token for each sequence, and the new order of sequences where it changes."""

    tokens: Int[Tensor, "batch"]
    order: Int[Tensor, "batch"] | None = None
    over: bool = False  # every text has ended


class Sampler:
    """One text for each prompt, as it grows."""

    def __init__(self, start: Start, choice: Choice, seed: int | None) -> None:
        self.start, self.choice = start, choice
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)
        n_prompt = start.prompt.shape[0]
        self.texts: list[list[int]] = [[] for _ in range(n_prompt)]
        self.totals = [0.0] * n_prompt  # log probabilities
        self.going = [True] * n_prompt
        self.seen: Tensor | None = None

    def choose(self, scores: Float[Tensor, "batch vocab"], length: int) -> Step:
        """The next token of every text."""
        if self.choice.repetition_penalty != 1:
            self.seen = self.start.seen(scores.shape[-1]) if self.seen is None else self.seen
            scores = self.choice.penalised(scores, self.seen)
        picked = self.choice.pick(scores, self.generator)
        chances = (scores.gather(-1, picked[:, None])[:, 0] - scores.logsumexp(-1)).tolist()
        for index, token in enumerate(picked.tolist()):
            if self.going[index]:
                self.totals[index] += chances[index]
                self.going[index] = token not in self.start.stop
            if self.going[index]:
                self.texts[index].append(token)
        if self.seen is not None:
            self.seen = self.seen.scatter(1, picked[:, None], True)
        return Step(picked, over=not any(self.going))

    def best(self) -> tuple[list[list[int]], list[float]]:
        """The texts, and their log probabilities."""
        return self.texts, self.totals
