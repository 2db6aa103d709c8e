"""Our weights in an answer's parameters, by name, then by shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .messages import Unfit


def _plain(name: str) -> str:
    return name.lower().replace("_", "").removesuffix(".weight")


def fitted(mine: dict[str, Any], weights: dict[str, Tensor]) -> dict[str, tuple[Any, bool]]:
    """Our name -> (the answer's parameter, whether it is ours transposed), for all that can be told."""
    pairs: dict[str, tuple[Any, bool]] = {}
    left = dict(mine)

    def take(name: str, theirs: str) -> None:
        parameter = left.pop(theirs)
        # A bare parameter is used as x @ W, a linear layer holds the transpose.
        bare = name.endswith(".weight") and not theirs.endswith("weight") and parameter.dim() == 2
        pairs[name] = (parameter, bare)

    for name in weights:
        if name in left:
            take(name, name)
    for name in weights:
        near = [other for other in left if _plain(other) == _plain(name)]
        if name not in pairs and len(near) == 1:
            take(name, near[0])
    missing = [name for name in weights if name not in pairs]
    for name in missing:
        same = [other for other in left if left[other].shape == weights[name].shape]
        rivals = [other for other in missing if weights[other].shape == weights[name].shape]
        if len(same) == 1 and len(rivals) == 1:
            take(name, same[0])
    return pairs


def transfer(module: nn.Module, weights: dict[str, Tensor]) -> Unfit | None:
    """Copy the weights into the module; None when all fit, else what is left over on both sides.

    Biases without a counterpart are set to zero, as if they were not there.
    """
    for prefix, part in module.named_modules():
        lazy = getattr(part, "has_uninitialized_params", None)
        name = f"{prefix}.weight" if prefix else "weight"
        if lazy is not None and lazy() and name in weights:
            part.initialize_parameters(torch.empty(1, weights[name].shape[-1]))
    mine = {
        name: parameter
        for name, parameter in module.named_parameters()
        if not isinstance(parameter, nn.parameter.UninitializedParameter)
    }
    pairs = fitted(mine, weights)
    wrong = []
    with torch.no_grad():
        for name, (parameter, transposed) in pairs.items():
            value = weights[name].T if transposed else weights[name]
            if parameter.shape == value.shape:
                parameter.copy_(value)
            else:
                wrong.append(name)
        taken = {id(parameter) for parameter, _ in pairs.values()}
        extra = [name for name, parameter in mine.items() if id(parameter) not in taken]
        zeroed = [name for name in extra if name.endswith("bias")]
        for name in zeroed:
            mine[name].zero_()
    ours = [name for name in weights if name not in pairs or name in wrong]
    shapes = {id(parameter): name for name, parameter in mine.items()}
    theirs = [
        *(name for name in extra if name not in zeroed),
        *(shapes[id(pairs[name][0])] for name in wrong),
    ]
    if not ours and not theirs and not zeroed:
        return None
    return Unfit(
        ours=[f"{name} {tuple(weights[name].shape)}" for name in ours],
        yours=[f"{name} {tuple(mine[name].shape)}" for name in theirs],
        zeroed=zeroed,
    )
