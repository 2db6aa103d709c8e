"""Tasks with a right answer, as pairs of prompts: one with a known answer, and one like it with another.

    induction        random tokens, then half of them again; corrupted: another token where the answer stood
    indirect-object  When Mary and John went to the store, John gave a drink to -> Mary (Wang et al. 2023)
    greater-than     The war lasted from the year 1732 to the year 17 -> 33 and later (Hanna et al. 2023)
    agreement        The keys near the cabinet -> are (Linzen et al. 2016)
    capitals         The capital of France is -> Paris

A generator draws prompts for one model's tokenizer: only words that are one token are used, and all prompts
of a task have the same number of tokens, so that positions correspond.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from regard.attention.data import Data
from regard.errors import ArgumentError
from regard.files.loading import Loaded
from regard.heads.model import tokenizer_of

# Clean prompt, corrupted prompt, right answers and wrong answers.
_Words: TypeAlias = tuple[str, str, tuple[str, ...], tuple[str, ...]]

_NAMES = """Mary John Tom James Dan Martin Amy Scott Mark Anna Sarah Paul Peter Alice Bob Kate David Laura
    Jack Emma Ben Lucy Sam Max""".split()
_PLACES = "store park school garden house station office hospital".split()
_THINGS = "drink book ring ball letter cake bag gift".split()
_NOUNS = ("war", "siege", "expedition", "reign", "voyage", "strike", "project", "famine")
_PLURALS = {"key": "keys", "boy": "boys", "dog": "dogs", "car": "cars", "book": "books", "girl": "girls",
            "cat": "cats", "house": "houses", "picture": "pictures", "friend": "friends"}  # fmt: skip
_NEAR = "cabinet table river door garden school window car".split()
_CAPITALS = dict(
    pair.split(":")
    for pair in """France:Paris Germany:Berlin Italy:Rome Spain:Madrid Japan:Tokyo Russia:Moscow
    England:London Austria:Vienna Egypt:Cairo Greece:Athens Portugal:Lisbon Ireland:Dublin
    Sweden:Stockholm Poland:Warsaw Cuba:Havana Iran:Tehran Iraq:Baghdad China:Beijing""".split()
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TaskPrompts(Data):
    """Pairs of prompts of one length, and the tokens between which each decides.

    Attributes:
        task: Its name.
        clean: Ids, ``(example, position)``.
        corrupted: Ids, ``(example, position)``.
        right: Tokens that are right after the clean prompt, ``(example, answer)``; -1: there are fewer.
        wrong: Tokens that are wrong there, ``(example, answer)``; -1: there are fewer.
        texts: The clean prompts, to read.
    """

    task: str
    clean: Int[Tensor, "example position"]
    corrupted: Int[Tensor, "example position"]
    right: Int[Tensor, "example right"]
    wrong: Int[Tensor, "example wrong"]
    texts: tuple[str, ...]

    def __repr__(self) -> str:
        return f"TaskPrompts({self.task}: {len(self.clean)} pairs of {self.clean.shape[1]} tokens)"

    def difference(self, logits: Tensor) -> Tensor:
        """Return how far the right answers are ahead of the wrong ones.

        Args:
            logits: After the last token, ``(..., example, vocab)``.

        Returns:
            ``(..., example)``: the mean logit of the right answers minus that of the wrong ones.
        """
        return _mean_of(logits, self.right) - _mean_of(logits, self.wrong)


def _mean_of(logits: Tensor, tokens: Tensor) -> Tensor:
    tokens = tokens.to(logits.device)
    there = tokens >= 0
    index = tokens.clamp(min=0).expand(*logits.shape[:-1], -1)
    picked = logits.float().gather(-1, index) * there
    return picked.sum(-1) / there.sum(-1)


def _indirect_object(draw: random.Random, is_token: Callable[[str], bool]) -> Iterator[_Words]:
    while True:
        giver, taker, other = draw.sample(_NAMES, 3)
        place, thing = draw.choice(_PLACES), draw.choice(_THINGS)
        first, second = (taker, giver) if draw.random() < 0.5 else (giver, taker)
        frame = f"When {first} and {second} went to the {place}, {{}} gave a {thing} to"
        # Somebody who was not named gives: both names are then as likely.
        yield frame.format(giver), frame.format(other), (f" {taker}",), (f" {giver}",)


def _greater_than(draw: random.Random, is_token: Callable[[str], bool]) -> Iterator[_Words]:
    while True:
        century, year = draw.choice(("11", "12", "13", "14", "15", "16", "17", "18")), draw.randint(20, 80)
        noun = draw.choice(_NOUNS)
        frame = f"The {noun} lasted from the year {century}{{}} to the year {century}"
        if is_token(str(year)):
            later = tuple(f"{n}" for n in range(year + 1, 100) if is_token(f"{n}"))
            earlier = tuple(f"{n:02d}" for n in range(2, year) if is_token(f"{n:02d}"))
        else:  # digits are tokens of their own: the first of the two decides
            later = tuple(f"{n}" for n in range(year // 10 + 1, 10))
            earlier = tuple(f"{n}" for n in range(year // 10))
        yield frame.format(year), frame.format("01"), later, earlier


def _agreement(draw: random.Random, is_token: Callable[[str], bool]) -> Iterator[_Words]:
    while True:
        one, near = draw.choice(list(_PLURALS)), draw.choice(_NEAR)
        plural = draw.random() < 0.5
        forms = [(one, (" is", " was")), (_PLURALS[one], (" are", " were"))]
        (clean, right), (corrupted, wrong) = forms[::-1] if plural else forms
        yield f"The {clean} near the {near}", f"The {corrupted} near the {near}", right, wrong


def _capitals(draw: random.Random, is_token: Callable[[str], bool]) -> Iterator[_Words]:
    while True:
        one, two = draw.sample(list(_CAPITALS), 2)
        frame = "The capital of {} is the city of"
        yield frame.format(one), frame.format(two), (f" {_CAPITALS[one]}",), (f" {_CAPITALS[two]}",)


_GENERATORS: dict[str, Callable[[random.Random, Callable[[str], bool]], Iterator[_Words]]] = {
    "indirect-object": _indirect_object,
    "greater-than": _greater_than,
    "agreement": _agreement,
    "capitals": _capitals,
}
TASKS = ("induction", *_GENERATORS)
_TRIES = 400  # prompts drawn for the most common length to have enough
_REPEATED = 12  # random tokens that come twice


def task_prompts(loaded: Loaded, task: str, n_example: int = 16, seed: int = 0) -> TaskPrompts:
    """Draw pairs of prompts of a task, for one model's tokenizer.

    Args:
        loaded: The model, with its tokenizer.
        task: One of `TASKS`.
        n_example: How many pairs.
        seed: Of the draw.

    Returns:
        Pairs of prompts of one length.

    Raises:
        ArgumentError: There is no such task, or the tokenizer has no tokens for its words.
    """
    if task not in TASKS:
        raise ArgumentError(f"there is no task {task!r}: there are {', '.join(TASKS)}.")
    if n_example < 1:
        raise ArgumentError(f"n_example must be at least 1. Got {n_example}.")
    draw = random.Random(seed)
    if task == "induction":
        return _repeated(loaded, n_example, draw)
    tokenizer = tokenizer_of(loaded)

    def one_token(words: tuple[str, ...]) -> list[int] | None:
        ids = [tokenizer.encode(word, add_special=False) for word in words]
        return [each[0] for each in ids] if words and all(len(each) == 1 for each in ids) else None

    by_length: dict[int, list[tuple[str, list[int], list[int], list[int], list[int]]]] = defaultdict(list)
    seen = set()
    drawn = _GENERATORS[task](draw, lambda word: one_token((word,)) is not None)
    for clean, corrupted, right, wrong in islice(drawn, _TRIES):
        ids, others = tokenizer.encode(clean), tokenizer.encode(corrupted)
        answers, others_answers = one_token(right), one_token(wrong)
        fits = answers is not None and others_answers is not None and len(ids) == len(others)
        if fits and (clean, corrupted) not in seen and not set(answers or ()) & set(others_answers or ()):
            seen.add((clean, corrupted))
            by_length[len(ids)].append((clean, ids, others, answers or [], others_answers or []))
    most = max(by_length.values(), key=len, default=[])[:n_example]
    if len(most) < n_example:
        raise ArgumentError(
            f"{loaded.facts.name} cannot be asked about {task}: of {_TRIES} prompts {len(most)} have answers "
            f"of one token and the same length. Asked for {n_example}."
        )
    return TaskPrompts(
        task,
        torch.tensor([each[1] for each in most], device=loaded.device),
        torch.tensor([each[2] for each in most], device=loaded.device),
        _padded([each[3] for each in most]),
        _padded([each[4] for each in most]),
        tuple(each[0] for each in most),
    )


def _repeated(loaded: Loaded, n_example: int, draw: random.Random) -> TaskPrompts:
    """Random tokens, and the first half of them again; corrupted: another token where the answer stood."""
    vocab = loaded.model.sizes.vocab
    special = set() if loaded.tokenizer is None else set(loaded.tokenizer.special.all())
    known = vocab if loaded.tokenizer is None else min(vocab, loaded.tokenizer.vocab_size)
    tokens = [token for token in range(known) if token not in special]
    rows, others, right, wrong = [], [], [], []
    at = _REPEATED // 2  # where the repetition stops, and the answer stood the first time
    for _ in range(n_example):
        some = draw.sample(tokens, _REPEATED + 1)
        once, other = some[:-1], some[-1]
        rows.append(once + once[:at])
        others.append([*once[:at], other, *once[at + 1 :], *once[:at]])
        right.append([once[at]])
        wrong.append([other])
    texts = tuple(" ".join(map(str, row)) for row in rows)
    if loaded.tokenizer is not None:
        texts = tuple("".join(loaded.tokenizer.tokens(row)) for row in rows)
    ids, corrupted = (torch.tensor(each, device=loaded.device) for each in (rows, others))
    return TaskPrompts("induction", ids, corrupted, torch.tensor(right), torch.tensor(wrong), texts)


def _padded(rows: list[list[int]]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [-1] * (width - len(row)) for row in rows])
