"""Matrices laid out once, for the kernel that is fastest here.

    pack(weight, bias) -> x W^T + b

PyTorch's plain product, and MKL's and oneDNN's of matrices packed for them, compute in float32. FBGEMM's
reads W as float16, half the bytes, and computes in float32 too. It takes part where it is asked for, and
where that moves W by no more than float32 rounds, as in what was published in half precision. Which is
fastest depends on processor, shape and number of rows, by a factor of three, so they are tried where they
run. They add in different orders: the last bits of a score may differ from one run of a program to the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.attention import torch_ops

_FEW, _MANY = 1, 8  # rows with which kernels are tried: those for one sequence, and for several
_MOST_ROWS = 4096  # of a matrix that is tried: more take as long for each
_N_TRY = 2
_SMALL = 1 << 18  # numbers: a smaller matrix stays in the processor's cache, and is not worth a copy
_CACHE = 1 << 24  # numbers: more than any processor's cache holds

Product = Callable[[Tensor], Tensor]  # of (row, in_dim) to (row, out_dim)
Packer = Callable[[Tensor, Tensor | None, int], Product]


def pack(
    weight: Float[Tensor, "out_dim in_dim"],
    bias: Float[Tensor, "out_dim"] | None = None,
    *,
    half: bool = False,
    after: int = 0,
) -> Product:
    """x W^T + b by the kernel that is fastest for as many rows as come; `half`: with W rounded to float16.

    Packing takes as long as dozens of products: the first `after` calls are plain ones.
    """
    if half and _half in _packers() and bool(weight.abs().amax() <= torch.finfo(torch.float16).max):
        return _half(weight, bias, 0)
    plain = _plain(weight, bias, 0)
    if weight.numel() < _SMALL:
        return plain
    kept: dict[Packer, Product] = {}  # the last one: each holds a copy of the matrix
    ready: dict[int, Product] = {}  # the same, by the number of rows it has been given
    waiting = iter(range(after))

    def prepare(n_row: int) -> Product:
        if next(waiting, None) is not None:
            return plain
        packers = tuple(packer for packer in _packers() if packer is not _half or fits_half(weight))
        n_try = _FEW if n_row == _FEW else _MANY
        packer = fastest(packers, *weight.shape, n_try, torch.get_num_threads())
        product = kept.get(packer)
        if product is None or packer is _mkl:  # MKL packs for a number of rows
            product = packer(weight, bias, n_row)
            kept.clear()
            ready.clear()
            kept[packer] = product
        ready[n_row] = product
        return product

    def call(x: Tensor) -> Tensor:
        n_row = x.shape[0]
        return (ready.get(n_row) or prepare(n_row))(x)

    return call


def fits_half(weight: Float[Tensor, "out_dim in_dim"]) -> bool:
    """Whether float16 moves no entry by more than float32 rounds the largest.

    >>> fits_half(torch.tensor([[0.5, 3.0]])), fits_half(torch.tensor([[0.5, 0.1]]))
    (True, False)
    """
    least = torch.finfo(torch.float32).eps * weight.abs().amax()
    return all(bool(((rows.half() - rows).abs() <= least).all()) for rows in weight.split(256))


@cache
def fastest(packers: tuple[Packer, ...], n_out: int, n_in: int, n_row: int, n_thread: int) -> Packer:
    """The one whose product of such shapes takes least time; the plain one where none saves a tenth."""
    weight, x = torch.ones(min(n_out, _MOST_ROWS), n_in), torch.ones(n_row, n_in)
    products = {packer: packer(weight, None, n_row) for packer in packers}
    seconds = dict.fromkeys(packers, float("inf"))
    others = torch.ones(_CACHE)
    for turn in range(1 + _N_TRY):
        for packer, product in products.items():
            others.sum()  # as the other layers do, which leave nothing of this one in the processor's cache
            start = time.perf_counter()
            product(x)
            if turn:  # not the first, which may prepare things
                seconds[packer] = min(seconds[packer], time.perf_counter() - start)
    seconds[_plain] *= 0.9
    return min(packers, key=seconds.__getitem__)


def _packers() -> tuple[Packer, ...]:
    """Those that this PyTorch has."""
    has = {
        _plain: True,
        _mkl: None not in (torch_ops.MKL_PACK, torch_ops.MKL_LINEAR),
        _onednn: None not in (torch_ops.ONEDNN_PACK, torch_ops.ONEDNN_LINEAR)
        and torch.backends.mkldnn.is_available(),
        _half: None not in (torch_ops.HALF_PACK, torch_ops.HALF_LINEAR)
        and torch.backends.quantized.engine in ("x86", "fbgemm"),
    }
    return tuple(packer for packer, there in has.items() if there)


def _plain(weight: Tensor, bias: Tensor | None, n_row: int) -> Product:
    return lambda x: F.linear(x, weight, bias)


def _mkl(weight: Tensor, bias: Tensor | None, n_row: int) -> Product:
    layout = torch_ops.MKL_PACK(weight, n_row)
    return lambda x: torch_ops.MKL_LINEAR(x, layout, weight, bias, n_row)


def _onednn(weight: Tensor, bias: Tensor | None, n_row: int) -> Product:
    layout = torch_ops.ONEDNN_PACK(weight)
    return lambda x: torch_ops.ONEDNN_LINEAR(x, layout, bias, "none", (), "")


def _half(weight: Tensor, bias: Tensor | None, n_row: int) -> Product:
    layout = torch_ops.HALF_PACK(weight, bias)  # which would change entries that float16 has not
    return lambda x: torch_ops.HALF_LINEAR(x, layout)
