"""What each head, edge, position or layer does to a prediction: by switching it off, each one, exactly.

    effects(model, "The capital of France is")                        all heads, the likeliest next token
    effects(model, text, of="edges", target=" Paris")                 all edges of the last position
    effects(model, text, of="positions", against=" London")           each position hidden from all others

Every number in a table of effects was run. Where there are more parts than the budget allows, estimates from
one backward pass choose the order: the strongest are run, then a random sample of the others, and the table
says how much of the whole effect that is. Of the estimates that were tried, the gradient at the run itself
agrees best with what ran (SmolLM2, all heads, three prompts: rank correlations 0.81, 0.90, 0.90). Averaged
over several points on the way to no heads it agrees less (0.76, 0.80, 0.87 a quarter of the way, -0.03, 0.19,
0.31 all the way), and on the way to no embeddings too (0.17, 0.08, 0.50).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.data import Data
from regard.attention.shapes import whole_index
from regard.errors import ArgumentError, RegardError
from regard.experiments.changes import Change, HeadGate, KnockOut
from regard.experiments.engine import RowEngine
from regard.experiments.targets import PredictionTarget, Token, layer_words, progress_bar
from regard.files.loading import Loaded
from regard.heads.model import Layers, checked_heads, layers_of
from regard.tracing.gradients import ScoreGradients, score_gradients

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Of = Literal["heads", "edges", "positions", "layers"]
BUDGET = 120.0  # seconds
_SAMPLE = 0.25  # of the rows that a budget allows, drawn at random from those that are not the strongest
_FEWEST = 20  # rows drawn at random, at least
_FOR_CHANCE = 20  # parts: of fewer, 19 of 20 says nothing


@dataclass(frozen=True, slots=True)
class ModelPart:
    """A part of a model or a text that can be switched off.

    Attributes:
        layer: The attention layer's name; None: a position, in all layers.
        head: Its number before any pruning; None: all heads of the layer.
        query: The position that looks, of an edge.
        key: The position that is looked at, of an edge, or that is hidden.
    """

    layer: str | None = None
    head: int | None = None
    query: int | None = None
    key: int | None = None

    def words(self, layers: dict[str, str], tokens: Sequence[str] = ()) -> str:
        """Return the part as people say it: "layer 23 head 4"."""

        def place(at: int | None) -> str:
            return f"{tokens[at]!r} ({at})" if at is not None and at < len(tokens) else f"position {at}"

        if self.layer is None:
            return place(self.key)
        name = layers.get(self.layer, self.layer)
        name = name if self.head is None else f"{name} head {self.head}"
        return name if self.key is None else f"{name}: {place(self.query)} to {place(self.key)}"

    def off(self, known: Layers, n_token: int, kinds: dict[str, str]) -> Change:
        """Return the change that switches the part off; a hidden position still sees itself."""
        if self.layer is None:
            assert self.key is not None  # a part is of a layer, or a position
            others = tuple(at for at in range(n_token) if at != self.key)
            return tuple(
                KnockOut(name, None, others, (self.key,))
                for name, heads in known.items()
                if heads and kinds[name] == "self"
            )
        heads = None if self.head is None else (known[self.layer].index(self.head),)
        if self.key is None:
            return (HeadGate(self.layer, heads),)
        assert self.query is not None  # an edge has both
        return (KnockOut(self.layer, heads, (self.query,), (self.key,)),)


@dataclass(frozen=True, slots=True)
class Effect:
    """One part, and what its absence does.

    Attributes:
        part: What was switched off.
        words: The part as people say it.
        change: By how much the score changes.
        probability: The target's probability without the part.
        beyond_chance: Whether it changes more than 19 of 20 parts of its kind, drawn at random, do; None:
            there are too few of its kind to say.
    """

    part: ModelPart
    words: str
    change: float
    probability: float
    beyond_chance: bool | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Effects(Data):
    """What a prediction loses or gains without each part. Every number was run.

    Attributes:
        of: Which parts: heads, edges, positions or layers.
        model: The model's name.
        tokens: Of the text.
        target: The token that is predicted.
        against: The token whose score is subtracted; None: the score is the log-probability of `target`.
        score: Of the unchanged run.
        probability: Of `target`, in the unchanged run.
        layers: Names of the attention layers.
        parts: What was switched off, or was to be.
        changes: Of the score without each part; NaN: not run.
        probabilities: Of `target` without each part; NaN: not run.
        chance: 19 of 20 parts of this kind that are drawn at random change the score by less; NaN: there are
            fewer than 20.
        share_run: How much of the whole effect was run: 1 where every part was, else reckoned from a random
            sample of those that were not chosen.
        n_run: How many parts were run.
        seconds: How long that took.
        interrupted: Whether it was stopped before all that was planned had run.
    """

    of: Of
    model: str
    tokens: tuple[str, ...]
    target: str
    against: str | None
    score: float
    probability: float
    layers: tuple[str, ...]
    parts: tuple[ModelPart, ...]
    changes: Float[Tensor, "part"]
    probabilities: Float[Tensor, "part"]
    chance: float
    share_run: float
    n_run: int
    seconds: float
    interrupted: bool = False

    def strongest(self, n: int | None = None) -> list[Effect]:
        """Return the parts whose absence changes the score most, either way, of those that were run."""
        order = self.changes.abs().nan_to_num(-1.0).argsort(descending=True, stable=True).tolist()
        words = layer_words(self.layers)
        found = []
        for index in order[:n]:
            change = float(self.changes[index])
            if not math.isnan(change):
                said = self.parts[index].words(words, self.tokens)
                beyond = None if math.isnan(self.chance) else abs(change) > self.chance
                found.append(
                    Effect(self.parts[index], said, change, float(self.probabilities[index]), beyond)
                )
        return found

    @property
    def table(self) -> Float[Tensor, "layer head"]:
        """The changes as a table of layers and heads; NaN where there is none, or it was not run.

        Of edges: the largest of each head, either way. Of layers: one column.
        """
        width = max((part.head or 0) + 1 for part in self.parts) if self.parts else 0
        table = torch.full((len(self.layers), width), torch.nan, dtype=torch.float64)
        if self.of == "positions":
            raise ArgumentError("positions are of no layer: see `changes`.")
        for part, change in zip(self.parts, self.changes.tolist(), strict=True):
            assert part.layer is not None  # of all kinds but positions
            at = (self.layers.index(part.layer), part.head or 0)
            if math.isnan(float(table[at])) or abs(change) > abs(float(table[at])):
                table[at] = change
        return table

    @property
    def chance_note(self) -> str:
        """What chance would do."""
        if math.isnan(self.chance):
            return f"{self.n_run} {self.of} are too few to tell what chance would do."
        return f"19 of 20 change the score by less than {self.chance:.3f}."

    @property
    def run_note(self) -> str:
        """How many parts were run, and how much of the whole effect that is."""
        if self.n_run == len(self.parts):
            return f"All {self.n_run} {self.of} were run, in {self.seconds:.1f} s."
        cut = "stopped early: " if self.interrupted else ""
        return (
            f"{cut}{self.n_run} of {len(self.parts)} {self.of} were run, in {self.seconds:.1f} s: about "
            f"{self.share_run:.0%} of the whole effect, reckoned from those drawn at random."
        )

    def __repr__(self) -> str:
        strong = "; ".join(f"{one.words}: {one.change:+.3g}" for one in self.strongest(3))
        return f"Effects({self.of} on {self.target!r}, {self.probability:.1%}: {strong})"

    def figure(self) -> Figure:
        """Draw the changes as a heat map: orange raises the score, blue lowers it."""
        from regard.drawing.figures import effect_maps

        words = layer_words(self.layers)
        title = f"{self.model}: {self.target!r} ({self.probability:.0%}) without each of its {self.of}"
        if self.of == "positions":
            tokens = self.tokens[: len(self.parts)]
            return effect_maps({"hidden position": (self.changes[None], tokens)}, rows=[""], title=title)
        columns = {"heads": None, "edges": None, "layers": ("all heads",)}[self.of]
        name = {"heads": "each head", "edges": "the strongest edge of each head", "layers": "each layer"}
        return effect_maps({name[self.of]: (self.table, columns)}, rows=list(words.values()), title=title)


def effects(
    model: Loaded | nn.Module,
    text: Any,
    of: Of = "heads",
    *,
    target: Token | None = None,
    against: Token | None = None,
    position: int | None = None,
    answer: Any = None,
    query: int | None = None,
    heads: Sequence[tuple[int | str, int]] | None = None,
    budget: float | None = BUDGET,
    seed: int = 0,
    progress: bool = False,
    tokenizer: Any = None,
) -> Effects:
    """Switch off each head, edge, position or layer, and return what that does to a prediction.

    All changes run as rows of batches, each from the first layer that it touches, and the results are those
    of running each by itself. Ctrl-C ends early, with what is done.

    Args:
        model: Ours, or anybody's that can be watched.
        text: A text, ids, or what somebody else's model takes, of one sequence.
        of: "heads", "edges" (of one query), "positions" (each hidden from all others in every layer) or
            "layers" (all heads of each attention layer).
        target: The token that is predicted, or its text; None: the likeliest.
        against: Another token: then the score is the difference of their logits.
        position: Where the prediction is read; None: at the last position, or at the mask.
        answer: What an encoder-decoder has written so far; None: nothing.
        query: Whose edges; None: those of the position where the prediction is read.
        heads: Only these, as (layer, head); None: all. For heads and edges.
        budget: Seconds that it may take, about; None: as many as it needs. Beyond it the parts that are
            strongest by estimate and a random sample are run.
        seed: Of the random sample.
        progress: Print what is going to run, and draw a bar, on stderr.
        tokenizer: Where the model has none.

    Returns:
        The changes of the score, each of them run.

    Raises:
        ArgumentError: An argument is not what it should be.
        UnsupportedError: The model gives no token a score, or its attention cannot be changed.

    Example:
        >>> from regard.files.loading import load
        >>> found = effects(load("gpt2", random=True), "abc", of="layers")
        >>> found.n_run == len(found.parts), found.share_run
        (True, 1.0)
    """
    if of not in get_args(Of):
        raise ArgumentError(f"of must be one of {', '.join(get_args(Of))}. Got {of!r}.")
    asked = PredictionTarget.about(model, text, target, against, position, tokenizer, answer)
    engine = RowEngine(asked.loaded, asked.given, asked.reading)
    options: dict[str, Any] = {"budget": budget, "seed": seed, "progress": progress}
    return effects_of(asked, engine, of, query=query, heads=heads, **options)


def effects_of(
    asked: PredictionTarget,
    engine: RowEngine,
    of: Of,
    *,
    query: int | None = None,
    heads: Sequence[tuple[int | str, int]] | None = None,
    budget: float | None = BUDGET,
    seed: int = 0,
    progress: bool = False,
) -> Effects:
    """As `effects`, of a prediction whose unchanged run is there already."""
    known = known_layers(asked, engine)
    parts = _parts(asked, engine, known, of, query, heads)
    n_token = _n_token(asked, engine)
    changes = [part.off(known, n_token, engine.kinds) for part in parts]
    order, chosen, seconds = within_budget(
        engine, changes, lambda: estimates(asked, known, parts), budget, seed
    )
    if progress:
        say_rows(len(order), len(parts), of, seconds)
    with progress_bar(f"switching {of} off", progress) as bar:
        ran = engine.run([changes[index] for index in order], progress=bar)
    scores = torch.full((len(parts), 2), torch.nan, dtype=torch.float64)
    scores[order] = ran.scores
    moved = scores[:, 0] - engine.unchanged[0]
    return Effects(
        of,
        asked.loaded.facts.name,
        asked.tokens,
        asked.name(asked.token),
        None if asked.against is None else asked.name(asked.against),
        float(engine.unchanged[0]),
        float(engine.unchanged[1].exp()),
        tuple(known),
        tuple(parts),
        moved,
        scores[:, 1].exp(),
        _chance(moved, order, chosen),
        share_of(moved, order, chosen),
        ran.n_run,
        ran.seconds,
        ran.interrupted,
    )


def say_rows(n_row: int, n_all: int, of: str, seconds: float) -> None:
    """Print how many rows are going to run and about how long that takes, on stderr."""
    from rich.console import Console

    some = f"{n_row:,}" if n_row == n_all else f"{n_row:,} of {n_all:,}"
    Console(stderr=True).print(f"{some} {of} to run, about {max(1, round(seconds))} s", highlight=False)


def known_layers(asked: PredictionTarget, engine: RowEngine) -> Layers:
    """Return the attention layers that ran, and the heads that each has."""
    if asked.given.ids is not None and not set(engine.outputs) - set(known := layers_of(asked.loaded)):
        return {name: heads for name, heads in known.items() if name in engine.outputs}
    return {name: tuple(range(out.shape[1])) for name, out in engine.outputs.items()}


def _n_token(asked: PredictionTarget, engine: RowEngine) -> int:
    return max(out.shape[2] for out in engine.outputs.values()) if asked.given.ids is None else (
        asked.given.ids.shape[1]
    )  # fmt: skip


def _parts(
    asked: PredictionTarget,
    engine: RowEngine,
    known: Layers,
    of: Of,
    query: int | None,
    chosen: Sequence[tuple[int | str, int]] | None,
) -> list[ModelPart]:
    """Everything of a kind that can be switched off."""
    names = list(known)
    wanted = None if chosen is None else set(checked_heads(known, chosen))
    if of == "layers":
        return [ModelPart(name) for name, heads in known.items() if heads]
    heads = [
        ModelPart(name, head)
        for row, (name, numbers) in enumerate(known.items())
        for head in numbers
        if wanted is None or (row, head) in wanted
    ]
    if of == "heads":
        return heads
    n_token = _n_token(asked, engine)
    if of == "positions":
        last = n_token - 1
        if asked.position is not None and all(map(engine.causal, engine.outputs)):
            last = asked.position  # later ones do nothing to it
        return [ModelPart(key=key) for key in range(last + 1) if n_token > 1]
    place = asked.position or 0 if query is None else whole_index("query", query, n_token)
    edges = []
    for part in heads:
        assert part.layer is not None  # heads are of layers
        n_query, n_key = engine.rows.lengths[part.layer]
        if n_query != n_token:  # an encoder's layer beside the decoder that is asked
            continue
        seen = place + 1 if engine.causal(part.layer) else n_key
        edges += [ModelPart(part.layer, part.head, place, key) for key in range(seen)]
    if not names or not edges:
        raise ArgumentError(f"no head has edges of query {place}.")
    return edges


def within_budget(
    engine: RowEngine,
    changes: Sequence[Change],
    estimated: Callable[[], Tensor | None],
    budget: float | None,
    seed: int,
) -> tuple[list[int], int, float]:
    """Choose which changes are run: all if the budget allows, else the strongest by estimate and a sample.

    Args:
        engine: What runs them.
        changes: All of one kind.
        estimated: AttentionCall where the budget is too small: a number for each change; None: nobody knows.
        budget: Seconds; None: no limit.
        seed: Of the random sample.

    Returns:
        The order in which they are run, how many of its first the estimate chose (the others are drawn at
        random), and about how many seconds they take.
    """
    seconds = engine.seconds_of(changes)
    if budget is None or seconds <= budget:
        return list(range(len(changes))), len(changes), seconds
    n_row = min(len(changes), max(_FEWEST, int(len(changes) * budget / seconds)))
    n_random = min(n_row, max(_FEWEST, round(_SAMPLE * n_row)))
    numbers = estimated()
    if numbers is None:  # all are drawn at random
        n_random, numbers = n_row, torch.zeros(len(changes))
    best = numbers.abs().argsort(descending=True, stable=True).tolist()
    n_best = n_row - n_random
    rest = best[n_best:]
    mixed = torch.randperm(len(rest), generator=torch.Generator().manual_seed(seed)).tolist()
    order = best[:n_best] + [rest[index] for index in mixed[:n_random]]
    return order, n_best, engine.seconds_of([changes[index] for index in order])


def _chance(moved: Tensor, order: list[int], chosen: int) -> float:
    """The change that 19 of 20 parts drawn at random stay below."""
    drawn = order if chosen >= len(moved) else order[chosen:]
    some = moved[drawn].abs()
    some = some[~some.isnan()]
    return float(some.quantile(0.95)) if len(some) >= _FOR_CHANCE else math.nan


def share_of(moved: Tensor, order: list[int], chosen: int) -> float:
    """Return how much of the whole effect was run, reckoned from the random sample of what was not chosen."""
    sizes = moved.abs()
    done = ~sizes.isnan()
    if bool(done.all()):
        return 1.0
    drawn = sizes[order[chosen:]] if chosen < len(moved) else sizes[done]
    drawn = drawn[~drawn.isnan()]
    if not len(drawn):
        return 0.0
    ran = float(sizes[done].sum())
    left = float(drawn.mean()) * int((~done).sum())
    return ran / (ran + left) if ran + left else 1.0


def estimates(
    asked: PredictionTarget, known: Layers, parts: Sequence[ModelPart]
) -> Float[Tensor, "part"] | None:
    """Estimate the change without each part from one backward pass; it serves to choose an order only.

    The gradient of the score with respect to what a head gives, times how its absence changes that. For an
    edge this is exact within the layer: without edge (i, j) the rest of the row shares its weight w, and the
    output moves by w / (1 - w) (o_i - v_j).

    Returns:
        One number for each part, or None where the model allows no backward pass through its scores.
    """

    def objective(out: Any) -> Tensor:
        logits = out if isinstance(out, Tensor) else out.logits
        return asked.score(logits[0] if asked.position is None else logits[0, asked.position])

    given = asked.given
    text: Any = given.kwargs if given.kwargs and not given.args else given.args
    target = None
    if len(given.args) == 2:
        text, target = given.args
    elif len(given.args) == 1:
        text = given.args[0]
    try:
        gradients = score_gradients(asked.loaded, text, target=target, objective=objective)
    except (RegardError, RuntimeError):
        return None
    tables = _EstimateTables(gradients, known)
    return torch.tensor([tables.of(part) for part in parts], dtype=torch.float64)


class _EstimateTables:
    """Estimates by head, and by row of edges, each worked out when it is first asked for."""

    def __init__(self, gradients: ScoreGradients, known: Layers) -> None:
        self.gradients, self.known = gradients, known
        self._rows: dict[tuple[str, int, int], Tensor] = {}
        self._columns: Tensor | None = None

    def of(self, part: ModelPart) -> float:
        if part.layer is None:
            assert part.key is not None  # a position
            return float(self._all_columns()[part.key])
        gradient = self.gradients.layer(part.layer)
        if part.key is None:
            sums = gradient.row_sum[0].double().sum(-1)
            return -float(sums.sum() if part.head is None else sums[self.known[part.layer].index(part.head)])
        assert part.head is not None  # an edge is of a head
        assert part.query is not None
        return float(self._row(part.layer, self.known[part.layer].index(part.head), part.query)[part.key])

    def _row(self, layer: str, at: int, query: int) -> Tensor:
        key = (layer, at, query)
        if key not in self._rows:
            self._rows[key] = _without_edges(self.gradients, layer, at, slice(query, query + 1))[0]
        return self._rows[key]

    def _all_columns(self) -> Tensor:
        if self._columns is None:
            columns = torch.zeros(self.gradients.layers[0].layer.n_key, dtype=torch.float64)
            for name, numbers in self.known.items():
                layer = self.gradients.layer(name).layer
                if layer.kind != "self" or layer.n_key != len(columns):
                    continue
                for at in range(len(numbers)):
                    for rows, _ in layer.row_blocks(1):
                        effect = _without_edges(self.gradients, name, at, rows)
                        places = torch.arange(rows.stop - rows.start)
                        effect[places, places + rows.start + layer.n_key - layer.n_query] = 0.0
                        columns += effect.sum(0).cpu()
            self._columns = columns
        return self._columns


def _without_edges(gradients: ScoreGradients, name: str, at: int, rows: slice) -> Float[Tensor, "rows key"]:
    """The estimated change without each edge of some rows of a head."""
    gradient = gradients.layer(name)
    weights = gradient.layer.tile(at, rows, slice(None)).double()
    slope = gradient.tile(at, rows, slice(None)).double()
    sums = gradient.row_sum[0, at, rows, None].double()
    # A row that sees one key only has no other to share with: without it the row gives 0.
    alone, without = weights >= 1 - 1e-12, -slope / (1 - weights).clamp_min(1e-12)
    effect = torch.where(alone, -sums, without)
    return torch.where(weights > 0, effect, 0.0)
