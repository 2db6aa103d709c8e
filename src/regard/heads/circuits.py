"""What a head's weights do, whatever the text: circuits through the residual stream (Elhage et al. 2021).

    circuit = ov_circuit(load("smollm2"), layer=3, head=5)
    circuit.strongest(token)                 # what looking at this token makes likelier
    circuit.sign, circuit.copying()          # does it copy?
    composition(model).k                     # which earlier heads a later one listens to, on its key's side
    logit_lens(model, ids)                   # what each layer would say next
    score_split(model, ids, 3, 5, 9, 2)      # which earlier heads made one score

Norms come before what reads the stream. Of matrices alone their weights count and, in a LayerNorm, the mean
that it takes away; the length they divide by depends on the text, and so do biases: they are left out.
`logit_lens` and `score_split` are of a text, and leave nothing out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.shapes import whole_index
from regard.errors import ArgumentError, UnsupportedError
from regard.files.loading import Loaded
from regard.layers.attention import MultiHeadAttention
from regard.layers.block import Block
from regard.models.transformer import Stack, Transformer
from regard.tracing import take

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
def ov_circuit(model: Loaded | Transformer, layer: int, head: int) -> Circuit:
    """What looking at a token adds to the scores of all tokens, through this head alone: rows are looked at.

    Row a is W_U W_O W_V e_a, of the token's vector e_a before any layer.
    """
    reads = _Head.of(model, layer, head)
    unembed = reads.model.token if reads.model.unembed is None else reads.model.unembed
    direction = _folded(unembed.weight * reads.model.config.head_scale, reads.stack.norm)
    return Circuit(reads.model.token.weight @ reads.v.T, direction @ reads.o)


@torch.no_grad()
def qk_circuit(model: Loaded | Transformer, layer: int, head: int, *, distance: int = 0) -> Circuit:
    """The score of every query token with every key token: rows are queries.

    With rotary positions, of a key `distance` positions before the query; they turn the key so far.
    """
    reads = _Head.of(model, layer, head)
    queries, keys = (reads.model.token.weight @ matrix.T for matrix in (reads.q, reads.k))
    if distance < 0:
        raise ArgumentError(f"distance counts the positions back to the key: at least 0. Got {distance}.")
    if reads.model.rotary is not None:
        turn = reads.model.rotary(torch.full((1, len(keys)), -distance, device=keys.device))
        keys = turn(keys[None, None])[0, 0]
    return Circuit(queries * reads.attention.rule.scale_for(reads.attention.qk_dim), keys)


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """How much later heads read what earlier ones write; NaN where there is no earlier one."""

    layers: tuple[str, ...]
    q: Float[Tensor, "later later_head earlier earlier_head"]  # on the query's side
    k: Float[Tensor, "later later_head earlier earlier_head"]  # on the key's side
    v: Float[Tensor, "later later_head earlier earlier_head"]  # in what they carry on


@torch.no_grad()
def composition(model: Loaded | Transformer) -> Composition:
    """|B A| / (|B| |A|) for all pairs of heads, by Frobenius' norm (Elhage et al. 2021, "composition").

    A is what an earlier head writes, W_O W_V, and B what a later one does with it: W_QK turned (q),
    W_QK (k) or W_O W_V (v). Two random matrices have about 1 / sqrt(model_dim).
    """
    transformer = _checked(model)
    names, n_head = transformer.attention_names, transformer.config.block.n_head
    heads = [[_Head.of(transformer, layer, head) for head in range(n_head)] for layer in range(len(names))]
    wrote = torch.stack([torch.stack([head.o.double() for head in row]) for row in heads])
    # The norm of a product needs no more of its first and last matrix than their triangles.
    carried = torch.stack([torch.stack([_triangle(head.v).T for head in row]) for row in heads])
    sizes = torch.stack(
        [torch.stack([_size(_triangle(head.o.T) @ _triangle(head.v).T) for head in row]) for row in heads]
    )
    tables = torch.full((3, len(names), n_head, len(names), n_head), torch.nan, dtype=torch.float64)
    for later, row in enumerate(heads):
        for index, head in enumerate(row):
            for kind, (reads, then) in enumerate(((head.q, head.k), (head.k, head.q), (head.v, head.o.T))):
                then = _triangle(then)
                products = then @ (reads.double() @ wrote[:later]) @ carried[:later]
                whole = _size(then @ _triangle(reads).T)
                tables[kind, later, index, :later] = (_size(products) / (whole * sizes[:later])).cpu()
    return Composition(tuple(names), *tables)


def _size(matrix: Tensor) -> Tensor:
    """Frobenius' norm."""
    size: Tensor = torch.linalg.matrix_norm(matrix)
    return size


def _triangle(matrix: Tensor) -> Tensor:
    """R of the transpose's QR: |R x| is |matrix.T x| for every x, and R is small."""
    triangle: Tensor = torch.linalg.qr(matrix.double().T, mode="r").R
    return triangle


@dataclass(frozen=True, slots=True, eq=False)
class _Head:
    """One head's matrices, the norm before them folded in: q, k (qk_dim, model_dim), v and o."""

    model: Transformer
    stack: Stack
    attention: MultiHeadAttention
    q: Float[Tensor, "qk_dim model_dim"]
    k: Float[Tensor, "qk_dim model_dim"]
    v: Float[Tensor, "v_dim model_dim"]
    o: Float[Tensor, "model_dim v_dim"]

    @classmethod
    def of(cls, model: Loaded | Transformer, layer: int, head: int) -> _Head:
        transformer = _checked(model)
        stack = cast(Stack, transformer.decoder)
        layer = whole_index("layer", layer, len(stack.blocks))
        block = cast(Block, stack.blocks[layer])
        attention = block.attention
        head = whole_index("head", head, attention.n_head)
        shared = head * attention.n_kv_head // attention.n_head
        q, k, v = (
            _folded(_of_head(linear.weight, dim, at), block.attention_norm)
            for linear, dim, at in (
                (attention.query, attention.qk_dim, head),
                (attention.key, attention.qk_dim, shared),
                (attention.value, attention.v_dim, shared),
            )
        )
        o = _of_head(attention.out.weight.T, attention.v_dim, head).T
        return cls(transformer, stack, attention, q, k, v, o)


def _of_head(weight: Tensor, dim: int, head: int) -> Tensor:
    return weight[head * dim : (head + 1) * dim]


def _folded(matrix: Tensor, norm: nn.Module | None) -> Tensor:
    """A matrix that reads the stream through a norm, as one that reads the stream itself."""
    if norm is None:
        return matrix
    matrix = matrix * cast(Tensor, norm.weight)
    return matrix - matrix.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else matrix


def _checked(model: Loaded | Transformer) -> Transformer:
    transformer: Transformer = model.transformer if isinstance(model, Loaded) else model
    config = transformer.config
    wrong = None
    if config.kind != "decoder" or config.head != "language" or not config.block.writes_as_is:
        wrong = f"this is {config.kind}, head {config.head!r}, norm_first={config.block.norm_first}"
    elif not config.scores_products or config.positions == "relative" or config.kept_heads is not None:
        wrong = f"kernel {config.block.kernel}, {config.positions} positions, heads pruned or not"
    if wrong is not None:
        raise UnsupportedError(
            "circuits are of decoders with a language head, norms before their layers alone, softmax "
            "attention with all its heads and scores that are products, and learned, sinusoidal or rotary "
            f"positions, alike in all layers: {wrong}."
        )
    return transformer


@torch.no_grad()
def logit_lens(
    model: Loaded | Transformer,
    text_or_tokens: str | Sequence[int] | Sequence[Sequence[int]] | Tensor,
    *,
    position: int | None = -1,
) -> Float[Tensor, "layer batch *position vocab"]:
    """What the model would say after each layer, if it were the last: embeddings first, the output last.

    Every layer's vectors go through the model's last norm and its head (nostalgebraist 2020). `position` is
    the one whose next token is scored; None: all, which is an axis then.
    """
    transformer: Transformer = model.transformer if isinstance(model, Loaded) else model
    if transformer.config.kind == "encoder-decoder" or transformer.config.head == "none":
        raise UnsupportedError("a logit lens needs one stack, a decoder or an encoder, with a head on it.")
    stack = cast(Stack, transformer.encoder if transformer.decoder is None else transformer.decoder)
    traced = take.trace(model, text_or_tokens, layers=[0])
    assert traced.ids is not None  # tokens were read
    layers = transformer(traced.ids, visible=traced.real, return_layers=True, logits="none").layers
    assert layers is not None
    at = slice(None) if position is None else whole_index("position", position, traced.ids.shape[1])
    norm = nn.Identity() if stack.norm is None else stack.norm
    lens = []
    for index, hidden in enumerate(layers):
        rows = hidden[:, at] if position is None else hidden[:, at][:, None]
        scores = transformer.logits(rows if index == len(layers) - 1 else norm(rows))
        assert scores is not None  # there is a head
        lens.append(scores if position is None else scores[:, 0])
    return torch.stack(lens)


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
    model: Loaded | Transformer,
    text_or_tokens: str | Sequence[int] | Tensor,
    layer: int,
    head: int,
    query: int,
    key: int,
) -> ScoreSplit:
    """The score of one query and key, as a table of what wrote the query's vector and what the key's.

    The stream is a sum of what the embedding, every earlier head and feed-forward layer wrote; at the length
    that the norm divided by, query and key are such sums too, and the score a sum over pairs.
    """
    one = _Head.of(model, layer, head)
    transformer, attention = one.model, one.attention
    layer = whole_index("layer", layer, len(one.stack.blocks))
    head = whole_index("head", head, attention.n_head)
    ids = take.trace(model, text_or_tokens, layers=[0]).ids
    if ids is None or ids.shape[0] != 1:
        raise ArgumentError("a score is of one sequence: give one text, or the ids of one.")
    query, key = (whole_index(name, at, ids.shape[1]) for name, at in (("query", query), ("key", key)))
    if key > query:
        raise ArgumentError(f"key {key} comes after query {query}: a decoder hides it.")
    written, names = _written_before(transformer, ids, layer, [query, key])
    norm = cast(Block, one.stack.blocks[layer]).attention_norm
    normed = _normed_parts(norm, written)
    sides = []
    shared = head * attention.n_kv_head // attention.n_head
    for place, (linear, at) in enumerate(((attention.query, head), (attention.key, shared))):
        weight = _of_head(linear.weight, attention.qk_dim, at).double()
        side = normed[:, place] @ weight.T
        if linear.bias is not None:
            side[-1] += _of_head(linear.bias, attention.qk_dim, at).double()
        if transformer.rotary is not None:
            position = torch.full((1, len(side)), (query, key)[place], device=side.device)
            side = transformer.rotary(position)(side[None, None])[0, 0]
        sides.append(side)
    parts = attention.rule.scale_for(attention.qk_dim) * (sides[0] @ sides[1].T)
    return ScoreSplit(tuple(names), parts, float(parts.sum()))


def _written_before(
    model: Transformer, ids: Tensor, layer: int, places: list[int]
) -> tuple[Float[Tensor, "part place model_dim"], list[str]]:
    """What was written into the stream at some places before a layer, by whom; together it is the stream."""
    heads: dict[str, Tensor] = {}
    forward: list[Tensor] = []

    def record(name: str, q: Tensor, k: Tensor, v: Tensor, out: Tensor, *_: object) -> None:
        heads[name] = out[0][:, places].double()  # (head, place, v_dim)

    blocks = [cast(Block, block) for block in cast(Stack, model.decoder).blocks]
    hooks = [
        block.ff.register_forward_hook(lambda module, args, out: forward.append(out[0, places].double()))
        for block in blocks
    ]
    try:
        layers = model(ids, record=record, return_layers=True, logits="none").layers
    finally:
        for hook in hooks:
            hook.remove()
    parts, names = [layers[0][0, places].double()], ["embedding"]
    bias = torch.zeros_like(parts[0])  # of output projections; a feed-forward layer's are its own
    for index, (name, block) in enumerate(zip(model.attention_names[:layer], blocks, strict=False)):
        out = block.attention.out
        matrices = out.weight.double().unflatten(1, (block.attention.n_head, -1))
        parts += torch.einsum("hpv,mhv->hpm", heads[name], matrices).unbind(0)
        names += [f"head {index}.{head}" for head in range(block.attention.n_head)]
        parts.append(forward[index])
        names.append(f"feed-forward {index}")
        bias = bias if out.bias is None else bias + out.bias.double()
    parts.append(bias)
    # The stream was summed in the model's own dtype: its rounding is counted with the embedding.
    stream = layers[layer][0, places].double()
    parts[0] = parts[0] + (stream - torch.stack(parts).sum(0))
    return torch.stack(parts), [*names, "bias"]


def _normed_parts(
    norm: nn.Module, parts: Float[Tensor, "part place model_dim"]
) -> Float[Tensor, "part place model_dim"]:
    """Parts of a stream behind a norm that divides by the length of their sum; its bias is in the last."""
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    stream = parts.sum(0)
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    if isinstance(norm, nn.LayerNorm):
        parts = parts - parts.mean(-1, keepdim=True)
        stream = stream - stream.mean(-1, keepdim=True)
    normed = parts / (stream.square().mean(-1, keepdim=True) + eps).sqrt() * norm.weight.double()
    if isinstance(norm, nn.LayerNorm) and norm.bias is not None:
        normed[-1] += norm.bias.double()
    return normed
