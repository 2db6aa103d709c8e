"""How much a model needs each head: what happens without it, exactly, and a gradient that says so roughly.

ablation(model, texts)            by how much the loss rises without each head: every head run
pruning_curve(model, texts, ...)  the loss with more and more heads gone
losses_without(model, texts, ...) the loss of each text under any changes, as rows of a batch
ablated(model, heads, "mean")     a block in which heads give zero, or their mean output
importance(model, texts)          Michel et al. 2019: |dL/d gate|, one backward pass for each text
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.shapes import whole_index
from regard.decoding import prompts
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.experiments.changes import Change, HeadGate
from regard.experiments.engine import LogitReading, RowEngine
from regard.experiments.targets import progress_bar
from regard.files.loading import Loaded
from regard.heads.model import (
    Head,
    Layers,
    checked_heads,
    head_outputs,
    head_table,
    layers_of,
    loaded_of,
)
from regard.models.model import Model
from regard.tracing.interventions import intervene
from regard.tracing.take import ModelInput, foreign_input, module_of, our_input

Texts = Sequence[str] | Sequence[Sequence[int]]
Loss = Callable[[Model, Tensor], Tensor]  # of one example: (model, ids (1, position)) -> number

EVERY = 7  # of a masked model's tokens, one in so many is masked and asked for


def importance(
    model: Loaded | nn.Module,
    texts: Texts,
    *,
    loss: Loss | None = None,
    normalise: bool = True,
    tokenizer: Any = None,
) -> Float[Tensor, "layer head"]:
    """Estimate how much a model needs each head, by the mean over texts of |dL/d gate| (Michel et al. 2019).

    The gate multiplies a head's output and stands at 1, so the gradient says what closing it a little would
    do. The absolute value is taken for each text, so that opposite signs do not cancel. `ablation` runs what
    this estimates.

    Args:
        model: Ours, or anybody's that can be watched.
        texts: A list of texts, or of lists of ids.
        loss: Of one example; None: the model's own, of the next token or of masked tokens.
        normalise: Divide each layer by its norm, as Michel et al. do; a layer that does nothing stays 0.
        tokenizer: Where the model has none.

    Returns:
        ``(layer, head)``; NaN where a layer does not have the head.
    """
    loaded = loaded_of(model, tokenizer)
    total = torch.zeros_like(head_table(layers_of(loaded)))  # first: a model without heads says so
    find_loss, examples = loss or loss_of(loaded), encoded(loaded, texts)
    for ids in examples:
        gate = next(loaded.model.parameters()).new_ones(total.shape, requires_grad=True)
        with torch.enable_grad(), gated(loaded, gate):
            (gradient,) = torch.autograd.grad(find_loss(loaded.model, ids), gate)
        total += gradient.abs().double().cpu() / len(examples)
    if normalise:
        total = total / total.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    return total


@torch.no_grad()
def mean_loss(
    model: Loaded | nn.Module, texts: Texts, *, loss: Loss | None = None, tokenizer: Any = None
) -> float:
    """Return the mean loss over texts.

    Args:
        model: Ours, or anybody's that can be watched.
        texts: A list of texts, or of lists of ids.
        loss: Of one example; None: the model's own, of the next token or of masked tokens.
        tokenizer: Where the model has none.

    Returns:
        The mean of the losses of the texts, in nats a token for the model's own.
    """
    loaded = loaded_of(model, tokenizer)
    find_loss = loss or loss_of(loaded)
    return fmean(float(find_loss(loaded.model, ids)) for ids in encoded(loaded, texts))


@torch.no_grad()
def losses_without(
    model: Loaded | nn.Module,
    texts: Texts,
    changes: Sequence[Change],
    *,
    loss: Loss | None = None,
    progress: bool = False,
    tokenizer: Any = None,
) -> Float[Tensor, "change text"]:
    """Return the loss of each text under each change.

    With the model's own loss all changes of a text are rows of batches; a loss that is given calls the model
    itself, once for each change.

    Args:
        model: Ours, or anybody's that can be watched.
        texts: A list of texts, or of lists of ids.
        changes: Each a tuple of edits that are made together; an empty one changes nothing.
        loss: Of one example; None: the model's own, of the next token or of masked tokens.
        progress: Draw a bar on stderr.
        tokenizer: Where the model has none.

    Returns:
        ``(change, text)``; NaN where Ctrl-C came before.
    """
    loaded = loaded_of(model, tokenizer)
    if loss is None:
        loss_of(loaded)  # raises where the model has none
    columns = []
    with progress_bar("running changes", progress) as bar:
        for ids in encoded(loaded, texts):
            if loss is None:
                given, reading = _own_loss(loaded, ids)
                columns.append(RowEngine(loaded, given, reading).run(changes, progress=bar).scores)
                continue
            losses = []
            for change in changes:
                with intervene(loaded) as run:
                    for edit in change:
                        edit.ask(run, [0], 1)
                    losses.append(float(loss(loaded.model, ids)))
            columns.append(torch.tensor(losses, dtype=torch.float64))
    return torch.stack(columns, 1)


def _own_loss(loaded: Loaded, ids: Int[Tensor, "1 position"]) -> tuple[ModelInput, LogitReading]:
    """What a model is given to have its own loss, and how that is read off its logits."""
    if loaded.model.lm_head == "language":
        given, wanted, places = ids[:, :-1], ids[0, 1:], torch.ones_like(ids[0, 1:], dtype=torch.bool)
    else:
        special = None if loaded.tokenizer is None else loaded.tokenizer.special
        assert special is not None  # `loss_of` made sure
        assert special.mask is not None
        masked = _masked(ids)
        given, wanted, places = torch.where(masked, special.mask, ids), ids[masked], masked[0]

    def score(logits: Tensor) -> Tensor:
        asked = logits[:, 0, places].flatten(0, 1)
        losses = nn.functional.cross_entropy(asked, wanted.repeat(len(logits)), reduction="none")
        return losses.view(len(logits), -1).mean(1)

    module = module_of(loaded)
    if isinstance(module, Model):
        return our_input(module, given, None, None, None), LogitReading(score)
    named: Any = given if getattr(module, "config", None) is None else {"input_ids": given}
    return foreign_input(module, named, None, None), LogitReading(score)


@torch.no_grad()
def ablation(
    model: Loaded | nn.Module,
    texts: Texts,
    *,
    loss: Loss | None = None,
    layers: Sequence[int] | None = None,
    progress: bool = False,
    tokenizer: Any = None,
) -> Float[Tensor, "layer head"]:
    """Return by how much the mean loss rises without each head, each of them run.

    Args:
        model: Ours, or anybody's that can be watched.
        texts: A list of texts, or of lists of ids.
        loss: Of one example; None: the model's own, of the next token or of masked tokens.
        layers: Only these; None: all.
        progress: Draw a bar on stderr.
        tokenizer: Where the model has none.

    Returns:
        ``(layer, head)``; NaN for layers not asked for.
    """
    loaded = loaded_of(model, tokenizer)
    known = layers_of(loaded)
    rise = head_table(known)
    chosen = range(len(known)) if layers is None else [whole_index("layer", at, len(known)) for at in layers]
    heads = [(layer, head) for layer in chosen for head in list(known.values())[layer]]
    changes: list[Change] = [(), *(without_heads(known, [head]) for head in heads)]
    losses = losses_without(loaded, texts, changes, loss=loss, progress=progress).mean(1)
    for head, value in zip(heads, losses[1:].tolist(), strict=True):
        rise[head] = value - float(losses[0])
    return rise


@torch.no_grad()
def head_means(
    model: Loaded | nn.Module, texts: Texts, *, tokenizer: Any = None
) -> Float[Tensor, "layer head v_dim"]:
    """Return the mean output of each head, before the output projection, over all positions of all texts.

    Args:
        model: Ours, or anybody's that can be watched.
        texts: A list of texts, or of lists of ids.
        tokenizer: Where the model has none.

    Returns:
        ``(layer, head, v_dim)``; 0 where a layer does not have the head.
    """
    loaded = loaded_of(model, tokenizer)
    layers, examples = layers_of(loaded), encoded(loaded, texts)
    n_token, means = sum(ids.shape[1] for ids in examples), torch.zeros(0)
    for ids in examples:
        with head_outputs(loaded) as outputs:
            loaded.model(ids, logits="none")
        sizes = {out.shape[-1] for out in outputs.values()}
        if len(sizes) != 1:
            raise UnsupportedError(f"heads of {loaded.facts.name} differ in size: {sorted(sizes)}.")
        if not len(means):
            means = torch.zeros(*head_table(layers).shape, sizes.pop(), dtype=torch.float64)
        for index, (name, heads) in enumerate(layers.items()):
            if heads:
                means[index, list(heads)] += outputs[name][0].double().sum(1).cpu() / n_token
    return means


def without_heads(
    known: Layers, heads: Iterable[Head], means: Float[Tensor, "layer head v_dim"] | None = None
) -> Change:
    """Return the change that switches heads off, or moves them to their means.

    Args:
        known: The model's layers and heads.
        heads: Pairs (layer, head), the layer by its index or name.
        means: As `head_means` gives them; None: heads give zero.

    Returns:
        One change with an edit for each head.
    """
    names = list(known)
    edits = []
    for layer, head in checked_heads(known, heads):
        toward = None if means is None else means[layer, head]
        edits.append(HeadGate(names[layer], (known[names[layer]].index(head),), 0.0, toward))
    return tuple(edits)


@contextmanager
def ablated(
    model: Loaded | nn.Module,
    heads: Iterable[Head],
    how: Literal["zero", "mean"] = "zero",
    means: Float[Tensor, "layer head v_dim"] | None = None,
    *,
    this_thread: bool = False,
) -> Iterator[None]:
    """Open a block in which these heads give zero, or their mean output, in every call of the model.

    Args:
        model: Ours, or anybody's that can be watched.
        heads: Pairs (layer, head), the layer by its index or name.
        how: "zero", or "mean".
        means: For "mean", as `head_means` gives them.
        this_thread: Leave calls of the model in other threads as they are.

    Yields:
        Nothing; call the model, or `generate`, inside.

    Raises:
        ArgumentError: There is no such head.
        ShapeError: The means are not those of this model.
    """
    if how not in ("zero", "mean"):
        raise ArgumentError(f"how must be 'zero' or 'mean'. Got {how!r}.")
    loaded = loaded_of(model)
    layers = layers_of(loaded)
    n_layer, n_head = head_table(layers).shape
    if how == "mean" and (means is None or means.shape[:2] != (n_layer, n_head)):
        got = None if means is None else tuple(means.shape)
        raise ShapeError(f"means must be ({n_layer}, {n_head}, v_dim), as head_means gives them. Got {got}.")
    change = without_heads(layers, heads, means if how == "mean" else None)
    with intervene(loaded, this_thread=this_thread) as run:
        for edit in change:
            edit.ask(run, None, 1)
        yield


@contextmanager
def gated(model: Loaded | nn.Module, gate: Float[Tensor, "layer head"]) -> Iterator[None]:
    """Open a block in which every head's output is multiplied by its gate; a gradient reaches the gates."""
    loaded = loaded_of(model)
    layers = layers_of(loaded)
    _check_table("gate", gate, loaded)
    with intervene(loaded) as run:
        for row, (name, heads) in zip(gate, layers.items(), strict=True):
            if heads:
                run.gate(layer=name, by=row[list(heads)])
        yield


def _check_table(name: str, table: Tensor, loaded: Loaded) -> None:
    wanted = head_table(layers_of(loaded)).shape
    if table.shape != wanted:
        raise ShapeError(f"{name} must be (layer, head) = {tuple(wanted)}. Got {tuple(table.shape)}.")


def loss_of(loaded: Loaded) -> Loss:
    """Return the loss a model was trained with: of each next token, or of masked tokens."""
    model = loaded.model
    if model.lm_head == "language" and model.kind == "decoder":
        return next_token_loss
    special = None if loaded.tokenizer is None else loaded.tokenizer.special
    if model.lm_head == "masked" and special is not None and special.mask is not None:
        return partial(masked_token_loss, mask=special.mask)
    name = f"{loaded.facts.name} ({model.kind}, lm_head {model.lm_head!r})"
    raise UnsupportedError(
        f"{name} has no language-model or masked head, so it has no loss of its own: give `loss`."
    )


def next_token_loss(model: Model, ids: Int[Tensor, "batch position"]) -> Float[Tensor, ""]:
    """Return the mean of -log p(next token)."""
    logits = model(ids[:, :-1]).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def masked_token_loss(model: Model, ids: Int[Tensor, "batch position"], mask: int) -> Float[Tensor, ""]:
    """Return the mean of -log p(token) over every seventh token, masked; the first and last are left."""
    masked = _masked(ids)
    logits = model(torch.where(masked, mask, ids)).logits
    return nn.functional.cross_entropy(logits[masked], ids[masked])


def _masked(ids: Tensor) -> Tensor:
    """Which tokens a masked model is asked for."""
    masked = torch.zeros_like(ids, dtype=torch.bool)
    masked[:, 1:-1][:, ::EVERY] = True
    return masked


def encoded(loaded: Loaded, texts: Texts) -> list[Int[Tensor, "1 position"]]:
    """Return texts, or lists of ids, as ids of at least three tokens."""
    if isinstance(texts, str) or not len(texts):
        raise ArgumentError(f"texts must be a list of one text at least. Got {texts!r}.")
    examples = [prompts.encoded(text, loaded.tokenizer, loaded.device).ids for text in texts]
    for ids in examples:
        if ids.shape[0] != 1 or ids.shape[1] < 3:
            raise ArgumentError(f"a text needs three tokens at least to have a loss. Got {tuple(ids.shape)}.")
    return examples


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric against the share of heads removed, in one order.

    Attributes:
        order: In which heads go.
        share_removed: Of all heads, at each point.
        metric: The mean loss there.
    """

    order: str
    share_removed: tuple[float, ...]
    metric: tuple[float, ...]


def pruning_curve(
    model: Loaded | nn.Module,
    texts: Texts,
    importance: Float[Tensor, "layer head"],
    *,
    order: str = "least first",
    shares: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
    seed: int = 0,
    tokenizer: Any = None,
) -> Curve:
    """Return the mean loss with more and more heads switched off.

    Args:
        model: Ours, or anybody's that can be watched.
        texts: A list of texts, or of lists of ids.
        importance: Of each head, ``(layer, head)``.
        order: "least first", "random" or "most first".
        shares: Of all heads, how many are off: a point of the curve each.
        seed: Of the random order.
        tokenizer: Where the model has none.

    Returns:
        The losses.
    """
    loaded = loaded_of(model, tokenizer)
    _check_table("importance", importance, loaded)
    ranked = ranked_heads(loaded, importance, order, seed)
    for share in shares:
        if not 0 <= share <= 1:
            raise ArgumentError(f"shares must lie between 0 and 1. Got {share}.")
    known = layers_of(loaded)
    changes = [without_heads(known, ranked[: round(share * len(ranked))]) for share in shares]
    losses = losses_without(loaded, texts, changes).mean(1)
    return Curve(order, tuple(shares), tuple(losses.tolist()))


def ranked_heads(
    loaded: Loaded, importance: Float[Tensor, "layer head"], order: str = "least first", seed: int = 0
) -> list[tuple[int, int]]:
    """Return all heads in the order in which they are to go.

    Args:
        loaded: The model.
        importance: Of each head, ``(layer, head)``.
        order: "least first", "random" or "most first".
        seed: Of the random order.

    Returns:
        Pairs (layer, head).
    """
    there = [(layer, head) for layer, heads in enumerate(layers_of(loaded).values()) for head in heads]
    if order == "random":
        mixed = torch.randperm(len(there), generator=torch.Generator().manual_seed(seed)).tolist()
        return [there[index] for index in mixed]
    if order not in ("least first", "most first"):
        raise ArgumentError(f"order must be 'least first', 'random' or 'most first'. Got {order!r}.")
    return sorted(there, key=lambda at: float(importance[at]), reverse=order == "most first")
