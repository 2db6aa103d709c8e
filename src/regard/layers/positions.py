"""Where a token stands: learned, sinusoidal, rotary and relative positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.data import Ranges, check_fields
from regard.attention.scores import DistanceBias
from regard.attention.shapes import Heads, check_sizes
from regard.errors import ArgumentError, ShapeError


def sinusoidal(
    n_position: int, model_dim: int, base: float = 10_000.0
) -> Float[Tensor, "position model_dim"]:
    """Return sin and cos, interleaved, of position / base^(2i / model_dim) (Vaswani et al. 2017, 3.5).

    Args:
        n_position: Number of positions, from 0 on.
        model_dim: Size of the vectors, an even number.
        base: The slowest pair makes one turn in about 2 pi times this many positions.

    Returns:
        ``(n_position, model_dim)``, float32.

    Raises:
        ShapeError: If `model_dim` is odd or below 2, or `n_position` is negative.

    Example:
        >>> sinusoidal(2, 4)[0].tolist()
        [0.0, 1.0, 0.0, 1.0]
    """
    if model_dim < 2 or model_dim % 2:
        raise ShapeError(f"sinusoidal positions come in pairs: model_dim must be even. Got {model_dim}.")
    if n_position < 0:
        raise ShapeError(f"n_position must not be negative. Got {n_position}.")
    rate = base ** -(torch.arange(0, model_dim, 2, dtype=torch.float64, device="cpu") / model_dim)
    angle = torch.arange(n_position, dtype=torch.float64, device="cpu")[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).float()


class _Table(nn.Module):
    """A vector for each position, up to a limit."""

    weight: Tensor

    def forward(
        self, positions: Int[Tensor, "_batch position"]
    ) -> Float[Tensor, "_batch position model_dim"]:
        """Return the vector of each position.

        Args:
            positions: ``(batch or 1, position)``, whole numbers from 0 on.

        Returns:
            ``(batch or 1, position, model_dim)``.

        Raises:
            ShapeError: If `positions` are not int32 or int64.
            ArgumentError: If a position is negative or beyond the table.
        """
        if positions.dtype not in (torch.int32, torch.int64):
            raise ShapeError(
                f"positions must be whole numbers (int32 or int64). Got dtype {positions.dtype}."
            )
        if positions.numel() and not torch.compiler.is_compiling():
            low, high = (int(end) for end in positions.aminmax())
            limit = self.weight.shape[0]
            if low < 0:
                raise ArgumentError(f"positions count from 0. Got position {low}.")
            if high >= limit:
                raise ArgumentError(
                    f"position {high} is beyond the model's limit of {limit} positions: shorten the input."
                )
        return nn.functional.embedding(positions, self.weight)


class LearnedPositions(_Table):
    """One learned vector for each position, up to a limit (GPT-2, BERT)."""

    def __init__(self, n_position: int, model_dim: int) -> None:
        """Create the table with random vectors (standard deviation 0.02).

        Args:
            n_position: Number of positions.
            model_dim: Size of the vectors.

        Raises:
            ShapeError: If a size is below 1.
        """
        super().__init__()
        check_sizes(n_position=n_position, model_dim=model_dim)
        self.weight = nn.Parameter(nn.init.normal_(torch.empty(n_position, model_dim), std=0.02))


class SinusoidalPositions(_Table):
    """`sinusoidal` as a layer: a table that is not learned and not saved."""

    def __init__(self, n_position: int, model_dim: int) -> None:
        """Create the table.

        Args:
            n_position: Number of positions.
            model_dim: Size of the vectors, an even number.

        Raises:
            ShapeError: If `model_dim` is odd or below 2, or `n_position` is negative.
        """
        super().__init__()
        self.register_buffer("weight", sinusoidal(n_position, model_dim), persistent=False)


@dataclass(frozen=True, slots=True)
class RotaryScaling:
    """How rotary angles are scaled for contexts longer than in training.

    linear   all angles are divided by `factor`
    dynamic  the base grows with the text, once it is longer than `original_positions`
    llama3   the angles of slow pairs are divided by `factor`, those of fast pairs are kept, and those between
             are interpolated
    yarn     the same with other limits, and rotated queries and keys are multiplied by `attention_factor`
             (Peng et al. 2024)

    Attributes:
        kind: "linear", "dynamic", "llama3" or "yarn".
        factor: How many times longer the context becomes.
        low_freq_factor: For llama3: pairs that make fewer turns than this in `original_positions` are slow.
        high_freq_factor: For llama3: pairs that make more turns than this in `original_positions` are fast.
        original_positions: Context length in training; linear scaling does not use it.
        beta_fast: For yarn: pairs that make more turns than this in `original_positions` are fast.
        beta_slow: For yarn: pairs that make fewer turns than this in `original_positions` are slow.
        attention_factor: For yarn: factor of rotated queries and keys. None: 0.1 ln(factor) + 1, or 1 where
            `factor` is at most 1.
        truncate: For yarn: whether the limits of slow and fast pairs are rounded outwards to whole pairs.

    Raises:
        ArgumentError: If a field has another type or is out of range, or `low_freq_factor` is not above 0
            and below `high_freq_factor` for llama3.
    """

    kind: Literal["linear", "dynamic", "llama3", "yarn"] = "linear"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True
    ranges: ClassVar[Ranges] = {
        "factor": (1e-3, 1e6),  # it divides the angles
        "original_positions": (1, 2**31),
        **dict.fromkeys(("beta_fast", "beta_slow", "attention_factor"), (1e-3, 1e6)),
    }

    def __post_init__(self) -> None:
        check_fields(self)
        if self.kind == "llama3" and not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ArgumentError(
                "low_freq_factor must be above 0 and below high_freq_factor. "
                f"Got {self.low_freq_factor} and {self.high_freq_factor}."
            )


class Rotary(nn.Module):
    """Rotate queries and keys by an angle that grows with position (Su et al. 2021).

    Dimension i is paired with i + qk_dim / 2, as in Llama. Only the difference of two positions reaches
    their dot product.

    Args:
        qk_dim: Size of a head's queries and keys.
        base: The slowest pair makes one turn in about 2 pi times this many positions.
        scaling: How angles are stretched for longer texts than those of training. Default: not at all.
        rotary_dim: How many of the first dimensions are rotated (GPT-NeoX). Default: all.

    Raises:
        ShapeError: If `rotary_dim` is odd, below 2 or above `qk_dim`.
        ArgumentError: If `base` is not above 0.

    Example:
        >>> rotate = Rotary(4)(torch.arange(3)[None])
        >>> rotate(torch.ones(1, 1, 3, 4)).shape
        torch.Size([1, 1, 3, 4])
    """

    def __init__(
        self,
        qk_dim: int,
        base: float = 10_000.0,
        scaling: RotaryScaling | None = None,
        *,
        rotary_dim: int | None = None,
    ) -> None:
        super().__init__()
        rotary_dim = qk_dim if rotary_dim is None else rotary_dim
        if rotary_dim < 2 or rotary_dim % 2 or rotary_dim > qk_dim:
            what = "qk_dim" if rotary_dim == qk_dim else f"rotary_dim, at most qk_dim {qk_dim},"
            raise ShapeError(
                f"rotary positions rotate pairs of dimensions: {what} must be even. Got {rotary_dim}."
            )
        if not base > 0:
            raise ArgumentError(f"base must be above 0. Got {base}.")
        self.qk_dim, self.base, self.scaling, self.rotary_dim = qk_dim, base, scaling, rotary_dim

    def rate(
        self, device: torch.device | str | None = None, n_position: int | Tensor = 1
    ) -> Float[Tensor, "half_rotary_dim"]:
        """Return the angle, in radians, by which each pair is rotated from one position to the next.

        Dynamic scaling asks for the length of the text, `n_position`. Not a buffer: `.to(torch.bfloat16)`
        would round it, and positions above 256 with it.
        """
        base: float | Tensor = self.base
        if self.scaling is not None and self.scaling.kind == "dynamic":
            longer = torch.as_tensor(n_position / self.scaling.original_positions).clamp(min=1.0)
            grown = self.scaling.factor * longer - (self.scaling.factor - 1)
            base = base * grown ** (self.rotary_dim / (self.rotary_dim - 2) if self.rotary_dim > 2 else 1.0)
        exponent = torch.arange(0, self.rotary_dim, 2, dtype=torch.float32, device=device) / self.rotary_dim
        rate = 1.0 / base**exponent
        return rate if self.scaling is None else _stretched(rate, self.scaling, self.base)

    @property
    def factor(self) -> float:
        """The factor that scales rotated queries and keys; 1 but for yarn."""
        scaling = self.scaling
        if scaling is None or scaling.kind != "yarn":
            return 1.0
        usual = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
        return usual if scaling.attention_factor is None else scaling.attention_factor

    def forward(self, positions: Int[Tensor, "_batch position"]) -> RotaryCosSin:
        """Return the rotation of each position, computed once and used by every layer.

        Args:
            positions: ``(batch or 1, position)``, whole numbers.

        Returns:
            Cosines and sines, each ``(batch or 1, 1, position, rotary_dim)``; called with queries or keys,
            they rotate them.
        """
        longest = positions.max() + 1 if self.scaling is not None and self.scaling.kind == "dynamic" else 1
        angle = positions[..., None].float() * self.rate(positions.device, longest)
        angle = torch.cat([angle, angle], dim=-1)[:, None]
        return RotaryCosSin(
            angle.cos() * self.factor, angle.sin() * self.factor, self.qk_dim - self.rotary_dim
        )


@dataclass(frozen=True, slots=True, eq=False)
class RotaryCosSin:
    """Cosines and sines of the angles of some positions; called with queries or keys, they rotate them.

    Attributes:
        cos: Cosines, ``(batch or 1, 1, position, rotary_dim)``.
        sin: Sines, of the same shape.
        n_unrotated: How many of the last dimensions are left unrotated.
    """

    cos: Float[Tensor, "_batch 1 position rotary_dim"]
    sin: Float[Tensor, "_batch 1 position rotary_dim"]
    n_unrotated: int = 0

    def __call__(self, x: Heads) -> Heads:
        """Rotate queries or keys.

        Args:
            x: ``(batch, head, position, rotary_dim + n_unrotated)``.

        Returns:
            A tensor of the same shape and dtype.

        Raises:
            ShapeError: If `x` has another shape than these positions and dimensions.
        """
        batch, _, n_position, rotary_dim = self.cos.shape
        qk_dim = rotary_dim + self.n_unrotated
        if x.dim() != 4 or x.shape[2:] != (n_position, qk_dim) or batch not in (1, x.shape[0]):
            raise ShapeError(
                f"this rotation is of {n_position} positions, {qk_dim} dimensions and {batch} sequences (1: "
                f"any number): x must be (batch, head, position, qk_dim). Got shape {tuple(x.shape)}."
            )
        half = rotary_dim // 2
        moving = x[..., :rotary_dim]
        swapped = torch.cat([-moving[..., half:], moving[..., :half]], dim=-1)
        moved = (moving * self.cos.to(x.dtype)) + (swapped * self.sin.to(x.dtype))
        return torch.cat([moved, x[..., rotary_dim:]], -1) if self.n_unrotated else moved


def _stretched(rate: Tensor, scaling: RotaryScaling, base: float) -> Tensor:
    """Angles divided by the factor, those that turn fast not, those between partly."""
    if scaling.kind == "dynamic":  # the base has grown
        return rate
    slow: Tensor | float = 1.0
    if scaling.kind == "yarn":
        # The dimension that turns so often in the original context: below `low` they stay as they are.
        turns = 2 * math.pi * torch.tensor([scaling.beta_fast, scaling.beta_slow], dtype=torch.float64)
        low, high = ((scaling.original_positions / turns).log() * len(rate) / math.log(base)).tolist()
        if scaling.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * len(rate) - 1)
        place = torch.arange(len(rate), dtype=torch.float32, device=rate.device)
        slow = ((place - low) / (high - low or 0.001)).clamp(0, 1)
    elif scaling.kind == "llama3":
        turns = scaling.original_positions * rate / (2 * math.pi)
        span = scaling.high_freq_factor - scaling.low_freq_factor
        slow = 1 - ((turns - scaling.low_freq_factor) / span).clamp(0, 1)
    mixed: Tensor = rate / scaling.factor * slow + rate * (1 - slow)
    return mixed


class RelativeBias(nn.Module):
    """T5's learned bias for each head and bucket of distances (Raffel et al. 2020, 2.1).

    Near distances have a bucket each, far ones share logarithmically growing buckets up to `max_distance`.
    """

    def __init__(
        self, n_head: int, n_bucket: int = 32, max_distance: int = 128, *, bidirectional: bool
    ) -> None:
        """Create the bias with random values (standard deviation 0.02).

        Args:
            n_head: Number of heads.
            n_bucket: Number of buckets; `bidirectional` uses one half for each direction.
            max_distance: Distances from this one on share the last bucket.
            bidirectional: Whether keys after the query have buckets of their own, as in an encoder; if not,
                they share the bucket of distance 0.

        Raises:
            ShapeError: If `n_head` is below 1.
            ArgumentError: If there are too few buckets, or `max_distance` is not above the distances that
                have a bucket each.
        """
        super().__init__()
        exact = n_bucket // (4 if bidirectional else 2)  # buckets of one distance each, on one side
        check_sizes(n_head=n_head)
        if exact < 1 or max_distance <= exact:
            raise ArgumentError(
                f"n_bucket must be at least {4 if bidirectional else 2}, and max_distance above the {exact} "
                f"distances that have a bucket each. Got n_bucket {n_bucket}, max_distance {max_distance}."
            )
        self.n_bucket, self.max_distance, self.bidirectional = n_bucket, max_distance, bidirectional
        self.weight = nn.Parameter(torch.empty(n_bucket, n_head))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, n_query: int, n_key: int, start: int = 0) -> DistanceBias:
        """Return the bias of queries from position `start` on and keys from position 0 on.

        Args:
            n_query: Number of queries.
            n_key: Number of keys.
            start: Position of the first query.

        Returns:
            The bias as one value for each head and distance, which stands for ``(head, query, key)``.

        Raises:
            ShapeError: If a number is negative.
        """
        if min(n_query, n_key, start) < 0:
            raise ShapeError(
                f"lengths and start must not be negative. Got query {n_query}, key {n_key}, start {start}."
            )
        lowest = -(start + n_query - 1)
        distance = torch.arange(lowest, n_key - start, device=self.weight.device)
        return DistanceBias(self.weight[self.bucket(distance)].T, zero=-lowest)

    def bucket(self, distance: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Return the bucket of each distance key_pos - query_pos, in a tensor of the same shape."""
        n_bucket = self.n_bucket // (2 if self.bidirectional else 1)
        far = distance.abs() if self.bidirectional else (-distance).clamp(min=0)
        exact = n_bucket // 2
        ratio = torch.log(far.float().clamp(min=1) / exact) / math.log(self.max_distance / exact)
        shared = (exact + (ratio * (n_bucket - exact)).to(distance.dtype)).clamp(max=n_bucket - 1)
        first = n_bucket * (distance > 0).to(distance.dtype) if self.bidirectional else 0
        return first + torch.where(far < exact, far, shared)
