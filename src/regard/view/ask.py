"""Questions to all heads at once: what each does to the prediction, and which sends one word to another."""

from __future__ import annotations

import re
from typing import Any

import torch

from regard.errors import ArgumentError, UnsupportedError
from regard.heads.flow import logit_attribution
from regard.heads.relations import score_pairs
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import Transformer
from regard.view.models import Off, Opened
from regard.view.predict import a_word, chances, sentence_vector

_MOST_TOKENS = 256  # of a text whose heads are switched off one after the other
_MOST_SENTENCES = 200
_WORD = re.compile(r"\*([^*\[\]]+)\*|\[([^*\[\]]+)\]|([^\s*\[\]]+)")  # *who looks*, [at what], other words


@torch.no_grad()
def effects(opened: Opened, ids: list[int], source: list[int] | None) -> dict[str, Any]:
    """What each head does to the prediction, [layer][head], and in words what that number is.

    In a decoder with norms before its layers that is what a head adds to the score of the likeliest token
    (`logit_attribution`). Elsewhere each head is switched off in turn.
    """
    model = opened.model
    if not isinstance(model, Transformer):
        raise UnsupportedError("this model has one alignment and no heads to compare.")
    config = model.config
    adds_up = config.kind == "decoder" and config.block.writes_as_is and config.block.kernel is None
    adds_up = adds_up and config.head_softcap is None
    if config.head == "language" and adds_up:
        token = int(chances(opened, ids, source, first=len(ids) - 1)[0].argmax())
        found = logit_attribution(opened.loaded, torch.tensor([ids]), token)
        name = opened.tokenizer.tokens([token])[0]
        return {"what": f"what the head adds to the score of “{name}”", "values": found.heads.tolist()}
    if len(ids) > _MOST_TOKENS:
        raise ArgumentError(
            f"switching off every head reads the text as often: at most {_MOST_TOKENS} tokens."
        )
    what, score = _score(opened, ids, source)
    whole = score(())
    values = [
        [whole - score(((layer, head),)) for head in range(n_head)]
        for layer, n_head in enumerate(opened.layers.values())
    ]
    return {"what": what, "values": values}


def _score(opened: Opened, ids: list[int], source: list[int] | None) -> tuple[str, Any]:
    """A number that falls when a head that matters is switched off, and its name."""
    if opened.predicts == "vector":
        whole = sentence_vector(opened, ids)

        def cosine(off: Off) -> float:
            return float(whole @ sentence_vector(opened, ids, off))

        return "how far the sentence vector moves without the head (1 − cosine)", cosine
    fed, at = list(ids), len(ids) - 1
    if opened.predicts == "masked":
        at = a_word(opened, ids)
        fed[at] = int(opened.tokenizer.special.mask or 0)
    token = int(chances(opened, fed, source)[at].argmax())

    def logarithm(off: Off) -> float:
        return float(chances(opened, fed, source, off)[at, token].log())

    return f"by how much log p(“{opened.tokenizer.tokens([token])[0]}”) falls without the head", logarithm


def search(opened: Opened, lines: list[str]) -> dict[str, Any]:
    """Which heads send the word in *stars* to the word in [brackets], over sentences that mark both.

    The share of sentences where that is the word looked at most, for the best heads; beside it the share that
    the best fixed distance gets right, and that of a blind guess.

    >>> _marked("The [cat] slept: *it* was tired")
    ('The cat slept: it was tired', [(0, 3), (4, 7), (8, 14), (15, 17), (18, 21), (22, 27)], (3, 1))
    """
    if isinstance(opened.model, Seq2Seq):
        raise UnsupportedError("this model has one alignment and no heads to search.")
    examples = [_marked(line) for line in lines if line.strip()]
    if not 1 <= len(examples) <= _MOST_SENTENCES:
        raise ArgumentError(f"give 1 to {_MOST_SENTENCES} sentences. Got {len(examples)}.")
    found = score_pairs(opened.loaded, [(text, spans, [pair]) for text, spans, pair in examples])
    if not found.n_pair:
        raise ArgumentError("this model looks back only, and every [word] stands after its *word*.")
    top = found.accuracy.nan_to_num(nan=-1.0).flatten().topk(min(8, found.accuracy.numel()))
    n_head = found.accuracy.shape[1]
    return {
        "heads": [
            {"layer": place // n_head, "head": place % n_head, "share": share}
            for share, place in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        ],
        "pairs": found.n_pair,
        "offset": found.offset,
        "baseline": found.baseline,
        "chance": sum(1 / max(1, len(spans) - 1) for _, spans, _ in examples) / len(examples),
    }


def _marked(line: str) -> tuple[str, list[tuple[int, int]], tuple[int, int]]:
    """A sentence without its marks, where its words are, and which two are marked."""
    text, last = "", 0
    spans: list[tuple[int, int]] = []
    marks: dict[str, int] = {}
    for match in _WORD.finditer(line):
        gap = line[last : match.start()]
        text += gap
        word = match[1] or match[2] or match[3]
        if match[1] or match[2]:
            marks["from" if match[1] else "to"] = len(spans)
        spans.append((len(text), len(text) + len(word)))
        text += word
        last = match.end()
    if set(marks) != {"from", "to"}:
        raise ArgumentError(f"mark who looks with *stars* and at what with [brackets]. Got {line.strip()!r}.")
    return text + line[last:], spans, (marks["from"], marks["to"])
