"""Why this answer: which heads, edges and positions moved the next token, verified by switching them off.

Four ways to look at one prediction, from cheap to certain:

    written      what each head writes toward the token's score itself (direct logit attribution)
    estimated    the change without a head, an edge or a position, from one backward pass
    ran          the change when it really is switched off, for the strongest
    chance       the same for some drawn at random: what is no larger than that means nothing

The estimate for an edge is exact in the layer itself: without edge (i, j) the rest of the row shares its
weight, so its output moves by w / (1 - w) (o_i - v_j), and the gradient says what that does to the answer.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.data import Data
from regard.errors import ArgumentError, UnsupportedError
from regard.experiments.objectives import Asked, Token
from regard.files.loading import Loaded
from regard.heads.effects import gate_shape
from regard.heads.flow import logit_attribution
from regard.heads.model import layers_of
from regard.tracing.gradients import LayerGradient, score_gradients
from regard.tracing.interventions import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["head", "edge", "position"]
_Switch = Callable[[Run], None]
_BLOCK = 1 << 20  # weights looked at at once
_CHANCE = 12  # of each kind, drawn at random and switched off


@dataclass(frozen=True, slots=True)
class Finding:
    """One part of the model or the text, and by how much the answer's score changes without it."""

    kind: Kind
    what: str  # in words
    layer: str | None
    head: int | None
    query: int | None
    key: int | None
    weight: float | None  # of an edge
    written: float | None  # of a head
    estimated: float
    ran: float
    beyond_chance: bool


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Why(Data):
    """What moved one prediction. Effects are changes of `score` when the part is switched off."""

    model: str
    tokens: tuple[str, ...]
    target: str
    against: str | None
    score: float  # log-probability of the target, or its score minus the other's
    probability: float
    likeliest: tuple[tuple[str, float], ...]
    findings: tuple[Finding, ...]
    chance: dict[str, float]  # by kind: 19 of 20 parts drawn at random change the score by less
    heads: Float[Tensor, "layer head"]  # estimated changes
    layers: tuple[str, ...]
    agreement: float  # of estimates and runs, by rank
    note: str  # what is not known, and why

    def of(self, kind: Kind) -> list[Finding]:
        """The findings of one kind, the strongest first."""
        return [finding for finding in self.findings if finding.kind == kind]

    def __repr__(self) -> str:
        strong = "; ".join(f"{one.what}: {one.ran:+.3g}" for one in self.findings[:3])
        return f"Why({self.target!r}, {self.probability:.1%}: {strong})"

    def figure(self) -> Figure:
        """What the answer would lose without each head (estimated)."""
        from regard.drawing.figures import effect_maps

        target = f"{self.target!r} ({self.probability:.0%})"
        title = f"{self.model}: what {target} would gain or lose without a head, estimated"
        return effect_maps({"each head": (self.heads, None)}, rows=self.layers, title=title)


def why(
    model: Loaded | nn.Module,
    text: Any,
    *,
    target: Token | None = None,
    against: Token | None = None,
    position: int | None = None,
    top: int = 5,
    seed: int = 0,
    tokenizer: Any = None,
) -> Why:
    """Which heads, edges and positions moved the token after `text`, or in its mask.

    `target` is a token or its text (None: the likeliest); with `against` the score is the difference of the
    two. The `top` strongest of each kind are switched off, and some at random beside them.
    """
    if top < 1:
        raise ArgumentError(f"top must be at least 1. Got {top}.")
    asked = Asked.about(model, text, target, against, position, tokenizer)
    loaded, objective, known = asked.loaded, asked.objective, layers_of(asked.loaded)
    gradients = score_gradients(loaded, asked.ids, objective=lambda out: objective.of(_logits(out)).sum())
    with torch.no_grad():
        logits = loaded.model(asked.ids).logits[0, objective.position].float()
    note, written = "", None
    if loaded.model.kind == "decoder":
        try:
            written = logit_attribution(
                loaded, asked.ids, objective.token, against=objective.against, position=objective.position
            ).heads
        except UnsupportedError as error:
            note = str(error)
    else:
        note = "what a head writes toward a score is known of decoders only."
    estimates, edges, columns = _scanned(gradients.layers, known, top)
    before = objective.of(logits[None, None].expand(1, objective.position + 1, -1))
    score, tokens = float(before[0]), gradients.trace.tokens[0] if gradients.trace.tokens else ()
    names = list(known)
    generator = torch.Generator().manual_seed(seed)
    candidates: list[tuple[Finding, _Switch]] = []
    tables = [estimates] if written is None else [estimates, written]
    orders = [table.abs().nan_to_num(-1).flatten().argsort(descending=True).tolist() for table in tables]
    order = dict.fromkeys(at for pair in zip(*orders, strict=True) for at in pair)
    for row, head in (divmod(at, estimates.shape[1]) for at in list(order)[:top]):
        change = _without(names[row], known[names[row]].index(head))
        part = None if written is None else float(written[row, head])
        told = Finding("head", f"head {head} of {names[row]}", names[row], head, None, None, None, part,
                       float(estimates[row, head]), 0.0, False)  # fmt: skip
        candidates.append((told, change))
    for effect, name, head, query, key, weight in edges:
        words = f"{_at(tokens, query)} to {_at(tokens, key)} in head {head} of {name}"
        told = Finding("edge", words, name, head, query, key, weight, None, effect, 0.0, False)
        candidates.append((told, _without(name, known[name].index(head), query, key)))
    n = asked.ids.shape[1]
    for key in columns.abs().argsort(descending=True)[: top if n > 1 else 0].tolist():
        words = f"{_at(tokens, key)}, seen by none"
        told = Finding("position", words, None, None, None, key, None, None, float(columns[key]), 0.0, False)
        candidates.append((told, _unseen(names, key, n)))
    ran = asked.run_each([change for _, change in candidates]) - score
    chance = _chance(asked, known, n, score, generator)
    findings = [
        replace(told, ran=float(change), beyond_chance=abs(float(change)) > chance[told.kind])
        for (told, _), change in zip(candidates, ran, strict=True)
    ]
    findings.sort(key=lambda told: -abs(told.ran))
    likely = logits.softmax(-1)
    best = likely.topk(min(5, likely.numel()))
    return Why(
        loaded.facts.name,
        tuple(tokens),
        asked.name(objective.token),
        None if objective.against is None else asked.name(objective.against),
        score,
        float(likely[objective.token]),
        tuple((asked.name(int(i)), float(p)) for p, i in zip(best.values, best.indices, strict=True)),
        tuple(findings),
        chance,
        estimates,
        tuple(names),
        _rank_agreement([told.estimated for told in findings], [told.ran for told in findings]),
        note,
    )


def _logits(out: Any) -> Tensor:
    logits = out if isinstance(out, Tensor) else out.logits
    assert isinstance(logits, Tensor)  # the model foretells tokens
    return logits


def _at(tokens: Sequence[str], index: int) -> str:
    return f"{tokens[index]!r} ({index})" if tokens else f"position {index}"


def _without(layer: str, head: int, query: int | None = None, key: int | None = None) -> _Switch:
    if key is None:
        return lambda run: run.gate(layer=layer, head=head, by=0.0)
    return lambda run: run.knock_out(layer=layer, head=head, query=query, key=key)


def _unseen(layers: Sequence[str], key: int, n: int) -> _Switch:
    """No other position sees this one, in any layer; it sees itself."""

    def change(run: Run) -> None:
        for layer in layers:
            run.knock_out(layer=layer, query=[other for other in range(n) if other != key], key=key)

    return change


_Edge = tuple[float, str, int, int, int, float]  # effect, layer, head, query, key, weight


def _scanned(
    layers: Sequence[LayerGradient], known: dict[str, tuple[int, ...]], top: int
) -> tuple[Float[Tensor, "layer head"], list[_Edge], Float[Tensor, "key"]]:
    """The estimated change without each head, the strongest edges, and without each position.

    Some rows at a time: nothing of query x key is kept.
    """
    heads = torch.full(gate_shape(known), torch.nan, dtype=torch.float64)
    columns = torch.zeros(layers[0].layer.n_key, dtype=torch.float64)
    best: list[tuple[float, _Edge]] = []
    for index, (name, numbers) in enumerate(known.items()):
        gradient = next(one for one in layers if one.layer.name == name)
        layer = gradient.layer
        heads[index, list(numbers)] = -gradient.row_sum[0].sum(-1).double().cpu()
        step = max(1, _BLOCK // layer.n_key)
        for at, head in enumerate(numbers):
            for first in range(0, layer.n_query, step):
                rows = slice(first, min(layer.n_query, first + step))
                weights = layer.tile(0, at, rows, slice(0, layer.n_key)).double()
                slope = gradient.tile(0, at, rows, slice(0, layer.n_key)).double()
                effect = torch.where(weights < 1, -slope / (1 - weights).clamp_min(1e-12), 0.0)
                # A row that sees one key only has no other to share with: without it the row gives 0.
                alone = weights >= 1 - 1e-12
                effect = torch.where(alone, -gradient.row_sum[0, at, rows, None].double(), effect)
                effect = torch.where(weights > 0, effect, 0.0)
                off = effect.clone()
                if layer.kind == "self":
                    places = torch.arange(rows.start, rows.stop)
                    off[places - rows.start, places + layer.n_key - layer.n_query] = 0.0
                columns += off.sum(0).cpu()
                for place in effect.abs().flatten().topk(min(top, effect.numel())).indices.tolist():
                    row, key = divmod(place, layer.n_key)
                    value = float(effect[row, key])
                    edge = (value, name, head, rows.start + row, key, float(weights[row, key]))
                    heapq.heappush(best, (abs(value), edge))
                    if len(best) > top:
                        heapq.heappop(best)
    return heads, [edge for _, edge in sorted(best, reverse=True)], columns


def _chance(
    asked: Asked, known: dict[str, tuple[int, ...]], n: int, score: float, generator: torch.Generator
) -> dict[str, float]:
    """What parts that are drawn at random change, for each kind: all but one in twenty change less."""

    def draw(most: int) -> int:
        return int(torch.randint(most, (1,), generator=generator))

    names = [name for name, heads in known.items() if heads]
    changes: dict[str, list[_Switch]] = {"head": [], "edge": [], "position": []}
    for _ in range(_CHANCE):
        name = names[draw(len(names))]
        changes["head"].append(_without(name, draw(len(known[name]))))
        query = 1 + draw(max(1, n - 1)) if n > 1 else 0
        key = draw(query + 1)
        changes["edge"].append(_without(name, draw(len(known[name])), query, key))
    changes["position"] = [_unseen(list(known), draw(n), n) for _ in range(min(_CHANCE, n))]
    if n == 1:
        changes["position"] = []
    return {
        kind: float((asked.run_each(some) - score).abs().quantile(0.95)) if some else 0.0
        for kind, some in changes.items()
    }


def _rank_agreement(one: list[float], other: list[float]) -> float:
    """Spearman's correlation."""
    if len(one) < 3:
        return float("nan")
    ranks = torch.stack([torch.tensor(values).argsort().argsort().double() for values in (one, other)])
    return float(torch.corrcoef(ranks)[0, 1])
