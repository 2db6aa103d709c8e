"""A model's heads by name and number: its layers, the heads that they have left, and where these write."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.files.loading import Loaded, described
from regard.files.tokenizer import TextTokenizer
from regard.layers.attention import MultiHeadAttention
from regard.models.foreign import Foreign
from regard.models.model import Model
from regard.models.transformer import Transformer
from regard.tracing.take import module_of, trace

Head = tuple[int | str, int]  # a layer, by index or name, and a head by its number before any pruning
Layers = dict[str, tuple[int, ...]]  # the heads that each attention layer has, in the order the layers run

_PROBE = 5  # tokens: enough to run a model once and see its layers
_layers: weakref.WeakKeyDictionary[nn.Module, Layers] = weakref.WeakKeyDictionary()


def loaded_of(model: Loaded | nn.Module, tokenizer: Any = None) -> Loaded:
    """A model to be studied: one that was loaded, or anybody's that can be watched, with its tokenizer."""
    if isinstance(model, Loaded):
        return model
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be a Loaded model or a torch.nn.Module. Got {type(model).__name__}.")
    read = None if tokenizer is None else TextTokenizer.of(tokenizer)
    whole = model if isinstance(model, Model) else Foreign(model)
    return Loaded(whole, read, described(whole, type(model).__name__, "memory"), whole.start_token)


def transformer_of(loaded: Loaded) -> Transformer:
    """The model, where only one of ours will do: to lose heads for good."""
    if not isinstance(loaded, Loaded):
        raise ArgumentError(
            "heads are taken out for good in models of this library: load it with regard.load. Of any model, "
            f"regard.intervene and ablation switch heads off. Got {type(loaded).__name__}."
        )
    return loaded.transformer


def layers_of(loaded: Loaded) -> Layers:
    """The attention layers of any model, and the heads that each has left, by their numbers."""
    model = loaded.model
    if isinstance(model, Transformer):
        return dict(zip(model.attention_names, kept_heads(model), strict=True))
    if not isinstance(model, Foreign):
        loaded.transformer  # noqa: B018  # says why not
    known = _layers.get(module_of(loaded))
    if known is None:
        answer = probe(loaded) if model.kind == "encoder-decoder" else None
        seen = trace(loaded, probe(loaded), target=answer)
        known = {layer.name: tuple(range(layer.n_head)) for layer in seen.layers}
        _layers[module_of(loaded)] = known
    return known


def probe(loaded: Loaded, n_text: int = 1, n_token: int = _PROBE) -> Int[Tensor, "text token"]:
    """Some short texts to run a model on and see what is in it; each begins with another token."""
    vocab = loaded.model.sizes.vocab or 8
    texts, places = (torch.arange(n, device=loaded.device) for n in (n_text, n_token))
    return (texts[:, None] + places) % vocab


def path_of(model: Model, name: str) -> str:
    """Where in its model the attention layer of that name stands."""
    if not isinstance(model, Transformer):
        return name.partition("#")[0]
    if name not in model.attention_names:
        raise ArgumentError(f"there is no attention {name!r}: there are {', '.join(model.attention_names)}.")
    side, index, kind = name.split(".")
    return f"{side}.blocks.{index}.{'attention' if kind == 'self' else 'cross'}"


def attention_of(model: Transformer, name: str) -> MultiHeadAttention:
    """The attention layer of that name, one of `attention_names`."""
    layer: MultiHeadAttention = model.get_submodule(path_of(model, name))  # type: ignore[assignment]
    return layer


def kept_heads(model: Transformer) -> tuple[tuple[int, ...], ...]:
    """The heads a model has, for each of `attention_names`, by their numbers before any pruning."""
    if model.config.kept_heads is not None:
        return model.config.kept_heads
    return (tuple(range(model.config.block.n_head)),) * len(model.attention_names)


def checked_heads(layers: Layers, heads: Iterable[Head]) -> list[tuple[int, int]]:
    """Heads as (index of layer, number); raises for one that is not there."""
    names = list(layers)
    checked = []
    for pair in heads:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise ArgumentError(f"heads are pairs (layer, head). Got {pair!r}.")
        layer, head = pair
        index = names.index(layer) if layer in names else layer
        if not isinstance(index, int) or not 0 <= index < len(names):
            raise ArgumentError(
                f"there is no layer {layer!r}: layers are 0 to {len(names) - 1} or {', '.join(names)}."
            )
        if head not in layers[names[index]]:
            raise ArgumentError(
                f"layer {layer} has no head {head}: it has {', '.join(map(str, layers[names[index]]))}."
            )
        checked.append((index, int(head)))
    return checked
