"""Text from a model, token by token: one loop for every model and every way of choosing.

A model takes part by having `begin(prompt, key_mask, start_token=...)`, which reads the prompt and returns
the scores of the next token and a `Decoding` that is fed one token at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
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

    def begin(self, *given: Any, **options: Any) -> tuple[Tensor, Decoding]:
        """Read the prompt: the scores of the next token, and the decode that goes on."""


@dataclass(frozen=True, slots=True)
class Generated:
    """What was generated for each prompt.

    Attributes:
        tokens: The ids, without the prompt's and without stop tokens.
        texts: The same as text; None for a model without tokenizer.
        log_probabilities: Of the whole continuation, the stop token included.
    """

    tokens: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...] | None  # None for a model without tokenizer
    log_probabilities: tuple[float, ...]  # of the whole continuation, the stop token included


@dataclass(frozen=True, slots=True)
class Choice:
    """How the next token is chosen. The default takes the likeliest."""

    temperature: float = 0.0  # 0: greedy; 1: the model's own probabilities
    top_k: int | None = None  # only the k likeliest
    top_p: float | None = None  # only the likeliest that together reach p
    repetition_penalty: float = 1.0  # scores of tokens already there are divided by it (Keskar et al. 2019)

    def __post_init__(self) -> None:
        rules = {
            "temperature": (0 <= self.temperature < float("inf"), "0 (greedy) or above"),
            "top_k": (self.top_k is None or self.top_k >= 1, "at least 1"),
            "top_p": (self.top_p is None or 0 < self.top_p <= 1, "above 0 and at most 1"),
            "repetition_penalty": (0 < self.repetition_penalty < float("inf"), "above 0"),
        }
        for name, (right, rule) in rules.items():
            if not right:
                raise ArgumentError(f"{name} must be {rule}. Got {getattr(self, name)}.")

    def penalised(
        self, scores: Float[Tensor, "batch vocab"], written: Int[Tensor, "batch position"]
    ) -> Float[Tensor, "batch vocab"]:
        """Scores with those of tokens already written made less likely."""
        if self.repetition_penalty == 1:
            return scores
        theirs = scores.gather(1, written)
        lowered = torch.where(theirs > 0, theirs / self.repetition_penalty, theirs * self.repetition_penalty)
        return scores.scatter(1, written, lowered)

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


class Texts:
    """One decode: the prompts as ids, how far it may go, what ends it, and a text for each as it grows."""

    compares_sums = False  # of scores, which must then be log probabilities before a penalty

    def __init__(
        self,
        model: Loaded | Decodable,
        prompt: Prompt,
        choice: Choice,
        max_new: int,
        stop: Sequence[int] | None,
        start_token: int | None = None,
        cache: Evict | None = None,
        seed: int | None = None,
    ) -> None:
        if max_new < 1:
            raise ArgumentError(f"max_new must be at least 1. Got {max_new}.")
        loaded = model if isinstance(model, Loaded) else None
        module = model if loaded is None else loaded.model
        kind = type(module).__name__
        if not isinstance(module, Decodable):
            raise UnsupportedError(f"{kind} cannot be decoded: it has no `begin`.")
        if cache is not None and not isinstance(module, Transformer):
            raise UnsupportedError(f"a {kind} has no cache to evict from: `cache` is for our Transformer.")
        parameter = next(iter(getattr(module, "parameters", list)()), None)
        device = torch.device("cpu") if parameter is None else parameter.device
        # An encoder reads, a decoder goes on at the end.
        side: Side = "left" if getattr(module, "encoder", None) is None else "right"
        # Some tokenizers have a padding token that their model has no vector for: 0 is always one.
        read = encoded(prompt, loaded and loaded.tokenizer, device, side=side, filler=0)
        limit = None if loaded is None or side == "right" else loaded.model.sizes.n_position
        if limit is not None:
            n_prompt = read.ids.shape[1]
            if n_prompt >= limit:
                rule = f"the model's limit is {limit}: nothing can follow"
                raise ArgumentError(f"the prompt has {n_prompt} tokens, {rule}. Shorten it.")
            if cache is None or not cache.moves(getattr(module, "rotary", None) is not None):
                max_new = min(max_new, limit - n_prompt)
        says = loaded or module
        self.model: Decodable = module
        self.choice, self.max_new, self.cache = choice, max_new, cache
        self.prompt, self.key_mask, self.n_prompt = read.ids, read.key_mask, read.ids.shape[0]
        self.stop = frozenset(getattr(says, "stop_tokens", ()) if stop is None else stop)
        self.start_token = getattr(says, "start_token", None) if start_token is None else start_token
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)
        self.tokens: list[list[int]] = [[] for _ in range(self.n_prompt)]
        self.log_probabilities = [0.0] * self.n_prompt
        self.going = [True] * self.n_prompt

    @torch.no_grad()
    def steps(self) -> Iterator[None]:
        """The loop: choose a token for each sequence, feed them, until all have stopped or `max_new`."""
        if getattr(self.model, "training", False):
            raise ArgumentError("the model is in training mode, with dropout on: call model.eval() first.")
        more = {} if self.cache is None else {"cache": self.cache}
        scores, decoding = self.model.begin(self.prompt, self.key_mask, start_token=self.start_token, **more)
        written = self.prompt
        if self.start_token is not None:  # the prompt is another text than the answer
            written = self.prompt.new_full((self.n_prompt, 1), self.start_token)
        elif self.key_mask is not None:  # padding, on the left, counts as the last token once more
            written = self.prompt.where(self.key_mask, self.prompt[:, -1:])
        for length in range(1, self.max_new + 1):
            scores = scores.float().log_softmax(-1) if self.compares_sums else scores
            tokens, order = self.choose(self.choice.penalised(scores, written), length)
            yield
            if not any(self.going) or length == self.max_new:
                return
            if order is not None:
                decoding.reorder(order)
                written = written[order]
            written = torch.cat([written, tokens[:, None]], dim=1)
            scores = decoding.next(tokens)

    def choose(
        self, scores: Float[Tensor, "batch vocab"], length: int
    ) -> tuple[Int[Tensor, "new_batch"], Int[Tensor, "new_batch"] | None]:
        """The next token of every sequence, and the new order of sequences where it changes."""
        picked = self.choice.pick(scores, self.generator)
        chances = (scores.gather(-1, picked[:, None])[:, 0] - scores.logsumexp(-1)).tolist()
        for index, token in enumerate(picked.tolist()):
            if self.going[index]:
                self.log_probabilities[index] += chances[index]
                self.going[index] = token not in self.stop
            if self.going[index]:
                self.tokens[index].append(token)
        return picked, None


class Beams(Texts):
    """`n_beam` texts for each prompt; the best by log probability / length^penalty is the result."""

    compares_sums = True

    def __init__(self, n_beam: int, length_penalty: float, *given: Any) -> None:
        super().__init__(*given)
        self.n_beam, self.penalty = n_beam, length_penalty
        # All beams of a prompt start alike: only the first may branch, or all would stay alike.
        self.totals = torch.full((self.n_prompt, n_beam), -torch.inf, device=self.prompt.device)
        self.totals[:, 0] = 0.0
        self.beams: list[list[list[int]]] = [[[] for _ in range(n_beam)] for _ in range(self.n_prompt)]
        # For each prompt (value / length^penalty, value, text), best first.
        self.ended: list[list[tuple[float, float, list[int]]]] = [[] for _ in range(self.n_prompt)]

    def choose(
        self, scores: Float[Tensor, "batch vocab"], length: int
    ) -> tuple[Int[Tensor, "new_batch"], Int[Tensor, "new_batch"]]:
        """Go on with the best beams of each prompt; at first there is one row for each prompt."""
        vocab, n_row = scores.shape[-1], scores.shape[0] // self.n_prompt
        n_candidate = min((1 + max(1, len(self.stop))) * self.n_beam, self.n_beam * vocab)
        values = self.totals[:, :, None] + scores.view(self.n_prompt, n_row, vocab)
        best, places = (part.tolist() for part in values.flatten(1).topk(n_candidate, dim=-1))
        kept, order, feed = [], [], []
        for prompt in range(self.n_prompt):
            ranked = zip(best[prompt], places[prompt], strict=True)
            candidates = [(value, *divmod(place, vocab)) for value, place in ranked]
            going = self._sorted_out(prompt, candidates, length)
            kept.append([value for value, _, _ in going])
            order += [prompt * n_row + min(parent, n_row - 1) for _, parent, _ in going]
            feed += [text[-1] for _, _, text in going]
        self.totals = torch.tensor(kept, device=scores.device)
        return torch.tensor(feed, device=scores.device), torch.tensor(order, device=scores.device)

    def _sorted_out(
        self, prompt: int, candidates: list[tuple[float, int, int]], length: int
    ) -> list[tuple[float, int, list[int]]]:
        """The beams of one prompt that go on, as (value, parent, text); those that end are noted."""
        going: list[tuple[float, int, list[int]]] = []
        ended, last = self.ended[prompt], length == self.max_new
        for rank, (value, parent, token) in enumerate(candidates):
            text, stops = self.beams[prompt][parent], token in self.stop
            if not stops and len(going) == self.n_beam:
                continue
            if not stops:
                text = [*text, token]
                going.append((value, parent, text))
            # An end counts only among the best n_beam, as transformers has it.
            if (stops or last) and self.going[prompt] and rank < self.n_beam:
                ended.append((value / length**self.penalty, value, text))
        self.ended[prompt] = ended = sorted(ended, key=lambda done: -done[0])[: self.n_beam]
        while len(going) < self.n_beam:  # a vocabulary with hardly more than stop tokens
            going.append((-torch.inf, 0, [*self.beams[prompt][0], 0]))
        self.beams[prompt] = [text for _, _, text in going]
        if len(ended) == self.n_beam:
            self.going[prompt] = ended[-1][0] < going[0][0] / length**self.penalty
        if ended:
            _, self.log_probabilities[prompt], self.tokens[prompt] = ended[0]
        return going


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

    Prompts of different lengths are padded, which does not change what comes out.

    Args:
        model: What `load` returned, or any model with `begin`.
        prompt: A text, several texts, lists of token ids, or a tensor of ids, ``(batch, position)``.
        max_new: At most this many tokens are written.
        temperature: 0 takes the likeliest token, 1 samples from the model's own probabilities.
        top_k: Sample among the k likeliest only.
        top_p: Sample among the likeliest that together reach this probability.
        repetition_penalty: Scores of tokens already there are divided by it (Keskar et al. 2019).
        n_beam: Above 1: beam search with so many beams.
        length_penalty: A beam's log probability is divided by its length to this power.
        stop: Tokens that end a text. Default: the model's own.
        start_token: What an answer begins with, where an encoder-decoder does not know.
        seed: Of the samples. Default: PyTorch's own generator.
        cache: What a cache drops of what has been read. Default: nothing.

    Returns:
        Tokens, texts and log probabilities, one for each prompt.

    Raises:
        ArgumentError: If an option is out of range, or the prompt leaves no room.
        UnsupportedError: If the model cannot be decoded, or cannot drop positions.
    """
    if n_beam < 1:
        raise ArgumentError(f"n_beam must be at least 1. Got {n_beam}.")
    if n_beam > 1 and temperature > 0:
        raise ArgumentError("beam search takes the likeliest: give n_beam or temperature, not both.")
    choice = Choice(temperature, top_k, top_p, repetition_penalty)
    given = (model, prompt, choice, max_new, stop, start_token, cache, seed)
    texts = Texts(*given) if n_beam == 1 else Beams(n_beam, length_penalty, *given)
    for _ in texts.steps():
        pass
    tokenizer = model.tokenizer if isinstance(model, Loaded) else None
    return Generated(
        tuple(map(tuple, texts.tokens)),
        None if tokenizer is None else tuple(map(tokenizer.decode, texts.tokens)),
        tuple(texts.log_probabilities),
    )


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
    """Yield the pieces of text of one continuation as they come; together they are what `generate` gives.

    Args:
        model: What `load` returned.
        prompt: A text.
        max_new: At most this many tokens are written.
        temperature: 0 takes the likeliest token, 1 samples from the model's own probabilities.
        top_k: Sample among the k likeliest only.
        top_p: Sample among the likeliest that together reach this probability.
        repetition_penalty: Scores of tokens already there are divided by it (Keskar et al. 2019).
        stop: Tokens that end a text. Default: the model's own.
        seed: Of the samples. Default: PyTorch's own generator.
        cache: What a cache drops of what has been read. Default: nothing.

    Yields:
        Text, each piece complete characters.

    Raises:
        ArgumentError: If an option is out of range.
        UnsupportedError: If the model has no tokenizer, or cannot be decoded.
    """
    if model.tokenizer is None:
        raise UnsupportedError("this model has no tokenizer: use generate with token ids.")
    choice = Choice(temperature, top_k, top_p, repetition_penalty)
    texts = Texts(model, prompt, choice, max_new, stop, None, cache, seed)
    text = shown = ""
    for _ in texts.steps():
        text = model.tokenizer.decode(texts.tokens[0])
        # A character of several bytes may still be incomplete: hold it back until it is whole.
        if len(text) > len(shown) and not text.endswith("\ufffd") and text.startswith(shown):
            yield text[len(shown) :]
            shown = text
    if len(text) > len(shown):
        yield text[len(shown) :]
