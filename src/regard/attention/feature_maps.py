"""Feature maps phi, whose products phi(q) . phi(k) stand where softmax attention has exp(q . k).

    elu1        elu(x) + 1          qk_dim features
    relu        max(x, 0)           qk_dim
    quadratic   (q . k + c)^2       1 + D + D(D+1)/2, exact
    favor       about exp(q . k)    as many as one likes, random

`feature_map(name)` gives one; `regard.attention.linear` attends with it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.data import Data
from regard.errors import ArgumentError, ShapeError


@dataclass(frozen=True, eq=False, repr=False)
class FeatureMap(Data, ABC):
    """phi with sim(q, k) = phi(q) . phi(k). A map learns nothing: no gradient reaches its own tensors."""

    direct: ClassVar[bool] = False  # similarity costs less from q and k than from their features
    chunk: ClassVar[int] = 64  # the length inside which similarities cost less than the running state

    @abstractmethod
    def phi(self, x: Float[Tensor, "*lead position qk_dim"]) -> Float[Tensor, "*lead position feature"]:
        """Return the features of queries or keys."""

    def dim(self, qk_dim: int) -> int:
        """Return how many features `phi` makes of `qk_dim` numbers."""
        return qk_dim

    def phi_query(self, q: Float[Tensor, "*lead query qk_dim"]) -> Float[Tensor, "*lead query feature"]:
        """Return features of queries up to a factor for each row, which cancels."""
        return self.phi(q)

    def similarity(
        self, q: Float[Tensor, "*lead query qk_dim"], k: Float[Tensor, "*lead key qk_dim"]
    ) -> Float[Tensor, "*lead query key"]:
        """Return phi(q) . phi(k) for every pair."""
        return self.phi(q) @ self.phi(k).mT

    def rounding(
        self, q: Float[Tensor, "*lead query qk_dim"], z: Float[Tensor, "*lead feature"]
    ) -> Float[Tensor, "*lead query"] | float:
        """Return how large rounding can make phi(q) . z where it should be 0."""
        return 0.0


@dataclass(frozen=True, eq=False, repr=False)
class EluPlusOne(FeatureMap):
    """phi(x) = elu(x) + 1, always above 0 (Katharopoulos et al. 2020, equation 7).

    >>> EluPlusOne().phi(torch.tensor([[2.0, 0.0, -math.log(4)]]))
    tensor([[3.0000, 1.0000, 0.2500]])
    """

    word: ClassVar[str] = "elu1"

    def phi(self, x: Float[Tensor, "*lead position qk_dim"]) -> Float[Tensor, "*lead position feature"]:
        # exp, and not expm1 + 1, which is 0 below -17 in float32.
        """Return the features of queries or keys."""
        return x.clamp(max=0).exp() + x.relu()


@dataclass(frozen=True, eq=False, repr=False)
class Relu(FeatureMap):
    """phi(x) = max(x, 0): a row whose query meets no key on any axis has weights 0 and output 0."""

    word: ClassVar[str] = "relu"

    def phi(self, x: Float[Tensor, "*lead position qk_dim"]) -> Float[Tensor, "*lead position feature"]:
        """Return the features of queries or keys."""
        return x.relu()


@dataclass(frozen=True, eq=False, repr=False)
class Quadratic(FeatureMap):
    """phi with phi(q) . phi(k) = (q . k + c)^2 exactly, from 1 + D + D(D+1)/2 features.

    phi(x) = (c, sqrt(2c) x_i, x_i^2, sqrt(2) x_i x_j for i < j): each cross term of the square occurs twice,
    so each of its two factors carries a sqrt(2).

    Attributes:
        c: The constant, at least 0.

    Example:
        >>> Quadratic(1.0).phi(torch.tensor([[1.0, 2.0]]))
        tensor([[1.0000, 1.4142, 2.8284, 1.0000, 4.0000, 2.8284]])
    """

    word: ClassVar[str] = "quadratic"
    c: float = 1.0
    direct: ClassVar[bool] = True
    chunk: ClassVar[int] = 512

    def __post_init__(self) -> None:
        if not (math.isfinite(self.c) and self.c >= 0):
            raise ArgumentError(f"c is {self.c}: it must be finite and at least 0, for sqrt(2c) to be real.")

    def phi(self, x: Float[Tensor, "*lead position qk_dim"]) -> Float[Tensor, "*lead position feature"]:
        # Feature by feature, so that each product runs along positions, which lie side by side.
        """Return the features of queries or keys."""
        rows = x.mT.contiguous()
        twice = rows * math.sqrt(2)
        crossed = [rows[..., i : i + 1, :] * twice[..., i + 1 :, :] for i in range(x.shape[-1] - 1)]
        constant = rows.new_full((1,), self.c).expand_as(rows[..., :1, :])
        return torch.cat([constant, twice * math.sqrt(self.c), rows.square(), *crossed], -2).mT

    def dim(self, qk_dim: int) -> int:
        """Return how many features `phi` makes of `qk_dim` numbers."""
        return 1 + qk_dim + qk_dim * (qk_dim + 1) // 2

    def similarity(
        self, q: Float[Tensor, "*lead query qk_dim"], k: Float[Tensor, "*lead key qk_dim"]
    ) -> Float[Tensor, "*lead query key"]:
        """Return (q . k + c)^2 for every pair, without features."""
        return (q @ k.mT + self.c).square()

    def rounding(
        self, q: Float[Tensor, "*lead query qk_dim"], z: Float[Tensor, "*lead feature"]
    ) -> Float[Tensor, "*lead query"] | float:
        """Return some roundings of |phi(q)| sum_j |phi(k_j)|: features of both signs cancel.

        |phi(x)| = |x|^2 + c, a sum of features, so the sum over keys can be read off z.
        """
        width = q.shape[-1]
        keys = z[..., 0] + z[..., 1 + width : 1 + 2 * width].sum(-1)
        return 4 * torch.finfo(z.dtype).eps * (q.square().sum(-1) + self.c) * keys[..., None]


@dataclass(frozen=True, eq=False, repr=False)
class RandomFeatures(FeatureMap):
    """Positive random features whose product estimates exp(scale q . k) without bias (FAVOR+).

    phi(x) = exp(w_r . x' - |x'|^2 / 2) / sqrt(R) with x' = sqrt(scale) x, and directions w_r that are
    orthogonal in groups of qk_dim (Choromanski et al. 2021, lemma 1 and section 2.4). `draw` makes one.

    Attributes:
        projection: ``(feature, qk_dim)``, the directions.
        scale: The factor of the dot product.
    """

    word: ClassVar[str] = "favor"
    projection: Float[Tensor, "feature qk_dim"]
    scale: float

    def __repr__(self) -> str:
        n_feature, qk_dim = self.projection.shape
        return f"RandomFeatures({n_feature} features of qk_dim {qk_dim}, scale {self.scale:.3g})"

    @classmethod
    def draw(
        cls, qk_dim: int, n_feature: int = 256, *, seed: int = 0, scale: float | None = None
    ) -> RandomFeatures:
        """Draw directions from `seed`; `scale` is 1 / sqrt(qk_dim) unless given."""
        for name, count in (("qk_dim", qk_dim), ("n_feature", n_feature)):
            if count < 1:
                raise ArgumentError(f"{name} is {count}: random features need at least 1.")
        scale = 1 / math.sqrt(qk_dim) if scale is None else scale
        if not (math.isfinite(scale) and scale > 0):
            raise ArgumentError(f"scale is {scale}: it must be finite and above 0, as its root is taken.")
        source = torch.Generator().manual_seed(seed)
        groups = []
        for _ in range(math.ceil(n_feature / qk_dim)):
            gaussian = torch.randn(qk_dim, qk_dim, generator=source, dtype=torch.float64)
            turned, upper = torch.linalg.qr(gaussian)
            # The signs make the rotation uniform; lengths of their own make each row a Gaussian again.
            turned = turned * upper.diagonal().sign()
            lengths = torch.randn(qk_dim, qk_dim, generator=source, dtype=torch.float64).norm(dim=1)
            groups.append(turned.T * lengths[:, None])
        return cls(torch.cat(groups)[:n_feature].float(), scale)

    def phi(self, x: Float[Tensor, "*lead position qk_dim"]) -> Float[Tensor, "*lead position feature"]:
        """Return the features of queries or keys."""
        exponent = self._along(x) - x.square().sum(-1, keepdim=True) * (self.scale / 2)
        return exponent.exp() / math.sqrt(len(self.projection))

    def phi_query(self, q: Float[Tensor, "*lead query qk_dim"]) -> Float[Tensor, "*lead query feature"]:
        # Each row's largest feature is 1: no query is too long for exp.
        """Return features of queries, each row's largest 1: no query is too long for exp."""
        exponent = self._along(q)
        return (exponent - exponent.detach().amax(-1, keepdim=True)).exp()

    def dim(self, qk_dim: int) -> int:
        """Return how many features `phi` makes of `qk_dim` numbers, the size they were drawn for."""
        if qk_dim != self.projection.shape[1]:
            raise ShapeError(
                f"the random features were drawn for qk_dim {self.projection.shape[1]} and q has {qk_dim}: "
                f"draw them for {qk_dim}."
            )
        return len(self.projection)

    def _along(self, x: Tensor) -> Tensor:
        return x @ (self.projection.to(x) * math.sqrt(self.scale)).T


FEATURE_MAPS = ("elu1", "relu", "quadratic", "favor")


def feature_map(
    name: str,
    *,
    qk_dim: int | None = None,
    c: float = 1.0,
    n_feature: int = 256,
    seed: int = 0,
    scale: float | None = None,
) -> FeatureMap:
    """Return the feature map of that name.

    Args:
        name: "elu1", "relu", "quadratic" or "favor".
        qk_dim: Size of queries and keys; favor needs it.
        c: The constant of the quadratic map.
        n_feature: How many random features favor has.
        seed: From which favor draws them.
        scale: Of favor's dot product. Default: 1 / sqrt(qk_dim).

    Returns:
        A map, for `attend_linear` and `MultiHeadAttention`.

    Raises:
        ArgumentError: If there is no such map, or favor is not told `qk_dim`.

    Example:
        >>> feature_map("quadratic", c=2.0)
        Quadratic(c=2.0)
    """
    if name not in FEATURE_MAPS:
        raise ArgumentError(f"no feature map is called {name!r}: there are {', '.join(FEATURE_MAPS)}.")
    if name == "quadratic":
        return Quadratic(c)
    if name != "favor":
        return EluPlusOne() if name == "elu1" else Relu()
    if qk_dim is None:
        raise ArgumentError("favor needs qk_dim: its random directions have as many numbers as a query has.")
    return RandomFeatures.draw(qk_dim, n_feature, seed=seed, scale=scale)
