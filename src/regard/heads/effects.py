"""How much a model needs each head: gradient importance, what happens without it, and heads removed for good.

importance(model, texts)          Michel et al. 2019: |dL/d gate|, one backward pass for each text
ablation(model, texts)            the loss with each head gone, one forward pass for each head and text
ablated(model, heads, "mean")     a block in which heads give zero, or their mean output
prune(loaded, heads)              a smaller, faster model that computes what masking the heads would
save_pruned(smaller, "folder")    for load("folder")
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.shapes import whole_index
from regard.decoding import prompts
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.files.loading import Loaded, write_folder
from regard.heads.model import (
    Head,
    attention_of,
    checked_heads,
    head_outputs,
    head_table,
    layers_of,
    loaded_of,
    path_of,
)
from regard.models.families import published_config
from regard.models.model import Model, on_meta
from regard.models.pruned import MODEL_TYPE, PrunedAttention
from regard.models.transformer import Transformer
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
    total = torch.zeros_like(head_table(layers_of(loaded)))  # first: a model without heads says so
    find_loss, examples = loss or loss_of(loaded), encoded(loaded, texts)
    for ids in examples:
        gate = next(loaded.model.parameters()).new_ones(total.shape, requires_grad=True)
        with torch.enable_grad(), gated(loaded, gate):
            (gradient,) = torch.autograd.grad(find_loss(loaded.model, ids), gate)
        total += gradient.abs().double().cpu() / len(examples)
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
    return fmean(float(find_loss(loaded.model, ids)) for ids in encoded(loaded, texts))


@torch.no_grad()
def ablation(
    model: Loaded | nn.Module,
    texts: Texts,
    *,
    loss: Loss | None = None,
    layers: Sequence[int] | None = None,
    tokenizer: Any = None,
) -> Float[Tensor, "layer head"]:
    """By how much the mean loss rises without each head; NaN for layers not asked for."""
    loaded = loaded_of(model, tokenizer)
    known = layers_of(loaded)
    before = mean_loss(loaded, texts, loss=loss)
    rise = head_table(known)
    chosen = range(len(known)) if layers is None else [whole_index("layer", at, len(known)) for at in layers]
    for layer in chosen:
        for head in list(known.values())[layer]:
            with ablated(loaded, [(layer, head)]):
                rise[layer, head] = mean_loss(loaded, texts, loss=loss) - before
    return rise


@torch.no_grad()
def head_means(
    model: Loaded | nn.Module, texts: Texts, *, tokenizer: Any = None
) -> Float[Tensor, "layer head v_dim"]:
    """The mean output of each head, before the output projection, over all positions of all texts."""
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
    n_layer, n_head = head_table(layers).shape
    if how == "mean" and (means is None or means.shape[:2] != (n_layer, n_head)):
        got = None if means is None else tuple(means.shape)
        raise ShapeError(f"means must be ({n_layer}, {n_head}, v_dim), as head_means gives them. Got {got}.")
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
    """The loss a model was trained with: of each next token, or of hidden tokens."""
    model = loaded.model
    if model.lm_head == "language" and model.kind == "decoder":
        return next_token_loss
    special = None if loaded.tokenizer is None else loaded.tokenizer.special
    if model.lm_head == "masked" and special is not None and special.mask is not None:
        return partial(masked_token_loss, mask=special.mask)
    name = f"{loaded.facts.name} ({model.kind}, lm_head {model.lm_head!r})"
    raise UnsupportedError(f"{name} foretells no token, so it has no loss of its own: give `loss`.")


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
    examples = [prompts.encoded(text, loaded.tokenizer, loaded.device).ids for text in texts]
    for ids in examples:
        if ids.shape[0] != 1 or ids.shape[1] < 3:
            raise ArgumentError(f"a text needs three tokens at least to have a loss. Got {tuple(ids.shape)}.")
    return examples


@torch.no_grad()
def prune(loaded: Loaded, heads: Iterable[Head]) -> Loaded:
    """A copy of the model without these heads: their weights are gone, and unused key heads with them.

    Heads are (layer, head), the layer by its place among `attention_names` or by name; a head keeps its
    number when others go. What is not pruned is shared with the model given, not copied.
    """
    model = _transformer_of(loaded)
    layers = layers_of(loaded)
    gone = set(checked_heads(layers, heads))
    there = enumerate(layers.values())
    kept = tuple(tuple(head for head in numbers if (index, head) not in gone) for index, numbers in there)
    whole = all(len(left) == model.config.block.n_head for left in kept)
    config = replace(model.config, kept_heads=None if whole else kept)
    with on_meta():
        smaller = Transformer(config)
    state = model.state_dict()
    for name in model.attention_names:
        old, new, path = attention_of(model, name), attention_of(smaller, name), path_of(model, name)
        if not isinstance(new, PrunedAttention):
            continue
        was, was_kv = tuple(range(old.n_head)), tuple(range(old.n_kv_head))
        if isinstance(old, PrunedAttention):
            was, was_kv = old.kept, old.kept_kv
        left, left_kv = [was.index(head) for head in new.kept], [was_kv.index(head) for head in new.kept_kv]
        parts = {"query": (left, old.qk_dim), "key": (left_kv, old.qk_dim), "value": (left_kv, old.v_dim)}
        for part, (chosen, dim) in parts.items():
            for key in {f"{path}.{part}.weight", f"{path}.{part}.bias"} & state.keys():
                state[key] = state[key].unflatten(0, (-1, dim))[chosen].flatten(0, 1)
        key = f"{path}.out.weight"
        state[key] = state[key].unflatten(1, (-1, old.v_dim))[:, left].flatten(1, 2)
    smaller.load_state_dict(state, assign=True)
    for old_parameter, new_parameter in zip(model.parameters(), smaller.parameters(), strict=True):
        new_parameter.requires_grad_(old_parameter.requires_grad)
    smaller.packed = model.packed
    smaller.train(model.training)
    note = f"Pruned: {sum(map(len, kept))} of {len(kept) * config.block.n_head} heads are left."
    notes = [earlier for earlier in loaded.facts.notes if not earlier.startswith("Pruned:")]
    n_parameter = sum(parameter.numel() for parameter in smaller.parameters())
    facts = replace(loaded.facts, n_parameter=n_parameter, notes=(*notes, note))
    return replace(loaded, model=smaller, facts=facts)


def _transformer_of(loaded: Loaded) -> Transformer:
    if not isinstance(loaded, Loaded):
        known = (
            "prune is for models of this library (regard.load); regard.intervene switches heads of any off"
        )
        raise ArgumentError(f"{known}. Got {type(loaded).__name__}.")
    return loaded.transformer


def save_pruned(loaded: Loaded, folder: str | Path) -> None:
    """Write a folder that `load` reads; of a format of ours, since no other says which heads are left."""
    config = _transformer_of(loaded).config
    if config.kept_heads is None:
        raise ArgumentError("this model has all its heads: regard.files.loading.save writes it.")
    stated = {
        "model_type": MODEL_TYPE,
        "kept_heads": [list(heads) for heads in config.kept_heads],
        "family_config": published_config(replace(config, kept_heads=None)),
    }
    write_folder(loaded, folder, stated)


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric against the share of heads removed, in one order."""

    order: str
    share_removed: tuple[float, ...]
    metric: tuple[float, ...]


@torch.no_grad()
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
    """The mean loss with more and more heads switched off: "least first", "random" or "most first"."""
    loaded = loaded_of(model, tokenizer)
    _check_table("importance", importance, loaded)
    ranked = ranked_heads(loaded, importance, order, seed)
    metric = []
    for share in shares:
        if not 0 <= share <= 1:
            raise ArgumentError(f"shares must lie between 0 and 1. Got {share}.")
        with ablated(loaded, ranked[: round(share * len(ranked))]):
            metric.append(mean_loss(loaded, texts))
    return Curve(order, tuple(shares), tuple(metric))


def ranked_heads(
    loaded: Loaded, importance: Float[Tensor, "layer head"], order: str = "least first", seed: int = 0
) -> list[tuple[int, int]]:
    """All heads in the order in which they are to go."""
    there = [(layer, head) for layer, heads in enumerate(layers_of(loaded).values()) for head in heads]
    if order == "random":
        mixed = torch.randperm(len(there), generator=torch.Generator().manual_seed(seed)).tolist()
        return [there[index] for index in mixed]
    if order not in ("least first", "most first"):
        raise ArgumentError(f"order must be 'least first', 'random' or 'most first'. Got {order!r}.")
    return sorted(there, key=lambda at: float(importance[at]), reverse=order == "most first")
