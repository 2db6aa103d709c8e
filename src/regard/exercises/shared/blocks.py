"""How a block is put together of its parts, norms and residuals, which are formulas of blocks.toml."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from regard.checking.trials import View

gelu = "exact"  # where no convention says which


def block(formulas: View, x: Tensor, hidden: Callable[[Tensor], Tensor | None]) -> Tensor:
    """What a block makes of x, where some scores are hidden."""
    start = total = x  # the total is the last residual's sum, before any norm

    def half(x: Tensor, seen: Tensor | None = None, *, attends: bool, number: int) -> Tensor:
        """One part with its norm and its residual; `seen` is what it works on."""
        seen = normed = x if seen is None else seen

        def part(inside: Tensor) -> Tensor:
            nonlocal normed
            normed = inside
            q, k, v = (inside if letter in formulas.normed() else seen for letter in "qkv")
            result: Tensor = formulas.layer(q, k, v, hidden)[0] if attends else formulas.fed(inside)
            return result

        def residual(out: Tensor) -> Tensor:
            nonlocal total
            sums = formulas.residual1 if number == 1 else formulas.residual2
            result: Tensor = sums(x, out, normed, start, total, formulas.layer_norm)
            total = result
            return result

        name = formulas.norm1_by() if number == 1 else formulas.norm2_by()
        norm = partial(formulas.layer_norm, name=name)
        result: Tensor = formulas.norm(x, seen, norm, part, residual, attends)
        return result

    attend, feed = (partial(half, attends=number == 1, number=number) for number in (1, 2))
    attend_again = partial(half, attends=True, number=2)
    result: Tensor = formulas.end(
        formulas.parts(x, attend, feed, attend_again, lambda: total), formulas.layer_norm
    )
    return result
