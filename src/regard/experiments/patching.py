"""Activation patching: a corrupted text with parts of the clean one, and what each of them restores.

    patch_effects(
        model,
        "When Mary and John went to the store, John gave a drink to",
        "When Mary and John went to the store, Mary gave a drink to",
        answer=" Mary",
        against=" John",
    )

Every head, and every position of every layer, is exchanged by running, as rows of a batch. With
what="weights" only where heads look is exchanged: the clean weights on the corrupted values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.data import Data
from regard.attention.shapes import whole_index
from regard.errors import ArgumentError, RegardError, ShapeError
from regard.experiments.changes import Change, PatchOutputs, PatchWeights
from regard.experiments.engine import RowEngine
from regard.experiments.exact import BUDGET, known_layers, say_rows, share_of, within_budget
from regard.experiments.targets import PredictionTarget, Token, layer_words, progress_bar
from regard.files.loading import Loaded
from regard.heads.model import head_outputs, head_table, strongest
from regard.tracing.layers import AnyLayer
from regard.tracing.take import module_of, trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

What = Literal["outputs", "weights"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PatchEffects(Data):
    """By how much the answer's score rises when a part of the corrupted run is exchanged for the clean one's.

    Attributes:
        layers: Names of the attention layers.
        tokens: Of the corrupted text.
        heads: ``(layer, head)``; NaN: not run.
        positions: All heads of a layer, at one position: ``(layer, position)``; NaN: not run.
        clean: The answer's score in the clean run.
        corrupted: In the corrupted run.
        share_run: How much of the whole effect was run; 1 where everything was.
        n_run: How many parts were exchanged.
        seconds: How long that took.
    """

    layers: tuple[str, ...]
    tokens: tuple[str, ...]
    heads: Float[Tensor, "layer head"]
    positions: Float[Tensor, "layer position"]
    clean: float
    corrupted: float
    share_run: float
    n_run: int
    seconds: float

    @property
    def shares(self) -> Float[Tensor, "layer head"]:
        """The effects as shares of all that lies between the runs: 1 restores the clean answer."""
        return self.heads / (self.clean - self.corrupted)

    def strongest(self, n: int = 10) -> list[tuple[str, int, float]]:
        """Return the heads of largest effect, either way: (layer, head, effect)."""
        places = strongest(self.heads.abs(), n)
        return [(self.layers[row], head, float(self.heads[row, head])) for row, head in places]

    def __repr__(self) -> str:
        words = layer_words(self.layers)
        strong = ", ".join(
            f"{words[layer]} head {head}: {change:+.3g}" for layer, head, change in self.strongest(3)
        )
        return f"PatchEffects({self.corrupted:.3g} to {self.clean:.3g}; {strong})"

    def figure(self) -> Figure:
        """Draw both tables as heat maps: orange raises the answer, blue lowers it."""
        from regard.drawing.figures import effect_maps

        return effect_maps(
            {"each head": (self.heads, None), "each position": (self.positions, self.tokens)},
            rows=list(layer_words(self.layers).values()),
            title=f"from {self.corrupted:.3g} (corrupted) to {self.clean:.3g} (clean)",
        )


def patch_effects(
    model: Loaded | nn.Module,
    clean: Any,
    corrupted: Any,
    *,
    answer: Token,
    against: Token | None = None,
    position: int | None = None,
    what: What = "outputs",
    layers: Sequence[int] | None = None,
    positions: bool = True,
    budget: float | None = BUDGET,
    seed: int = 0,
    progress: bool = False,
    tokenizer: Any = None,
) -> PatchEffects:
    """Exchange each head and each position of each layer for the clean run's, and return what that restores.

    Args:
        model: Ours, or anybody's that can be watched.
        clean: A text or ids.
        corrupted: Another with as many tokens, so that positions correspond.
        answer: The token whose score is read, or its text.
        against: Another token, whose score is subtracted; None: the log-probability of `answer` is read.
        position: Where; None: at the last position, or at the mask.
        what: "outputs" of heads, or "weights": only where they look.
        layers: Only these; None: all.
        positions: Whether positions are exchanged too.
        budget: Seconds that it may take, about; None: as many as it needs. Beyond it the parts that are
            strongest by estimate and a random sample are run.
        seed: Of the random sample.
        progress: Print what is going to run, and draw a bar, on stderr.
        tokenizer: Where the model has none.

    Returns:
        The changes of the score, each of them run.

    Raises:
        ShapeError: The texts differ in length.
    """
    if what not in get_args(What):
        raise ArgumentError(f"what must be one of {', '.join(get_args(What))}. Got {what!r}.")
    asked = PredictionTarget.about(model, corrupted, answer, against, position, tokenizer)
    other = PredictionTarget.about(model, clean, asked.token, asked.against, position, tokenizer)
    if other.given.ids is None or asked.given.ids is None or other.given.ids.shape != asked.given.ids.shape:
        lengths = [0 if one.given.ids is None else one.given.ids.shape[1] for one in (other, asked)]
        raise ShapeError(
            "the texts must have equally many tokens, so that positions correspond. Got "
            f"{lengths[0]} (clean) and {lengths[1]} (corrupted)."
        )
    source_run = RowEngine(other.loaded, other.given, other.reading)
    engine = RowEngine(asked.loaded, asked.given, asked.reading)
    known, n_token = known_layers(asked, engine), asked.given.ids.shape[1]
    source = None
    if what == "weights":
        with torch.no_grad():
            source = trace(asked.loaded, other.given.ids, keep_v=True)
    names, heads = tuple(known), head_table(known)
    places = torch.full((len(known), n_token), torch.nan, dtype=torch.float64)
    chosen = range(len(known)) if layers is None else [whole_index("layer", at, len(known)) for at in layers]

    def exchange(name: str, head: int | None, row: int | None) -> Change:
        some, rows = None if head is None else (head,), None if row is None else (row,)
        if source is not None:
            return (PatchWeights(name, some, source, rows),)
        return (PatchOutputs(name, some, source_run.outputs[name], rows),)

    cells = [(index, head, True) for index in chosen for head in known[names[index]]]
    if positions:
        cells += [(index, row, False) for index in chosen for row in range(n_token) if known[names[index]]]
    changes = [
        exchange(names[index], known[names[index]].index(at) if of_head else None, None if of_head else at)
        for index, at, of_head in cells
    ]

    def estimated() -> Tensor | None:
        tables = _estimated(asked, source_run.outputs, source)
        if tables is None:
            return None
        numbers = []
        for index, at, of_head in cells:
            table = tables[names[index]]
            numbers.append(
                float(table[known[names[index]].index(at)].sum() if of_head else table[:, at].sum())
            )
        return torch.tensor(numbers, dtype=torch.float64)

    order, n_chosen, seconds = within_budget(engine, changes, estimated, budget, seed)
    if progress:
        say_rows(len(order), len(changes), "heads and positions", seconds)
    with progress_bar("exchanging", progress) as bar:
        ran = engine.run([changes[index] for index in order], progress=bar)
    moved = torch.full((len(cells),), torch.nan, dtype=torch.float64)
    moved[order] = ran.scores[:, 0] - engine.unchanged[0]
    for (index, at, of_head), change in zip(cells, moved.tolist(), strict=True):
        (heads if of_head else places)[index, at] = change
    return PatchEffects(
        names,
        asked.tokens,
        heads,
        places,
        float(source_run.unchanged[0]),
        float(engine.unchanged[0]),
        share_of(moved, order, n_chosen),
        ran.n_run,
        ran.seconds,
    )


def _estimated(
    asked: PredictionTarget, clean: dict[str, Tensor], source: Any
) -> dict[str, Float[Tensor, "head query"]] | None:
    """The change of the answer by each head and query, to first order in its output; chooses an order only.

    The difference of weights is taken as it is, not through the slope of a softmax that may be saturated
    (AtP*, Kramár et al. 2024).
    """
    given = asked.given
    try:
        with torch.enable_grad(), head_outputs(asked.loaded) as outputs:
            out = module_of(asked.loaded)(*given.args, **given.kwargs)
            logits = out if isinstance(out, Tensor) else out.logits
            score = asked.score(logits[0, asked.position])
            gradients = torch.autograd.grad(score, list(outputs.values()), materialize_grads=True)
        new = clean
        if source is not None:
            traced = trace(asked.loaded, given.ids, keep_v=True)
            new = {name: _looking_as(source.layer(name), traced.layer(name)) for name in outputs}
    except (RegardError, RuntimeError):
        return None
    return {
        name: (gradient * (new[name].to(out.dtype) - out.detach()))[0].sum(-1).double().cpu()
        for (name, out), gradient in zip(outputs.items(), gradients, strict=True)
    }


def _looking_as(source: AnyLayer, layer: AnyLayer) -> Float[Tensor, "1 head query v_dim"]:
    """What heads give with the weights of another run, some rows at a time."""
    if layer.v is None:
        raise ArgumentError(f"the values of {layer.name} are not known: patch outputs instead.")
    v = layer.v[0].repeat_interleave(layer.n_head // layer.v.shape[1], 0)
    rows = [weights.to(v.dtype) @ v[:, cols] for _, cols, weights in source.strips()]
    return torch.cat(rows, 1)[None]
