"""The layers of `tiny-gpt`."""

from collections.abc import Iterator

from torch import Tensor

from regard.checking.trials import Draw, View
from regard.exercises.shared.blocks import block


def through(formulas: View, x: Tensor) -> Tensor:
    """What all blocks make of x; formulas find the weights of each by its `number`."""
    for number in formulas.layers:
        formulas.number = number
        x = formulas.enters(x)
        x = formulas.leaves(x, block(formulas, x, formulas.causally), formulas.final_norm)
    return x


def of_block(draw: Draw, width: int, ff_dim: int) -> Iterator[tuple[str, Tensor]]:
    """The weights of one block by their names."""
    for letter in "qkvo":
        yield f"W_{letter}.weight", 2 * draw.weight(width, width)
    for name, out, into in (("linear1", ff_dim, width), ("linear2", width, ff_dim)):
        yield f"{name}.weight", draw.weight(out, into)
        yield f"{name}.bias", draw.normal(out, scale=0.5)
    for name in ("norm1", "norm2"):
        yield f"{name}.weight", draw.normal(width, scale=0.3, mean=1.0)
        yield f"{name}.bias", draw.normal(width, scale=0.5)
