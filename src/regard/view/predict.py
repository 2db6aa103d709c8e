"""What a model says, with all heads and with some switched off; and how a prediction hangs on one score."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import ArgumentError, UnsupportedError
from regard.models.seq2seq import Seq2Seq
from regard.tracing.gradients import ScoreGradients, score_gradients
from regard.view.models import Off, Opened

# What an encoder without a head of words is asked: which of these its sentence vector is nearest to.
EXAMPLES = (
    "The dog was too tired to walk.",
    "A car drove down the road.",
    "She gave him a book to read.",
    "The weather is cold today.",
    "Stock prices fell on Monday.",
    "He cooked rice for dinner.",
)
TOP = 8


@torch.no_grad()
def predict(
    opened: Opened,
    ids: list[int],
    source: list[int] | None,
    off: Off,
    position: int | None,
) -> dict[str, Any]:
    """The likeliest words at a position, or the sentence vector's cosines, before and after switching off."""
    if opened.predicts == "vector":
        return _vectors(opened, ids, off)
    at = len(ids) - 1 if position is None else position
    if not 0 <= at < len(ids):
        raise ArgumentError(f"there is no position {at}: there are {len(ids)} tokens.")
    fed = list(ids)
    if opened.predicts == "masked":
        mask = opened.tokenizer.special.mask
        if mask is None:
            raise UnsupportedError("this tokenizer has no mask token.")
        at = a_word(opened, ids) if position is None else at
        fed[at] = mask
    before = chances(opened, fed, source)[at]
    top = before.topk(min(TOP, before.shape[0]))
    names = opened.tokenizer.tokens(top.indices.tolist())
    after = chances(opened, fed, source, off)[at][top.indices].tolist() if off else None
    return {
        "kind": opened.predicts,
        "position": at,
        "before": _listed(names, top.values.tolist()),
        "after": None if after is None else _listed(names, after),
        "moved": None,
    }


def _listed(names: list[str], values: list[float]) -> list[dict[str, Any]]:
    return [{"token": name, "p": value} for name, value in zip(names, values, strict=True)]


@torch.no_grad()
def rivals(
    opened: Opened, ids: list[int], source: list[int] | None, start: int, count: int = 5
) -> list[list[dict[str, Any]]]:
    """For each token from `start` on, and for the one that would come next, the likeliest of its step."""
    top = chances(opened, ids, source, first=start - 1).topk(count)
    return [
        _listed(opened.tokenizer.tokens(tokens), values)
        for tokens, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    ]


def a_word(opened: Opened, ids: list[int]) -> int:
    """The last token that is a word: what is masked until another is chosen."""
    special = opened.tokenizer.special.all()
    return max((place for place, token in enumerate(ids) if token not in special), default=0)


def chances(
    opened: Opened, ids: list[int], source: list[int] | None, off: Off = (), first: int = 0
) -> Tensor:
    """Probabilities (position, vocab) of what follows each position from `first` on."""
    device = next(opened.model.parameters()).device
    tokens = torch.tensor([ids], device=device)
    sequence = (tokens,) if source is None else (torch.tensor([source], device=device), tokens)
    with opened.without(off):
        logits: Tensor = opened.model(*sequence).logits[0, first:]
    return logits.float().softmax(-1).cpu()


def _vectors(opened: Opened, ids: list[int], off: Off) -> dict[str, Any]:
    whole = sentence_vector(opened, ids)
    examples = example_vectors(opened)
    cosines = [float(whole @ each) for each in examples]
    order = sorted(range(len(EXAMPLES)), key=lambda index: -cosines[index])
    names = [EXAMPLES[index] for index in order]
    after = moved = None
    if off:
        changed = sentence_vector(opened, ids, off)
        after = _listed(names, [float(changed @ examples[index]) for index in order])
        moved = 1 - float(whole @ changed)
    return {
        "kind": "vector",
        "position": 0,
        "before": _listed(names, [cosines[index] for index in order]),
        "after": after,
        "moved": moved,
    }


def example_vectors(opened: Opened) -> list[Tensor]:
    """The sentence vectors of the examples."""
    return [sentence_vector(opened, opened.tokenizer.encode(each)) for each in EXAMPLES]


def sentence_vector(opened: Opened, ids: list[int], off: Off = ()) -> Tensor:
    """The mean of the last layer's vectors, of length 1: how sentence encoders are compared."""
    device = next(opened.model.parameters()).device
    with opened.without(off):
        hidden = opened.model(torch.tensor([ids], device=device)).hidden
    vector: Tensor = F.normalize(hidden.float().mean(1), dim=-1)[0].cpu()
    return vector


def gradients(
    opened: Opened, ids: list[int], source: list[int] | None, position: int
) -> tuple[ScoreGradients, str]:
    """The gradient of one prediction on every score, and what the prediction is."""
    given: dict[str, Any] = {}
    if isinstance(opened.model, Seq2Seq):
        raise UnsupportedError("gradients are shown for Transformers.")
    if opened.predicts == "vector":
        with torch.no_grad():
            vectors = example_vectors(opened)
            whole = sentence_vector(opened, ids)
        nearest = max(range(len(EXAMPLES)), key=lambda index: float(whole @ vectors[index]))

        def objective(output: Any) -> Tensor:
            vector = F.normalize(output.hidden.float().mean(1), dim=-1)[0]
            return vector @ vectors[nearest].to(vector.device)

        given["objective"] = objective
        name = f"cosine with “{EXAMPLES[nearest]}”"
    else:
        with torch.no_grad():
            followers = chances(opened, ids, source)
        at = min(position, followers.shape[0] - 1)
        token = int(followers[at].argmax())
        given.update(position=at, token=token)
        name = f"log p({opened.tokenizer.tokens([token])[0]!r}) at {at}"
    device = next(opened.model.parameters()).device
    read = torch.tensor([ids if source is None else source], device=device)
    if source is not None:
        given["target"] = torch.tensor([ids], device=device)
    return score_gradients(opened.loaded, read, **given), name
