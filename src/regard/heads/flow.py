"""Where information came from: rollout, weights by the size of what they carry, logit attribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, UnsupportedError
from regard.files.loading import Loaded
from regard.heads.frames import row_blocks, visibility_of
from regard.layers.attention import MultiHeadAttention
from regard.models.transformer import Stack, Transformer
from regard.tracing.layers import AnyLayer, Kind, LayerTrace, whole_index
from regard.tracing.take import trace as take_trace
from regard.tracing.traces import Trace


def rollout(
    trace: Trace, query: int, *, layers: Sequence[int | str] | None = None, batch: int = 0
) -> Float[Tensor, "key"]:
    """How much of the output at `query` comes from each input token (Abnar & Zuidema 2020).

    One row of A_L ... A_1 with A = (mean over heads + identity) / 2, by products of a row with a matrix that
    is never whole: O(N) memory. `layers` are the self-attention layers to go through, all by default.

    >>> trace = Trace.from_weights([[1.0, 0.0], [1.0, 0.0]])
    >>> rollout(trace, 1)
    tensor([0.5000, 0.5000])
    """
    chosen = list(trace.layers) if layers is None else [trace.layer(each) for each in layers]
    if layers is None:  # of an encoder-decoder, the decoder's own
        own = [layer for layer in chosen if layer.kind == "self" and not trace._in_encoder(layer)]
        chosen = own or chosen
    wrong = [layer.name for layer in chosen if layer.kind != "self" or layer.n_query != layer.n_key]
    if wrong or not chosen:
        raise ArgumentError(
            "rollout goes through self-attention, from tokens to the same tokens: "
            f"{', '.join(wrong) or 'no layer'} will not do. Choose `layers`."
        )
    sizes = {layer.n_key for layer in chosen}
    if len(sizes) > 1:
        raise ArgumentError(f"rollout needs layers of one length. Got lengths {sorted(sizes)}.")
    query = whole_index("query", query, chosen[0].n_query)
    batch = whole_index("batch", batch, chosen[0].n_batch)
    share = torch.zeros(chosen[0].n_key, device=chosen[0].tensors[0].device)
    share[query] = 1.0
    for layer in reversed(chosen):
        passed = torch.zeros_like(share)
        for rows, cols in row_blocks(layer, layer.n_head):
            if bool(share[rows].any()):
                weights = layer.block(rows, cols, batch)[0].float().mean(0)
                passed[cols] += share[rows] @ weights
        share = (share + passed) / 2
    return share


@dataclass(frozen=True, slots=True, eq=False)
class ValueWeightedLayer(AnyLayer):
    """A layer whose weights count by the size of what they carry (Kobayashi et al. 2020).

    A cell is |w_ij f(x_j)| over its row's sum, f(x_j) being the value after the head's part of the output
    projection. Every measure and picture takes it as any other layer.
    """

    inner: LayerTrace
    size: Float[Tensor, "batch head key"]  # |f(x_j)|
    total: Float[Tensor, "batch head query"]  # of each row

    @classmethod
    def of(cls, layer: LayerTrace, attention: MultiHeadAttention | None = None) -> ValueWeightedLayer:
        """Of a layer traced with keep_v; without `attention` the sizes are of the values themselves."""
        if layer.v is None:
            raise ArgumentError(f"{layer.name} was traced without its values: trace with keep_v=True.")
        v = layer.v.repeat_interleave(layer.n_head // layer.v.shape[1], dim=1).float()
        if attention is None:
            size = v.norm(dim=-1)
        else:
            projection = attention.out.weight.detach().float().unflatten(1, (layer.n_head, -1))
            # |W v| from W'W, head by head: (key, model_dim) is never made.
            gram = torch.einsum("mhv,mhu->hvu", projection, projection)
            size = torch.einsum("bhkv,hvu,bhku->bhk", v, gram, v).clamp(min=0.0).sqrt()
        total = torch.zeros(layer.shape[:3], device=size.device)
        for rows, cols in row_blocks(layer, layer.n_head * layer.n_batch):
            block = layer.block(rows, cols).float()
            total[:, :, rows] = (block @ size[:, :, cols, None])[..., 0]
        return cls(layer, size, total)

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.inner.name

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        return self.inner.kind

    @property
    def visibility(self) -> Visibility:
        return visibility_of(self.inner)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.inner.shape

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.size, self.total, *self.inner.tensors)

    def key_range(self, rows: slice) -> slice:
        return self.inner.key_range(rows)

    def block(
        self, rows: slice, cols: slice, batch: int | None = None, head: int | None = None
    ) -> Float[Tensor, "_batch _head rows cols"]:
        batches = slice(None) if batch is None else slice(batch, batch + 1)
        heads = slice(None) if head is None else slice(head, head + 1)
        weights = self.inner.block(rows, cols, batch, head).float()
        total = self.total[batches, heads, rows, None]
        return weights * self.size[batches, heads, None, cols] / torch.where(total > 0, total, 1.0)

    def visible_block(self, rows: slice, cols: slice, batch: int, head: int) -> Bool[Tensor, "rows cols"]:
        return self.inner.visible_block(rows, cols, batch, head)


def value_weighted(trace: Trace, model: Loaded | Transformer | None = None) -> Trace:
    """The trace with every weight counted by the size of what it carries; trace with keep_v=True.

    With the `model` sizes are after the output projection, as in the paper; without, of the values.
    """
    found = model.model if isinstance(model, Loaded) else model
    layers = []
    for layer in trace.layers:
        if not isinstance(layer, LayerTrace):
            raise UnsupportedError(f"{layer.name} is no softmax attention with values of its own.")
        layers.append(
            ValueWeightedLayer.of(layer, None if found is None else attention_of(found, layer.name))
        )
    return Trace(
        tuple(layers), trace.tokens, trace.source_tokens, trace.ids, trace.real, trace.text, trace.facts
    )


def transformer_of(loaded: Loaded) -> Transformer:
    """The model, whose heads can be measured and switched off; a recurrent one has none."""
    if not isinstance(loaded, Loaded):
        raise ArgumentError(
            "heads are switched off and pruned in models of this library: load it with regard.load. Of any "
            f"model, measure(regard.trace(model, ...)) says what its heads do. Got {type(loaded).__name__}."
        )
    if not isinstance(loaded.model, Transformer):
        raise ArgumentError(
            f"{loaded.facts.name} must be a Transformer: a recurrent model has one alignment and no heads. "
            f"Got a {type(loaded.model).__name__}. `regard look` shows its alignment."
        )
    return loaded.model


def attention_of(model: Transformer, name: str) -> MultiHeadAttention:
    """The attention layer of that name, one of `attention_names`."""
    side, _, rest = name.partition(".")
    index, _, kind = rest.partition(".")
    stack = model.decoder if side == "decoder" else model.encoder
    if name not in model.attention_names or stack is None:
        raise ArgumentError(f"there is no attention {name!r}: there are {', '.join(model.attention_names)}.")
    block = stack.blocks[int(index)]
    found: MultiHeadAttention = block.attention if kind == "self" else block.cross  # type: ignore[assignment]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """What each head writes toward a token's score."""

    layers: tuple[str, ...]
    heads: Float[Tensor, "layer head"]
    score: float  # of the token (minus the other's); the heads' sum and `rest` make it up
    rest: float  # embeddings, feed-forward, biases


@torch.no_grad()
def logit_attribution(
    model: Loaded | Transformer,
    text_or_tokens: Any,
    token: int,
    *,
    against: int | None = None,
    position: int = -1,
) -> Attribution:
    """What each head adds to the score of `token` after `position`: its output against the token's vector.

    The last norm is held at the scale it had, so that the parts add up to the score exactly. With `against`
    it is the score of `token` minus that one's (Elhage et al. 2021; Wang et al. 2022).
    """
    found = model.model if isinstance(model, Loaded) else model
    config = found.config
    if config.head != "language" or config.kind != "decoder" or not config.block.norm_first:
        raise UnsupportedError(
            "logit attribution needs a decoder with a language head and norms before its layers: what a head "
            f"writes then reaches the score as it is. This is {config.kind}, head {config.head!r}, "
            f"norm_first={config.block.norm_first}."
        )
    for name, index in (("token", token), ("against", against)):
        if index is not None and not 0 <= index < config.vocab:
            raise ArgumentError(f"{name} must lie between 0 and {config.vocab - 1}. Got {index}.")
    traced = take_trace(model, text_or_tokens, keep_v=True)
    if traced.n_batch != 1 or traced.ids is None:
        raise ArgumentError(f"logit attribution is of one sequence. Got {traced.n_batch}.")
    position = whole_index("position", position, traced.ids.shape[1])
    stack = found.decoder
    assert stack is not None  # the config said decoder
    before_norm: list[Tensor] = []
    handle = None
    if stack.norm is not None:
        handle = stack.norm.register_forward_pre_hook(lambda module, args: before_norm.append(args[0]))
    try:
        logits = found(traced.ids).logits[0, position].double()
    finally:
        if handle is not None:
            handle.remove()
    unembed = (found.token if found.unembed is None else found.unembed).weight.double()
    direction = unembed[token] if against is None else unembed[token] - unembed[against]
    direction = _through_norm(stack, before_norm, position, direction * config.head_scale)
    widest = max(layer.n_head for layer in traced.layers)
    heads = torch.full((traced.n_layer, widest), torch.nan, dtype=torch.float64)
    for index, layer in enumerate(traced.layers):
        assert isinstance(layer, LayerTrace)
        assert layer.v is not None
        row = layer.block(slice(position, position + 1), slice(0, layer.n_key), 0)[0].double()
        v = layer.v[0].repeat_interleave(layer.n_head // layer.v.shape[1], dim=0).double()
        out = (row @ v)[:, 0]  # (head, v_dim)
        projection = attention_of(found, layer.name).out.weight.double().unflatten(1, (layer.n_head, -1))
        heads[index, : layer.n_head] = torch.einsum("hv,mhv,m->h", out, projection, direction).cpu()
    score = float(logits[token] if against is None else logits[token] - logits[against])
    return Attribution(traced.names, heads, score, score - float(heads.nansum()))


def _through_norm(stack: Stack, seen: list[Tensor], position: int, direction: Tensor) -> Tensor:
    """The direction before the last norm that becomes `direction` behind it, at the scale of `position`."""
    norm = stack.norm
    if norm is None:
        return direction
    x = seen[-1][0, position].double()
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    scaled = direction * norm.weight.double()
    if isinstance(norm, nn.LayerNorm):
        deviation = (x.var(unbiased=False) + norm.eps).sqrt()
        return (scaled - scaled.mean()) / deviation
    eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
    return scaled / (x.square().mean() + eps).sqrt()
