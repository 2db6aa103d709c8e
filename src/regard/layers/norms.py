"""The root mean square norm, with a gradient of its own.

PyTorch's takes ten small operations on the CPU, and as many again for the gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * weight, as PyTorch's own, which on the CPU takes twice as long."""

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        usual = x.device.type == "cpu" and x.dtype == self.weight.dtype in (torch.float32, torch.float64)
        if not usual or self.eps is None or torch.compiler.is_compiling():
            return super().forward(x)
        eps = torch.tensor(self.eps, dtype=x.dtype)
        if torch.is_grad_enabled():
            return _RMSNorm.apply(x, self.weight, eps)  # type: ignore[no-any-return, no-untyped-call]
        return rms_norm(x, self.weight, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension."""
    return x * _rate(x, eps) * weight


def _rate(x: Tensor, eps: Tensor) -> Tensor:
    """1 / sqrt(mean(x^2) + eps)."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.addcmul(eps, length, length, value=1 / x.shape[-1]).rsqrt()


class _RMSNorm(torch.autograd.Function):
    """`rms_norm`, whose gradient needs four passes over x where autograd's takes ten."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
        rate = _rate(x, eps)
        ctx.save_for_backward(x, weight, rate, eps)
        return (x * rate).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, rate, eps = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted, so rate must be known to come from x
            rate = _rate(x, eps)
        normed = x * rate
        along = grad * normed
        onto = (along @ weight)[..., None] / x.shape[-1]
        return torch.addcmul(grad * weight, normed, onto, value=-1) * rate, along.flatten(0, -2).sum(0), None
