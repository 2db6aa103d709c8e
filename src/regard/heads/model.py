"""A model's heads by name and number: its attention layers, and which heads they have left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor

from regard.errors import ArgumentError
from regard.files.loading import Loaded
from regard.layers.attention import MultiHeadAttention
from regard.models.transformer import Transformer

Head = tuple[int | str, int]  # a layer, by index or name, and a head by its number before any pruning


def transformer_of(loaded: Loaded) -> Transformer:
    """The model, whose heads can be measured and switched off; a recurrent or foreign one is refused."""
    if not isinstance(loaded, Loaded):
        raise ArgumentError(
            "heads are switched off and pruned in models of this library: load it with regard.load. Of any "
            f"model, measure(regard.trace(model, ...)) says what its heads do. Got {type(loaded).__name__}."
        )
    return loaded.transformer


def attention_of(model: Transformer, name: str) -> MultiHeadAttention:
    """The attention layer of that name, one of `attention_names`."""
    if name not in model.attention_names:
        raise ArgumentError(f"there is no attention {name!r}: there are {', '.join(model.attention_names)}.")
    side, index, kind = name.split(".")
    attribute = "attention" if kind == "self" else "cross"
    layer: MultiHeadAttention = model.get_submodule(f"{side}.blocks.{index}.{attribute}")  # type: ignore[assignment]
    return layer


def kept_heads(model: Transformer) -> tuple[tuple[int, ...], ...]:
    """The heads a model has, for each of `attention_names`, by their numbers before any pruning."""
    if model.config.kept_heads is not None:
        return model.config.kept_heads
    return (tuple(range(model.config.block.n_head)),) * len(model.attention_names)


def checked_heads(model: Transformer, heads: Iterable[Head]) -> list[tuple[int, int]]:
    """Heads as (index of layer, number); raises for one that is not there."""
    names, left = model.attention_names, kept_heads(model)
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
        if head not in left[index]:
            raise ArgumentError(
                f"layer {layer} has no head {head}: it has {', '.join(map(str, left[index]))}."
            )
        checked.append((index, int(head)))
    return checked


@contextmanager
def watched_heads(
    model: Transformer, watchers: Mapping[int, Callable[[Tensor], Tensor | None]]
) -> Iterator[None]:
    """A block in which the outputs of a layer's heads, (batch, position, head, v_dim), pass its watcher.

    They are those before the output projection; what the watcher returns takes their place.
    """

    def hook(layer: int, watcher: Callable[[Tensor], Tensor | None]) -> Callable[..., tuple[Tensor] | None]:
        n_head = len(kept_heads(model)[layer])

        def pass_by(module: object, args: tuple[Tensor, ...]) -> tuple[Tensor] | None:
            changed = watcher(args[0].unflatten(-1, (n_head, -1)))
            return None if changed is None else (changed.flatten(-2),)

        return pass_by

    handles = [
        attention_of(model, model.attention_names[layer]).out.register_forward_pre_hook(hook(layer, watcher))
        for layer, watcher in watchers.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
