"""PyTorch's flash kernels, called so that the log-sum-exp comes back too.

They are half private and validate nothing: an empty length ends the process, a stride other than 1 in the
last dimension, queries that overlap in memory or heads that do not fit return garbage. So this is the one
file that calls them, after `attend` has checked shapes; `why_not` says when they cannot be used, and `attend`
then takes another path.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.attention import torch_ops

_HALVES = (torch.bfloat16, torch.float16)
_DTYPES = {"CPU": (torch.float32, torch.float64, *_HALVES), "CUDA": _HALVES}

# Draws what is added to the scores. Drawn again in the backward pass: kept, the masks of all blocks of rows
# would add up to a whole table.
DrawMask = Callable[[], Tensor]


def why_not(q: Tensor, k: Tensor, masked: bool) -> str | None:
    """The reason why no kernel takes these checked inputs, or None. `masked`: more than the causal flag."""
    device = q.device.type.upper()
    if device not in _DTYPES:
        return f"there is no kernel for the device {q.device.type}"
    if None in (getattr(torch_ops, f"FLASH_{device}"), getattr(torch_ops, f"FLASH_{device}_BACKWARD")):
        return f"PyTorch {torch.__version__} has no flash attention for {device}"
    if q.dtype not in _DTYPES[device]:
        return f"the {device} kernel does not take {q.dtype}, only {', '.join(map(str, _DTYPES[device]))}"
    if device == "CPU":
        return None
    if masked:
        return "the CUDA kernel takes no mask"
    if q.shape[1] != k.shape[1] or q.shape[2] != k.shape[2]:
        return "the CUDA kernel is used for equal heads and lengths only"
    if q.shape[3] > 256 or q.shape[3] % 8:
        return f"the CUDA kernel needs qk_dim to be a multiple of 8 up to 256, not {q.shape[3]}"
    return None


def flash(
    q: Tensor, k: Tensor, v: Tensor, draw_mask: DrawMask | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp from the kernel; both differentiable, the mask (added to the scores) is not."""
    if causal and scale <= 0:  # the CPU kernel hides with -inf first and scales then, which turns it round
        q, scale = (-q, -scale) if scale else (q * scale, 1.0)
    q = q.contiguous() if q.stride(-1) != 1 or _overlaps(q) else q
    k, v = (t if t.stride(-1) == 1 and t.stride(-2) >= t.shape[-1] else t.contiguous() for t in (k, v))
    if torch_ops.needs_graph(q, k, v):
        out, lse, *_ = _Flash.apply(q, k, v, draw_mask, causal, scale)  # type: ignore[no-untyped-call]
    elif q.shape[2] == 1 and not causal and q.device.type == "cpu":
        out, lse = one_query(q, k, v, _drawn(draw_mask), scale)
    else:
        out, lse, *_ = _forward(q, k, v, _drawn(draw_mask), causal, scale)
    return out, lse


def one_query(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """`flash` of one query on the CPU, without gradient: the query heads of a group are rows of one product.

    So that keys and values are read once for a group, not once for each of its heads. `fast`, which checks
    once, calls it at every step; `mask` is added to the scores, and every query must see a key.
    """
    batch, n_head, _, qk_dim = q.shape
    n_kv_head = k.shape[1]
    if n_kv_head != n_head:
        q = q.reshape(batch, n_kv_head, n_head // n_kv_head, qk_dim)
        if mask is not None and mask.shape[1] > 1:
            mask = mask.reshape(mask.shape[0], n_kv_head, n_head // n_kv_head, mask.shape[3])
    out, lse, *_ = torch_ops.FLASH_CPU(q, k, v, 0.0, False, attn_mask=mask, scale=scale)
    if n_kv_head != n_head:
        out, lse = out.reshape(batch, n_head, 1, v.shape[3]), lse.reshape(batch, n_head, 1)
    return out, lse


def _overlaps(tensor: Tensor) -> bool:
    """Whether entries share memory, as after `expand` or `unfold`: the kernel lays its output out alike."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _drawn(draw_mask: DrawMask | None) -> Tensor | None:
    if draw_mask is None:
        return None
    mask = draw_mask()
    return mask if mask.stride(-1) == 1 else mask.contiguous()


def _forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Any:
    if q.device.type == "cpu":
        return torch_ops.FLASH_CPU(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    return torch_ops.FLASH_CUDA(q, k, v, 0.0, causal, False, scale=scale)


class _Flash(torch.autograd.Function):
    """The kernel with a gradient through the log-sum-exp, which PyTorch's own registration leaves out."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, draw_mask: DrawMask | None, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        out, lse, *rest = _forward(q, k, v, _drawn(draw_mask), causal, scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.draw_mask, ctx.rest, ctx.causal, ctx.scale = draw_mask, rest, causal, scale
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        mask, causal, scale = _drawn(ctx.draw_mask), ctx.causal, ctx.scale
        if torch.is_grad_enabled():  # a second derivative is wanted, and the kernel's backward has none
            pull = torch.func.vjp(partial(_defined, mask, causal, scale), q, k, v)[1]
            pairs = ((out, grad_out), (lse, grad_lse))
            grads = pull(tuple(torch.zeros_like(x) if grad is None else grad for x, grad in pairs))
            return *grads, None, None, None
        grad_q = grad_k = grad_v = None
        if grad_out is not None:
            grad_q, grad_k, grad_v = _backward(grad_out, ctx.saved_tensors, mask, causal, scale, ctx.rest)
        if grad_lse is not None:
            # d lse_i / d score_ij is the weight: with keys for values, the kernel averages and spreads them.
            average, *_ = _forward(q, k, k, mask, causal, scale)
            factor = scale * grad_lse[..., None]
            lse_q, spread = (factor * average).to(q.dtype), (factor * q).to(q.dtype)
            *_, lse_k = _backward(spread, (q, k, k, average, lse), mask, causal, scale, ctx.rest)
            grad_q = lse_q if grad_q is None else grad_q + lse_q
            grad_k = lse_k if grad_k is None else grad_k + lse_k
        return grad_q, grad_k, grad_v, None, None, None


def _defined(
    mask: Tensor | None, causal: bool, scale: float, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """What the kernel computes, by the definition."""
    compute, group = torch.promote_types(q.dtype, torch.float32), q.shape[1] // k.shape[1]
    wide_k, wide_v = (tensor.to(compute).repeat_interleave(group, 1) for tensor in (k, v))
    scores = (q.to(compute) * scale) @ wide_k.mT
    if mask is not None:
        scores = scores + mask.to(compute)
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    # A row that sees nothing gives 0 whatever it holds; here it must only stay finite.
    scores = scores.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
    lse = torch.logsumexp(scores, -1)
    return (torch.exp(scores - lse[..., None]) @ wide_v).to(q.dtype), lse


def _backward(
    grad_out: Tensor, saved: Sequence[Tensor], mask: Tensor | None, causal: bool, scale: float, rest: Any
) -> Any:
    """The gradients of q, k and v, `saved` with output and lse; `rest` is what else a kernel returned."""
    if grad_out.stride(-1) != 1:
        grad_out = grad_out.contiguous()
    if grad_out.device.type == "cpu":
        return torch_ops.FLASH_CPU_BACKWARD(grad_out, *saved, 0.0, causal, attn_mask=mask, scale=scale)
    cum_q, cum_k, max_q, max_k, seed, offset, *_ = rest
    sizes = cum_q, cum_k, max_q, max_k
    return torch_ops.FLASH_CUDA_BACKWARD(grad_out, *saved, *sizes, 0.0, causal, seed, offset, scale=scale)
