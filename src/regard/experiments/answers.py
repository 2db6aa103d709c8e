"""What moves an answer: one run's parts put into another, and the parts of one run switched off.

`patch_effects`, activation patching: a corrupted text with parts of the clean one, and what that does.

    effects = patch_effects(model, "When Mary and John went to the store, John gave a drink to",
                            "When Mary and John went to the store, Mary gave a drink to",
                            answer=" Mary", against=" John")

Exact by running the model once for each head and each position of each layer; or estimated from one backward
pass (attribution patching, Nanda 2023): the gradient of the answer with respect to a head's output, times the
difference of its outputs. With what="weights" only where heads look is exchanged: the clean weights on the
corrupted values. Their difference is taken as it is, not through the slope of a softmax that may be saturated
(AtP*, Kramár et al. 2024).

`why`, four ways to look at one prediction, from cheap to certain:

    written      what each head writes toward the token's score itself (direct logit attribution)
    estimated    the change without a head, an edge or a position, from one backward pass
    ran          the change when it really is switched off, for the strongest
    chance       the same for some drawn at random: what is no larger than that means nothing

The estimate for an edge is exact in the layer itself: without edge (i, j) the rest of the row shares its
weight, so its output moves by w / (1 - w) (o_i - v_j), and the gradient says what that does to the answer.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.data import Data
from regard.attention.shapes import whole_index
from regard.decoding.prompts import encoded
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.files.loading import Loaded
from regard.heads.flow import logit_attribution
from regard.heads.model import Layers, head_outputs, head_table, layers_of, loaded_of, strongest
from regard.tracing.gradients import ScoreGradients, score_gradients
from regard.tracing.interventions import InterventionRun, intervene
from regard.tracing.layers import AnyLayer
from regard.tracing.take import labels, trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

What = Literal["outputs", "weights"]
Kind = Literal["head", "edge", "position"]
Token = int | str
Change = Callable[[InterventionRun], None]
_CHANCE = 12  # of each kind, drawn at random and switched off


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
        if loaded.model.lm_head == "none" or loaded.model.kind == "encoder-decoder":
            raise UnsupportedError(
                f"{loaded.facts.name} is {loaded.model.kind} with lm_head {loaded.model.lm_head!r}: "
                "this needs one that predicts a token from one text."
            )
        ids = encoded(text, loaded.tokenizer, loaded.device).ids
        if ids.shape[0] != 1:
            raise ArgumentError(f"one text is asked about. Got {ids.shape[0]}.")
        if position is None:
            position = _mask(loaded, ids) if loaded.model.lm_head == "masked" else ids.shape[1] - 1
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

    @torch.no_grad()
    def run(self, change: Change) -> float:
        """The score under a change."""
        with intervene(self.loaded) as run:
            change(run)
            return float(self.ran())

    def run_each(self, changes: Iterable[Change]) -> Float[Tensor, "change"]:
        """The score under each of several changes."""
        return torch.tensor([self.run(change) for change in changes], dtype=torch.float64)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One part of the model or the text, and by how much the answer's score changes without it."""

    kind: Kind
    what: str = ""  # in words
    layer: str | None = None
    head: int | None = None
    query: int | None = None
    key: int | None = None
    weight: float | None = None  # of an edge
    written: float | None = None  # of a head
    estimated: float = 0.0
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
    estimates, parts, columns = _scanned(gradients, known, top)
    tokens = gradients.trace.tokens[0] if gradients.trace.tokens else ()
    names = tuple(known)
    orders = [strongest(table.abs()) for table in (estimates, written) if table is not None]
    for row, head in list(dict.fromkeys(chain.from_iterable(zip(*orders, strict=True))))[:top]:
        direct, change = None if written is None else float(written[row, head]), float(estimates[row, head])
        parts.append(Finding(kind="head", layer=names[row], head=head, written=direct, estimated=change))
    for key in columns.abs().argsort(descending=True)[: top if n > 1 else 0].tolist():
        parts.append(Finding(kind="position", key=key, estimated=float(columns[key])))
    drawn = _drawn(known, n, torch.Generator().manual_seed(seed))
    effects = asked.run_each(_off(part, known, n) for part in (*parts, *drawn)) - score
    chance = dict.fromkeys(get_args(Kind), 0.0)
    for kind in {part.kind for part in drawn}:
        some = effects[len(parts) :][torch.tensor([part.kind == kind for part in drawn])]
        chance[kind] = float(some.abs().quantile(0.95))
    ran = [
        replace(part, what=_words(part, tokens), ran=effect, beyond_chance=abs(effect) > chance[part.kind])
        for part, effect in zip(parts, effects[: len(parts)].tolist(), strict=True)
    ]
    ran.sort(key=lambda part: -abs(part.ran))
    pairs = torch.tensor([(part.estimated, part.ran) for part in ran])
    ranks = pairs.T.argsort().argsort().double()  # their correlation is Spearman's
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
        float(torch.corrcoef(ranks)[0, 1]) if len(ran) > 2 else float("nan"),
        note,
    )


def _words(part: Finding, tokens: Sequence[str]) -> str:
    query, key = (
        f"{tokens[at]!r} ({at})" if tokens and at is not None else f"position {at}"
        for at in (part.query, part.key)
    )
    head = f"head {part.head} of {part.layer}"
    if part.kind == "head":
        return head
    return f"{query} to {key} in {head}" if part.kind == "edge" else f"{key}, seen by none"


def _off(part: Finding, known: Layers, n: int) -> Change:
    """What switches a part off; a position that no other sees still sees itself."""

    def change(run: InterventionRun) -> None:
        if part.layer is None:
            for layer in known:
                run.knock_out(layer=layer, query=[at for at in range(n) if at != part.key], key=part.key)
            return
        head = known[part.layer].index(part.head)
        if part.kind == "head":
            run.gate(layer=part.layer, head=head, by=0.0)
        else:
            run.knock_out(layer=part.layer, head=head, query=part.query, key=part.key)

    return change


def _scanned(
    gradients: ScoreGradients, known: Layers, top: int
) -> tuple[Float[Tensor, "layer head"], list[Finding], Float[Tensor, "key"]]:
    """The estimated change without each head, the strongest edges, and without each position.

    Some rows at a time: nothing of query x key is kept.
    """
    heads = head_table(known)
    columns = torch.zeros(gradients.layers[0].layer.n_key, dtype=torch.float64)
    best: list[Finding] = []
    for index, (name, numbers) in enumerate(known.items()):
        gradient = gradients.layer(name)
        layer = gradient.layer
        sums = gradient.row_sum[0].double()
        heads[index, list(numbers)] = -sums.sum(-1).cpu()
        for at, head in enumerate(numbers):
            for rows, _ in layer.row_blocks(1):
                weights = layer.tile(at, rows, slice(None)).double()
                slope = gradient.tile(at, rows, slice(None)).double()
                # A row that sees one key only has no other to share with: without it the row gives 0.
                alone, without = weights >= 1 - 1e-12, -slope / (1 - weights).clamp_min(1e-12)
                effect = torch.where(alone, -sums[at, rows, None], without)
                effect = torch.where(weights > 0, effect, 0.0)
                for place in effect.abs().flatten().topk(min(top, effect.numel())).indices.tolist():
                    row, key = divmod(place, layer.n_key)
                    at_edge = {"layer": name, "head": head, "query": rows.start + row, "key": key}
                    value, weight = float(effect[row, key]), float(weights[row, key])
                    best.append(Finding(kind="edge", **at_edge, weight=weight, estimated=value))
                best = heapq.nlargest(top, best, key=lambda edge: abs(edge.estimated))
                if layer.kind == "self":  # a position that nobody else sees still sees itself
                    places = torch.arange(rows.stop - rows.start)
                    effect[places, places + rows.start + layer.n_key - layer.n_query] = 0.0
                columns += effect.sum(0).cpu()
    return heads, best, columns


def _drawn(known: Layers, n: int, generator: torch.Generator) -> list[Finding]:
    """Parts of each kind that are drawn at random."""

    def draw(most: int) -> int:
        return int(torch.randint(most, (1,), generator=generator))

    names = [name for name, heads in known.items() if heads]
    parts = []
    for _ in range(_CHANCE):
        name = names[draw(len(names))]
        parts.append(Finding(kind="head", layer=name, head=known[name][draw(len(known[name]))]))
        query = 1 + draw(max(1, n - 1)) if n > 1 else 0
        key = draw(query + 1)
        head = known[name][draw(len(known[name]))]
        parts.append(Finding(kind="edge", layer=name, head=head, query=query, key=key))
    return parts + [Finding(kind="position", key=draw(n)) for _ in range(min(_CHANCE, n) if n > 1 else 0)]
