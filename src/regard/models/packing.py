"""Products of a large matrix with a few rows, at the speed of memory.

    pack(weight, bias) -> x W^T + b

PyTorch hands one row times a matrix to one thread, or to several that wait for each other. The same matrix
seen as many parts, one batched product, is read by all threads at once: half the time at one row, measured
(bench/decode.py), and no copy of it. Where that is not so, which is tried once, the plain product is made.
FBGEMM's reads W as float16, half the bytes, and computes in float32; it must be asked for.
"""

import time
from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.attention import torch_ops

_PARTS = 16
_FEW = 4  # rows up to which they are columns of the product, not rows of it: faster by a third
_SMALL = 1 << 18  # numbers: a smaller matrix stays in the processor's cache
_TRIED = (8, 4096, 1024)  # matrices that the two kernels are tried on, in turn: more than a cache holds

Product = Callable[[Tensor], Tensor]  # of (row, in_dim) to (row, out_dim)


def pack(
    weight: Float[Tensor, "out_dim in_dim"],
    bias: Float[Tensor, "out_dim"] | None = None,
    *,
    half: bool = False,
) -> Product:
    """x W^T + b by the kernel that is fastest for as many rows as come; `half`: with W rounded to float16.

    >>> pack(torch.ones(3, 2), torch.arange(3.0))(torch.ones(1, 2))
    tensor([[2., 3., 4.]])
    """
    if half and _has_half() and bool(weight.abs().amax() <= torch.finfo(torch.float16).max):
        layout = torch_ops.HALF_PACK(weight, bias)  # which would change entries that float16 has not
        return lambda x: torch_ops.HALF_LINEAR(x, layout)
    if weight.numel() < _SMALL or weight.shape[0] < _PARTS:
        return partial(F.linear, weight=weight, bias=bias)

    def product(x: Tensor) -> Tensor:
        if not splitting_wins(1 if x.shape[0] <= _FEW else 2 * _FEW, torch.get_num_threads()):
            return F.linear(x, weight, bias)
        made = split_product(x, weight)
        return made if bias is None else made.add_(bias)

    return product


def split_product(
    x: Float[Tensor, "row in_dim"], weight: Float[Tensor, "out_dim in_dim"]
) -> Float[Tensor, "row out_dim"]:
    """x W^T, as one product of every part of W; what is left of its rows by itself."""
    (n_row, n_in), n_out = x.shape, weight.shape[0]
    n_whole = n_out - n_out % _PARTS
    parts = weight[:n_whole].view(_PARTS, -1, n_in)
    if n_row <= _FEW:
        made = torch.bmm(parts, x.t().expand(_PARTS, n_in, n_row)).permute(2, 0, 1)
    else:
        made = torch.bmm(x.expand(_PARTS, n_row, n_in), parts.mT).transpose(0, 1)
    made = made.reshape(n_row, n_whole).contiguous()  # as the attention kernel wants its queries
    return made if n_whole == n_out else torch.cat([made, F.linear(x, weight[n_whole:])], 1)


@cache
def splitting_wins(n_row: int, n_thread: int) -> bool:
    """Whether the product in parts takes less time here, with so many rows and threads."""
    matrices, x = torch.ones(_TRIED), torch.ones(n_row, _TRIED[2])
    kernels: list[Callable[[Tensor, Tensor], Tensor]] = [F.linear, split_product]
    seconds = []
    for product, matrix in zip(4 * kernels, matrices, strict=True):
        start = time.perf_counter()
        product(x, matrix)
        seconds.append(time.perf_counter() - start)
    return min(seconds[3::2]) < min(seconds[2::2])  # not the first two, which may prepare things


def _has_half() -> bool:
    """Whether this PyTorch and processor have products of float16 matrices."""
    there = None not in (torch_ops.HALF_PACK, torch_ops.HALF_LINEAR)
    return there and torch.backends.quantized.engine in ("x86", "fbgemm")
