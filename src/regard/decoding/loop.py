"""Text from a model, token by token: one loop for every model.

A model takes part by having `begin(prompt, visible, start_token=...)`, which reads the prompt and returns
the scores of the next token and a `Decoding` that is fed one token at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import ArgumentError, UnsupportedError
from regard.files.loading import Loaded

Prompt = str | Sequence[str] | Sequence[Sequence[int]] | Int[Tensor, "batch position"]


@runtime_checkable
class Decoding(Protocol):
    """One running decode."""

    def next(self, tokens: Int[Tensor, "batch"]) -> Float[Tensor, "batch vocab"]:
        """The scores of the token after these."""

    def reorder(self, sequences: Int[Tensor, "new_batch"]) -> None:
        """Go on with these sequences in this order."""


@runtime_checkable
class Decodable(Protocol):
    """A model that can be decoded."""

    def begin(
        self, prompt: Tensor, visible: Tensor | None = None, *, start_token: int | None = None
    ) -> tuple[Tensor, Decoding]:
        """Read the prompt: the scores of the next token, and the decode that goes on."""


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
        self, scores: Float[Tensor, "batch vocab"], seen: Bool[Tensor, "batch vocab"] | None
    ) -> Float[Tensor, "batch vocab"]:
        """Scores with those of tokens already seen made less likely."""
        if self.repetition_penalty == 1.0 or seen is None:
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


@dataclass(frozen=True, slots=True)
class Generated:
    """What was generated for each prompt; stop tokens are not in it."""

    tokens: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...] | None  # None for a model without tokenizer
    log_probabilities: tuple[float, ...]  # of the whole continuation, the stop token included


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
) -> Generated:
    """Continue each prompt, or answer it where the model is an encoder-decoder.

    `prompt` is a text, several texts, lists of token ids, or a tensor of ids. Greedy by default; a
    `temperature` samples; `n_beam` above 1 searches. Prompts of different lengths are padded, which does not
    change what comes out.
    """
    choice = Choice(temperature, top_k, top_p, repetition_penalty)
    run = _Run.of(model, prompt, max_new, stop, start_token, choice)
    if n_beam < 1:
        raise ArgumentError(f"n_beam must be at least 1. Got {n_beam}.")
    if n_beam > 1 and temperature > 0:
        raise ArgumentError("beam search takes the likeliest: give n_beam or temperature, not both.")
    if n_beam > 1:
        tokens, scores = _beam_search(run, choice, n_beam, length_penalty)
    else:
        tokens, scores = [[] for _ in range(run.n_sequence)], [0.0] * run.n_sequence
        for step in _steps(run, choice, _generator(seed)):
            for index, token in enumerate(step.tokens):
                scores[index] += step.log_probabilities[index]
                if token is not None:
                    tokens[index].append(token)
    texts = None
    if isinstance(model, Loaded) and model.tokenizer is not None:
        texts = tuple(model.tokenizer.decode(each) for each in tokens)
    return Generated(tuple(map(tuple, tokens)), texts, tuple(scores))


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
) -> Iterator[str]:
    """The pieces of text of one continuation, as they come; together they are what `generate` gives."""
    if model.tokenizer is None:
        raise UnsupportedError("this model has no tokenizer: use generate with token ids.")
    choice = Choice(temperature, top_k, top_p, repetition_penalty)
    run = _Run.of(model, prompt, max_new, stop, None, choice)
    tokens: list[int] = []
    shown = ""
    for step in _steps(run, choice, _generator(seed)):
        if step.tokens[0] is None:
            break
        tokens.append(step.tokens[0])
        text = model.tokenizer.decode(tokens)
        # A character of several bytes may still be incomplete: hold it back until it is whole.
        if not text.endswith("\ufffd") and text.startswith(shown):
            yield text[len(shown) :]
            shown = text
    rest = model.tokenizer.decode(tokens)
    if len(rest) > len(shown):
        yield rest[len(shown) :]


@dataclass(frozen=True, slots=True)
class FilledMask:
    """What a masked model puts in the place of one masked token."""

    position: int
    tokens: tuple[str, ...]  # likeliest first
    probabilities: tuple[float, ...]


@torch.no_grad()
def fill_mask(model: Loaded, text: str, *, top: int = 5) -> list[FilledMask]:
    """The likeliest words for each mask in `text`, which is written as the tokenizer's mask token."""
    if model.tokenizer is None or model.tokenizer.special.mask is None:
        raise UnsupportedError("this model's tokenizer has no mask token.")
    if model.model.head != "masked":
        raise UnsupportedError(
            f"{model.facts.name} has head {model.model.head!r}: only a masked language head does."
        )
    mask = model.tokenizer.special.mask
    ids = _encode_with_mask(model, text, mask)
    places = [index for index, token in enumerate(ids) if token == mask]
    if not places:
        name = model.tokenizer.tokens([mask])[0]
        raise ArgumentError(f"the text has no mask: write {name} where a word is wanted. Got {text!r}.")
    logits = model.model(torch.tensor([ids], device=model.device)).logits[0, places].float()
    probabilities, tokens = logits.softmax(-1).topk(min(top, logits.shape[-1]), dim=-1)
    return [
        FilledMask(place, tuple(model.tokenizer.tokens(tokens[row])), tuple(probabilities[row].tolist()))
        for row, place in enumerate(places)
    ]


def _encode_with_mask(model: Loaded, text: str, mask: int) -> list[int]:
    """Token ids of a text in which the mask token may be only a spelling (byte-level tokenizers)."""
    assert model.tokenizer is not None  # fill_mask made sure
    ids = model.tokenizer.encode(text)
    spelled = model.tokenizer.tokens([mask])[0]
    if mask in ids or spelled not in text:
        return ids
    pieces = [model.tokenizer.encode(piece, add_special=False) for piece in text.split(spelled)]
    inner = pieces[0]
    for piece in pieces[1:]:
        inner = [*inner, mask, *piece]
    special = model.tokenizer.special
    first = [special.cls] if special.cls is not None else []
    return [*first, *inner, *([special.sep] if special.sep is not None else [])]


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Everything a decode starts from."""

    model: Decodable
    prompt: Tensor
    visible: Tensor | None
    max_new: int
    stop: frozenset[int]
    start_token: int | None
    penalise: bool

    @property
    def n_sequence(self) -> int:
        return int(self.prompt.shape[0])

    @classmethod
    def of(
        cls,
        model: Loaded | Decodable,
        prompt: Prompt,
        max_new: int,
        stop: Sequence[int] | None,
        start_token: int | None,
        choice: Choice,
    ) -> _Run:
        if max_new < 1:
            raise ArgumentError(f"max_new must be at least 1. Got {max_new}.")
        loaded = model if isinstance(model, Loaded) else None
        decodable: Any = model if loaded is None else loaded.model
        if not hasattr(decodable, "begin"):
            raise UnsupportedError(f"{type(decodable).__name__} cannot be decoded: it has no `begin`.")
        tokens, visible = _tokens(prompt, loaded, decodable)
        config = getattr(decodable, "config", None)  # a recurrent model's config knows its own ids
        start_token = getattr(config, "bos", None) if start_token is None else start_token
        if stop is None and getattr(config, "eos", None) is not None:
            stop = [config.eos]  # type: ignore[union-attr]
        if loaded is not None:
            stop = loaded.stop_tokens if stop is None else stop
            start_token = loaded.start_token if start_token is None else start_token
            limit = getattr(loaded.model.config, "n_position", None)  # a recurrent model has no limit
            room = None if limit is None or loaded.model.encoder is not None else limit - tokens.shape[1]
            if room is not None and room < 1:
                raise ArgumentError(
                    f"the prompt has {tokens.shape[1]} tokens, the model's limit is {limit}: "
                    "nothing can follow. Shorten the prompt."
                )
            max_new = max_new if room is None else min(max_new, room)
        return cls(
            decodable,
            tokens,
            visible,
            max_new,
            frozenset(stop or ()),
            start_token,
            choice.repetition_penalty != 1,
        )

    def begin(self) -> tuple[Tensor, Decoding]:
        if getattr(self.model, "training", False):
            raise ArgumentError(
                "the model is in training mode, where dropout is on: call model.eval() first."
            )
        return self.model.begin(self.prompt, self.visible, start_token=self.start_token)

    def seen(self, vocab: int) -> Tensor | None:
        """Which tokens each prompt holds, for the repetition penalty."""
        if not self.penalise:
            return None
        seen = torch.zeros(self.n_sequence, vocab, dtype=torch.bool, device=self.prompt.device)
        if self.start_token is not None:  # the prompt is another text than the answer
            seen[:, self.start_token] = True
            return seen
        real = torch.ones_like(self.prompt, dtype=torch.bool) if self.visible is None else self.visible
        return seen.scatter_reduce(1, self.prompt, real, reduce="amax")


def _tokens(prompt: Prompt, loaded: Loaded | None, model: Any) -> tuple[Tensor, Tensor | None]:
    """The prompt as one rectangle of ids, padded on the side that the model's kind wants."""
    parameter = next(iter(model.parameters()), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    if isinstance(prompt, Tensor):
        if prompt.dim() != 2 or not prompt.numel():
            raise ArgumentError(
                f"a prompt of ids must be (batch, position). Got shape {tuple(prompt.shape)}."
            )
        return prompt.to(device), None
    rows: list[list[int]] = []
    for each in [prompt] if isinstance(prompt, str) else prompt:
        if isinstance(each, str):
            if loaded is None or loaded.tokenizer is None:
                raise ArgumentError("a prompt of text needs a model with a tokenizer: give token ids.")
            rows.append(loaded.tokenizer.encode(each))
        else:
            rows.append([int(token) for token in each])
    if not rows or not all(rows):
        raise ArgumentError("the prompt is empty: at least one token is needed to start from.")
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    visible = torch.zeros(len(rows), longest, dtype=torch.bool)
    right = getattr(model, "encoder", None) is not None  # an encoder reads, a decoder goes on at the end
    for index, row in enumerate(rows):
        place = slice(0, len(row)) if right else slice(longest - len(row), longest)
        ids[index, place] = torch.tensor(row)
        visible[index, place] = True
    return ids.to(device), None if bool(visible.all()) else visible.to(device)


def _generator(seed: int | None) -> torch.Generator | None:
    return None if seed is None else torch.Generator().manual_seed(seed)


@dataclass(frozen=True, slots=True)
class _Step:
    """One more token of every sequence; None where it has stopped."""

    tokens: tuple[int | None, ...]
    log_probabilities: tuple[float, ...]


@torch.no_grad()
def _steps(run: _Run, choice: Choice, generator: torch.Generator | None) -> Iterator[_Step]:
    """The loop: choose a token for each sequence, feed them, until all have stopped or `max_new`."""
    scores, decoding = run.begin()
    seen = run.seen(scores.shape[-1])
    going = [True] * run.n_sequence
    for step in range(run.max_new):
        scores = choice.penalised(scores, seen)
        picked = choice.pick(scores, generator)
        chance = (scores.gather(-1, picked[:, None])[:, 0] - scores.logsumexp(-1)).tolist()
        ids = picked.tolist()
        before = going
        going = [live and token not in run.stop for live, token in zip(going, ids, strict=True)]
        yield _Step(
            tuple(token if live else None for live, token in zip(going, ids, strict=True)),
            tuple(value if live else 0.0 for live, value in zip(before, chance, strict=True)),
        )
        if not any(going) or step + 1 == run.max_new:
            return
        if seen is not None:
            seen = seen.scatter(1, picked[:, None], True)
        scores = decoding.next(picked)


@torch.no_grad()
def _beam_search(
    run: _Run, choice: Choice, n_beam: int, length_penalty: float
) -> tuple[list[list[int]], list[float]]:
    """The continuation with the best log probability / length^penalty among `n_beam` kept at every step."""
    scores, decoding = run.begin()
    n_prompt, vocab = run.n_sequence, scores.shape[-1]
    device = scores.device
    decoding.reorder(torch.arange(n_prompt, device=device).repeat_interleave(n_beam))
    scores = scores.repeat_interleave(n_beam, dim=0)
    seen = run.seen(vocab)
    seen = None if seen is None else seen.repeat_interleave(n_beam, dim=0)
    # All beams of a prompt start alike: only the first may branch, or all would stay alike.
    totals = torch.full((n_prompt, n_beam), -torch.inf, device=device)
    totals[:, 0] = 0.0
    running: list[list[list[int]]] = [[[] for _ in range(n_beam)] for _ in range(n_prompt)]
    finished: list[list[tuple[float, float, list[int]]]] = [[] for _ in range(n_prompt)]
    open_prompts = [True] * n_prompt
    n_candidate = min((1 + max(1, len(run.stop))) * n_beam, n_beam * vocab)
    for length in range(1, run.max_new + 1):
        chances = choice.penalised(scores.float().log_softmax(-1), seen)
        best, flat = (
            (totals[:, :, None] + chances.view(n_prompt, n_beam, vocab)).flatten(1).topk(n_candidate, dim=-1)
        )
        parents, tokens = (flat // vocab).tolist(), (flat % vocab).tolist()
        values = best.tolist()
        feed, origin, kept = [], [], []
        last = length == run.max_new
        for prompt in range(n_prompt):
            going: list[tuple[float, int, list[int]]] = []
            for rank, (value, parent, token) in enumerate(
                zip(values[prompt], parents[prompt], tokens[prompt], strict=True)
            ):
                text = running[prompt][parent]
                if token in run.stop:
                    # A stop counts only among the best n_beam, as transformers has it.
                    if open_prompts[prompt] and rank < n_beam:
                        finished[prompt].append((value / length**length_penalty, value, text))
                elif len(going) < n_beam:
                    going.append((value, parent, [*text, token]))
                    if last and open_prompts[prompt] and rank < n_beam:
                        finished[prompt].append((value / length**length_penalty, value, [*text, token]))
            finished[prompt] = sorted(finished[prompt], key=lambda done: -done[0])[:n_beam]
            while len(going) < n_beam:  # a vocabulary with hardly more than stop tokens
                going.append((-torch.inf, 0, [*running[prompt][0], 0]))
            running[prompt] = [text for _, _, text in going]
            kept.append([value for value, _, _ in going])
            origin += [prompt * n_beam + parent for _, parent, _ in going]
            feed += [text[-1] for _, _, text in going]
            if len(finished[prompt]) == n_beam:
                hope = going[0][0] / length**length_penalty
                open_prompts[prompt] = finished[prompt][-1][0] < hope
        if last or not any(open_prompts):
            break
        totals = torch.tensor(kept, device=device)
        order = torch.tensor(origin, device=device)
        picked = torch.tensor(feed, device=device)
        decoding.reorder(order)
        if seen is not None:
            seen = seen.index_select(0, order).scatter(1, picked[:, None], True)
        scores = decoding.next(picked)
    winners = [done[0] for done in finished]
    return [text for _, _, text in winners], [value for _, value, _ in winners]
