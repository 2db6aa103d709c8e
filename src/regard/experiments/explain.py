"""Why a prediction came out as it did: what it would be without each head, position and edge, by running it.

    regard.why(model, "The capital of France is").sentence
    "Without head 4 of layer 23, ' Paris' falls from 77 % to 14 %."

The total effect of a head is what changes when it is off and everything after it reacts. Its direct effect is
what changes when everything else stays as it was: all other heads and feed-forward layers keep their outputs.
A head whose direct effect is large writes the answer; one with a large total and a small direct effect
prepares what others write.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from regard.attention.data import Data
from regard.errors import ArgumentError, RegardError
from regard.experiments.changes import Change, HeadGate, PatchModule, PatchOutputs
from regard.experiments.engine import RowEngine
from regard.experiments.exact import BUDGET, Effect, Effects, ModelPart, effects_of, known_layers
from regard.experiments.targets import PredictionTarget, Token, layer_words, progress_bar
from regard.files.loading import Loaded
from regard.heads.model import Layers
from regard.models.transformer import Transformer
from regard.tracing.take import trace
from regard.tracing.traces import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["head", "position", "edge"]
_FEED_FORWARD = ("mlp", "ff", "feed_forward", "ffn")
_STRONG = 20  # heads of which pairs are run
_MOST_TOKENS = 24  # of a text of which all edges of the strong heads are run


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One part of the model or the text, and what the prediction is without it.

    Attributes:
        kind: "head", "position" or "edge".
        what: The part as people say it.
        part: Where it is.
        change: Of the score, when the part is off and everything after it reacts (the total effect).
        direct: Of a head: the change when everything else stays as it was; None: not known.
        probability: The target's probability without the part.
        weight: Of an edge: its attention weight; None: not known.
        beyond_chance: Whether it changes more than 19 of 20 parts of its kind, drawn at random, do; None:
            there are too few of its kind to say.
    """

    kind: Kind
    what: str
    part: ModelPart
    change: float
    direct: float | None = None
    probability: float
    weight: float | None = None
    beyond_chance: bool | None


@dataclass(frozen=True, slots=True)
class HeadPair:
    """Two heads that are off together.

    Attributes:
        heads: Which, as people say it.
        change: Of the score, without both.
        sum: Of the changes without each of them.
    """

    heads: tuple[str, str]
    change: float
    sum: float

    @property
    def together(self) -> float:
        """What only the two together do: 0 where their effects add up."""
        return self.change - self.sum


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Why(Data):
    """What moved one prediction. Every number was run.

    Attributes:
        model: The model's name.
        tokens: Of the text.
        target: The token that is explained.
        against: The token whose score is subtracted; None: the score is the log-probability of `target`.
        score: Of the unchanged run.
        probability: Of `target`.
        likeliest: The likeliest tokens and their probabilities.
        sentence: The strongest head, in words.
        findings: The strongest of each kind; heads first, then positions, then edges.
        heads: The effects of all heads.
        positions: The effects of all positions; None: there is one position only.
        edges: The effects of the edges of the position where the prediction is read; None: not known.
        pairs: The pairs of strong heads whose joint effect differs most from the sum of their effects.
        note: What is not known, and why.
    """

    model: str
    tokens: tuple[str, ...]
    target: str
    against: str | None
    score: float
    probability: float
    likeliest: tuple[tuple[str, float], ...]
    sentence: str
    findings: tuple[Finding, ...]
    heads: Effects
    positions: Effects | None
    edges: Effects | None
    pairs: tuple[HeadPair, ...]
    note: str

    def of(self, kind: Kind) -> list[Finding]:
        """Return the findings of one kind, the strongest first."""
        return [finding for finding in self.findings if finding.kind == kind]

    def __repr__(self) -> str:
        return f"Why({self.sentence})"

    def figure(self) -> Figure:
        """Draw what the prediction gains or loses without each head, and the strongest edge of each."""
        from regard.drawing.figures import effect_maps

        tables: dict[str, tuple[Tensor, None]] = {"each head": (self.heads.table, None)}
        if self.edges is not None:
            tables["strongest edge of the last row"] = (self.edges.table, None)
        rows = list(layer_words(self.heads.layers).values())
        title = f"{self.model}: {self.target!r} ({self.probability:.0%}) without each part"
        return effect_maps(tables, rows=rows, title=title)


def why(
    model: Loaded | nn.Module,
    text: Any,
    *,
    target: Token | None = None,
    against: Token | None = None,
    position: int | None = None,
    answer: Any = None,
    top: int = 5,
    pairs: bool = False,
    budget: float | None = BUDGET,
    seed: int = 0,
    progress: bool = False,
    tokenizer: Any = None,
) -> Why:
    """Say which heads, positions and edges moved the token after `text`, by running it without each of them.

    Args:
        model: Ours, or anybody's that can be watched.
        text: A text, ids, or what somebody else's model takes, of one sequence.
        target: The token to explain, or its text; None: the likeliest.
        against: Another token: then the score is the difference of their logits.
        position: Where the prediction is read; None: at the last position, or at the mask.
        answer: What an encoder-decoder has written so far; None: nothing.
        top: How many of each kind are listed.
        pairs: Switch the strongest twenty heads off in pairs, too.
        budget: Seconds that each kind may take, about; None: as many as it needs.
        seed: Of the random sample, where not everything can be run.
        progress: Print what is going to run, and draw bars, on stderr.
        tokenizer: Where the model has none.

    Returns:
        One sentence, the strongest of each kind, and all effects.

    Raises:
        ArgumentError: An argument is not what it should be.
        UnsupportedError: The model gives no token a score, or its attention cannot be changed.
    """
    if top < 1:
        raise ArgumentError(f"top must be at least 1. Got {top}.")
    asked = PredictionTarget.about(model, text, target, against, position, tokenizer, answer)
    engine = RowEngine(asked.loaded, asked.given, asked.reading)
    options: dict[str, Any] = {"budget": budget, "seed": seed, "progress": progress}
    notes = []
    heads = effects_of(asked, engine, "heads", **options)
    positions = None
    edges = None
    if len(asked.tokens) > 1:
        try:
            positions = effects_of(asked, engine, "positions", **options)
            edges = effects_of(asked, engine, "edges", **options)
        except RegardError as error:  # linear attention has no edges
            notes.append(str(error))
    strong = heads.strongest(top)
    known = known_layers(asked, engine)
    direct = direct_effects(asked, engine, [one.part for one in strong])
    if direct is None:
        notes.append("which modules are the feed-forward layers is not known, so direct effects are not")
        direct = [None] * len(strong)
    findings = [_finding("head", one, direct=change) for one, change in zip(strong, direct, strict=True)]
    if positions is not None:
        findings += [_finding("position", one) for one in positions.strongest(top)]
    if edges is not None:
        listed = edges.strongest(top) + _edges_of(asked, engine, strong, edges)
        listed.sort(key=lambda one: -abs(one.change))
        traced = _traced(asked)
        findings += [
            _finding("edge", one, weight=_weight(traced, known, one.part)) for one in listed[: 2 * top]
        ]
    likely = engine.rows.logits[0].float().softmax(-1)
    best = likely.topk(min(5, likely.numel()))
    return Why(
        heads.model,
        heads.tokens,
        heads.target,
        heads.against,
        heads.score,
        heads.probability,
        tuple((asked.name(int(i)), float(p)) for p, i in zip(best.values, best.indices, strict=True)),
        _sentence(heads, strong),
        tuple(findings),
        heads,
        positions,
        edges,
        head_pairs(asked, engine, heads, top, progress=progress) if pairs else (),
        "; ".join(notes),
    )


def _finding(kind: Kind, one: Effect, **more: Any) -> Finding:
    return Finding(
        kind=kind,
        what=one.words,
        part=one.part,
        change=one.change,
        probability=one.probability,
        beyond_chance=one.beyond_chance,
        **more,
    )


def _sentence(heads: Effects, strong: Sequence[Effect]) -> str:
    """The strongest head, as a sentence."""
    if not strong:
        return f"No head was run: nothing is known about {heads.target!r}."
    one = strong[0]
    assert one.part.layer is not None  # a head is of a layer
    head = f"head {one.part.head} of {layer_words(heads.layers)[one.part.layer]}"
    before, after = heads.probability, one.probability
    if abs(one.change) < 1e-6:
        return f"No head moves {heads.target!r}: it stays at {_percent(before)} whichever is switched off."
    verb = "falls" if after < before else "rises"
    if _percent(before) == _percent(after):
        of = f"{heads.target!r} stays at {_percent(before)}, its score"
        return f"Without {head}, {of} {'falls' if one.change < 0 else 'rises'} by {abs(one.change):.2g}."
    return f"Without {head}, {heads.target!r} {verb} from {_percent(before)} to {_percent(after)}."


def _percent(share: float) -> str:
    """A probability in words: 77 %, 0.3 %, or less than 0.1 %."""
    if share < 0.001:
        return "less than 0.1 %"
    return f"{100 * share:.0f} %" if 0.1 <= share <= 0.99 else f"{100 * share:.1f} %"


def _edges_of(
    asked: PredictionTarget, engine: RowEngine, strong: Sequence[Effect], last: Effects
) -> list[Effect]:
    """The strongest edge of each strong head, at any query but the one that is done already."""
    n_token, known = len(asked.tokens), known_layers(asked, engine)
    parts = []
    for head in strong:
        layer = head.part.layer
        assert layer is not None  # a head is of a layer
        n_query, n_key = engine.rows.lengths[layer]
        # Beyond some length a head has more edges than the last row of all heads together.
        for query in range(n_token if n_query == n_token <= _MOST_TOKENS else 0):
            sees = query + 1 if engine.causal(layer) else n_key
            if query != asked.position:
                parts += [ModelPart(layer, head.part.head, query, key) for key in range(sees)]
    if not parts:
        return []
    ran = engine.run([part.off(known, n_token, engine.kinds) for part in parts]).scores
    moved = (ran[:, 0] - engine.unchanged[0]).tolist()
    best: dict[tuple[str | None, int | None], int] = {}
    for index, part in enumerate(parts):
        head_of = part.layer, part.head
        if head_of not in best or abs(moved[index]) > abs(moved[best[head_of]]):
            best[head_of] = index
    words = layer_words(known)
    return [
        Effect(
            parts[index],
            parts[index].words(words, asked.tokens),
            moved[index],
            float(ran[index, 1].exp()),
            None if math.isnan(last.chance) else abs(moved[index]) > last.chance,
        )
        for index in best.values()
    ]


def _traced(asked: PredictionTarget) -> Trace | None:
    given = asked.given
    try:
        with torch.no_grad():
            if len(given.args) == 2:
                return trace(asked.loaded, given.args[0], target=given.args[1])
            return trace(asked.loaded, given.args[0] if given.args else given.kwargs)
    except RegardError:
        return None


def _weight(traced: Trace | None, known: Layers, part: ModelPart) -> float | None:
    """The attention weight of an edge."""
    if traced is None or part.layer is None or part.head is None or part.query is None or part.key is None:
        return None
    row, col = (slice(at, at + 1) for at in (part.query, part.key))
    return float(traced.layer(part.layer).tile(known[part.layer].index(part.head), row, col))


def direct_effects(
    asked: PredictionTarget, engine: RowEngine, heads: Sequence[ModelPart]
) -> list[float | None] | None:
    """Return the change of the score without each head, with everything else kept as it was.

    All other heads of later layers, and all feed-forward layers, give what they gave in the unchanged run.

    Args:
        asked: What is predicted.
        engine: With its unchanged run.
        heads: Which.

    Returns:
        One number for each head, or None where it is not known which modules are the feed-forward layers.
    """
    frozen = frozen_parts(engine)
    if frozen is None:
        return None
    known, changes = known_layers(asked, engine), list[Change]()
    for part in heads:
        assert part.layer is not None  # a head is of a layer
        assert part.head is not None
        head = known[part.layer].index(part.head)
        changes.append((HeadGate(part.layer, (head,)), *frozen.after(part.layer)))
    scores = engine.run(changes).scores[:, 0] - engine.unchanged[0]
    return [float(score) for score in scores]


@dataclass(frozen=True, slots=True, eq=False)
class FrozenParts:
    """The outputs of an unchanged run that keep everything after a head as it was.

    Attributes:
        heads: Of each attention layer, in the order they run.
        feed_forward: Of each feed-forward layer, with the number of its block.
        block_of: The number of the block in which each attention layer stands.
    """

    heads: dict[str, Tensor]
    feed_forward: dict[str, tuple[int, Tensor]]
    block_of: dict[str, int]

    def after(self, layer: str, *, feed_forward: bool = True) -> Change:
        """Return the edits that keep all heads of later layers, and all feed-forward layers, as they were."""
        names = list(self.heads)
        later = names[names.index(layer) + 1 :]
        edits: list[Any] = [PatchOutputs(name, None, self.heads[name]) for name in later]
        if feed_forward:
            edits += [
                PatchModule(name, out)
                for name, (block, out) in self.feed_forward.items()
                if block >= self.block_of[layer]
            ]
        return tuple(edits)


def frozen_parts(engine: RowEngine) -> FrozenParts | None:
    """Return what an unchanged run gave, head by head and layer by layer; None: a part is not known."""
    block_of = {name: engine.block_of(name) for name in engine.outputs}
    modules: dict[str, int] = {}
    for block, path in enumerate(engine.block_paths):
        names = [child for child, _ in engine.module.get_submodule(path).named_children()]
        wanted = [name for name in names if name in _FEED_FORWARD]
        if len(wanted) != 1:
            return None
        modules[f"{path}.{wanted[0]}"] = block
    if not modules:
        return None
    outputs = engine.module_outputs(list(modules))
    if not isinstance(engine.loaded.model, Transformer) and len(outputs) < len(modules):
        return None
    feed_forward = {name: (modules[name], out) for name, out in outputs.items()}
    return FrozenParts(dict(engine.outputs), feed_forward, block_of)


def head_pairs(
    asked: PredictionTarget, engine: RowEngine, heads: Effects, top: int = 5, *, progress: bool = False
) -> tuple[HeadPair, ...]:
    """Switch the strongest twenty heads off in pairs, and return the pairs whose effects do not add up.

    Args:
        asked: What is predicted.
        engine: With its unchanged run.
        heads: The effects of single heads.
        top: How many pairs.
        progress: Draw a bar on stderr.

    Returns:
        Those whose joint effect differs most from the sum of their effects.
    """
    known, strong = known_layers(asked, engine), heads.strongest(_STRONG)
    couples = list(combinations(strong, 2))

    def off(one: Effect) -> HeadGate:
        assert one.part.layer is not None  # a head is of a layer
        assert one.part.head is not None
        return HeadGate(one.part.layer, (known[one.part.layer].index(one.part.head),))

    with progress_bar("switching pairs of heads off", progress) as bar:
        scores = engine.run([(off(one), off(two)) for one, two in couples], progress=bar).scores
    changes = (scores[:, 0] - engine.unchanged[0]).tolist()
    pairs = [
        HeadPair((one.words, two.words), change, one.change + two.change)
        for (one, two), change in zip(couples, changes, strict=True)
        if change == change
    ]
    return tuple(sorted(pairs, key=lambda pair: -abs(pair.together))[:top])
