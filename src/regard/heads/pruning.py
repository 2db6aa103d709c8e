"""Heads removed for good: a smaller, faster model that computes what masking the heads would.

smaller = prune(load("smollm2"), [(0, 3), (0, 4)])      # layer 0 loses heads 3 and 4
save_pruned(smaller, "folder"); load("folder")
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.files.loading import Loaded, write_folder
from regard.heads.effects import Texts, ablated, gate_shape, mean_loss
from regard.heads.model import (
    Head,
    attention_of,
    checked_heads,
    kept_heads,
    layers_of,
    loaded_of,
    transformer_of,
)
from regard.layers.attention import MultiHeadAttention
from regard.models.families import published_config
from regard.models.foreign import Foreign
from regard.models.model import shapes_alone
from regard.models.pruned import MODEL_TYPE, PrunedAttention
from regard.models.transformer import Transformer


@torch.no_grad()
def prune(loaded: Loaded, heads: Iterable[Head]) -> Loaded:
    """A copy of the model without these heads: their weights are gone, and unused key heads with them.

    Heads are (layer, head), the layer by its place among `attention_names` or by name; a head keeps its
    number when others go. What is not pruned is shared with the model given, not copied.
    """
    model = transformer_of(loaded)
    gone = set(checked_heads(layers_of(loaded), heads))
    kept = tuple(
        tuple(head for head in left if (index, head) not in gone)
        for index, left in enumerate(kept_heads(model))
    )
    whole = all(len(left) == model.config.block.n_head for left in kept)
    config = replace(model.config, kept_heads=None if whole else kept)
    with shapes_alone():
        smaller = Transformer(config)
    state = model.state_dict()
    prefixes = {id(module): name for name, module in model.named_modules()}
    for name in model.attention_names:
        old, new = attention_of(model, name), attention_of(smaller, name)
        if isinstance(new, PrunedAttention):
            state |= _selected(old, new, prefixes[id(old)], state)
    smaller.load_state_dict(state, assign=True)
    for old_parameter, new_parameter in zip(model.parameters(), smaller.parameters(), strict=True):
        new_parameter.requires_grad_(old_parameter.requires_grad)
    smaller.packed = model.packed
    smaller.train(model.training)
    n_left, n_all = sum(map(len, kept)), len(kept) * config.block.n_head
    note = f"Pruned: {n_left} of {n_all} heads are left."
    notes = [earlier for earlier in loaded.facts.notes if not earlier.startswith("Pruned:")]
    facts = replace(
        loaded.facts, n_parameter=sum(p.numel() for p in smaller.parameters()), notes=(*notes, note)
    )
    return replace(loaded, model=smaller, facts=facts)


def _selected(
    old: MultiHeadAttention, new: PrunedAttention, prefix: str, state: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The weights of the heads that stay."""
    heads, kv_heads = list(new.kept), list(new.kept_kv)
    if isinstance(old, PrunedAttention):  # where those heads are now
        heads = [old.kept.index(head) for head in heads]
        kv_heads = [old.kept_kv.index(head) for head in kv_heads]
    selected = {}
    for name, chosen, dim in (
        ("query", heads, old.qk_dim),
        ("key", kv_heads, old.qk_dim),
        ("value", kv_heads, old.v_dim),
    ):
        for kind in ("weight", "bias"):
            key = f"{prefix}.{name}.{kind}"
            if key in state:
                selected[key] = state[key].unflatten(0, (-1, dim))[chosen].flatten(0, 1).clone()
    weight = state[f"{prefix}.out.weight"]
    selected[f"{prefix}.out.weight"] = weight.unflatten(1, (-1, old.v_dim))[:, heads].flatten(1, 2).clone()
    return selected


def save_pruned(loaded: Loaded, folder: str | Path) -> None:
    """Write a folder that `load` reads; of a format of ours, since no other says which heads are left."""
    config = transformer_of(loaded).config
    if config.kept_heads is None:
        raise ArgumentError(
            "this model has all its heads: regard.files.loading.save writes it for everybody."
        )
    family_config = published_config(replace(config, kept_heads=None))
    stated = {
        "model_type": MODEL_TYPE,
        "kept_heads": [list(heads) for heads in config.kept_heads],
        "family_config": family_config,
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
    """The mean loss with more and more heads removed: "least first", "random" or "most first".

    Heads of one of our models are really taken out, those of another are switched off.
    """
    loaded = loaded_of(model, tokenizer)
    shape = gate_shape(layers_of(loaded))
    if tuple(importance.shape) != shape:
        raise ArgumentError(f"importance must be (layer, head) = {shape}. Got {tuple(importance.shape)}.")
    ranked = ranked_heads(loaded, importance, order, seed)
    metric = []
    for share in shares:
        if not 0 <= share <= 1:
            raise ArgumentError(f"shares must lie between 0 and 1. Got {share}.")
        gone = ranked[: round(share * len(ranked))]
        if isinstance(loaded.model, Foreign):
            with ablated(loaded, gone):
                metric.append(mean_loss(loaded, texts))
        else:
            metric.append(mean_loss(prune(loaded, gone), texts))
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
