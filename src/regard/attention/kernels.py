"""Kernels: code that computes attention on a processor and gives back the log-sum-exp.

`KERNELS` is the one table of what each can do. `attend` asks it with `why_not`, decoding asks for
`ONE_QUERY`, and tracing asks which of PyTorch's operators give a log-sum-exp. A new kernel is a row of this
table and a function beside `flash`.

PyTorch's flash kernels are half private and validate nothing: an empty length ends the process, a stride
other than 1 in the last dimension, queries that overlap in memory or heads that do not fit return garbage. So
this is the one file that calls them, after shapes were checked.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.attention import torch_ops

_HALVES = (torch.bfloat16, torch.float16)

# Draws what is added to the scores. Drawn again in the backward pass: kept, the masks of all blocks of rows
# would add up to a whole table.
DrawMask = Callable[[], Tensor]

# PyTorch's own operators whose second result is the log-sum-exp: what a foreign model may run.
GIVES_LOG_SUM_EXP = re.compile(r"_scaled_dot_product_(flash|efficient|cudnn|fused)")


@dataclass(frozen=True)
class Kernel:
    """One kernel, and what it can do.

    Attributes:
        name: What messages call it.
        device: The type of device it runs on, as `torch.device.type` has it.
        operators: Names of `torch_ops` that it needs; one that this PyTorch lacks is None there.
        dtypes: Of queries, keys and values.
        mask: Whether it takes a mask that is added to the scores; every kernel has the causal flag.
        grouped: Whether there may be fewer key heads than query heads.
        lengths_differ: Whether there may be more keys than queries, or fewer.
        largest_dim: The largest qk_dim; None: any.
        dim_step: What qk_dim must be a multiple of.
        wide_values: Whether v_dim may differ from qk_dim.
        gradients: Whether queries, keys and values get gradients, through the log-sum-exp too.
        bias_gradients: Whether a learned bias gets one.
        additive: Whether scores may be additive (Bahdanau et al. 2015).
        softcap: Whether scores may be capped.
        dropout: Whether it drops weights in a way that can be computed again from its log-sum-exp.
        max_query: The most queries it takes; None: any number.
    """

    name: str
    device: str
    operators: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    mask: bool = True
    grouped: bool = True
    lengths_differ: bool = True
    largest_dim: int | None = None
    dim_step: int = 1
    wide_values: bool = False
    gradients: bool = True
    bias_gradients: bool = False
    additive: bool = False
    softcap: bool = False
    dropout: bool = False
    max_query: int | None = None

    def why_not(
        self,
        q: Tensor,
        k: Tensor,
        *,
        v_dim: int | None = None,
        mask: bool = False,
        gradients: bool = False,
        bias_gradients: bool = False,
        additive: bool = False,
        softcap: bool = False,
        dropout: bool = False,
    ) -> str | None:
        """Return the reason why this kernel cannot do what is asked, or None.

        Args:
            q: Queries, ``(batch, head, query, qk_dim)``, checked.
            k: Keys, ``(batch, kv_head, key, qk_dim)``.
            v_dim: The size of a value. Default: that of a query.
            mask: Whether more is masked than the causal flag says.
            gradients: Whether a gradient must reach q, k or v.
            bias_gradients: Whether one must reach a learned bias.
            additive: Whether scores are additive.
            softcap: Whether scores are capped.
            dropout: Whether weights are dropped.

        Returns:
            One reason, as a clause without a full stop, or None where it can.
        """
        dim = q.shape[3]
        if additive and not self.additive:
            return "additive scores are not a dot product"
        if softcap and not self.softcap:
            return "the kernel has no softcap"
        if bias_gradients and not self.bias_gradients:
            return "the kernel gives no gradient to a learned bias"
        if dropout and not self.dropout:
            return "the kernel's dropout could not be reproduced from its log-sum-exp"
        if v_dim is not None and v_dim != dim and not self.wide_values:
            return f"the kernel needs v_dim = qk_dim, got {v_dim} and {dim}"
        if q.device.type != self.device:
            return f"the {self.name} kernel runs on {self.device}, not on {q.device.type}"
        if None in [getattr(torch_ops, operator) for operator in self.operators]:
            return f"PyTorch {torch.__version__} has no flash attention for {self.device.upper()}"
        if q.dtype not in self.dtypes:
            return f"the {self.name} kernel does not take {q.dtype}, only {', '.join(map(str, self.dtypes))}"
        if gradients and not self.gradients:
            return f"the {self.name} kernel has no gradients"
        if mask and not self.mask:
            return f"the {self.name} kernel takes no mask"
        equal = q.shape[1] == k.shape[1] or self.grouped
        if not equal or (q.shape[2] != k.shape[2] and not self.lengths_differ):
            return f"the {self.name} kernel is used for equal heads and lengths only"
        if (self.largest_dim is not None and dim > self.largest_dim) or dim % self.dim_step:
            limits = f"a multiple of {self.dim_step} up to {self.largest_dim}"
            return f"the {self.name} kernel needs qk_dim to be {limits}, not {dim}"
        if self.max_query is not None and q.shape[2] > self.max_query:
            return f"the {self.name} kernel takes at most {self.max_query} queries, not {q.shape[2]}"
        return None


_ON_CPU = (torch.float32, torch.float64, *_HALVES)
FLASH_CPU = Kernel("CPU", "cpu", ("FLASH_CPU", "FLASH_CPU_BACKWARD"), _ON_CPU)
FLASH_CUDA = Kernel(
    name="CUDA",
    device="cuda",
    operators=("FLASH_CUDA", "FLASH_CUDA_BACKWARD"),
    dtypes=_HALVES,
    mask=False,
    grouped=False,
    lengths_differ=False,
    largest_dim=256,
    dim_step=8,
)
# `one_query`, which decoding calls at every step.
ONE_QUERY = Kernel("one-query", "cpu", ("FLASH_CPU",), _ON_CPU, gradients=False, max_query=1)

# What `flash` runs: at most one for each type of device.
KERNELS = (FLASH_CPU, FLASH_CUDA)


def why_not(q: Tensor, k: Tensor, **asked: Any) -> str | None:
    """Return the reason why no kernel of the table does this, or None; see `Kernel.why_not`."""
    for kernel in KERNELS:
        if kernel.device == q.device.type:
            return kernel.why_not(q, k, **asked)
    return f"there is no kernel for the device {q.device.type}"


def flash(
    q: Tensor, k: Tensor, v: Tensor, draw_mask: DrawMask | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp; both have gradients, the mask that is added to the scores has none."""
    if causal and scale <= 0:  # the CPU kernel masks with -inf before it scales, which would flip the sign
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
    """Compute `flash` of one query on the CPU, without gradient: a group's heads are rows of one product.

    So keys and values are read once for a group, not once for each of its heads. `fast`, which asks the table
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
    """Whether entries share memory, as after `expand`: the kernel gives its output the same layout."""
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
    """Compute what the kernel computes, by the definition."""
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
