"""What is known of the tokens that heads look at: special ones, punctuation, rare ones, copies."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.errors import ArgumentError, ShapeError

# How special tokens are spelled: [CLS], <s>, <|im_start|>; not <0x0A> and <517>, which stand for text.
_SPECIAL = re.compile(r"\[[A-Z]+\]|</?[^<>\s\d][^<>\s]*>")


@dataclass(frozen=True, slots=True, eq=False)
class TokenFacts:
    """Facts about the keys of one sequence, as rows of booleans, and its ids where copies matter."""

    special: Bool[Tensor, "key"]  # [CLS], [SEP], BOS and the like
    punctuation: Bool[Tensor, "key"]
    rare: Bool[Tensor, "key"]
    ids: Int[Tensor, "key"] | None = None
    real: Bool[Tensor, "key"] | None = None  # False: padding; None: no token is


def token_facts(
    tokens: Sequence[str],
    ids: Int[Tensor, "key"] | None = None,
    *,
    real: Bool[Tensor, "key"] | None = None,
    counts: Int[Tensor, "vocab"] | None = None,
    special_ids: Collection[int] = (),
) -> TokenFacts:
    """Facts about a line of tokens, from how they are spelled and how often they come.

    Rare are the tenth of the words that `counts` (a corpus's, or this text's own) has least of; of equals
    the one with the higher id, since vocabularies list what is frequent first. The first position does not
    count: heads rest there, whatever the word.

    >>> facts = token_facts(["[CLS]", "hi", ",", "Zanzibar", "[SEP]"])
    >>> facts.special.int().tolist(), facts.punctuation.int().tolist()
    ([1, 0, 0, 0, 1], [0, 0, 1, 0, 0])
    """
    n_key = len(tokens)
    if ids is not None and ids.shape != (n_key,):
        raise ShapeError(f"there are {n_key} tokens: ids must be as many. Got shape {tuple(ids.shape)}.")
    names: list[Any] = list(tokens) if ids is None else ids.tolist()
    highest = -1 if ids is None else max(names, default=-1)
    if counts is not None and (ids is None or highest >= counts.shape[0]):
        raise ArgumentError(
            f"counts has one number for each id of the vocabulary, {counts.shape[0]}: ids are needed, "
            f"none of them higher. Got ids up to {highest}."
        )
    spelled = [_SPECIAL.fullmatch(token.strip()) is not None for token in tokens]
    special = [known or name in special_ids for known, name in zip(spelled, names, strict=True)]
    punctuation = [is_punctuation(token) and not s for token, s in zip(tokens, special, strict=True)]
    exists = [True] * n_key if real is None else real.tolist()
    words = [at for at in range(n_key) if exists[at] and not special[at] and not punctuation[at]]
    if len(words) > 1 and words[0] == exists.index(True):
        # Heads rest at the first position whatever stands there, and what stands there is often rare.
        words = words[1:]
    often = Counter(names[at] for at in words) if counts is None else counts.tolist()
    words.sort(key=lambda at: (often[names[at]], 0 if ids is None else -names[at]))
    least = set(words[: math.ceil(len(words) / 10)])
    rare = [at in least for at in range(n_key)]
    where = None if ids is None else ids.device
    kinds = torch.tensor([special, punctuation, rare], dtype=torch.bool, device=where)
    return TokenFacts(kinds[0], kinds[1], kinds[2], ids, real)


def is_punctuation(token: str) -> bool:
    """Whether a token is made of punctuation and symbols alone.

    >>> is_punctuation(" ."), is_punctuation("##ing"), is_punctuation("a.")
    (True, False, False)
    """
    bare = token.strip().removeprefix("##")
    return bool(bare) and all(unicodedata.category(character)[0] in "PS" for character in bare)


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """For each query the keys that hold an earlier copy of its token, shifted by `shift`, as a sparse list.

    Those of query i are `sorted_keys[first[i] : first[i] + count[i]] + shift`.
    """

    sorted_keys: Int[Tensor, "key"]
    first: Int[Tensor, "query"]
    count: Int[Tensor, "query"]
    shift: int  # 0: the copy itself (duplicate); 1: what followed it (induction)

    def pairs(self, rows: slice) -> tuple[Int[Tensor, "pair"], Int[Tensor, "pair"]]:
        """Rows, counted from the first of `rows`, and keys of all pairs of these rows."""
        count = self.count[rows]
        row = torch.arange(len(count), device=count.device).repeat_interleave(count)
        before = (count.cumsum(0) - count)[row]
        within = torch.arange(row.shape[0], device=count.device) - before
        return row, self.sorted_keys[self.first[rows][row] + within] + self.shift


def copies(facts: TokenFacts, shift: int) -> Copies:
    """Earlier copies of each token (`shift` 0), or what followed them (1). Special tokens have none.

    >>> facts = token_facts(list("abcab"), torch.tensor([1, 2, 3, 1, 2]))
    >>> [keys.tolist() for keys in copies(facts, 1).pairs(slice(0, 5))]
    [[3, 4], [1, 2]]
    """
    if facts.ids is None:
        raise ArgumentError("copies of tokens are found by their ids: these facts have none.")
    places = torch.arange(len(facts.ids), device=facts.ids.device)
    left_out = facts.special if facts.real is None else facts.special | ~facts.real
    # What is left out gets an id that no other has, so that nothing is its copy.
    ids = torch.where(left_out, -1 - places, facts.ids.long())
    order = torch.argsort(ids, stable=True)
    starts = torch.searchsorted(ids[order], ids)
    count = order.argsort() - starts  # copies before this one
    if shift:
        # The copy right before a token, the last of its list, is followed by that token itself.
        count[1:] -= (ids[1:] == ids[:-1]).long()
    return Copies(order, starts, count, shift)
