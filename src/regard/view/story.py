"""What the page opens with: the link of a text that says most, and a short tour that begins there.

Nothing is written down for a model: links are ranked by their numbers, and a caption says that one stands out
only if it does, by the rule that labels of heads obey (`regard.heads.stands_out`). What chance gives is
measured with models of the same shape and random weights, on the same text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.heads.chance import RandomNull, stands_out
from regard.heads.measures import token_facts
from regard.tracing.layers import AnyLayer
from regard.tracing.traces import Trace

MOST_TOKENS = 512  # longer texts open in the atlas: ranking all links would keep somebody waiting
MOST_PARAMETERS = (
    300_000_000  # of a model of which others with random weights are made, for what chance gives
)
_DRAWS = 2  # models with random weights
_MOST_LINKS = 40
_LEAST_KEYS = 4  # that a query must see: with fewer, any weight is large

Names = tuple[Sequence[str], Sequence[str]]  # of the rows and the columns of a layer
Says = list[str | dict[str, str]]  # a sentence; {"word": w} is a token, {"term": t} a word of the glossary
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Opening:
    """A text that shows something, for whichever model reads it.

    Attributes:
        title: What its button says.
        text: What the model reads.
        word: The word whose links are looked at first.
        act: What one button then changes: a word, the text, or the head that the prediction needs most.
        then: What the change shows, in a sentence.
    """

    title: str
    text: str
    word: str
    act: Json
    then: str

    @property
    def texts(self) -> list[str]:
        """Return the text, and what it becomes by its change."""
        act = self.act
        if act["kind"] == "word":
            return [self.text, self.text.replace(act["from"], act["to"])]
        return [self.text, act["text"]] if act["kind"] == "text" else [self.text]

    def act_on(self, text: str) -> Json:
        """Return the change for a text: the way back where it was made already."""
        if text == self.text:
            return self.act
        if self.act["kind"] == "word":
            return {**self.act, "from": self.act["to"], "to": self.act["from"]}
        return {**self.act, "text": self.text}


_BANKS = ("She sat on the bank of the river and fished.", "She went to the bank and asked for her money.")
OPENINGS = (
    Opening(
        "A pronoun",
        "The animal didn't cross the street because it was too tired",
        "it",
        {"kind": "word", "from": "tired", "to": "wide"},
        "One word at the end decides what the pronoun means. Change it: does the link follow?",
    ),
    Opening(
        "Bank",
        _BANKS[0],
        "bank",
        {"kind": "text", "text": _BANKS[1], "says": "Now the other bank"},
        "The same word, another meaning. Read the other sentence: does it look elsewhere?",
    ),
    Opening(
        "Paris and Rome",
        "Paris is the capital of France. Rome is the capital of",
        "of",
        {"kind": "knock out", "says": "Switch off the head it needs most"},
        "Which of the heads does the prediction need? Switch that one off, and watch the prediction.",
    ),
)
_KNOCK_OUT = OPENINGS[2].act
_PRONOUNS = frozenset("it its he him his she her they them their this that which who".split())


@dataclass(frozen=True, slots=True)
class Link:
    """One weight: which query looks at which key, in which head.

    Attributes:
        layer: The layer, as the trace counts.
        head: The head.
        query: The position that looks.
        key: The position that is looked at.
        weight: How much.
        even: What each visible key would get if the head looked at all of them alike.
        rank: How much the link says, to sort by.
    """

    layer: int
    head: int
    query: int
    key: int
    weight: float
    even: float
    rank: float

    def stands_out(self, null: RandomNull | None) -> bool:
        """Return whether the link stands out from an even spread and from every head with random weights."""
        return null is not None and stands_out(self.weight, self.even, null.level("link", self.even))


def _maps(layer: AnyLayer, batch: int) -> tuple[Tensor, Tensor]:
    """Return all weights of a layer, (head, query, key), and what an even spread gives, 0 for short rows."""
    rows, cols = slice(0, layer.n_query), slice(0, layer.n_key)
    weights = layer.block(None, rows, cols, batch)[0].float().cpu()
    seen = torch.stack([layer.visible(head, rows, cols, batch).sum(-1) for head in range(layer.n_head)])
    return weights, torch.where(seen >= _LEAST_KEYS, 1.0 / seen.clamp(min=1), torch.nan).cpu()[..., None]


def _links(trace: Trace, names: Sequence[Names], batch: int) -> list[Link]:
    """Return the links of a trace that say most, best first: strong, not shared by other tokens, and long.

    The rank of a weight w is w (w - m) log2(d): m is the mean weight of the other tokens on that key, d the
    distance in tokens. Neighbours have d = 1 and rank 0. Where an answer looks at a source d is 2, and links
    within the source or the answer are left out. A piece of a word quarters the rank: readers know words.
    """
    ranked: list[Link] = []
    crossing = any(layer.kind == "cross" for layer in trace.layers)
    for index, layer in enumerate(trace.layers):
        if crossing and layer.kind != "cross":
            continue
        weights, even = _maps(layer, batch)
        sees = (weights > 0).float()
        others = (weights.sum(1, keepdim=True) - weights) / (sees.sum(1, keepdim=True) - sees).clamp(min=1.0)
        rows, cols = (words_of(line) * (1 - 0.75 * torch.tensor(_pieces(line))) for line in names[index])
        ranks = weights * (weights - others) * rows[:, None] * cols
        if layer.kind == "self":
            far = torch.arange(layer.n_key) - torch.arange(layer.n_query)[:, None]
            ranks = ranks * (far - layer.n_key + layer.n_query).abs().clamp(min=1).log2()
            ranks[:, :, 0] = 0.0  # heads rest on the first token, whatever it is
        ranks = ranks.where(~even.isnan(), 0.0)
        for place in ranks.flatten().topk(min(_MOST_LINKS, ranks.numel())).indices.tolist():
            head, query, key = at = tuple(map(int, np.unravel_index(place, ranks.shape)))
            if ranks[at] > 0:
                level = float(even[head, query, 0])
                ranked.append(Link(index, head, query, key, float(weights[at]), level, float(ranks[at])))
    return sorted(ranked, key=lambda link: -link.rank)[:_MOST_LINKS]


def words_of(line: Sequence[str]) -> Tensor:
    """Return True for each token that is a word: not special, not punctuation, not a space."""
    facts = token_facts(line)
    return torch.tensor([bool(token.strip(" ␣▁")) for token in line]) & ~(facts.special | facts.punctuation)


def _pieces(line: Sequence[str]) -> list[float]:
    """Return 1 for each token that is part of a longer word, where the spelling says what words are.

    >>> _pieces([" a", " g", "ir", "l", "."]), _pieces(["a", "##b", "c"]), _pieces(["1", "9"])
    ([0.0, 1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0])
    """
    spaced = any(len(token) > 1 and token[0] in " ▁" for token in line)
    goes_on = [
        token.startswith("##") or (spaced and token[:1].isalnum() and before[-1:].isalnum())
        for before, token in pairwise(["", *line])
    ]
    return [float(here or after) for here, after in zip(goes_on, [*goes_on[1:], False], strict=True)]


def _strongest(trace: Trace, layer: int, head: int, query: int, batch: int) -> Link:
    """Return the strongest link of a query in a head."""
    traced = trace.layers[layer]
    row = trace.row(layer, head, query, batch)
    seen = int(traced.visible(head, slice(query, query + 1), slice(None), batch).sum())
    return Link(layer, head, query, int(row.argmax()), float(row.max()), 1 / max(1, seen), 0.0)


def scenes(
    trace: Trace,
    names: Sequence[Names],
    *,
    text: str = "",
    predicts: str | None = None,
    null: RandomNull | None = None,
    batch: int = 0,
) -> list[Json]:
    """Return views with captions, each a state of the page; none for a text that is too long to rank.

    Args:
        trace: What is shown.
        names: What the rows and columns of each layer are called.
        text: What was read; that of an opening has words and changes of its own.
        predicts: What the model says about a text: "next", "masked", "vector"; None where no model is here.
        null: What models of the same shape with random weights reach; None where that is not known.
        batch: Which sequence.

    Returns:
        Scenes {title, says, state}, with {guess} where the reader is asked first, {act} where there is
        something to do, {points} for what the caption speaks of.
    """
    if max(layer.n_query * layer.n_key for layer in trace.layers) > MOST_TOKENS**2:
        return []
    opening = next((one for one in OPENINGS if text in one.texts), None)
    ranked = _links(trace, names, batch)
    notable = [link for link in ranked if link.stands_out(null)]
    wanted = {opening.word} if opening else _PRONOUNS
    about = [link for link in notable if _bare(names[link.layer][0][link.query]) in wanted]
    if about or notable:
        first = (about or notable)[0]
        made = [_link_scene(first, names, trace)]
    else:
        # Nothing stands out, or it is not known: that is said, of the strongest link there is.
        first = ranked[0] if ranked else _strongest(trace, 0, 0, trace.layers[0].n_query - 1, batch)
        made = [_nothing_scene(first, names, null)]
    if opening is not None and predicts is not None:
        act = opening.act_on(text)
        points = "prediction" if act["kind"] == "knock out" else "link"
        made.append(_scene("story", first, "Change one thing", [opening.then], act=act, points=points))
    if predicts is not None and not (opening and opening.act["kind"] == "knock out"):
        made.append(_prediction_scene(first, predicts))
    made.append(
        _scene("atlas", first, "All words at once", [
            "The ", {"term": "map"}, " has a row for each word that looks (the ", {"term": "query"},
            ") and a column for each word that is looked at (the ", {"term": "key"},
            "). The marked square is the link you just saw. The darker, the larger the weight.",
        ], points="map")
    )  # fmt: skip
    yours: Says = ["Now yours: type a sentence above, click any word, or press m to see one number computed."]
    if predicts is None:
        yours = [
            "Now yours: click any word, choose another head in Atlas, or press m to see one number computed."
        ]
    made.append(_scene("story", first, "Your turn", yours))
    return made


def _scene(at: str, link: Link, title: str, says: Says, **more: Any) -> Json:
    state = {"at": at, "layer": link.layer, "head": link.head, "query": link.query, "key": link.key}
    return {"title": title, "says": says, "state": state, **more}


def _bare(token: str) -> str:
    return token.strip(" ▁␣").lower()


def _percent(share: float) -> str:
    """Return a share as the page writes it: 64 %, 4.2 %."""
    return f"{100 * share:.{0 if share >= 0.0995 else 1}f} %"


def _link_scene(link: Link, names: Sequence[Names], trace: Trace) -> Json:
    """Return the opening of a text in which a link stands out: first a question, then the link."""
    rows, cols = names[link.layer]
    query, key = {"word": rows[link.query]}, {"word": cols[link.key]}
    n_head = sum(layer.n_head for layer in trace.layers)
    asks: Says = [
        "Attention lets each word gather from other words. A model has many such readers, called heads. One "
        f"of this model's {n_head} reads for ", query, ". Guess where it looks: click a word.",
    ]  # fmt: skip
    says: Says = [
        "A ", {"term": "head"}, f" ({link.layer}.{link.head}) links ", query, " to ", key, ": ",
        f"{_percent(link.weight)} of its weight. Looking at every word alike would give "
        f"{_percent(link.even)}, and no head of a model with random weights comes near. ",
    ]  # fmt: skip
    if trace.layers[link.layer].kind == "cross":
        says += ["Below stands what the model writes, above what it read."]
    elif link.key > 0 and cols[link.key - 1] == rows[link.query]:
        says += [
            "It has seen ",
            query,
            " before, and looks at what came next then: ",
            {"term": "induction"},
            ".",
        ]
    answers = [at for at, token in enumerate(cols) if token == cols[link.key]]
    guess = {"asks": asks, "answers": answers}
    return _scene("story", link, "One word, one link", says, guess=guess, points="link")


def _nothing_scene(link: Link, names: Sequence[Names], null: RandomNull | None) -> Json:
    """Return the opening of a text without a link that stands out: what is strongest, and chance."""
    rows, cols = names[link.layer]
    says: Says = [
        "Attention lets each word gather from other words. A model has many such readers, called ",
        {"term": "head"}, "s; this is one of them. ",
    ]  # fmt: skip
    strongest: Says = [
        "The strongest link of words, from ", {"word": rows[link.query]}, " to ", {"word": cols[link.key]},
        f", has {_percent(link.weight)}, where looking at every word alike would give {_percent(link.even)}.",
    ]  # fmt: skip
    lift = math.nan if null is None else null.lifts.get("link", math.nan)
    if math.isnan(lift):
        end = " How much a model with random weights would give is not known here."
        return _scene("story", link, "One link", [*says, *strongest, end], points="link")
    level = link.even + lift * (1 - link.even)
    end = f" Heads of a model with random weights reach {_percent(level)} on such a word."
    return _scene("story", link, "Nothing stands out here", [*says, *strongest, end], points="link")


def _prediction_scene(link: Link, predicts: str) -> Json:
    """Return the scene about what the model predicts, and what it needs for that."""
    what = {
        "next": "The model ends in a prediction: what comes next",
        "masked": "The model ends in a prediction: which word stands in the place of a masked one",
        "vector": "The model ends in a vector of the whole sentence, compared here with a few others",
    }[predicts]
    says: Says = [
        f"{what}. A head matters if that changes when it is ", {"term": "switched off"}, ". You can also "
        "cut one link: click its arc.",
    ]  # fmt: skip
    return _scene("story", link, "What is it for?", says, act=_KNOCK_OUT, points="prediction")
