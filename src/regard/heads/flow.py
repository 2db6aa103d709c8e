"""Where information came from: rollout, weights by the size of what they carry, logit attribution; and what
a cache that forgets would lose of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.shapes import whole_index
from regard.attention.visibility import Visibility
from regard.decoding import prompts
from regard.errors import ArgumentError, UnsupportedError
from regard.files.loading import Loaded
from regard.heads.circuits import Ending, projections
from regard.heads.model import head_table, layers_of, loaded_of
from regard.layers.eviction import Evict
from regard.layers.layer_id import Kind
from regard.tracing.layers import AnyLayer, LayerTrace
from regard.tracing.traces import Trace, TraceChecks


def rollout(
    trace: Trace, query: int, *, layers: Sequence[int | str] | None = None, batch: int = 0
) -> Float[Tensor, "key"]:
    """Compute how much of the output at `query` comes from each input token (Abnar & Zuidema 2020).

    It is one row of A_L ... A_1 with A = (mean over heads + identity) / 2, by products of a row with a matrix
    that is never whole: O(N) memory.

    Args:
        trace: A trace with self-attention.
        query: The position whose output is followed back.
        layers: The self-attention layers to go through, by index or name. Default: all.
        batch: The sequence.

    Returns:
        A share for each input token, ``(key,)``.

    Raises:
        ArgumentError: If a layer is not self-attention, or layers have several lengths.

    Example:
        >>> trace = Trace.from_weights([[1.0, 0.0], [1.0, 0.0]])
        >>> rollout(trace, 1)
        tensor([0.5000, 0.5000])
    """
    chosen = list(trace.layers) if layers is None else [trace.layer(layer) for layer in layers]
    if layers is None:  # of an encoder-decoder, the decoder's self-attention
        of_decoder = [layer for layer in chosen if layer.kind == "self" and not trace._in_encoder(layer)]
        chosen = of_decoder or chosen
    wrong = [layer.name for layer in chosen if layer.kind != "self" or layer.n_query != layer.n_key]
    sizes = {layer.n_key for layer in chosen}
    if wrong or len(sizes) != 1:
        layers_wrong = ", ".join(wrong) or f"layers of lengths {sorted(sizes)}"
        raise ArgumentError(
            f"rollout goes through self-attention, of one length: {layers_wrong} will not do: choose layers."
        )
    query = whole_index("query", query, chosen[0].n_query)
    batch = whole_index("batch", batch, chosen[0].n_batch)
    share = torch.zeros(chosen[0].n_key, device=chosen[0].tensors[0].device)
    share[query] = 1.0
    for layer in reversed(chosen):
        passed = torch.zeros_like(share)
        for rows, cols in layer.row_blocks(layer.n_head):
            if bool(share[rows].any()):
                passed[cols] += share[rows] @ layer.block(None, rows, cols, batch)[0].float().mean(0)
        share = (share + passed) / 2
    return share


@dataclass(frozen=True, slots=True, eq=False)
class ValueWeightedLayer(AnyLayer):
    """A layer whose weights count by the size of what they carry (Kobayashi et al. 2020).

    A cell is |w_ij f(x_j)| over its row's sum, f(x_j) being the value after the head's part of the output
    projection. Every measure and picture takes it as any other layer.

    Attributes:
        name: The name of the layer.
        kind: Whether it is self-attention or cross-attention.
        visibility: Which keys each query sees.
        size: |f(x_j)|, ``(batch, head, key)``.
        total: The sum of each row, ``(batch, head, query)``.
        inner: The layer as it was traced.
    """

    name: str
    kind: Kind
    visibility: Visibility = field()  # not the property of the base
    size: Float[Tensor, "batch head key"]
    total: Float[Tensor, "batch head query"]
    inner: LayerTrace

    @classmethod
    def of(
        cls, layer: LayerTrace, projection: Float[Tensor, "model_dim head v_dim"] | None = None
    ) -> ValueWeightedLayer:
        """Weigh the weights of a layer by the size of what they carry.

        Args:
            layer: A layer traced with ``keep_v=True``.
            projection: Its output projection, ``(model_dim, head, v_dim)``. Default: sizes are those of the
                values themselves.

        Returns:
            The layer.

        Raises:
            ArgumentError: If the layer was traced without its values.
        """
        if layer.v is None:
            raise ArgumentError(f"{layer.name} was traced without its values: trace with keep_v=True.")
        v = layer.v.repeat_interleave(layer.n_head // layer.v.shape[1], dim=1).float()
        if projection is None:
            size = v.norm(dim=-1)
        else:
            projection = projection.detach().float()
            # |W v| from W'W, head by head: (key, model_dim) is never made.
            gram = torch.einsum("mhv,mhu->hvu", projection, projection)
            size = torch.einsum("bhkv,hvu,bhku->bhk", v, gram, v).clamp(min=0.0).sqrt()
        total = torch.zeros(layer.shape[:3], device=size.device)
        for rows, cols in layer.row_blocks(layer.n_head * layer.n_batch):
            block = layer.block(None, rows, cols).float()
            total[:, :, rows] = (block @ size[:, :, cols, None])[..., 0]
        return cls(layer.name, layer.kind, layer.visibility, size, total, layer)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.inner.shape

    def key_range(self, rows: slice) -> slice:
        return self.inner.key_range(rows)

    def block(
        self, head: int | None, rows: slice, cols: slice, batch: int | None = None
    ) -> Float[Tensor, "_batch _head rows cols"]:
        size, total = (self.of_head(tensor, head, batch) for tensor in (self.size, self.total))
        total = torch.where(total > 0, total, 1.0)[:, :, rows, None]
        return self.inner.block(head, rows, cols, batch).float() * size[:, :, None, cols] / total


def value_weighted(trace: Trace, model: Loaded | nn.Module | None = None) -> Trace:
    """Weigh every weight of a trace by the size of what it carries (Kobayashi et al. 2020).

    Args:
        trace: A trace taken with ``keep_v=True``.
        model: The model that was traced. With it sizes are those after the output projection, as in the
            paper; without it those of the values.

    Returns:
        A trace whose weights are these.

    Raises:
        UnsupportedError: If a layer is not softmax attention with values of its own.
    """
    matrices = {} if model is None else projections(loaded_of(model))
    layers = []
    for layer in trace.layers:
        if not isinstance(layer, LayerTrace):
            raise UnsupportedError(f"{layer.name} is no softmax attention with values of its own.")
        layers.append(ValueWeightedLayer.of(layer, matrices.get(layer.name)))
    return replace(trace, layers=tuple(layers), checks=TraceChecks())


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """What each head writes toward a token's score.

    Attributes:
        layers: The names of the layers.
        heads: What each head adds to the score, ``(layer, head)``.
        score: The score of the token, minus the other's; the heads' sum and `rest` make it up.
        rest: What embeddings, feed-forward layers and biases add.
    """

    layers: tuple[str, ...]
    heads: Float[Tensor, "layer head"]
    score: float
    rest: float


@torch.no_grad()
def logit_attribution(
    model: Loaded | nn.Module,
    text_or_tokens: prompts.Prompt,
    token: int,
    *,
    against: int | None = None,
    position: int = -1,
    tokenizer: Any = None,
) -> Attribution:
    """Compute what each head adds to the score of a token (Elhage et al. 2021; Wang et al. 2022).

    That is its output times the token's output embedding. The last norm is held at the scale it had, so that
    the parts add up to the score exactly.

    Args:
        model: A model that predicts the next token.
        text_or_tokens: One text, or its ids.
        token: The id whose score is explained.
        against: Another id: then the difference of the two scores is explained.
        position: The position after which the token would come.
        tokenizer: What reads the text, for a module that has no tokenizer of its own.

    Returns:
        What each head adds, and what the rest does.

    Raises:
        ArgumentError: If an id is not of the vocabulary, or there are several texts.
        UnsupportedError: If what heads write does not reach the scores unchanged in this model.
    """
    loaded = loaded_of(model, tokenizer)
    vocab = loaded.model.sizes.vocab
    for name, index in (("token", token), ("against", against)):
        if index is not None and vocab and not 0 <= index < vocab:
            raise ArgumentError(f"{name} must lie between 0 and {vocab - 1}. Got {index}.")
    ids = prompts.encoded(text_or_tokens, loaded.tokenizer, loaded.device).ids
    if ids.shape[0] != 1:
        raise ArgumentError(f"logit attribution is of one sequence. Got {ids.shape[0]}.")
    position = whole_index("position", position, ids.shape[1])
    ending = Ending(loaded, ids)
    direction, score = ending.unembed[token].double(), ending.logits[position, token].double()
    if against is not None:
        direction = direction - ending.unembed[against].double()
        score = score - ending.logits[position, against].double()
    layers = layers_of(loaded)
    heads = head_table(layers)
    for index, (name, numbers) in enumerate(layers.items()):
        if numbers:
            written = ending.written(name, [position])[:, 0]
            toward = ending.norm.held(ending.before[position], written) @ direction
            heads[index, list(numbers)] = toward.cpu()
    return Attribution(tuple(layers), heads, float(score), float(score) - float(heads.nansum()))


@torch.no_grad()
def lost_attention(
    trace: Trace, evict: Evict, *, at: int | None = None, batch: int = 0
) -> Float[Tensor, "layer head"]:
    """Compute how much of each head's attention a cache that evicts keys would lose.

    Three sums of columns tell it, so it is O(N) for any trace of a decoder.

    Args:
        trace: A trace with self-attention over one text.
        evict: The policy.
        at: How many tokens are the prompt that the policy judges. Default: half of them.
        batch: The sequence.

    Returns:
        The share of the attention of later tokens that is on evicted keys, ``(layer, head)``. NaN in
        cross-attention, and where there is no such head.

    Raises:
        ArgumentError: If there is no such layer or position.
        UnsupportedError: If a layer sees later tokens, as no decoder does.

    Example:
        >>> even = torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None]
        >>> lost_attention(Trace.from_weights(even), Evict("streaming", budget=1, sinks=0), at=2)
        tensor([[0.2917]])
    """
    layers = [layer for layer in trace.layers if layer.kind == "self" and layer.n_query == layer.n_key]
    if not layers:
        raise ArgumentError("a cache is of self-attention over one text: this trace has no such layer.")
    batch = whole_index("batch", batch, trace.n_batch)
    key_mask = (
        torch.ones(layers[0].n_key, dtype=torch.bool)
        if trace.key_mask is None
        else trace.key_mask[batch].cpu()
    )
    first, n_real = int(key_mask.int().argmax()), int(key_mask.sum())
    at = n_real // 2 if at is None else at
    if not 1 <= at < n_real:
        raise ArgumentError(f"at must be 1 at least and below the {n_real} tokens there are. Got {at}.")
    shares = torch.full((len(trace.layers), max(layer.n_head for layer in trace.layers)), torch.nan)
    for index, layer in enumerate(trace.layers):
        if layer in layers and layer.n_key == len(key_mask):
            if layer.visibility is not None and layer.visibility.everything:
                raise UnsupportedError(f"{layer.name} sees the future: only a decoder has a cache.")
            counted, n_kv_head = evict.counted(at), layer.n_kv_head
            rows = slice(first + counted.start, first + counted.stop)
            prompt = layer.column_sums(batch=batch, rows=rows)[:, first : first + at]
            kept = evict.kept(prompt.unflatten(0, (n_kv_head, -1)).sum(1)[None])[0]
            gone = torch.ones(n_kv_head, at, dtype=torch.bool, device=kept.device).scatter(1, kept, False)
            later = layer.column_sums(batch=batch, rows=slice(first + at, first + n_real))
            gone = gone.repeat_interleave(layer.n_head // n_kv_head, 0)
            lost = (later[:, first : first + at] * gone).sum(-1)
            shares[index, : layer.n_head] = (lost / later.sum(-1)).cpu()
    return shares
