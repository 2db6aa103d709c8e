"""A call of an attention function by our names: queries, keys, values, and the rule that its arguments make.

F.scaled_dot_product_attention    and the flash kernels below it, called directly
a function of transformers' attention registry
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from regard.attention.scores import ScoreRule
from regard.attention.visibility import Visibility
from regard.errors import UnsupportedError
from regard.tracing.layers import all_scores
from regard.tracing.masks import MaskReader, ReadMask, compact_bias

_KERNELS = re.compile(r"_scaled_dot_product_(flash|efficient|cudnn|fused)")
_BLOCK = 1 << 21  # scores computed at once where no kernel gives their sums
_FEW = 1 << 18  # scores: summed in less time than the layer around them takes
_LARGE = 20.0  # scores of this size are off by 1e-6 in float32


class LogSumExp(TorchDispatchMode):
    """Keeps the log-sum-exp of the kernel that PyTorch chooses, where it chooses one that gives it."""

    lse: Tensor | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if _KERNELS.match(func.__name__):
            self.lse = out[1]
        return out


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """The arguments of an attention function, by our names."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None = None
    dropout: float = 0.0
    causal: bool = False
    scale: float | None = None
    grouped: bool = False
    bias: Tensor | None = None  # beside the mask
    softcap: float | None = None
    sink: Tensor | None = None
    turned: bool = False  # the output is (batch, query, head, v_dim)

    @classmethod
    def of(cls, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """A call of scaled_dot_product_attention, or of a flash kernel."""
        if func is F.scaled_dot_product_attention:
            return _function_call(*args, **kwargs)
        return _kernel_call(*args, **kwargs)

    @classmethod
    def registered(
        cls,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        position_bias: Tensor | None = None,
        **_: Any,
    ) -> Call:
        """A call of a function in the registry of transformers."""
        if is_causal is None:
            is_causal = getattr(module, "is_causal", True)
        if not isinstance(attention_mask, Tensor):
            attention_mask = None
        causal = bool(is_causal) and attention_mask is None and query.shape[2] > 1
        grouped = query.shape[1] != key.shape[1]
        return cls(
            query, key, value, attention_mask, dropout, causal, scaling, grouped,
            bias=position_bias, softcap=softcap, sink=s_aux, turned=True,
        )  # fmt: skip

    def read(self, masks: MaskReader, dtype: torch.dtype) -> Understood:
        """What it computes, as far as its arguments say. `dtype` is that of its output."""
        lead = self.q.shape[:-2]
        if not self.grouped:
            lead = torch.broadcast_shapes(lead, self.v.shape[:-2])
        # Autocast gives the kernel fewer digits than the function was given.
        q, k, v = (_four(tensor, lead, self.grouped).to(dtype) for tensor in (self.q, self.k, self.v))
        mask = self.mask
        if mask is not None and mask.dim() > 2 and len(lead) != 2:
            mask = _four(mask, lead, False)
        shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        k, v = without_repeats(q, k, v)
        read = masks(mask, shape)
        visible = Visibility(causal=True) & read.visible if self.causal else read.visible
        bias = read.bias if self.bias is None else _added(self.bias, read, shape, visible.start)
        rule = ScoreRule(scale=self.scale, visible=visible, bias=bias, softcap=self.softcap)
        return Understood(q, k, v, rule, self.sink, read.alike)

    def heads(self, out: Tensor, shape: torch.Size) -> Tensor:
        """The output, or its gradient, as (batch, head, query, v_dim)."""
        return out.transpose(1, 2) if self.turned else out.reshape(*shape[:3], out.shape[-1])


@dataclass(frozen=True, slots=True, eq=False)
class Understood:
    """Queries, keys and values (batch, head, position, dim) of a call, and how its scores are made."""

    q: Tensor
    k: Tensor
    v: Tensor
    rule: ScoreRule
    sink: Tensor | None
    alike: Tensor | None

    def row_sums(self, given: Tensor | None) -> Tensor:
        """The log-sum-exp of every row; `given` are those of a kernel, where there was one."""
        q, k = self.q.detach(), self.k.detach()
        rough = _rough(q, k, self.rule)
        if given is None or given.numel() != q.shape[:3].numel() or rough:
            sums = _row_sums(q.contiguous(), k.contiguous(), self.rule)  # as they will be kept
            sums = sums if rough else sums.to(torch.promote_types(q.dtype, torch.float32))
        else:  # a kernel says 0 of a row that sees nothing
            sums = given.reshape(q.shape[:3])
            sees = self.rule.visible.rows_that_see(q.shape[2], k.shape[2], q.device)
            sums = sums if sees is None else torch.where(sees, sums, -torch.inf)
        return sums if self.sink is None else torch.logaddexp(sums, self.sink.to(sums.dtype)[:, None])


def _function_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call:
    return Call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _kernel_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *_: Any,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    **__: Any,
) -> Call:
    return Call(query, key, value, attn_mask, dropout_p, is_causal, scale, query.shape[1] != key.shape[1])


def _rough(q: Tensor, k: Tensor, rule: ScoreRule) -> bool:
    """Whether scores are so large that rounding of their sum shows in weights, and few enough to sum anew.

    Where our own scores are summed, in float64, rows sum to 1 whatever the rounding.
    """
    if q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] > _FEW or q.dtype != torch.float32:
        return False
    longest_q, longest_k = (float(torch.linalg.vector_norm(tensor, dim=-1).max()) for tensor in (q, k))
    return not abs(rule.scale_for(q.shape[3])) * longest_q * longest_k < _LARGE  # NaN: summed too


def _row_sums(q: Tensor, k: Tensor, rule: ScoreRule) -> Tensor:
    """The log-sum-exp of every row, in float64, a block of rows at a time."""
    cols = slice(0, k.shape[2])
    step = max(1, _BLOCK // max(1, q.shape[0] * q.shape[1] * k.shape[2]))
    blocks = [slice(first, min(q.shape[2], first + step)) for first in range(0, q.shape[2], step)]
    sums = []
    for rows in blocks:
        scores = all_scores(q, k, rule, rows, cols, widen=False)
        visible = rule.visible.tile(rows, cols, q.device)
        sums.append(torch.logsumexp(torch.where(visible, scores, -torch.inf).double(), -1))
    return torch.cat(sums, -1)


def _four(tensor: Tensor, lead: tuple[int, ...], grouped: bool) -> Tensor:
    """(batch, head, position, dim), whatever comes before the last two."""
    if tensor.is_nested:
        raise UnsupportedError("nested tensors cannot be traced: give padded ones, with a mask.")
    if not grouped:
        tensor = tensor.expand(*lead, *tensor.shape[-2:])
    lead = tensor.shape[:-2]
    if len(lead) == 2:
        return tensor
    if not lead:
        return tensor[None, None]
    return tensor[:, None] if len(lead) == 1 else tensor.flatten(0, -4)


def _added(bias: Tensor, read: ReadMask, shape: tuple[int, int, int, int], start: int) -> Any:
    """A bias that comes beside the mask, and what the mask itself adds."""
    table = bias.detach().expand(-1, -1, shape[2], -1)
    rows, cols = slice(0, shape[2]), slice(0, shape[3])
    if read.bias is not None:
        table = table + read.bias.tile(rows, cols, read.visible.start)
    hides = ~read.visible.tile(rows, cols, table.device)
    return compact_bias(table, hides.expand(-1, table.shape[1], -1, -1), start)


def without_repeats(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values once for each group of query heads, where a model has copied them for every head."""
    n_head = q.shape[1]
    if k.shape[1] != n_head or v.shape[1] != n_head or n_head < 2:
        return k, v
    group = 1
    # Copies stand side by side; one number of each tells those apart that are none.
    while group < n_head and torch.equal(k[:, group, :1], k[:, 0, :1]):
        group += 1
    if group == 1 or n_head % group:
        return k, v
    for tensor in (k, v):
        split = tensor.unflatten(1, (-1, group))
        if not bool((split == split[:, :, :1]).all()):
            return k, v
    return k[:, ::group], v[:, ::group]
