"""What a model predicts, and what its heads do to that: effects, gradients, and a search for heads."""

import math
import re
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import ArgumentError, UnsupportedError
from regard.experiments.exact import effects as exact_effects
from regard.experiments.explain import why as explain_prediction
from regard.files.loading import Loaded
from regard.heads.model import strongest, tokenizer_of
from regard.heads.relations import score_pairs
from regard.models.model import Output
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import Transformer
from regard.tracing.gradients import ScoreGradients, score_gradients
from regard.view.document import Document, Json
from regard.view.run import PREDICTS, Off, probabilities, ranked_tokens, run_model

# An encoder without a word head is asked which of these its sentence vector is nearest to.
EXAMPLES = (
    "The dog was too tired to walk.",
    "A car drove down the road.",
    "She gave him a book to read.",
    "The weather is cold today.",
    "Stock prices fell on Monday.",
    "He cooked rice for dinner.",
)
TOP = 8
_MOST_TOKENS = 256  # of a text whose heads are switched off one after the other
_MOST_SENTENCES = 200
_MOST_ASKED = 128  # tokens of a text whose prediction is taken apart
_FINDINGS = 6  # of each kind
_WORD = re.compile(r"\*(?P<looks>[^*\[\]]+)\*|\[(?P<at>[^*\[\]]+)\]|([^\s*\[\]]+)")  # others: by no name


def sentence_vector(output: Output) -> Tensor:
    """The mean of the last layer's vectors, of length 1: how sentence encoders are compared."""
    return F.normalize(output.hidden.float().mean(1), dim=-1)[0]


class Prediction:
    """What a model says at one position of a text: words and their probabilities, or a sentence encoder's
    cosines with EXAMPLES. Without a position it is that of the last token, or of the last word, masked.
    """

    def __init__(self, loaded: Loaded, document: Document, position: int | None = None) -> None:
        self.loaded, self.document, self.fed = loaded, document, document.ids
        self.kind, tokenizer = PREDICTS[loaded.model.lm_head], tokenizer_of(loaded)
        self.at = len(self.fed) - 1 if position is None else position
        if not 0 <= self.at < len(self.fed):
            raise ArgumentError(f"there is no position {self.at}: there are {len(self.fed)} tokens.")
        if self.kind == "vector":
            self.at, texts = 0, [*map(tokenizer.encode, EXAMPLES), self.fed]
            self.vectors = torch.stack([sentence_vector(run_model(loaded, ids)).cpu() for ids in texts])
        if self.kind == "masked":
            special = tokenizer.special
            if special.mask is None:
                raise UnsupportedError("this tokenizer has no mask token.")
            if position is None:
                words = [place for place, token in enumerate(self.fed) if token not in special.all()]
                self.at = max(words, default=0)
            self.fed[self.at] = special.mask

    def scores(self, off: Off = ()) -> tuple[Tensor, float]:
        """The probability of each word, or the cosine with each example, without some heads; and how far
        they move the sentence vector, 1 - cosine.
        """
        if self.kind == "vector":
            *cosines, own = self.vectors @ sentence_vector(run_model(self.loaded, self.fed, off=off)).cpu()
            return torch.stack(cosines), 1 - float(own)
        return probabilities(self.loaded, self.fed, self.document.source, self.at, off), math.nan

    def names(self, choices: Tensor) -> list[str]:
        """What those words or examples are called."""
        if self.kind == "vector":
            return [EXAMPLES[choice] for choice in choices.tolist()]
        return tokenizer_of(self.loaded).tokens(choices)


@torch.no_grad()
def predict(loaded: Loaded, document: Document, position: int | None = None) -> Json:
    """Return the likeliest words at a position, or the nearest examples, before and after what was changed.

    Heads that are off and links that are cut are changes. `now` has the likeliest after them, each with what
    it was before.
    """
    said, off = Prediction(loaded, document, position), document.off + document.cut
    before, (after, moved) = said.scores()[0], said.scores(off) if off else (None, math.nan)
    top = before.topk(min(TOP, len(before)))
    names = said.names(top.indices)
    now = None
    if after is not None:
        best = after.topk(min(TOP, len(after))).indices
        listed = zip(said.names(best), after[best].tolist(), before[best].tolist(), strict=True)
        now = [{"token": name, "p": p, "was": was} for name, p, was in listed]
    return {
        "kind": said.kind,
        "position": said.at,
        "before": ranked_tokens(names, top.values.tolist()),
        "after": None if after is None else ranked_tokens(names, after[top.indices].tolist()),
        "now": now,
        "moved": moved,
    }


@torch.no_grad()
def effects(loaded: Loaded, document: Document) -> Json:
    """Return what each head does to the prediction, [layer][head], and in words what that number is.

    Each head is switched off in a run of its own: all of them as rows of a batch (`regard.effects`), or one
    after the other for an encoder whose sentence vector moves.
    """
    if not isinstance(loaded.model, Transformer):
        raise UnsupportedError("this model has one alignment and no heads to compare.")
    if len(document.ids) > _MOST_TOKENS:
        raise ArgumentError(f"each head is switched off in a run of its own: at most {_MOST_TOKENS} tokens.")
    said = Prediction(loaded, document)
    heads = [range(layer.n_head) for layer in document.trace.layers]
    if said.kind == "vector":
        what = "how far the sentence vector moves without the head (1 − cosine)"
        values = [[said.scores(((layer, head),))[1] for head in row] for layer, row in enumerate(heads)]
        return {"what": what, "values": values}
    likeliest = said.scores()[0].argmax()
    what = f"by how much log p(“{said.names(likeliest[None])[0]}”) falls without the head"
    if document.source is not None:
        options: dict[str, Any] = {"answer": torch.tensor([said.fed])}
        read = torch.tensor([document.source])
    else:
        options, read = {}, torch.tensor([said.fed])
    found = exact_effects(loaded, read, "heads", target=int(likeliest), position=said.at, **options)
    places = {name: index for index, name in enumerate(document.trace.names)}
    falls: list[list[float | None]] = [[None] * len(row) for row in heads]
    for part, change in zip(found.parts, found.changes.tolist(), strict=True):
        assert part.layer is not None and part.head is not None  # noqa: PT018  a head has both
        falls[places[part.layer]][part.head] = -change
    return {"what": what, "values": falls}


def why(loaded: Loaded, document: Document, position: int | None = None) -> Json:
    """Return what a prediction rests on: by how much its log-probability changes without heads, links, words.

    Each change was run, and the same was done for random parts: what is no larger does not stand out.
    """
    if document.off or document.cut:
        raise ArgumentError("this asks the whole model: switch all heads on and undo all cuts first.")
    if len(document.ids) > _MOST_ASKED:
        raise ArgumentError(f"each part is switched off in a run of its own: at most {_MOST_ASKED} tokens.")
    said = Prediction(loaded, document, position)
    if said.kind == "vector":
        raise UnsupportedError("this encoder predicts no word that could be asked about.")
    found = explain_prediction(loaded, torch.tensor([said.fed]), position=said.at, top=_FINDINGS)
    places = {name: index for index, name in enumerate(document.trace.names)}
    findings = [
        {
            "kind": one.kind,
            "layer": None if one.part.layer is None else places[one.part.layer],
            "head": one.part.head,
            "query": one.part.query,
            "key": one.part.key,
            "weight": one.weight,
            "effect": one.change,
            "p": one.probability,
            "standsOut": bool(one.beyond_chance),
        }
        for one in sorted(found.findings, key=lambda one: -abs(one.change))
    ]
    told = {"token": found.target, "p": found.probability, "position": said.at, "sentence": found.sentence}
    return {**told, "findings": findings, "note": found.note}


def gradients(loaded: Loaded, document: Document, position: int) -> tuple[ScoreGradients, str]:
    """The gradient of one prediction on every score, and what the prediction is."""
    if isinstance(loaded.model, Seq2Seq):
        raise UnsupportedError("gradients are shown for Transformers.")
    ids, source, device = document.ids, document.source, loaded.device
    options: dict[str, Any] = {} if source is None else {"target": torch.tensor([ids], device=device)}
    at = min(position, len(ids) - 1)
    with torch.no_grad():
        if loaded.model.lm_head == "none":
            said = Prediction(loaded, document)
            nearest = int(said.scores()[0].argmax())
            example = said.vectors[nearest].to(device)
            options["objective"] = lambda output: sentence_vector(output) @ example
            name = f"cosine with “{EXAMPLES[nearest]}”"
        else:
            token = int(probabilities(loaded, ids, source, at).argmax())
            options |= {"position": at, "token": token}
            name = f"log p({tokenizer_of(loaded).tokens([token])[0]!r}) at {at}"
    return score_gradients(loaded, torch.tensor([source or ids], device=device), **options), name


def search(loaded: Loaded, lines: list[str]) -> Json:
    """Which heads send the word in *stars* to the word in [brackets], over sentences that mark both.

    The share of sentences where that is the word looked at most, for the best heads; beside it the share that
    the best fixed distance gets right, and that of a blind guess.

    >>> _marked("The [cat] slept: *it* was tired")
    ('The cat slept: it was tired', [(0, 3), (4, 7), (8, 14), (15, 17), (18, 21), (22, 27)], (3, 1))
    """
    if isinstance(loaded.model, Seq2Seq):
        raise UnsupportedError("this model has one alignment and no heads to search.")
    examples = [_marked(line) for line in lines if line.strip()]
    if not 1 <= len(examples) <= _MOST_SENTENCES:
        raise ArgumentError(f"give 1 to {_MOST_SENTENCES} sentences. Got {len(examples)}.")
    scored = score_pairs(loaded, [(text, spans, [pair]) for text, spans, pair in examples])
    if not scored.n_pair:
        raise ArgumentError("this model looks back only, and every [word] stands after its *word*.")
    heads = strongest(scored.accuracy, 8)
    return {
        "heads": [{"layer": at[0], "head": at[1], "share": float(scored.accuracy[at])} for at in heads],
        "pairs": scored.n_pair,
        "offset": scored.offset,
        "baseline": scored.baseline,
        "chance": sum(1 / max(1, len(spans) - 1) for _, spans, _ in examples) / len(examples),
    }


def _marked(line: str) -> tuple[str, list[tuple[int, int]], tuple[int, int]]:
    """A sentence without its marks, where its words are, and which two are marked."""
    text, last = "", 0
    spans: list[tuple[int, int]] = []
    marks: dict[str | None, int] = {}
    for match in _WORD.finditer(line):
        (word,) = filter(None, match.groups())
        marks[match.lastgroup] = len(spans)
        text += line[last : match.start()]
        spans.append((len(text), len(text) + len(word)))
        text, last = text + word, match.end()
    if not marks.keys() >= {"looks", "at"}:
        raise ArgumentError(f"mark who looks with *stars* and at what with [brackets]. Got {line.strip()!r}.")
    return text + line[last:], spans, (marks["looks"], marks["at"])
