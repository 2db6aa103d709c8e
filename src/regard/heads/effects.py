"""How much a model needs each head: gradient importance, and what happens without it.

importance(model, texts)          Michel et al. 2019: |dL/d gate|, one backward pass for each text
ablation(model, texts)            the loss with each head gone, one forward pass for each head and text
ablated(model, heads, "mean")     a block in which heads give zero, or their mean output
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.files.loading import Loaded
from regard.heads.model import Head, attention_of, checked_heads, kept_heads, transformer_of, watched_heads
from regard.models.transformer import Transformer

Texts = Sequence[str] | Sequence[Sequence[int]]
# A loss of one example, which goes through the gate: (model, ids (1, position), gate) -> number.
Loss = Callable[[Transformer, Tensor, Tensor | None], Tensor]

EVERY = 7  # of a masked model's tokens, one in so many is hidden and asked for


def importance(
    loaded: Loaded, texts: Texts, *, loss: Loss | None = None, normalise: bool = True
) -> Float[Tensor, "layer head"]:
    """Mean over texts of |dL/d gate| of each head (Michel et al. 2019), each layer of norm 1.

    The gate multiplies a head's output and stands at 1, so the gradient says what closing it a little
    would do. The absolute value is taken for each text, lest effects of opposite sign cancel. `loss` is
    the model's own by default: of the next token, or of hidden tokens.
    """
    model, find_loss = transformer_of(loaded), loss or loss_of(loaded)
    gates = len(model.attention_names), model.config.block.n_head
    total = torch.zeros(gates, dtype=torch.float64)
    examples = encoded(loaded, texts)
    for ids in examples:
        gate = torch.ones(gates, device=ids.device, dtype=next(model.parameters()).dtype, requires_grad=True)
        value = find_loss(model, ids, gate)
        (gradient,) = torch.autograd.grad(value, gate)
        total += gradient.detach().abs().double().cpu()
    total /= len(examples)
    if normalise:  # as Michel et al. do; a layer that does nothing stays 0
        total = total / total.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    return total


@torch.no_grad()
def mean_loss(
    loaded: Loaded,
    texts: Texts,
    *,
    loss: Loss | None = None,
    head_gate: Float[Tensor, "layer head"] | None = None,
) -> float:
    """The mean loss over texts."""
    find_loss = loss or loss_of(loaded)
    values = [float(find_loss(transformer_of(loaded), ids, head_gate)) for ids in encoded(loaded, texts)]
    return sum(values) / len(values)


@torch.no_grad()
def ablation(
    loaded: Loaded,
    texts: Texts,
    *,
    how: Literal["zero", "mean"] = "zero",
    loss: Loss | None = None,
    layers: Sequence[int] | None = None,
) -> Float[Tensor, "layer head"]:
    """By how much the mean loss rises without each head; NaN for layers not asked for."""
    model, left = transformer_of(loaded), kept_heads(transformer_of(loaded))
    means = head_means(loaded, texts) if how == "mean" else None
    before = mean_loss(loaded, texts, loss=loss)
    rise = torch.full((len(left), model.config.block.n_head), torch.nan, dtype=torch.float64)
    for layer in range(len(left)) if layers is None else layers:
        if not 0 <= layer < len(left):
            raise ArgumentError(f"there is no layer {layer}: there are {len(left)}, counted from 0.")
        for head in left[layer]:
            with ablated(model, [(layer, head)], how, means):
                rise[layer, head] = mean_loss(loaded, texts, loss=loss) - before
    return rise


@torch.no_grad()
def head_means(loaded: Loaded, texts: Texts) -> Float[Tensor, "layer head v_dim"]:
    """The mean output of each head, before the output projection, over all positions of all texts."""
    model, left = transformer_of(loaded), kept_heads(transformer_of(loaded))
    v_dim = attention_of(model, model.attention_names[0]).v_dim
    sums = torch.zeros(len(left), model.config.block.n_head, v_dim, dtype=torch.float64)
    n_position = torch.zeros(len(left), dtype=torch.long)

    def add(layer: int, outputs: Tensor) -> None:
        n_position[layer] += outputs.shape[0] * outputs.shape[1]
        sums[layer, list(left[layer])] += outputs.double().sum((0, 1)).cpu()

    with watched_heads(model, {layer: partial(add, layer) for layer, heads in enumerate(left) if heads}):
        for ids in encoded(loaded, texts):
            model(ids, logits="none")
    return sums / n_position.clamp(min=1)[:, None, None]


def ablated(
    model: Transformer,
    heads: Iterable[Head],
    how: Literal["zero", "mean"] = "zero",
    means: Float[Tensor, "layer head v_dim"] | None = None,
) -> AbstractContextManager[None]:
    """A block in which these heads, (layer, head), give zero or their mean output (`head_means`)."""
    if how not in ("zero", "mean"):
        raise ArgumentError(f"how must be 'zero' or 'mean'. Got {how!r}.")
    left, n_head = kept_heads(model), model.config.block.n_head
    if how == "mean" and (means is None or means.shape[:2] != (len(left), n_head)):
        raise ShapeError(
            f"means must be (layer, head, v_dim) = ({len(left)}, {n_head}, ...), as head_means gives them. "
            f"Got {None if means is None else tuple(means.shape)}."
        )
    by_layer: dict[int, list[int]] = {}
    for layer, head in checked_heads(model, heads):
        by_layer.setdefault(layer, []).append(head)

    def replace_heads(layer: int, outputs: Tensor) -> Tensor:
        gone, outputs = by_layer[layer], outputs.clone()
        places = [left[layer].index(head) for head in gone]
        outputs[..., places, :] = 0.0 if means is None or how == "zero" else means[layer, gone].to(outputs)
        return outputs

    return watched_heads(model, {layer: partial(replace_heads, layer) for layer in by_layer})


def loss_of(loaded: Loaded) -> Loss:
    """The loss a model was trained with: of each next token, or of hidden tokens."""
    config = transformer_of(loaded).config
    if config.head == "language" and config.kind == "decoder":
        return next_token_loss
    special = None if loaded.tokenizer is None else loaded.tokenizer.special
    if config.head == "masked" and special is not None and special.mask is not None:
        return partial(masked_token_loss, mask=special.mask)
    raise UnsupportedError(
        f"{loaded.facts.name} ({config.kind}, head {config.head!r}) foretells no token, so it has no loss "
        "of its own: give `loss`, a function of (model, ids, head_gate)."
    )


def next_token_loss(
    model: Transformer, ids: Int[Tensor, "batch position"], gate: Float[Tensor, "layer head"] | None = None
) -> Float[Tensor, ""]:
    """Mean of -log p(next token)."""
    logits = model(ids[:, :-1], head_gate=gate).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def masked_token_loss(
    model: Transformer,
    ids: Int[Tensor, "batch position"],
    gate: Float[Tensor, "layer head"] | None,
    mask: int,
) -> Float[Tensor, ""]:
    """Mean of -log p(token) over every seventh token, hidden; the first and last are left."""
    hidden = torch.zeros_like(ids, dtype=torch.bool)
    hidden[:, 1:-1][:, ::EVERY] = True
    logits = model(torch.where(hidden, mask, ids), head_gate=gate).logits
    return nn.functional.cross_entropy(logits[hidden], ids[hidden])


def encoded(loaded: Loaded, texts: Texts) -> list[Int[Tensor, "1 position"]]:
    """Texts, or lists of ids, as ids of at least three tokens."""
    transformer_of(loaded)  # raises for a model without heads of ours
    if isinstance(texts, str) or not len(texts):
        raise ArgumentError(f"texts must be a list of one text at least. Got {texts!r}.")
    examples = []
    for text in texts:
        if isinstance(text, str):
            if loaded.tokenizer is None:
                raise ArgumentError(f"{loaded.facts.name} has no tokenizer: give ids.")
            text = loaded.tokenizer.encode(text)
        ids = torch.as_tensor(text, dtype=torch.long, device=loaded.device)
        if ids.dim() != 1 or ids.shape[0] < 3:
            raise ArgumentError(f"a text needs three tokens at least to have a loss. Got {tuple(ids.shape)}.")
        examples.append(ids[None])
    return examples
