"""How much a model needs each head: gradient importance, and what happens without it. Of any model.

importance(model, texts)          Michel et al. 2019: |dL/d gate|, one backward pass for each text
ablation(model, texts)            the loss with each head gone, one forward pass for each head and text
ablated(model, heads, "mean")     a block in which heads give zero, or their mean output
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.files.loading import Loaded
from regard.heads.model import Head, Layers, checked_heads, layers_of, loaded_of
from regard.models.model import Model
from regard.tracing.calls import Called
from regard.tracing.changes import Change
from regard.tracing.interventions import intervene

Texts = Sequence[str] | Sequence[Sequence[int]]
Loss = Callable[[Model, Tensor], Tensor]  # of one example: (model, ids (1, position)) -> number

EVERY = 7  # of a masked model's tokens, one in so many is hidden and asked for


def importance(
    model: Loaded | nn.Module,
    texts: Texts,
    *,
    loss: Loss | None = None,
    normalise: bool = True,
    tokenizer: Any = None,
) -> Float[Tensor, "layer head"]:
    """Mean over texts of |dL/d gate| of each head (Michel et al. 2019), each layer of norm 1.

    The gate multiplies a head's output and stands at 1, so the gradient says what closing it a little
    would do. The absolute value is taken for each text, lest effects of opposite sign cancel. `loss` is
    the model's own by default: of the next token, or of hidden tokens.
    """
    loaded = loaded_of(model, tokenizer)
    shape, find_loss = gate_shape(layers_of(loaded)), loss or loss_of(loaded)
    total = torch.zeros(shape, dtype=torch.float64)
    examples = encoded(loaded, texts)
    for ids in examples:
        gate = torch.ones(shape, device=ids.device, dtype=_dtype(loaded), requires_grad=True)
        with torch.enable_grad(), gated(loaded, gate):
            value = find_loss(loaded.model, ids)
        (gradient,) = torch.autograd.grad(value, gate)
        total += gradient.detach().abs().double().cpu()
    total /= len(examples)
    if normalise:  # as Michel et al. do; a layer that does nothing stays 0
        total = total / total.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    return total


@torch.no_grad()
def mean_loss(
    model: Loaded | nn.Module, texts: Texts, *, loss: Loss | None = None, tokenizer: Any = None
) -> float:
    """The mean loss over texts."""
    loaded = loaded_of(model, tokenizer)
    find_loss = loss or loss_of(loaded)
    values = [float(find_loss(loaded.model, ids)) for ids in encoded(loaded, texts)]
    return sum(values) / len(values)


@torch.no_grad()
def ablation(
    model: Loaded | nn.Module,
    texts: Texts,
    *,
    how: Literal["zero", "mean"] = "zero",
    loss: Loss | None = None,
    layers: Sequence[int] | None = None,
    tokenizer: Any = None,
) -> Float[Tensor, "layer head"]:
    """By how much the mean loss rises without each head; NaN for layers not asked for."""
    loaded = loaded_of(model, tokenizer)
    known = layers_of(loaded)
    means = head_means(loaded, texts) if how == "mean" else None
    before = mean_loss(loaded, texts, loss=loss)
    rise = torch.full(gate_shape(known), torch.nan, dtype=torch.float64)
    for layer in range(len(known)) if layers is None else layers:
        if not 0 <= layer < len(known):
            raise ArgumentError(f"there is no layer {layer}: there are {len(known)}, counted from 0.")
        for head in list(known.values())[layer]:
            with ablated(loaded, [(layer, head)], how, means):
                rise[layer, head] = mean_loss(loaded, texts, loss=loss) - before
    return rise


@dataclass(slots=True, eq=False)
class _Sum(Change):
    """Adds up the outputs of a layer's heads, and leaves them as they are."""

    sums: Tensor | None = None
    n_position: int = 0

    def new(self, called: Called, out: Tensor, heads: list[int], rows: slice, first: int) -> Tensor:
        self.n_position += out.shape[0] * out.shape[2]
        part = out.detach().double().sum((0, 2)).cpu()
        self.sums = part if self.sums is None else self.sums + part
        return out


@torch.no_grad()
def head_means(
    model: Loaded | nn.Module, texts: Texts, *, tokenizer: Any = None
) -> Float[Tensor, "layer head v_dim"]:
    """The mean output of each head, before the output projection, over all positions of all texts."""
    loaded = loaded_of(model, tokenizer)
    layers, examples = layers_of(loaded), encoded(loaded, texts)
    sums = {name: _Sum(name) for name, heads in layers.items() if heads}
    with intervene(loaded) as run:
        run.changes.extend(sums.values())
        for ids in examples:
            loaded.model(ids, logits="none")
    sizes = {total.sums.shape[-1] for total in sums.values() if total.sums is not None}
    if len(sizes) != 1:
        raise UnsupportedError(f"heads of {loaded.facts.name} differ in size: {sorted(sizes)}.")
    means = torch.zeros(*gate_shape(layers), sizes.pop(), dtype=torch.float64)
    for index, (name, heads) in enumerate(layers.items()):
        if heads and (total := sums[name]).sums is not None:
            means[index, list(heads)] = total.sums / total.n_position
    return means


@contextmanager
def ablated(
    model: Loaded | nn.Module,
    heads: Iterable[Head],
    how: Literal["zero", "mean"] = "zero",
    means: Float[Tensor, "layer head v_dim"] | None = None,
) -> Iterator[None]:
    """A block in which these heads, (layer, head), give zero or their mean output (`head_means`)."""
    if how not in ("zero", "mean"):
        raise ArgumentError(f"how must be 'zero' or 'mean'. Got {how!r}.")
    loaded = loaded_of(model)
    layers = layers_of(loaded)
    wanted = gate_shape(layers)
    if how == "mean" and (means is None or tuple(means.shape[:2]) != wanted):
        raise ShapeError(
            f"means must be (layer, head, v_dim) = ({wanted[0]}, {wanted[1]}, ...), as head_means gives "
            f"them. Got {None if means is None else tuple(means.shape)}."
        )
    chosen = checked_heads(layers, heads)
    with intervene(loaded) as run:
        for layer, head in chosen:
            name, left = list(layers.items())[layer]
            toward = None if means is None or how == "zero" else means[layer, head]
            run.gate(layer=name, head=left.index(head), by=0.0, toward=toward)
        yield


@contextmanager
def gated(model: Loaded | nn.Module, gate: Float[Tensor, "layer head"]) -> Iterator[None]:
    """A block in which every head's output is multiplied by its gate; a gradient reaches the gates."""
    loaded = loaded_of(model)
    layers = layers_of(loaded)
    if tuple(gate.shape) != gate_shape(layers):
        raise ShapeError(
            f"gate must be (layer, head) = {gate_shape(layers)}, as this model has them. "
            f"Got {tuple(gate.shape)}."
        )
    with intervene(loaded) as run:
        for row, (name, heads) in zip(gate, layers.items(), strict=True):
            if heads:
                run.gate(layer=name, by=row[list(heads)])
        yield


def gate_shape(layers: Layers) -> tuple[int, int]:
    """(layer, head): as many columns as the widest layer has had heads."""
    return len(layers), max((max(heads) + 1 for heads in layers.values() if heads), default=0)


def loss_of(loaded: Loaded) -> Loss:
    """The loss a model was trained with: of each next token, or of hidden tokens."""
    model = loaded.model
    if model.head == "language" and model.kind == "decoder":
        return next_token_loss
    special = None if loaded.tokenizer is None else loaded.tokenizer.special
    if model.head == "masked" and special is not None and special.mask is not None:
        return partial(masked_token_loss, mask=special.mask)
    raise UnsupportedError(
        f"{loaded.facts.name} ({model.kind}, head {model.head!r}) foretells no token, so it has no loss "
        "of its own: give `loss`, a function of (model, ids)."
    )


def next_token_loss(model: Model, ids: Int[Tensor, "batch position"]) -> Float[Tensor, ""]:
    """Mean of -log p(next token)."""
    logits = model(ids[:, :-1]).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def masked_token_loss(model: Model, ids: Int[Tensor, "batch position"], mask: int) -> Float[Tensor, ""]:
    """Mean of -log p(token) over every seventh token, hidden; the first and last are left."""
    hidden = torch.zeros_like(ids, dtype=torch.bool)
    hidden[:, 1:-1][:, ::EVERY] = True
    logits = model(torch.where(hidden, mask, ids)).logits
    return nn.functional.cross_entropy(logits[hidden], ids[hidden])


def encoded(loaded: Loaded, texts: Texts) -> list[Int[Tensor, "1 position"]]:
    """Texts, or lists of ids, as ids of at least three tokens."""
    if isinstance(texts, str) or not len(texts):
        raise ArgumentError(f"texts must be a list of one text at least. Got {texts!r}.")
    examples = []
    for text in texts:
        if isinstance(text, str):
            if loaded.tokenizer is None:
                raise ArgumentError(f"{loaded.facts.name} has no tokenizer: give one, or ids.")
            text = loaded.tokenizer.encode(text)
        ids = torch.as_tensor(text, dtype=torch.long, device=loaded.device)
        if ids.dim() != 1 or ids.shape[0] < 3:
            raise ArgumentError(f"a text needs three tokens at least to have a loss. Got {tuple(ids.shape)}.")
        examples.append(ids[None])
    return examples


def _dtype(loaded: Loaded) -> torch.dtype:
    return next(loaded.model.parameters()).dtype
