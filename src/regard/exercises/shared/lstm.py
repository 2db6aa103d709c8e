"""What `lstm-step` and `lstm-forward` share: weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard.checking.trials import Draw


def lstm_weights(draw: Draw) -> list[Tensor]:
    """The twelve weights in the order of the signature, large enough for the gates to be felt."""
    shapes: dict[str, tuple[Any, ...]] = {
        "W": ("input", "hidden"),
        "U": ("hidden", "hidden"),
        "b": ("hidden",),
    }
    return [draw.normal(*shapes[kind], scale=0.7) for kind in "WUb" * 4]
