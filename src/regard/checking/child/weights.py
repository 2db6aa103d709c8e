"""Our weights in an answer's parameters: by name, by what it means, by shape, at last in their order."""

import re
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from .messages import Unfit

# What layers are commonly called, and words that tell nothing.
MEANS = {
    **dict.fromkeys(("query", "queries", "wq"), "q"),
    **dict.fromkeys(("key", "keys", "wk"), "k"),
    **dict.fromkeys(("value", "values", "wv"), "v"),
    **dict.fromkeys(("out", "output", "wo", "mix"), "o"),
    **dict.fromkeys(("ln", "layernorm"), "norm"),
}
NOISE = {"w", "b", "weight", "weights", "bias", "proj", "projection", "linear", "lin", "fc", "layer", "to"}


@dataclass(frozen=True, eq=False)
class Place:
    """Where a weight of ours lies in an answer's module."""

    theirs: str
    parameter: nn.Parameter
    transposed: bool
    rows: slice  # one matrix may hold queries, keys and values
    guessed: bool = False  # the order of the layers alone tells

    def view(self, whole: Tensor) -> Tensor:
        """Our part of the parameter, or of its gradient, laid out as ours is."""
        return (whole.T if self.transposed else whole)[self.rows] if whole.dim() else whole


def meaning(name: str) -> tuple[str, ...]:
    """What a parameter is for, as far as the name of its layer tells.

    >>> meaning("attention.query_proj.weight") == meaning("W_q.weight") == ("weight", "q")
    True
    """
    last = name.rpartition(".")[2]
    layer = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
    words = re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", layer).lower())
    telling = [MEANS.get(word, word) for word in words if word not in NOISE]
    return ("bias" if "bias" in last or last.startswith("b_") else "weight", *(telling or words))


def fitted(mine: dict[str, nn.Parameter], weights: dict[str, Tensor]) -> dict[str, Place]:
    """Our name -> its place, for all that can be told."""
    places: dict[str, Place] = {}
    left = dict(mine)

    def take(name: str, theirs: str, *, guessed: bool = False) -> None:
        parameter = left.pop(theirs)
        # A bare parameter is used as x @ W, a linear layer holds the transpose.
        bare = name.endswith(".weight") and not theirs.endswith("weight") and parameter.dim() == 2
        places[name] = Place(theirs, parameter, bare, slice(None), guessed)

    def missing() -> list[str]:
        return [name for name in weights if name not in places]

    for name in missing():
        if name in left:
            take(name, name)
    for name in missing():
        near = [other for other in left if meaning(other) == meaning(name)]
        rivals = [other for other in missing() if meaning(other) == meaning(name)]
        if len(near) == len(rivals) == 1 and left[near[0]].numel() == weights[name].numel():
            take(name, near[0])
    for kind in ("weight", "bias"):
        three = [name for letter in "qkv" for name in missing() if meaning(name) == (kind, letter)]
        if len(three) == 3 and len({weights[name].shape[1:] for name in three}) == 1:
            stacked = torch.cat([weights[name] for name in three]).shape
            for theirs, parameter in left.items():
                flat = parameter.dim() == 1 or theirs.endswith("weight")
                if (parameter.shape if flat else parameter.T.shape) == stacked:
                    ends = accumulate(len(weights[name]) for name in three)
                    for name, end in zip(three, ends, strict=True):
                        rows = slice(end - len(weights[name]), end)
                        places[name] = Place(theirs, parameter, not flat, rows)
                    del left[theirs]
                    break
    for shape in dict.fromkeys(weights[name].shape for name in missing()):
        same = [other for other in left if left[other].shape == shape]
        rivals = [name for name in missing() if weights[name].shape == shape]
        if len(same) == len(rivals):
            for ours, theirs in zip(rivals, same, strict=True):
                take(ours, theirs, guessed=len(same) > 1)
    return places


def transfer(module: nn.Module, weights: dict[str, Tensor]) -> Unfit:
    """Copy the weights into the module; what is left over on both sides.

    Biases without a counterpart are set to zero, as if they were not there.
    """
    for prefix, part in module.named_modules():
        lazy = getattr(part, "has_uninitialized_params", None)
        if lazy is not None and lazy():
            name = f"{prefix}.weight".lstrip(".")
            same = [ours for ours in weights if meaning(ours) == meaning(name)]
            for near in sorted(same, key=lambda ours: ours != name)[:1]:
                part.initialize_parameters(torch.empty(1, weights[near].shape[-1]))
    uninitialized = nn.parameter.UninitializedParameter
    mine = {name: it for name, it in module.named_parameters() if not isinstance(it, uninitialized)}
    places = fitted(mine, weights)
    taken = {place.theirs for place in places.values()}
    zeroed = [name for name in mine if name not in taken and name.endswith("bias")]
    theirs = [name for name in mine if name not in taken and name not in zeroed]
    ours = [name for name in weights if name not in places]
    with torch.no_grad():
        for name, place in places.items():
            view = place.view(place.parameter)
            if view.shape == weights[name].shape:
                view.copy_(weights[name])
            else:
                ours.append(name)
                theirs.append(place.theirs)
        for name in zeroed:
            mine[name].zero_()
    return Unfit(
        ours=[f"{name} {tuple(weights[name].shape)}" for name in weights if name in ours],
        yours=[f"{name} {tuple(mine[name].shape)}" for name in theirs],
        zeroed=zeroed,
        guessed=[f"{place.theirs} as {name}" for name, place in places.items() if place.guessed],
    )
