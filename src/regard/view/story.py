"""What the page opens with: the link of a text that says most, and a tour of eight views that begins there.

Nothing is written down for a model or a text: links are ranked by their numbers, heads by their measures.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.heads.chance import stands_out
from regard.heads.measures import token_facts
from regard.tracing.traces import Trace

MOST_TOKENS = 512  # longer texts open in the atlas: ranking all links would keep somebody waiting
N_SCENE = 8
_WEAK = 0.2  # a text whose best link is below this has none worth a story
_MOST_LINKS = 40

Names = tuple[Sequence[str], Sequence[str]]  # of the rows and the columns of a layer
Says = list[str | dict[str, str]]  # a sentence; {"word": w} is a token, {"term": t} a word of the glossary


# What a head may do all the time: a title, where it puts its weight by the measure of that, what it means.
_HABITS: tuple[tuple[str, dict[str, str], Says], ...] = (
    (
        "A head that counts",
        {"previous": "the token before", "next": "the token after", "same": "itself"},
        ["It knows positions, not meanings."],
    ),
    (
        "A head at rest",
        {"special": "the special tokens", "first": "the first token"},
        ["Where there is nothing to find, weight is put aside: a ", {"term": "sink"}, "."],
    ),
)


@dataclass(frozen=True, slots=True)
class Link:
    """One weight: who looks, at what; `chance` is what each of the keys it may look at would get alike."""

    layer: int
    head: int
    query: int
    key: int
    weight: float
    rank: float
    chance: float


def _links(trace: Trace, names: Sequence[Names], batch: int) -> list[Link]:
    """The links of a trace that say most, best first: strong, not shared by other tokens, and long.

    The rank of a weight w is w (w - m) log2(d): m is the mean weight of the other tokens on that key, d the
    distance in tokens. Neighbours have d = 1 and rank 0. Where an answer looks at a source d is 2, and links
    within the source or the answer are left out. A piece of a word quarters the rank: readers know words.
    """
    ranked: list[Link] = []
    crossing = any(layer.kind == "cross" for layer in trace.layers)
    for index, layer in enumerate(trace.layers):
        if crossing and layer.kind != "cross":
            continue
        weights = layer.block(None, slice(0, layer.n_query), slice(0, layer.n_key), batch)[0].float().cpu()
        sees = (weights > 0).float()
        others = (weights.sum(1, keepdim=True) - weights) / (sees.sum(1, keepdim=True) - sees).clamp(min=1.0)
        rows, cols = (_words(line) * (1 - 0.75 * torch.tensor(_pieces(line))) for line in names[index])
        ranks = weights * (weights - others) * rows[:, None] * cols
        if layer.kind == "self":
            far = torch.arange(layer.n_key) - torch.arange(layer.n_query)[:, None]
            ranks = ranks * (far - layer.n_key + layer.n_query).abs().clamp(min=1).log2()
            ranks[:, :, 0] = 0.0  # heads rest on the first token, whatever it is
        for place in ranks.flatten().topk(min(_MOST_LINKS, ranks.numel())).indices.tolist():
            head, query, key = at = tuple(map(int, np.unravel_index(place, ranks.shape)))
            if ranks[at] > 0:
                chance = 1 / max(1.0, float(sees[head, query].sum()))
                ranked.append(Link(index, head, query, key, float(weights[at]), float(ranks[at]), chance))
    return sorted(ranked, key=lambda link: -link.rank)[:_MOST_LINKS]


def _words(line: Sequence[str]) -> Tensor:
    """True for each token that is a word: no special one, no punctuation, no space."""
    facts = token_facts(line)
    return torch.tensor([bool(token.strip(" ␣▁")) for token in line]) & ~(facts.special | facts.punctuation)


def _pieces(line: Sequence[str]) -> list[float]:
    """1 for each token that is part of a longer word, where the spelling says what words are.

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
    """The strongest link of a query in a head."""
    row = trace.row(layer, head, query, batch)
    return Link(
        layer, head, query, int(row.argmax()), float(row.max()), 0.0, 1 / max(1, int((row > 0).sum()))
    )


def _extreme(
    facts: Mapping[str, Any], measures: Sequence[str]
) -> tuple[tuple[int, int], str, float, float] | None:
    """Return the head that is highest above chance in one of these measures, of those that stand out from it.

    That is: where it is, which measure, its value and its chance level; None if nothing stands out.
    """
    best: tuple[float, tuple[int, int], str, float, float] | None = None
    for name in measures:
        measured = facts["measures"][name]
        tables = zip(measured["values"], measured["chance"], measured["standsOut"], strict=True)
        for layer, (row, level, standing) in enumerate(tables):
            for head, (value, is_out) in enumerate(zip(row, standing, strict=True)):
                if is_out:
                    here = (value - (level or 0.0), (layer, head), name, value, level or 0.0)
                    best = here if best is None else max(best, here)
    return None if best is None else best[1:]


def scenes(
    trace: Trace, names: Sequence[Names], facts: Mapping[str, Any], batch: int = 0
) -> list[dict[str, Any]]:
    """Eight views with captions; each is a state of the page. None for a text that is too long to rank.

    The first shows the best of the ranked links, or where the head that rests most rests.
    """
    if max(layer.n_query * layer.n_key for layer in trace.layers) > MOST_TOKENS**2:
        return []
    ranked = _links(trace, names, batch)
    ranked = [link for link in ranked if stands_out(link.weight, link.chance, facts["largestByChance"])]
    resting = _extreme(facts, ("special", "first"))
    if ranked and ranked[0].weight >= _WEAK:
        first = ranked[0]
    else:
        ranked = []
        layer, head = (0, 0) if resting is None else resting[0]
        first = _strongest(trace, layer, head, trace.layers[layer].n_query - 1, batch)
    # The word of the same head whose weights are spread most evenly.
    rows = names[first.layer][0]
    evenly = torch.special.entr(trace.weights(first.layer, first.head, batch).float().cpu()).sum(-1)
    evenly[~_words(rows)] = -1.0
    spread = _strongest(trace, first.layer, first.head, int(evenly.argmax()), batch)
    made = [
        _scene("story", first, "One head, one link", _first_words(trace, first, names, resting is not None)),
        _scene("story", spread, "The same head, another word", [
            "Weights of one token always sum to 1: that is what ", {"term": "softmax"}, " does. ",
            {"word": rows[spread.query]}, " spreads them; its largest is ", f"{spread.weight:.0%}.",
        ]),
        _scene("atlas", first, "All rows at once", [
            "The ", {"term": "map"}, " has a row for each ", {"term": "query"}, " and a column for each ",
            {"term": "key"}, ". The marked square is the link you just saw. Dark is much.",
        ]),
        _scene("machine", first, "How the number came about", [
            "A ", {"term": "score"}, " says how well query and key fit; ", {"term": "softmax"},
            " turns the scores of a row into weights. Every number here is the model's own.",
        ]),
    ]  # fmt: skip
    for title, places, meaning in _HABITS:
        found = _extreme(facts, list(places))
        if found is not None:
            (layer, head), name, value, chance = found
            link = _strongest(trace, layer, head, min(first.query, trace.layers[layer].n_query - 1), batch)
            weight = f"Head {layer}.{head} puts {value:.0%} of its weight on {places[name]} "
            made.append(_scene("story", link, title, [f"{weight}({chance:.0%} would be chance). ", *meaning]))
    labels = [label for row in facts["labels"] for label in row]
    counts = Counter(label["label"] for label in labels if label is not None)
    alike = counts.pop("like random", 0)
    listed = ", ".join(f"{count} {name}" for name, count in counts.most_common(4)) or "none has a label"
    listed += f" ({alike} look as random ones do)" if alike else ""
    n_head, n_layer = len(labels), len(facts["labels"])
    made.append(_scene("atlas", first, "Every head", [
        f"{n_head} head{'s' * (n_head > 1)} in {n_layer} ", {"term": "layer"}, f"{'s' * (n_layer > 1)}. "
        f"By what they look at: {listed}. Choose one, sort them, or press x to switch one off.",
    ]))  # fmt: skip
    taken = {(scene["state"]["layer"], scene["state"]["head"]) for scene in made}
    fresh = [link for link in ranked if (link.layer, link.head) not in taken]
    more = [*{(link.layer, link.head): link for link in reversed(fresh)}.values()][::-1]
    more += [link for link in ranked if link.query != first.query and link not in more]
    next_best: Says = ["Other heads, other links: this one ranks next."]
    return [*made, *(_scene("story", link, "Another link", next_best) for link in more)][:N_SCENE]


def _scene(at: str, link: Link, title: str, says: Says) -> dict[str, Any]:
    state = {"at": at, "layer": link.layer, "head": link.head, "query": link.query, "key": link.key}
    return {"title": title, "says": says, "state": state}


def _first_words(trace: Trace, link: Link, names: Sequence[Names], rests: bool) -> Says:
    rows, cols = names[link.layer]
    n_head = sum(layer.n_head for layer in trace.layers)
    about: Says = [
        "A ", {"term": "head"}, " lets each token (the ", {"term": "query"}, ") gather from others (the ",
        {"term": "key"}, "s). ",
    ]  # fmt: skip
    if trace.layers[link.layer].kind == "cross":
        return [*about, "Below stands what the model writes, above what it read: the arc is where it looked."]
    if link.key > 0 and cols[link.key - 1] == rows[link.query]:
        copy = {"word": rows[link.query]}
        return [*about, "It has seen ", copy, " before, and looks at what came next then: induction."]
    if not link.rank and rests:
        return [*about, "No link of this text stands out. Most weight falls into a ", {"term": "sink"}, "."]
    if not link.rank:
        return [*about, "No link of this text stands out from what random weights would give."]
    return [*about, f"Of all links in {n_head} heads this one stands out: strong, far, and no other word's."]
