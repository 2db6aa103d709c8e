"""A whole circuit, scored: the smallest set of heads that keeps a behaviour, and how well each size keeps it.

    circuit(model, "induction").smallest       the heads without which it is not kept
    circuit(model, "induction").curves         faithfulness against size, by four ways to rank heads

A circuit is tested as the public benchmark for circuits does (MIB, Mueller et al. 2025): the heads in it give
what they give on the clean prompt, all others what they gave on the corrupted one, and

    faithfulness = (difference with the circuit - difference with no head) / (with all heads - with no head)

where the difference is how far the right answer is ahead of the wrong one. The area under faithfulness
against the share of heads is large for a circuit that restores the behaviour with few heads (MIB's CPR), and
the area between it and 1 is small for one that is neither below nor above the model's own (CMD). Feed-forward
layers are in every circuit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.data import Data
from regard.errors import ArgumentError, RegardError
from regard.experiments.changes import Change, PatchOutputs
from regard.experiments.engine import LogitReading, RowEngine
from regard.experiments.exact import say_rows
from regard.experiments.targets import layer_words, progress_bar
from regard.experiments.tasks import TaskPrompts, task_prompts
from regard.files.loading import Loaded
from regard.heads.circuits import projections, readings
from regard.heads.model import Layers, head_outputs, layers_of, loaded_of
from regard.models.model import Model
from regard.tracing.take import ModelInput, foreign_input, module_of, our_input

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HeadPlace = tuple[int, int]  # (layer, head)
_N_RANDOM = 5  # random orders
_SHARES = (
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.3,
    0.5,
    0.7,
)  # of all heads: points of a curve, beside 0 and 1
KEPT = 0.8  # a circuit keeps a behaviour from this faithfulness on


@dataclass(frozen=True, slots=True)
class CircuitCurve:
    """Faithfulness against size, for one way to rank heads.

    Attributes:
        order: "exact", "estimate", "weights" or "random".
        sizes: Heads in the circuit, at each point.
        faithfulness: At each point; of random orders the mean.
        area: Under the curve, over the share of heads from 0 to 1; as MIB's CPR, more is better.
        distance: The area between the curve and 1; as MIB's CMD, less is better.
    """

    order: str
    sizes: tuple[int, ...]
    faithfulness: tuple[float, ...]
    area: float
    distance: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ScoredCircuit(Data):
    """What heads do for a task, and how few of them keep it.

    Attributes:
        model: The model's name.
        task: The task's name.
        texts: The clean prompts.
        n_right: In how many of them the right answer is ahead.
        can: Whether that is more than guessing would give (19 of 20 times); nothing is explained otherwise.
        clean: The mean difference of right and wrong answer, on clean prompts.
        corrupted: The same on corrupted prompts.
        without: The same on clean prompts with all heads as on the corrupted ones.
        layers: Names of the attention layers.
        effects: By how much the difference falls when a head is as on the corrupted prompt; all were run.
        curves: One for each way to rank heads.
        smallest: Heads of the smallest circuit of the exact curve that keeps the behaviour, (layer, head).
        seconds: How long it took.
    """

    model: str
    task: str
    texts: tuple[str, ...]
    n_right: int
    can: bool
    clean: float
    corrupted: float
    without: float
    layers: tuple[str, ...]
    effects: Float[Tensor, "layer head"]
    curves: tuple[CircuitCurve, ...]
    smallest: tuple[HeadPlace, ...]
    seconds: float

    @property
    def verdict(self) -> str:
        """Whether the model can do the task, in a sentence."""
        share = f"{self.n_right} of {len(self.texts)}"
        if not self.can:
            return (
                f"{self.model} cannot do {self.task}: the right answer is ahead in {share} prompts, which "
                "guessing would give too. There is nothing to explain."
            )
        ahead = f"the right answer is ahead in {share} prompts, by {self.clean:.2f} on average"
        return f"{self.model} does {self.task}: {ahead}."

    @property
    def smallest_words(self) -> tuple[str, ...]:
        """The heads of the smallest circuit as people say them."""
        words = list(layer_words(self.layers).values())
        return tuple(f"{words[layer]} head {head}" for layer, head in self.smallest)

    def __repr__(self) -> str:
        return f"ScoredCircuit({self.verdict} {len(self.smallest)} heads keep it)"

    def figure(self) -> Figure:
        """Draw faithfulness against the share of heads in the circuit."""
        from regard.drawing.figures import curves

        if not self.curves:
            raise ArgumentError(self.verdict)
        n_head = max(curve.sizes[-1] for curve in self.curves)
        drawn = {
            curve.order: ([100 * size / n_head for size in curve.sizes], list(curve.faithfulness))
            for curve in self.curves
        }
        axes = {"x_label": "heads in the circuit, %", "y_label": "faithfulness"}
        return curves(drawn, title=f"{self.model}: {self.task}, by few heads", **axes)


def circuit(
    model: Loaded | nn.Module,
    task: str | TaskPrompts,
    *,
    n_example: int = 16,
    seed: int = 0,
    progress: bool = False,
    tokenizer: Any = None,
) -> ScoredCircuit:
    """Find the heads that do a task, and score circuits of every size.

    Args:
        model: Ours, or anybody's that can be watched.
        task: A name of `TASKS`, or pairs of prompts.
        n_example: Pairs of prompts, where a name is given.
        seed: Of the prompts and of the random orders.
        progress: Print what is going to run, and draw a bar, on stderr.
        tokenizer: Where the model has none.

    Returns:
        Effects, curves and the smallest circuit; without them where the model cannot do the task at all.

    Raises:
        ArgumentError: There is no such task, or the tokenizer has no tokens for its words.
    """
    loaded = loaded_of(model, tokenizer)
    prompts = task_prompts(loaded, task, n_example, seed) if isinstance(task, str) else task
    n_example, last = prompts.clean.shape[0], prompts.clean.shape[1] - 1
    read = LogitReading(prompts.difference, torch.full((n_example,), last))
    engine = RowEngine(loaded, _input(loaded, prompts.clean), read)
    source = RowEngine(loaded, _input(loaded, prompts.corrupted), read)
    known = layers_of(loaded)
    places = [(layer, head) for layer, heads in enumerate(known.values()) for head in heads]
    n_right = int((engine.unchanged > 0).sum())
    clean, corrupted = float(engine.unchanged.mean()), float(source.unchanged.mean())
    table = torch.full((len(known), 1 + max(head for _, head in places)), torch.nan, dtype=torch.float64)
    nothing = ScoredCircuit(
        loaded.facts.name, prompts.task, prompts.texts, n_right, beyond_guessing(n_right, n_example), clean,
        corrupted, math.nan, tuple(known), table, (), (), engine.seconds,
    )  # fmt: skip
    if not nothing.can or clean <= corrupted:
        return replace(nothing, can=False)
    exchanged = [_outside(known, [place], source.outputs) for place in places]
    orders: dict[str, list[list[HeadPlace]]] = {}
    estimated = _estimated(loaded, prompts, known, source.outputs)
    if estimated is not None:
        orders["estimate"] = [_ranked(places, estimated)]
    by_weights = _by_weights(loaded, known)
    if by_weights is not None:
        orders["weights"] = [_ranked(places, by_weights)]
    draw = torch.Generator().manual_seed(seed)
    mixed = [torch.randperm(len(places), generator=draw).tolist() for _ in range(_N_RANDOM)]
    orders["random"] = [[places[index] for index in order] for order in mixed]
    sizes = sorted({0, len(places), *(max(1, round(share * len(places))) for share in _SHARES)})
    if progress:
        n_row = len(exchanged) + (1 + sum(map(len, orders.values()))) * len(sizes)
        say_rows(n_row, n_row, f"changes of {n_example} prompts", engine.seconds_of(exchanged) * 1.5)
    with progress_bar("exchanging heads", progress) as bar:
        ran = engine.run(exchanged, progress=bar)
        for place, score in zip(places, ran.scores.mean(1).tolist(), strict=True):
            table[place] = clean - score
        orders = {"exact": [_ranked(places, table)], **orders}
        rows = [
            _outside(known, order[size:], source.outputs)
            for some in orders.values()
            for order in some
            for size in sizes
        ]
        tested = engine.run(rows, progress=bar)
    scores = iter(tested.scores.mean(1).tolist())
    values = {
        name: torch.tensor([[next(scores) for _ in sizes] for _ in some], dtype=torch.float64).mean(0)
        for name, some in orders.items()
    }
    without = float(values["exact"][0])
    curves = tuple(_curve(name, sizes, row, without, clean) for name, row in values.items())
    keeping = [size for size, value in zip(sizes, curves[0].faithfulness, strict=True) if value >= KEPT]
    best = _smallest(engine, known, orders["exact"][0], source.outputs, sizes, keeping, without, clean)
    return replace(
        nothing,
        without=without,
        effects=table,
        curves=curves,
        smallest=tuple(orders["exact"][0][:best]),
        seconds=ran.seconds + tested.seconds,
    )


def beyond_guessing(n_right: int, n: int) -> bool:
    """Return whether so many right of `n` come by guessing, half right each, less than once in twenty times.

    Args:
        n_right: Right answers.
        n: Answers.

    Returns:
        Whether it is more than guessing.

    Example:
        >>> beyond_guessing(5, 8), beyond_guessing(7, 8)
        (False, True)
    """
    return bool(sum(math.comb(n, k) for k in range(n_right, n + 1)) / 2**n < 0.05)


def _input(loaded: Loaded, ids: Tensor) -> ModelInput:
    module = module_of(loaded)
    if isinstance(module, Model):
        return our_input(module, ids, None, None, None)
    named: Any = ids if getattr(module, "config", None) is None else {"input_ids": ids}
    return foreign_input(module, named, None, None)


def _outside(known: Layers, heads: Sequence[HeadPlace], source: dict[str, Tensor]) -> Change:
    """Heads outside a circuit give what they gave on the corrupted prompt."""
    names = list(known)
    by_layer: dict[str, list[int]] = {}
    for layer, head in heads:
        by_layer.setdefault(names[layer], []).append(known[names[layer]].index(head))
    return tuple(PatchOutputs(name, tuple(sorted(some)), source[name]) for name, some in by_layer.items())


def _ranked(places: Sequence[HeadPlace], table: Float[Tensor, "layer head"]) -> list[HeadPlace]:
    """Heads whose absence lowers the difference most come first."""
    return sorted(places, key=lambda place: -float(table[place]))


def _estimated(
    loaded: Loaded, prompts: TaskPrompts, known: Layers, source: dict[str, Tensor]
) -> Float[Tensor, "layer head"] | None:
    """By how much the difference falls with each head exchanged, to first order (attribution patching)."""
    given = _input(loaded, prompts.clean)
    try:
        with torch.enable_grad(), head_outputs(loaded) as outputs:
            out = module_of(loaded)(*given.args, **given.kwargs)
            logits = out if isinstance(out, Tensor) else out.logits
            score = prompts.difference(logits[:, -1]).mean()
            gradients = torch.autograd.grad(score, list(outputs.values()), materialize_grads=True)
    except (RegardError, RuntimeError):
        return None
    table = torch.full((len(known), 1 + max(max(heads, default=0) for heads in known.values())), torch.nan)
    for (name, out), gradient in zip(outputs.items(), gradients, strict=True):
        falls = -(gradient * (source[name] - out.detach())).sum((0, 2, 3))
        table[list(known).index(name), list(known[name])] = falls.to(table)
    return table.double()


def _by_weights(loaded: Loaded, known: Layers) -> Float[Tensor, "layer head"] | None:
    """The norm of what each head's value and output matrices do together; None where they are not known."""
    try:
        with torch.no_grad():
            written, read = projections(loaded), readings(loaded)
            table = torch.full((len(known), 1 + max(max(h, default=0) for h in known.values())), torch.nan)
            for row, (name, heads) in enumerate(known.items()):
                values = read[name].side("v").folded
                for index, head in enumerate(heads):
                    value = values[index * len(values) // len(heads)]
                    table[row, head] = float(torch.linalg.matrix_norm(written[name][:, index] @ value))
    except RegardError:
        return None
    return table.double()


def _curve(order: str, sizes: Sequence[int], values: Tensor, without: float, clean: float) -> CircuitCurve:
    """Faithfulness at each size, and both areas by the trapezoid rule over the share of heads."""
    faithful = (values - without) / (clean - without)
    shares = torch.tensor(sizes, dtype=torch.float64) / sizes[-1]
    area = float(torch.trapezoid(faithful, shares))
    distance = float(torch.trapezoid((1 - faithful).abs(), shares))
    return CircuitCurve(order, tuple(sizes), tuple(faithful.tolist()), area, distance)


def _smallest(
    engine: RowEngine,
    known: Layers,
    order: Sequence[HeadPlace],
    source: dict[str, Tensor],
    sizes: Sequence[int],
    keeping: Sequence[int],
    without: float,
    clean: float,
) -> int:
    """How many heads of an order keep the behaviour: every size below the first point that does is run."""
    first = keeping[0] if keeping else sizes[-1]
    below = max((size for size in sizes if size < first), default=0)
    between = list(range(below + 1, first))
    ran = engine.run([_outside(known, order[size:], source) for size in between]).scores if between else None
    for index, size in enumerate(between):
        assert ran is not None  # there is a row for each
        if (float(ran[index].mean()) - without) / (clean - without) >= KEPT:
            return size
    return first
