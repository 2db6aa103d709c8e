"""A norm by the root of the mean square, with its decisions as choices whose defaults are right."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.checking.trials import made


@dataclass(frozen=True)
class Norm:
    """The decisions of an RMS norm."""

    centred: str = "not"
    divides: str = "divides"
    mean: str = "of squares"
    eps: str = "under the root"
    weight: str = "multiplied"
    given_eps: str = "used"

    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Each row divided by its root mean square, times the weight."""
        eps = eps if self.given_eps == "used" else float(self.given_eps)
        x = x - x.mean(-1, keepdim=True) if self.centred == "of its mean" else x
        x = x * weight if self.weight == "before the norm" else x
        squares, n = x.square(), x.shape[-1]
        inside = eps if self.eps == "under the root" else 0.0
        root = made(
            {
                "of squares": lambda: (squares.mean(-1, keepdim=True) + inside).sqrt(),
                "a sum": lambda: (squares.sum(-1, keepdim=True) + inside).sqrt(),
                "without its root": lambda: squares.mean(-1, keepdim=True) + inside,
                "of the sizes": lambda: x.abs().mean(-1, keepdim=True) + inside,
                "the variance": lambda: (x.var(-1, correction=0, keepdim=True) + inside).sqrt(),
                "the variance over n - 1": lambda: (x.var(-1, keepdim=True) + inside).sqrt(),
                "over n - 1": lambda: (squares.sum(-1, keepdim=True) / (n - 1) + inside).sqrt(),
                "over two axes": lambda: (squares.mean((-2, -1), keepdim=True) + inside).sqrt(),
                "over all axes but the first": lambda: (
                    squares.mean(tuple(range(1, x.dim())), keepdim=True) + inside
                ).sqrt(),
                "over everything": lambda: (squares.mean() + inside).sqrt(),
                "over rows": lambda: (squares.mean(-2, keepdim=True) + inside).sqrt(),
                "over the first axis": lambda: (squares.mean(0, keepdim=True) + inside).sqrt(),
                "of all heads": lambda: (squares.mean((1, 3), keepdim=True) + inside).sqrt(),
            },
            self.mean,
        )
        if self.eps in ("a floor", "a floor under the root"):
            root = root.clamp(min=eps if self.eps == "a floor" else eps**0.5)
        out = x / (root + eps if self.eps == "outside the root" else root)
        out = {"multiplies": x * root, "nothing": x}.get(self.divides, out)
        return made(
            {
                "multiplied": lambda: out * weight,
                "not used": lambda: out,
                "before the norm": lambda: out,
                "divides": lambda: out / weight,
                "added": lambda: out + weight,
                "1 more": lambda: out * (1 + weight),
            },
            self.weight,
        )
