"""Activation patching: a corrupted text with parts of the clean one, and what that does to the answer.

    effects = patch_effects(model, "When Mary and John went to the store, John gave a drink to",
                            "When Mary and John went to the store, Mary gave a drink to",
                            answer=" Mary", against=" John")

Exact by running the model once for each head and each position of each layer; or estimated from one backward
pass (attribution patching, Nanda 2023): the gradient of the answer with respect to a head's output, times the
difference of its outputs. With what="weights" only where heads look is exchanged: the clean weights on the
corrupted values. Their difference is taken as it is, not through the slope of a softmax that may be saturated
(AtP*, Kramár et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.data import Data
from regard.errors import ArgumentError, ShapeError
from regard.experiments.objectives import Asked, Token, noting
from regard.files.loading import Loaded
from regard.heads.effects import gate_shape
from regard.heads.model import layers_of
from regard.tracing.interventions import Run
from regard.tracing.take import labels, trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

What = Literal["outputs", "weights"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """One head whose estimate was verified by running."""

    layer: str
    head: int
    estimated: float
    ran: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PatchEffects(Data):
    """By how much the answer rises when a part of the corrupted run is exchanged for the clean one's."""

    layers: tuple[str, ...]
    tokens: tuple[str, ...]  # of the corrupted text
    heads: Float[Tensor, "layer head"]
    positions: Float[Tensor, "layer position"]  # all heads of a layer, at one position
    clean: float  # the answer's number in either run
    corrupted: float
    estimated: bool
    verified: tuple[Estimate, ...] = ()

    @property
    def shares(self) -> Float[Tensor, "layer head"]:
        """The effects as shares of all that lies between the runs: 1 restores the clean answer."""
        return self.heads / (self.clean - self.corrupted)

    @property
    def agreement(self) -> float | None:
        """The correlation of estimates and runs among those verified; None for fewer than three."""
        if len(self.verified) < 3:
            return None
        pairs = torch.tensor([[one.estimated, one.ran] for one in self.verified], dtype=torch.float64)
        return float(torch.corrcoef(pairs.T)[0, 1])

    def strongest(self, n: int = 10) -> list[tuple[str, int, float]]:
        """The heads of largest effect, either way: (layer, head, effect)."""
        order = self.heads.abs().nan_to_num(-1).flatten().argsort(descending=True)[:n].tolist()
        width = self.heads.shape[1]
        rows = [(at // width, at % width) for at in order]
        return [(self.layers[r], h, float(self.heads[r, h])) for r, h in rows if not self.heads[r, h].isnan()]

    def __repr__(self) -> str:
        strong = ", ".join(f"{layer} {head}: {effect:+.3g}" for layer, head, effect in self.strongest(3))
        how = "estimated" if self.estimated else "run"
        agreed = "" if self.agreement is None else f", agreement with runs {self.agreement:.2f}"
        return f"PatchEffects({how}: {self.corrupted:.3g} to {self.clean:.3g}; {strong}{agreed})"

    def figure(self) -> Figure:
        """Both tables as heat maps: orange raises the answer, purple lowers it."""
        from regard.drawing.figures import effect_maps

        return effect_maps(
            {"each head": (self.heads, None), "each position": (self.positions, self.tokens)},
            rows=self.layers,
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
    estimate: bool = False,
    verify: int = 8,
    layers: Sequence[int] | None = None,
    positions: bool = True,
    tokenizer: Any = None,
) -> PatchEffects:
    """What each head and each position of each layer does to the answer when it is as in the clean text.

    The answer's number is the score of `answer` minus that of `against`, or its log-probability. The texts
    must have as many tokens as each other; `positions=False` runs heads alone. With `estimate` one backward
    pass stands for all runs, and the `verify` strongest heads are run, to say how well it agrees.
    """
    asked = Asked.about(model, corrupted, answer, against, position, tokenizer)
    other = Asked.about(model, clean, asked.objective.token, asked.objective.against, position, tokenizer)
    if other.ids.shape != asked.ids.shape:
        raise ShapeError(
            f"the texts must have equally many tokens, so that positions correspond. Got "
            f"{other.ids.shape[1]} (clean) and {asked.ids.shape[1]} (corrupted)."
        )
    loaded, known = asked.loaded, layers_of(asked.loaded)
    chosen = range(len(known)) if layers is None else layers
    if any(not 0 <= layer < len(known) for layer in chosen):
        raise ArgumentError(f"layers must lie between 0 and {len(known) - 1}. Got {list(chosen)}.")
    source = trace(loaded, other.ids, keep_v=True) if what == "weights" else None
    with torch.no_grad(), noting(loaded) as notes:
        good = float(other.objective.of(loaded.model(other.ids).logits)[0])
    outputs = {name: note.out for name, note in notes.items() if note.out is not None}
    heads = torch.full(gate_shape(known), torch.nan, dtype=torch.float64)
    places = torch.full((len(known), asked.ids.shape[1]), torch.nan, dtype=torch.float64)

    def exchange(name: str, **where: Any) -> Callable[[Run], None]:
        given = outputs[name] if source is None else source
        return lambda run: run.patch(layer=name, source=given, what=what, **where)

    bad = asked.run()
    verified: list[Estimate] = []
    if estimate:
        changes = _estimated(asked, outputs, source)
        for index, (name, numbers) in enumerate(known.items()):
            if index in chosen:
                heads[index, list(numbers)] = changes[name].sum(-1)
                places[index] = changes[name].sum(0)
        order = heads.abs().nan_to_num(-1).flatten().argsort(descending=True)[:verify].tolist()
        names = list(known)
        for at in order:
            row, head = divmod(at, heads.shape[1])
            if not heads[row, head].isnan():
                at_head = known[names[row]].index(head)
                ran = asked.run(exchange(names[row], head=at_head)) - bad
                verified.append(Estimate(names[row], head, float(heads[row, head]), ran))
    else:
        for index, (name, numbers) in enumerate(known.items()):
            if index in chosen:
                runs = [exchange(name, head=at) for at in range(len(numbers))]
                heads[index, list(numbers)] = asked.run_each(runs) - bad
                if positions:
                    steps = [exchange(name, query=at) for at in range(asked.ids.shape[1])]
                    places[index] = asked.run_each(steps) - bad
    spelled = labels(asked.ids, loaded.tokenizer)[0]
    return PatchEffects(tuple(known), spelled, heads, places, good, bad, estimate, tuple(verified))


def _estimated(asked: Asked, clean: dict[str, Tensor], source: Any) -> dict[str, Float[Tensor, "head query"]]:
    """The change of the answer by each head and query, to first order in its output."""
    with torch.enable_grad(), noting(asked.loaded) as notes:
        value = asked.objective.of(asked.loaded.model(asked.ids).logits).sum()
        outputs = {name: note.out for name, note in notes.items() if note.out is not None}
        gradients = torch.autograd.grad(value, list(outputs.values()), materialize_grads=True)
    own = trace(asked.loaded, asked.ids, keep_v=True) if source is not None else None
    changes = {}
    for (name, out), gradient in zip(outputs.items(), gradients, strict=True):
        new = (
            clean[name] if source is None or own is None else _looking_as(source.layer(name), own.layer(name))
        )
        difference = new.to(out.dtype) - out.detach()
        changes[name] = (gradient * difference)[0].sum(-1).double().cpu()
    return changes


def _looking_as(source: Any, own: Any) -> Float[Tensor, "1 head query v_dim"]:
    """What heads give with the weights of another run, some rows at a time."""
    if getattr(own, "v", None) is None:
        raise ArgumentError(f"the values of {own.name} are not known: patch outputs instead.")
    v = own.v[0].repeat_interleave(own.n_head // own.v.shape[1], 0)
    rows = [weights.to(v.dtype) @ v[:, cols] for _, cols, weights in source.strips(0)]
    return torch.cat(rows, 1)[None]
