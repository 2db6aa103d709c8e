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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.data import Data
from regard.errors import ArgumentError, UnsupportedError
from regard.experiments.patching import Asked, Change, Token
from regard.files.loading import Loaded
from regard.heads.flow import logit_attribution
from regard.heads.model import Layers, head_table, layers_of, strongest
from regard.tracing.gradients import LayerGradient, score_gradients
from regard.tracing.interventions import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["head", "edge", "position"]
_CHANCE = 12  # of each kind, drawn at random and switched off


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One part of the model or the text, and by how much the answer's score changes without it."""

    kind: Kind
    what: str  # in words
    layer: str | None = None
    head: int | None = None
    query: int | None = None
    key: int | None = None
    weight: float | None = None  # of an edge
    written: float | None = None  # of a head
    estimated: float
    ran: float = 0.0
    beyond_chance: bool = False


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
    loaded, known, n = asked.loaded, layers_of(asked.loaded), asked.ids.shape[1]
    gradients = score_gradients(
        loaded, asked.ids, objective=lambda out: asked.score(out if isinstance(out, Tensor) else out.logits)
    )
    with torch.no_grad():
        logits = loaded.model(asked.ids).logits
    score, likely = float(asked.score(logits)), logits[0, asked.position].float().softmax(-1)
    note, written = "", None
    try:
        written = logit_attribution(
            loaded, asked.ids, asked.token, against=asked.against, position=asked.position
        ).heads
    except UnsupportedError as error:
        note = str(error)
    estimates, edges, columns = _scanned(gradients.layers, known, top)
    tokens = gradients.trace.tokens[0] if gradients.trace.tokens else ()
    names = tuple(known)
    findings: list[tuple[Finding, Change]] = []
    orders = [strongest(table.abs()) for table in (estimates, written) if table is not None]
    for row, head in list(dict.fromkeys(chain.from_iterable(zip(*orders, strict=True))))[:top]:
        name, part = names[row], None if written is None else float(written[row, head])
        finding = Finding(kind="head", what=f"head {head} of {name}", layer=name, head=head, written=part,
                          estimated=float(estimates[row, head]))  # fmt: skip
        findings.append((finding, _without(name, known[name].index(head))))
    for effect, name, head, query, key, weight in edges:
        words = f"{_at(tokens, query)} to {_at(tokens, key)} in head {head} of {name}"
        finding = Finding(kind="edge", what=words, layer=name, head=head, query=query, key=key, weight=weight,
                          estimated=effect)  # fmt: skip
        findings.append((finding, _without(name, known[name].index(head), query, key)))
    for key in columns.abs().argsort(descending=True)[: top if n > 1 else 0].tolist():
        words, effect = f"{_at(tokens, key)}, seen by none", float(columns[key])
        finding = Finding(kind="position", what=words, key=key, estimated=effect)
        findings.append((finding, _unseen(names, key, n)))
    effects = (asked.run_each(change for _, change in findings) - score).tolist()
    chance = _chance(asked, known, n, score, torch.Generator().manual_seed(seed))
    ran = [
        replace(finding, ran=effect, beyond_chance=abs(effect) > chance[finding.kind])
        for (finding, _), effect in zip(findings, effects, strict=True)
    ]
    ran.sort(key=lambda finding: -abs(finding.ran))
    best = likely.topk(min(5, likely.numel()))
    return Why(
        loaded.facts.name,
        tuple(tokens),
        asked.name(asked.token),
        None if asked.against is None else asked.name(asked.against),
        score,
        float(likely[asked.token]),
        tuple((asked.name(int(i)), float(p)) for p, i in zip(best.values, best.indices, strict=True)),
        tuple(ran),
        chance,
        estimates,
        names,
        _rank_agreement([(finding.estimated, finding.ran) for finding in ran]),
        note,
    )


def _at(tokens: Sequence[str], index: int) -> str:
    return f"{tokens[index]!r} ({index})" if tokens else f"position {index}"


def _without(layer: str, head: int, query: int | None = None, key: int | None = None) -> Change:
    if key is None:
        return lambda run: run.gate(layer=layer, head=head, by=0.0)
    return lambda run: run.knock_out(layer=layer, head=head, query=query, key=key)


def _unseen(layers: Sequence[str], key: int, n: int) -> Change:
    """No other position sees this one, in any layer; it sees itself."""

    def change(run: Run) -> None:
        for layer in layers:
            run.knock_out(layer=layer, query=[other for other in range(n) if other != key], key=key)

    return change


_Edge = tuple[float, str, int, int, int, float]  # effect, layer, head, query, key, weight


def _scanned(
    layers: Sequence[LayerGradient], known: Layers, top: int
) -> tuple[Float[Tensor, "layer head"], list[_Edge], Float[Tensor, "key"]]:
    """The estimated change without each head, the strongest edges, and without each position.

    Some rows at a time: nothing of query x key is kept.
    """
    heads = head_table(known)
    columns = torch.zeros(layers[0].layer.n_key, dtype=torch.float64)
    best: list[_Edge] = []
    by_name = {gradient.layer.name: gradient for gradient in layers}
    for index, (name, numbers) in enumerate(known.items()):
        gradient, layer = by_name[name], by_name[name].layer
        sums = gradient.row_sum[0].double()
        heads[index, list(numbers)] = -sums.sum(-1).cpu()
        for at, head in enumerate(numbers):
            for rows, _ in layer.row_blocks(1):
                weights = layer.tile(0, at, rows, slice(None)).double()
                slope = gradient.tile(0, at, rows, slice(None)).double()
                # A row that sees one key only has no other to share with: without it the row gives 0.
                alone, without = weights >= 1 - 1e-12, -slope / (1 - weights).clamp_min(1e-12)
                effect = torch.where(alone, -sums[at, rows, None], without)
                effect = torch.where(weights > 0, effect, 0.0)
                for place in effect.abs().flatten().topk(min(top, effect.numel())).indices.tolist():
                    row, key = divmod(place, layer.n_key)
                    value, weight = float(effect[row, key]), float(weights[row, key])
                    best.append((value, name, head, rows.start + row, key, weight))
                best = heapq.nlargest(top, best, key=lambda edge: abs(edge[0]))
                if layer.kind == "self":  # a position that nobody else sees still sees itself
                    places = torch.arange(rows.stop - rows.start)
                    effect[places, places + rows.start + layer.n_key - layer.n_query] = 0.0
                columns += effect.sum(0).cpu()
    return heads, best, columns


def _chance(
    asked: Asked, known: Layers, n: int, score: float, generator: torch.Generator
) -> dict[str, float]:
    """What parts that are drawn at random change, for each kind: all but one in twenty change less."""

    def draw(most: int) -> int:
        return int(torch.randint(most, (1,), generator=generator))

    names = [name for name, heads in known.items() if heads]
    changes: dict[str, list[Change]] = {"head": [], "edge": [], "position": []}
    for _ in range(_CHANCE):
        name = names[draw(len(names))]
        changes["head"].append(_without(name, draw(len(known[name]))))
        query = 1 + draw(max(1, n - 1)) if n > 1 else 0
        key = draw(query + 1)
        changes["edge"].append(_without(name, draw(len(known[name])), query, key))
    changes["position"] = [_unseen(list(known), draw(n), n) for _ in range(min(_CHANCE, n) if n > 1 else 0)]
    return {
        kind: float((asked.run_each(some) - score).abs().quantile(0.95)) if some else 0.0
        for kind, some in changes.items()
    }


def _rank_agreement(pairs: list[tuple[float, float]]) -> float:
    """Spearman's correlation."""
    if len(pairs) < 3:
        return float("nan")
    return float(torch.corrcoef(torch.tensor(pairs).T.argsort().argsort().double())[0, 1])
