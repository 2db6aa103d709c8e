"""Heads removed for good: a smaller, faster model that computes what masking the heads would."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from regard.errors import ArgumentError
from regard.files.loading import Loaded, write_folder
from regard.heads.model import Head, attention_of, checked_heads, layers_of, path_of
from regard.models.families import published_config
from regard.models.model import on_meta
from regard.models.pruned import MODEL_TYPE, PrunedAttention
from regard.models.transformer import Transformer


@torch.no_grad()
def prune(loaded: Loaded, heads: Iterable[Head]) -> Loaded:
    """Return a copy of the model without these heads: their weights are gone, and unused key heads too.

    Args:
        loaded: A model of this library.
        heads: Pairs (layer, head), the layer by its place among `attention_names` or by name; a head keeps
            its number when others go.

    Returns:
        The smaller model. What is not pruned is shared with the model given, not copied.

    Raises:
        ArgumentError: There is no such head, or the model is not of this library.
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
    """Write a folder that `load` reads; of a format of ours, since no other says which heads are left.

    Args:
        loaded: A model that `prune` made.
        folder: Where to.

    Raises:
        ArgumentError: The model has all its heads.
    """
    config = _transformer_of(loaded).config
    if config.kept_heads is None:
        raise ArgumentError("this model has all its heads: regard.files.loading.save writes it.")
    stated = {
        "model_type": MODEL_TYPE,
        "kept_heads": [list(heads) for heads in config.kept_heads],
        "family_config": published_config(replace(config, kept_heads=None)),
    }
    write_folder(loaded, folder, stated)
