"""A model's heads by name and number: its layers, the heads that they have left, and what these give."""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from regard.errors import ArgumentError, UnsupportedError
from regard.files.loading import Loaded, described
from regard.files.tokenizer import TextTokenizer
from regard.layers.attention import MultiHeadAttention
from regard.layers.layer_id import LayerId, nth_call
from regard.models.foreign import Foreign
from regard.models.model import Model
from regard.models.transformer import Transformer
from regard.tracing.calls import AttentionCall
from regard.tracing.take import module_of, trace
from regard.tracing.watch import watching

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


def tokenizer_of(loaded: Loaded) -> TextTokenizer:
    """What a model's texts are read with; raises where it has none."""
    if loaded.tokenizer is None:
        raise ArgumentError(f"{loaded.facts.name} has no tokenizer, which texts and their words need.")
    return loaded.tokenizer


def layers_of(loaded: Loaded) -> Layers:
    """The attention layers of any model, and the heads that each has left, by their numbers."""
    model = loaded.model
    if not isinstance(model, Foreign):
        model = loaded.transformer
        whole = (tuple(range(model.config.block.n_head)),) * len(model.attention_names)
        return dict(zip(model.attention_names, model.config.kept_heads or whole, strict=True))
    module = module_of(loaded)
    if module not in _layers:
        answer = probe(loaded) if model.kind == "encoder-decoder" else None
        seen = trace(loaded, probe(loaded), target=answer)
        _layers[module] = {layer.name: tuple(range(layer.n_head)) for layer in seen.layers}
    return _layers[module]


def head_table(layers: Layers) -> Float64[Tensor, "layer head"]:
    """An empty table, all NaN: as many columns as the widest layer has had heads."""
    width = max((max(heads) + 1 for heads in layers.values() if heads), default=0)
    return torch.full((len(layers), width), torch.nan, dtype=torch.float64)


def strongest(table: Float[Tensor, "layer head"], n: int | None = None) -> list[tuple[int, int]]:
    """The places (layer, head) of the `n` largest numbers of a table, or of all; NaN has none.

    >>> strongest(torch.tensor([[1.0, torch.nan], [3.0, 2.0]]), 2)
    [(1, 0), (1, 1)]
    """
    order = table.nan_to_num(-torch.inf).flatten().argsort(descending=True, stable=True)[:n].tolist()
    places = [divmod(at, table.shape[1]) for at in order]
    return [place for place in places if not bool(table[place].isnan())]


@contextmanager
def head_outputs(loaded: Loaded) -> Iterator[dict[str, Tensor]]:
    """A block for one call of the model: what the heads of each layer give, (batch, head, position, v_dim).

    It is kept in the graph where there is one.
    """
    outputs: dict[str, Tensor] = {}

    def keep(called: AttentionCall, out: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not out.requires_grad:
            out.requires_grad_()
        outputs[nth_call(called.name, outputs)] = out
        return out

    with watching(module_of(loaded), None, keep):
        yield outputs
    for name, heads in layers_of(loaded).items():
        if heads and name not in outputs:
            raise UnsupportedError(f"{loaded.facts.name}: {name} does not run when a text alone is read.")


def probe(loaded: Loaded, n_text: int = 1, n_token: int = _PROBE) -> Int[Tensor, "text token"]:
    """Some short texts to run a model on and see what is in it; each begins with another token."""
    vocab = loaded.model.sizes.vocab or 8
    texts, places = (torch.arange(n, device=loaded.device) for n in (n_text, n_token))
    return (texts[:, None] + places) % vocab


def path_of(model: Model, name: str) -> str:
    """Where in its model the attention layer of that name stands."""
    if not isinstance(model, Transformer):
        return LayerId.parse(name).module
    if name not in model.attention_names:
        raise ArgumentError(f"there is no attention {name!r}: there are {', '.join(model.attention_names)}.")
    layer = LayerId.parse(name)
    return f"{layer.stack}.blocks.{layer.index}.{'attention' if layer.kind == 'self' else 'cross'}"


def attention_of(model: Transformer, name: str) -> MultiHeadAttention:
    """The attention layer of that name, one of `attention_names`."""
    layer: MultiHeadAttention = model.get_submodule(path_of(model, name))  # type: ignore[assignment]
    return layer


def checked_heads(layers: Layers, heads: Iterable[Head]) -> list[tuple[int, int]]:
    """Heads as (index of layer, number); raises for one that is not there."""
    names = list(layers)
    checked = []
    for pair in heads:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise ArgumentError(f"heads are pairs (layer, head). Got {pair!r}.")
        layer, head = pair
        index = names.index(layer) if layer in names else layer
        if index not in range(len(names)):
            known = f"layers are 0 to {len(names) - 1} or {', '.join(names)}"
            raise ArgumentError(f"there is no layer {layer!r}: {known}.")
        left = layers[names[int(index)]]
        if head not in left:
            raise ArgumentError(f"layer {layer} has no head {head}: it has {', '.join(map(str, left))}.")
        checked.append((int(index), int(head)))
    return checked
