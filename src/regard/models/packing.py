"""Matrices laid out once as a kernel reads them: float32 by MKL or oneDNN, or 8-bit integers.

An 8-bit matrix has a scale for each row, and what it multiplies is rounded to 8 bits as it comes, with one
scale for all. Few large entries would leave few steps for the many small ones, so

    where a norm stands before, its gain hands part of the large channels' size to the matrix and takes part
    of the large columns' size from it (`calibrated`; as Xiao et al. 2023, eq. 3-4, with other powers), which
    changes nothing but the rounding;
    where none does (`two_digits`), each entry is given as two numbers of 8 bits, in one call: whole steps,
    and what is left over.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8
from torch import Tensor, nn

from regard.attention import torch_ops
from regard.layers.block import Block
from regard.models.model import Model

_FEW = 2  # rows: a plain product of so few reads the matrix once, as fast as memory gives it
_N_CALIBRATE = 128  # random tokens that show which channels are large


def why_not_int8() -> str | None:
    """The reason why there are no packed 8-bit matrices here, or None."""
    if None in (torch_ops.INT8_TENSOR, torch_ops.INT8_PACK, torch_ops.INT8_LINEAR):
        return f"PyTorch {torch.__version__} has no dynamic 8-bit matrices here"
    if torch.backends.quantized.engine in ("none", None):
        return "PyTorch was built without an engine for 8-bit matrices"
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A packed matrix: `call(x)`, and `add(x, residual)`, which is residual + call(x)."""

    call: Callable[[Tensor], Tensor]
    add: Callable[[Tensor, Tensor], Tensor]


def pack_float(
    weight: Float[Tensor, "out_dim in_dim"],
    bias: Float[Tensor, "out_dim"] | None = None,
    *,
    two_digits: bool = False,
) -> Linear:
    """x W^T + b in float32; nothing is rounded, so tails do not matter."""
    mkl = None not in (torch_ops.MKL_PACK, torch_ops.MKL_LINEAR)
    onednn = None not in (torch_ops.ONEDNN_PACK, torch_ops.ONEDNN_LINEAR, torch_ops.ONEDNN_LINEAR_ADD)
    if not mkl and onednn and torch.backends.mkldnn.is_available():
        return _pack_onednn(weight, bias)
    return _pack_mkl(weight, bias, up_to=_FEW if mkl else sys.maxsize)


def _pack_mkl(weight: Tensor, bias: Tensor | None, up_to: int) -> Linear:
    """Plain for few rows (`up_to`), which are read as fast as memory gives; packed by MKL for more.

    MKL packs for a number of rows: the packing for the last one is kept.
    """
    turned = weight.t()
    packed: dict[int, Tensor] = {}

    def many(x: Tensor, n_row: int) -> Tensor:
        layout = packed.get(n_row)
        if layout is None:
            layout = torch_ops.MKL_PACK(weight, n_row)
            packed.clear()
            packed[n_row] = layout
        out: Tensor = torch_ops.MKL_LINEAR(x, layout, weight, bias, n_row)
        return out

    def call(x: Tensor) -> Tensor:
        n_row = x.shape[0]
        return F.linear(x, weight, bias) if n_row <= up_to else many(x, n_row)

    def add(x: Tensor, residual: Tensor) -> Tensor:
        n_row = x.shape[0]
        if n_row > up_to:
            return many(x, n_row).add_(residual)
        out = torch.addmm(residual, x, turned)
        return out if bias is None else out.add_(bias)

    return Linear(call, add)


def _pack_onednn(weight: Tensor, bias: Tensor | None) -> Linear:
    packed = torch_ops.ONEDNN_PACK(weight)

    def call(x: Tensor) -> Tensor:
        out: Tensor = torch_ops.ONEDNN_LINEAR(x, packed, bias, "none", (), "")
        return out

    def add(x: Tensor, residual: Tensor) -> Tensor:
        out: Tensor = torch_ops.ONEDNN_LINEAR_ADD(x, residual, packed, bias, "add")
        return out

    return Linear(call, add)


def pack_int8(
    weight: Float[Tensor, "out_dim in_dim"],
    bias: Float[Tensor, "out_dim"] | None = None,
    *,
    two_digits: bool = False,
) -> Linear:
    """x W^T + b with both rounded to 8 bits, summed in 32."""
    rounded, scale = quantise(weight)
    zero = torch.zeros(len(scale), dtype=torch.long)
    with warnings.catch_warnings():  # quantised tensors are to go; `why_not_int8` sees when they have gone
        warnings.simplefilter("ignore")
        assert torch_ops.INT8_TENSOR is not None
        matrix = torch_ops.INT8_TENSOR(rounded, scale.double(), zero, 0)
        packed = torch_ops.INT8_PACK(matrix, None if two_digits else bias)
    narrow = not torch_ops.has_vnni()  # older instructions add in 16 bits, which 8 x 8 bits overflow

    def call(x: Tensor) -> Tensor:
        out: Tensor = torch_ops.INT8_LINEAR(x, packed, narrow)
        return out

    def add(x: Tensor, residual: Tensor) -> Tensor:
        return call(x).add_(residual)

    # The kernel takes one scale for all it is given, from the least to the largest entry. The ends make it 1:
    # whole numbers, as the first digits are, it does not round.
    most = 63 if narrow else 127
    finer = 2.0 * most  # steps of the second digit in one of the first
    ends = torch.zeros(1, weight.shape[1])
    ends[0, 0], ends[0, -1] = -most - 0.5, most + 0.5
    steps = torch.tensor([1 / most, 1 / (most * finer)])[:, None, None]
    least = torch.full_like(steps, 1e-30)

    def add_digits(x: Tensor, residual: Tensor) -> Tensor:
        n_row, width = x.shape
        units = torch.addcmul(least, torch.linalg.vector_norm(x, torch.inf, -1, True), steps)
        digits = x / units  # in steps of the first digit, and of the second
        first, second = digits.unbind()
        second.sub_(first.round_(), alpha=finer)
        product = call(torch.cat([digits.view(2 * n_row, width), ends]))
        coarse, fine = units.unbind()
        out = torch.addcmul(residual, product[:n_row], coarse).addcmul_(product[n_row:-1], fine)
        return out if bias is None else out.add_(bias)

    if not two_digits:
        return Linear(call, add)
    return Linear(lambda x: add_digits(x, torch.zeros(())), add_digits)


def quantise(
    weight: Float[Tensor, "out_dim in_dim"],
) -> tuple[Int8[Tensor, "out_dim in_dim"], Float[Tensor, "out_dim"]]:
    """The matrix as whole numbers from -127 to 127 and a scale for each row: weight ~ rounded * scale.

    >>> rounded, scale = quantise(torch.tensor([[127.0, -1.2], [0.0, 0.0]]))
    >>> rounded.tolist(), scale.tolist()
    ([[127, -1], [0, 0]], [1.0, 1.0])
    """
    scale = weight.abs().amax(1) / 127
    scale = torch.where(scale > 0, scale, 1.0)
    return (weight / scale[:, None]).round().to(torch.int8), scale


def evened(weight: Float[Tensor, "out_dim in_dim"]) -> Float[Tensor, "in_dim"]:
    """Factors that bring the columns' sizes nearer to one another: one over their square root."""
    return _around_one(_typical(weight).rsqrt())


def _typical(values: Tensor) -> Tensor:
    """The root mean square of each column, never 0."""
    return values.flatten(0, -2).float().square().mean(0).sqrt().clamp(min=1e-6)


def _around_one(factor: Tensor) -> Tensor:
    return (factor / factor.log().mean().exp()).clamp(0.01, 100.0)


@dataclass(frozen=True, slots=True, eq=False)
class Smooth:
    """Factors by which channels that enter a matrix are divided, and its columns multiplied; None: none."""

    project: Tensor | None = None  # q, k and v
    up: Tensor | None = None
    down: Tensor | None = None


@torch.no_grad()
def calibrated(model: Model, blocks: Sequence[Block]) -> list[Smooth]:
    """For each block, input^(1/4) / weight^(1/2) of each channel's typical sizes; inputs of random tokens.

    Both matter: rounded inputs want large channels small, rounded rows want columns alike. By the powers
    sqrt(largest input / largest weight) SmolLM2's predictions differ from float32's by 7.4e-3 nats, by these
    by 5.2e-3 (mean divergence on a licence; perplexity moves by half a per cent with any change at all).

    None where what comes before cannot be divided: a norm that comes after, whose output is also the
    residual, and an activation that nothing is multiplied with.
    """
    if not all(block.norm_first for block in blocks):
        return [Smooth()] * len(blocks)
    size: dict[nn.Module, Tensor] = {}

    def see(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        size[module] = _typical(args[0])

    watched = [module for block in blocks for module in (block.attention.query, block.ff.up, block.ff.down)]
    handles = [module.register_forward_pre_hook(see) for module in watched]
    try:
        sizes, generator = model.sizes, torch.Generator().manual_seed(0)
        tokens = torch.randint(sizes.vocab, (1, _N_CALIBRATE), generator=generator)[:, : sizes.n_position]
        model(tokens, *([tokens] if model.kind == "encoder-decoder" else []), logits="none")
    finally:
        for handle in handles:
            handle.remove()

    def factor(seen: Tensor, *linears: nn.Linear | None) -> Tensor:
        weight = _typical(torch.cat([linear.weight for linear in linears if linear is not None]))
        return _around_one(seen**0.25 / weight.sqrt())

    return [
        Smooth(
            factor(size[look.query], look.query, look.key, look.value),
            factor(size[ff.up], ff.up, ff.gate),
            None if ff.gate is None else factor(size[ff.down], ff.down),
        )
        for look, ff in ((block.attention, block.ff) for block in blocks)
    ]
