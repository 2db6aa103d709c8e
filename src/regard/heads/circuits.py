"""What a head's weights do, whatever the text: circuits through the residual stream (Elhage et al. 2021).

    circuit = ov_circuit(load("smollm2"), layer=3, head=5)
    circuit.strongest(token)                 # what looking at this token makes likelier
    circuit.sign, circuit.copying()          # does it copy?
    composition(model).k                     # which earlier heads a later one listens to, on its key's side
    logit_lens(model, ids)                   # what each layer would say next
    score_split(model, ids, 3, 5, 9, 2)      # which earlier heads made one score

Of any decoder whose queries, keys, values, outputs and scores come from matrices that can be found
(`heads/stream.py`). Norms come before what reads the stream. Of matrices alone their weights count and, in a
LayerNorm, the mean that it takes away; the length they divide by depends on the text, and so do biases: they
are left out. `logit_lens` and `score_split` are of a text, and leave nothing out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.shapes import whole_index
from regard.errors import ArgumentError, UnsupportedError
from regard.files.loading import Loaded
from regard.heads.model import head_outputs, loaded_of, probe
from regard.heads.stream import (
    Ending,
    Norm,
    Reading,
    blocks_of,
    check_residual,
    out_projections,
    projections,
    readings,
    seeing,
    turned,
)
from regard.models.transformer import Transformer
from regard.tracing import take
from regard.tracing.take import module_of

_BLOCK = 1 << 22  # numbers of a circuit's table worked on at once


@dataclass(frozen=True, slots=True, eq=False)
class Circuit:
    """A table over pairs of tokens, of low rank: entry (a, b) is left[a] . right[b]."""

    left: Float[Tensor, "vocab dim"]
    right: Float[Tensor, "vocab dim"]

    def table(self, rows: slice = slice(None), cols: slice = slice(None)) -> Float[Tensor, "rows cols"]:
        """A part of it; the whole has vocab x vocab numbers."""
        return self.left[rows] @ self.right[cols].T

    def strongest(self, token: int, n: int = 10) -> list[tuple[int, float]]:
        """The tokens that have most of a row, as (token, value): what `token` brings forth."""
        return _strongest(self.right @ self.left[self._checked(token)], n)

    def strongest_for(self, token: int, n: int = 10) -> list[tuple[int, float]]:
        """The tokens that have most of a column: what brings `token` forth."""
        return _strongest(self.left @ self.right[self._checked(token)], n)

    @property
    def eigenvalues(self) -> Tensor:
        """Those that are not 0, complex: of the small product the other way round, which has the same."""
        values: Tensor = torch.linalg.eigvals(self.right.T.double() @ self.left.double())
        return values

    @property
    def sign(self) -> float:
        """Sum of the eigenvalues over the sum of their sizes: 1 copies, -1 holds back what it sees."""
        values = self.eigenvalues
        return float(values.real.sum() / values.abs().sum())

    def copying(self, n: int = 5) -> float:
        """The share of tokens that are among the `n` strongest of their own row; by chance n / vocab."""
        vocab, n_right = self.left.shape[0], 0
        step = max(1, _BLOCK // vocab)
        for first in range(0, vocab, step):
            block = self.table(slice(first, first + step))
            of_itself = block.diagonal(first)[:, None]
            n_right += int(((block > of_itself).sum(-1) < n).sum())
        return n_right / vocab

    def _checked(self, token: int) -> int:
        return whole_index("token", token, self.left.shape[0])


def _strongest(values: Tensor, n: int) -> list[tuple[int, float]]:
    best, index = values.topk(min(n, len(values)))
    return list(zip(index.tolist(), best.tolist(), strict=True))


@torch.no_grad()
def ov_circuit(model: Loaded | nn.Module, layer: int, head: int) -> Circuit:
    """What looking at a token adds to the scores of all tokens, through this head alone: rows are looked at.

    Row a is W_U W_O W_V e_a, of the token's vector e_a before any layer.
    """
    loaded, reading, head = _chosen(loaded_of(model), layer, head)
    ending = Ending.of(loaded, probe(loaded))
    writes = projections(loaded)[reading.name][:, head]
    reads = _vectors(loaded) @ _matrix(reading, "v", head).T
    return Circuit(reads, ending.norm.folded(ending.unembed) @ writes)


@torch.no_grad()
def qk_circuit(model: Loaded | nn.Module, layer: int, head: int, *, distance: int = 0) -> Circuit:
    """The score of every query token with every key token: rows are queries.

    With rotary positions, of a key `distance` positions before the query.
    """
    if distance < 0:
        raise ArgumentError(f"distance counts the positions back to the key: at least 0. Got {distance}.")
    loaded, reading, head = _chosen(loaded_of(model), layer, head)
    vectors = _vectors(loaded)
    queries, keys = (
        vectors @ (turned(loaded, reading, side, head, at).to(vectors.dtype) @ _matrix(reading, side, head)).T
        for side, at in (("q", distance), ("k", 0))
    )
    return Circuit(queries * reading.scale, keys)


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """How much later heads read what earlier ones write; NaN where there is no earlier one."""

    layers: tuple[str, ...]
    q: Float[Tensor, "later later_head earlier earlier_head"]  # on the query's side
    k: Float[Tensor, "later later_head earlier earlier_head"]  # on the key's side
    v: Float[Tensor, "later later_head earlier earlier_head"]  # in what they carry on


@torch.no_grad()
def composition(model: Loaded | nn.Module) -> Composition:
    """|B A| / (|B| |A|) for all pairs of heads, by Frobenius' norm (Elhage et al. 2021, "composition").

    A is what an earlier head writes, W_O W_V, and B what a later one does with it: W_QK turned (q),
    W_QK (k) or W_O W_V (v). Two random matrices have about 1 / sqrt(model_dim).
    """
    loaded = loaded_of(model)
    layers, outs = _readings(loaded), projections(loaded)
    check_residual(loaded, probe(loaded))
    counts = {reading.n_head for reading in layers.values()}
    if len(counts) != 1:
        raise UnsupportedError(f"layers of {loaded.facts.name} have {sorted(counts)} heads: not one number.")
    n_layer, n_head = len(layers), counts.pop()

    def all_heads(side: str) -> Float[Tensor, "layer head dim model_dim"]:
        heads = [_matrix(reading, side, at).double() for reading in layers.values() for at in range(n_head)]
        return torch.stack(heads).view(n_layer, n_head, *heads[0].shape)

    q, k, v = map(all_heads, "qkv")
    wrote = torch.stack([outs[name].movedim(1, 0).double() for name in layers])
    # The norm of a product needs no more of its first and last matrix than their triangles.
    carried = _triangle(v).mT
    sizes = _size(_triangle(wrote.mT) @ carried)
    tables = torch.full((3, n_layer, n_head, n_layer, n_head), torch.nan, dtype=torch.float64)
    for kind, (reads, then) in enumerate(((q, k), (k, q), (v, wrote.mT))):
        ends = _triangle(then)
        whole = _size(ends @ _triangle(reads).mT)
        for later, head in product(range(n_layer), range(n_head)):
            products = ends[later, head] @ (reads[later, head] @ wrote[:later]) @ carried[:later]
            tables[kind, later, head, :later] = (_size(products) / (whole[later, head] * sizes[:later])).cpu()
    return Composition(tuple(layers), *tables)


def _size(matrix: Tensor) -> Tensor:
    """Frobenius' norm."""
    size: Tensor = torch.linalg.matrix_norm(matrix)
    return size


def _triangle(matrix: Tensor) -> Tensor:
    """R of the transpose's QR: |R x| is |matrix.T x| for every x, and R is small."""
    triangle: Tensor = torch.linalg.qr(matrix.mT, mode="r").R
    return triangle


def _readings(loaded: Loaded) -> dict[str, Reading]:
    """How the layers read the stream, if the model has circuits; one of another kind is refused."""
    if loaded.model.kind != "decoder" or loaded.model.head != "language":
        raise UnsupportedError(
            "circuits are of decoders with a language head. This is "
            f"{loaded.model.kind}, head {loaded.model.head!r}."
        )
    if isinstance(loaded.model, Transformer) and loaded.model.config.kept_heads is not None:
        raise UnsupportedError("circuits are of models with all their heads. This one is pruned.")
    return readings(loaded)


def _chosen(loaded: Loaded, layer: int, head: int) -> tuple[Loaded, Reading, int]:
    """The model, its layer of that number, and the head, counted from the front."""
    layers = list(_readings(loaded).values())
    reading = layers[whole_index("layer", layer, len(layers))]
    return loaded, reading, whole_index("head", head, reading.n_head)


def _matrix(reading: Reading, side: str, head: int) -> Float[Tensor, "dim model_dim"]:
    """What a head reads of the stream for its queries, keys or values, the norm before it folded in."""
    projection, at = reading.side(side, head)
    weight = projection.weight(at)
    return Norm.of(projection.norm, weight).folded(weight)


def _vectors(loaded: Loaded) -> Float[Tensor, "vocab model_dim"]:
    """The vector of every token, as the first layer's stream has it but for a factor."""
    if isinstance(loaded.model, Transformer):
        return loaded.model.token.weight
    find: Any = getattr(module_of(loaded), "get_input_embeddings", None)
    weight = getattr(find() if callable(find) else None, "weight", None)
    if not isinstance(weight, Tensor) or weight.shape[-1] != loaded.model.sizes.model_dim:
        raise UnsupportedError(f"{loaded.facts.name} names no table of its tokens' vectors.")
    return weight


@torch.no_grad()
def logit_lens(
    model: Loaded | nn.Module,
    text_or_tokens: str | Sequence[int] | Sequence[Sequence[int]] | Tensor,
    *,
    position: int | None = -1,
    tokenizer: Any = None,
) -> Float[Tensor, "layer batch *position vocab"]:
    """What the model would say after each layer, if it were the last: embeddings first, the output last.

    Every layer's vectors go through the model's last norm and its head (nostalgebraist 2020). `position` is
    the one whose next token is scored; None: all, which is an axis then.
    """
    loaded = loaded_of(model, tokenizer)
    own = loaded.model
    if own.kind == "encoder-decoder" or own.head == "none":
        raise UnsupportedError("a logit lens needs one stack, a decoder or an encoder, with a head on it.")
    traced = take.trace(loaded, text_or_tokens, layers=[0])
    assert traced.ids is not None  # tokens were read
    with seeing(blocks_of(loaded).values()) as seen:
        out = own(traced.ids, visible=traced.real)
    streams = [next(iter(seen.values()))[0], *(gave for _, gave in seen.values())]
    if isinstance(own, Transformer):
        stack = own.encoder if own.decoder is None else own.decoder
        norm = nn.Identity() if stack is None or stack.norm is None else stack.norm
        scores = [own.logits(norm(stream)) for stream in streams[:-1]]
    else:
        ending = Ending.of(loaded, traced.ids[:1])
        last = ending.norm.module or nn.Identity()
        scores = [last(x.double()).to(x.dtype) @ ending.unembed.T + ending.bias for x in streams[:-1]]
    lens = torch.stack([*scores, out.logits])  # type: ignore[list-item]  # there is a head
    return lens if position is None else lens[:, :, whole_index("position", position, lens.shape[2])]


@dataclass(frozen=True, slots=True, eq=False)
class ScoreSplit:
    """One score, by what wrote the query and what wrote the key."""

    names: tuple[str, ...]  # embedding, then head L.H and feed-forward L of each layer before, then bias
    parts: Float[Tensor, "query_part key_part"]
    score: float  # the sum of all parts

    @property
    def query_side(self) -> dict[str, float]:
        """What each part of the query adds to the score."""
        return dict(zip(self.names, self.parts.sum(1).tolist(), strict=True))

    @property
    def key_side(self) -> dict[str, float]:
        """What each part of the key adds to the score."""
        return dict(zip(self.names, self.parts.sum(0).tolist(), strict=True))


@torch.no_grad()
def score_split(
    model: Loaded | nn.Module,
    text_or_tokens: str | Sequence[int] | Tensor,
    layer: int,
    head: int,
    query: int,
    key: int,
    *,
    tokenizer: Any = None,
) -> ScoreSplit:
    """The score of one query and key, as a table of what wrote the query's vector and what the key's.

    The stream is a sum of what the embedding, every earlier head and feed-forward layer wrote; at the length
    that the norm divided by, query and key are such sums too, and the score a sum over pairs.
    """
    loaded, reading, head = _chosen(loaded_of(model, tokenizer), layer, head)
    if not reading.plain:
        raise UnsupportedError(f"scores of {reading.name} are no mere products: a bias or a cap is in them.")
    traced = take.trace(loaded, text_or_tokens, layers=[reading.name])
    if traced.ids is None or traced.n_batch != 1:
        raise ArgumentError("a score is of one sequence: give one text, or the ids of one.")
    n_token = traced.ids.shape[1]
    query, key = (whole_index(name, at, n_token) for name, at in (("query", query), ("key", key)))
    if key > query:
        raise ArgumentError(f"key {key} comes after query {query}: a decoder hides it.")
    check_residual(loaded, probe(loaded))
    parts, names = _written_before(loaded, traced.ids, reading, [query, key])
    sides = []
    for place, (side, at) in enumerate((("q", query), ("k", key))):
        projection, index = reading.side(side, head)
        norm = Norm.of(projection.norm, parts)
        normed = norm.held(parts[:, place].sum(0), parts[:, place])
        normed[-1] += norm.bias
        made = normed @ projection.weight(index).double().T
        made[-1] += projection.bias(index).double()
        sides.append(made @ turned(loaded, reading, side, head, at).T)
    table = reading.scale * (sides[0] @ sides[1].T)
    return ScoreSplit(tuple(names), table, float(table.sum()))


def _written_before(
    loaded: Loaded, ids: Tensor, reading: Reading, places: list[int]
) -> tuple[Float[Tensor, "part place model_dim"], list[str]]:
    """What was written into the stream at some places before a layer, by whom; together it is the stream."""
    blocks = blocks_of(loaded)
    with seeing(blocks.values()) as seen, head_outputs(loaded) as outputs:
        loaded.model(ids)
    streams = {name: seen[block][0][0, places].double() for name, block in blocks.items()}
    layers = list(blocks)[: list(blocks).index(reading.name) + 1]
    outs, matrices = out_projections(loaded), projections(loaded)
    parts, names = [streams[layers[0]]], ["embedding"]
    bias = torch.zeros_like(parts[0])  # of output projections; a feed-forward layer's are its own
    for index, (name, after) in enumerate(pairwise(layers)):
        written = torch.einsum("hpv,mhv->hpm", outputs[name][0, :, places].double(), matrices[name].double())
        more: Tensor | None = outs[name].bias  # type: ignore[assignment]
        of_bias = torch.zeros_like(bias) if more is None else more.double()
        parts += [*written, streams[after] - streams[name] - written.sum(0) - of_bias]
        names += [*(f"head {index}.{head}" for head in range(len(written))), f"feed-forward {index}"]
        bias = bias + of_bias
    return torch.stack([*parts, bias]), [*names, "bias"]
