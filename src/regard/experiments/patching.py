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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.data import Data
from regard.attention.shapes import whole_index
from regard.decoding.prompts import encoded
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.files.loading import Loaded
from regard.heads.model import head_outputs, head_table, layers_of, loaded_of, strongest
from regard.tracing.interventions import Run, intervene
from regard.tracing.layers import AnyLayer
from regard.tracing.take import labels, trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

What = Literal["outputs", "weights"]
Token = int | str
Change = Callable[[Run], None]


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A model, the ids it reads, and what is asked of it: the score of a token at a position."""

    loaded: Loaded
    ids: Int[Tensor, "1 position"]
    token: int
    against: int | None  # the token whose score is taken away; None: the log-probability is asked for
    position: int

    @classmethod
    def about(
        cls,
        model: Loaded | nn.Module,
        text: Any,
        token: Token | None,
        against: Token | None,
        position: int | None,
        tokenizer: Any = None,
    ) -> Asked:
        """A text or ids, and a token or its text; by default the likeliest after the last, or at the mask."""
        loaded = loaded_of(model, tokenizer)
        if loaded.model.head == "none" or loaded.model.kind == "encoder-decoder":
            raise UnsupportedError(
                f"{loaded.facts.name} is {loaded.model.kind} with head {loaded.model.head!r}: this needs one "
                "that foretells a token after one text."
            )
        ids = encoded(text, loaded.tokenizer, loaded.device).ids
        if ids.shape[0] != 1:
            raise ArgumentError(f"one text is asked about. Got {ids.shape[0]}.")
        if position is None:
            position = _mask(loaded, ids) if loaded.model.head == "masked" else ids.shape[1] - 1
        position = whole_index("position", position, ids.shape[1])
        chosen = _token(loaded, token, "target")
        if chosen is None:
            with torch.no_grad():
                chosen = int(loaded.model(ids).logits[0, position].argmax())
        return cls(loaded, ids, chosen, _token(loaded, against, "against"), position)

    def ran(self) -> Float[Tensor, ""]:
        """The number that is asked for, of the model as it is now."""
        return self.score(self.loaded.model(self.ids).logits)

    def score(self, logits: Float[Tensor, "1 position vocab"]) -> Float[Tensor, ""]:
        """The number that is asked for."""
        row = logits[0, self.position].float()
        if self.against is None:
            return row.log_softmax(-1)[self.token]
        return row[self.token] - row[self.against]

    def run(self, change: Change) -> float:
        """The score under a change."""
        return float(self.run_each([change])[0])

    @torch.no_grad()
    def run_each(self, changes: Iterable[Change]) -> Float[Tensor, "change"]:
        """The score under each of several changes."""
        values = []
        for change in changes:
            with intervene(self.loaded) as run:
                change(run)
                values.append(self.ran())
        return torch.stack(values).double()

    def name(self, token: int) -> str:
        """A token as a person reads it."""
        tokenizer = self.loaded.tokenizer
        return str(token) if tokenizer is None else tokenizer.tokens([token])[0]


def _token(loaded: Loaded, token: Token | None, what: str) -> int | None:
    """A token's id, given as it is or as its text, which must be one token."""
    vocab = loaded.model.sizes.vocab
    if isinstance(token, int) and vocab and not 0 <= token < vocab:
        raise ArgumentError(f"{what} must lie between 0 and {vocab - 1}. Got {token}.")
    if token is None or isinstance(token, int):
        return token
    if loaded.tokenizer is None:
        raise ArgumentError(f"{loaded.facts.name} has no tokenizer: give {what} as an id.")
    # As it stands within a text, after a space, where there is such a token.
    spelled = [loaded.tokenizer.encode(text, add_special=False) for text in (f" {token}", token)]
    whole = [ids[0] for ids in spelled if len(ids) == 1]
    if not whole:
        pieces = loaded.tokenizer.tokens(spelled[1])
        raise ArgumentError(
            f"{what} must be one token, and {token!r} is {len(pieces)}: {' | '.join(pieces)}."
        )
    return whole[0]


def _mask(loaded: Loaded, ids: Tensor) -> int:
    mask = None if loaded.tokenizer is None else loaded.tokenizer.special.mask
    places = [] if mask is None else (ids[0] == mask).nonzero()[:, 0].tolist()
    if len(places) != 1:
        raise ArgumentError(f"the text must hide one word, with the model's mask token. Got {len(places)}.")
    return int(places[0])


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
        places = strongest(self.heads.abs(), n)
        return [(self.layers[row], head, float(self.heads[row, head])) for row, head in places]

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
    other = Asked.about(model, clean, asked.token, asked.against, position, tokenizer)
    if other.ids.shape != asked.ids.shape:
        raise ShapeError(
            f"the texts must have equally many tokens, so that positions correspond. Got "
            f"{other.ids.shape[1]} (clean) and {asked.ids.shape[1]} (corrupted)."
        )
    loaded, known = asked.loaded, layers_of(asked.loaded)
    chosen = range(len(known)) if layers is None else [whole_index("layer", at, len(known)) for at in layers]
    source = trace(loaded, other.ids, keep_v=True) if what == "weights" else None
    with torch.no_grad():
        with head_outputs(loaded) as outputs:
            good = float(other.ran())
        bad = float(asked.ran())
    heads, names, n_token = head_table(known), tuple(known), asked.ids.shape[1]
    places = torch.full((len(known), n_token), torch.nan, dtype=torch.float64)
    verified: list[Estimate] = []

    def exchange(name: str, head: int | None = None, query: int | None = None) -> Change:
        new = outputs[name] if source is None else source
        return lambda run: run.patch(layer=name, head=head, query=query, source=new, what=what)

    changes = _estimated(asked, outputs, source) if estimate else {}
    for index in chosen:
        name, numbers = names[index], list(known[names[index]])
        if estimate:
            heads[index, numbers], places[index] = changes[name].sum(-1), changes[name].sum(0)
            continue
        heads[index, numbers] = asked.run_each(exchange(name, head=at) for at in range(len(numbers))) - bad
        if positions:
            places[index] = asked.run_each(exchange(name, query=at) for at in range(n_token)) - bad
    for row, head in strongest(heads.abs(), verify) if estimate else ():
        ran = asked.run(exchange(names[row], head=known[names[row]].index(head))) - bad
        verified.append(Estimate(names[row], head, float(heads[row, head]), ran))
    spelled = labels(asked.ids, loaded.tokenizer)[0]
    return PatchEffects(names, spelled, heads, places, good, bad, estimate, tuple(verified))


def _estimated(asked: Asked, clean: dict[str, Tensor], source: Any) -> dict[str, Float[Tensor, "head query"]]:
    """The change of the answer by each head and query, to first order in its output."""
    with torch.enable_grad(), head_outputs(asked.loaded) as outputs:
        gradients = torch.autograd.grad(asked.ran(), list(outputs.values()), materialize_grads=True)
    new = clean
    if source is not None:
        traced = trace(asked.loaded, asked.ids, keep_v=True)
        new = {name: _looking_as(source.layer(name), traced.layer(name)) for name in outputs}
    changes = {}
    for (name, out), gradient in zip(outputs.items(), gradients, strict=True):
        changes[name] = (gradient * (new[name].to(out.dtype) - out.detach()))[0].sum(-1).double().cpu()
    return changes


def _looking_as(source: AnyLayer, layer: AnyLayer) -> Float[Tensor, "1 head query v_dim"]:
    """What heads give with the weights of another run, some rows at a time."""
    if layer.v is None:
        raise ArgumentError(f"the values of {layer.name} are not known: patch outputs instead.")
    v = layer.v[0].repeat_interleave(layer.n_head // layer.v.shape[1], 0)
    rows = [weights.to(v.dtype) @ v[:, cols] for _, cols, weights in source.strips(0)]
    return torch.cat(rows, 1)[None]
