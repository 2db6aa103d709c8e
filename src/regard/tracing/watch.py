"""Attention of anybody's model, seen where it is computed.

Two doors. PyTorch's: inside `watching(model, recorder)`, every call of `F.scaled_dot_product_attention` and
of `multi_head_attention_forward` is answered by `attend`, which computes the same and gives the log-sum-exp
too. And the attention registry of transformers, for models that never call PyTorch's: softcapped,
with sinks, or eager. Layers of ours inside a user's module report themselves.

Modes of PyTorch belong to a thread, and so do the recorders; the registry is shared, so a thread without a
recorder that comes through it meanwhile gets its attention and nothing is kept.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from regard.attention import softmax as attention
from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, UnsupportedError
from regard.tracing.hf_registry import registered
from regard.tracing.layers import Kind
from regard.tracing.masks import MaskReader, ReadMask, compact_bias
from regard.tracing.ours import refuse_dropout, reporting
from regard.tracing.recorder import Recorder

_CROSS_WORDS = ("cross", "encoder_attn", "encdec", "multihead_attn", "multi_head_attn")
_SOURCE_WORDS = ("key_value_states", "encoder_hidden_states")


@dataclass(frozen=True, slots=True, eq=False)
class _Watch:
    """One model being watched."""

    names: dict[int, str]  # of its modules, by id
    recorder: Recorder
    read: MaskReader = field(default_factory=MaskReader)


class _Thread(threading.local):
    """What this thread watches; the innermost last."""

    def __init__(self) -> None:
        self.watches: list[_Watch] = []
        self.busy = False  # computing an answer: what that calls is no attention of the model's


_thread = _Thread()


@contextmanager
def watching(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """A block in which every attention call that `model` makes in this thread goes to `recorder`."""
    names = {id(module): name for name, module in model.named_modules()}
    watch = _Watch(names, recorder)
    _thread.watches.append(watch)
    try:
        with ExitStack() as stack:
            stack.enter_context(reporting(model, recorder))
            stack.enter_context(registered(model, _attention_of_transformers))
            stack.enter_context(_Door())
            yield
    finally:
        _thread.watches.remove(watch)


class _Door(TorchFunctionMode):
    """Answers PyTorch's two attention functions; every other function goes its way."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _thread.busy:
            if func is F.scaled_dot_product_attention:
                return _scaled_dot_product(*args, **kwargs)
            if func is F.multi_head_attention_forward:
                return _multi_head(*args, **kwargs)
        return func(*args, **kwargs)


def _scaled_dot_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """PyTorch's function of that name, recorded."""
    if is_causal and attn_mask is not None:
        raise ArgumentError("scaled_dot_product_attention takes attn_mask or is_causal, not both.")
    original = (query, key, value, attn_mask)
    shape = torch.broadcast_shapes(query.shape[:-2], value.shape[:-2]) if not enable_gqa else query.shape[:-2]
    q, k, v = (_four_dimensional(tensor, shape, enable_gqa) for tensor in (query, key, value))
    mask = attn_mask
    if mask is not None and mask.dim() > 2 and len(shape) != 2:
        mask = _four_dimensional(mask, shape, False)
    found = _find_caller()
    out = _answer(found, q, k, v, mask, is_causal, dropout_p, scale, original=original)
    return out.reshape(*shape, *out.shape[2:]) if len(shape) != 2 else out


def _four_dimensional(tensor: Tensor, shape: tuple[int, ...], grouped: bool) -> Tensor:
    """(batch, head, position, dim), whatever comes before the last two."""
    if tensor.is_nested:
        raise UnsupportedError("nested tensors cannot be traced: give padded ones, with a mask.")
    if not grouped:
        tensor = tensor.expand(*shape, *tensor.shape[-2:])
    lead = tensor.shape[:-2]
    if len(lead) == 2:
        return tensor
    if not lead:
        return tensor[None, None]
    return tensor[:, None] if len(lead) == 1 else tensor.flatten(0, -4)


def _multi_head(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """PyTorch's `multi_head_attention_forward`, its own code, with our attention in place of its call."""
    original = F.multi_head_attention_forward
    names = original.__code__.co_varnames[: original.__code__.co_argcount]
    given = dict(zip(names, args, strict=False)) | kwargs
    need_weights, averaged = given.get("need_weights", True), given.get("average_attn_weights", True)
    found, taken = _find_caller(), []

    def ours(
        q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool
    ) -> Tensor:
        rules: list[ScoreRule] = []
        out = _answer(found, q, k, v, attn_mask, is_causal, dropout_p, None, rules=rules)
        taken.append((q, k, rules[0]))
        return out

    # The same code with two of its global names changed, for this call alone: nothing is patched.
    names_seen = {**original.__globals__, "scaled_dot_product_attention": ours, "has_torch_function": _never}
    same = FunctionType(original.__code__, names_seen, original.__name__, original.__defaults__)
    same.__kwdefaults__ = original.__kwdefaults__
    out, _ = same(**{**given, "need_weights": False})
    if not need_weights:
        return out, None
    q, k, rule = taken[0]
    weights = attention.weights(q, k, rule)
    weights = weights.mean(1) if averaged else weights
    return out, weights if given["query"].dim() == 3 else weights[0]


def _never(*_: object) -> bool:
    return False


def _attention_of_transformers(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """An attention function as the registry of transformers wants it: output as (batch, query, head, dim)."""
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = bool(is_causal) and attention_mask is None and query.shape[2] > 1
    found = _find_caller()
    out = _answer(
        found,
        query,
        key,
        value,
        attention_mask,
        causal,
        dropout,
        scaling,
        bias=position_bias,
        softcap=softcap,
        sink=s_aux,
    )
    return out.transpose(1, 2).contiguous(), None


@dataclass(frozen=True, slots=True, eq=False)
class _Caller:
    """The module from which attention was called."""

    module: nn.Module | None = None
    cross: bool = False

    def name(self, watch: _Watch) -> str:
        if self.module is None or id(self.module) not in watch.names:
            return "attention"
        return watch.names[id(self.module)] or "attention"

    def kind(self, name: str, causal: bool, n_query: int, n_key: int) -> Kind:
        named = any(word in name.lower() for word in _CROSS_WORDS)
        return "cross" if self.cross or named or (n_query != n_key and not causal) else "self"


def _find_caller() -> _Caller:
    """The innermost module of a watched model on the stack of calls."""
    known = {number for watch in _thread.watches for number in watch.names}
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and id(module) in known:
            seen = frame.f_locals
            cross = any(isinstance(seen.get(word), Tensor) for word in _SOURCE_WORDS)
            if isinstance(module, nn.MultiheadAttention):
                cross = seen.get("key") is not seen.get("query")
            return _Caller(module, cross)
        frame = frame.f_back  # type: ignore[assignment]
    return _Caller()


def _answer(
    caller: _Caller,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    dropout: float,
    scale: float | None,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    original: tuple[Tensor, Tensor, Tensor, Tensor | None] | None = None,
    rules: list[ScoreRule] | None = None,
) -> Tensor:
    """Attention's output, with everything of it given to those who watch."""
    if dropout:
        refuse_dropout(dropout)
    shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    k, v = _without_repeats(q, k, v)
    watches = list(_thread.watches)
    _thread.busy = True
    try:
        read = watches[-1].read(mask, shape) if watches else MaskReader()(mask, shape)
        visible = Visibility(causal=True) & read.visible if causal else read.visible
        added = read.bias
        if bias is not None:
            added = _added(bias, read, shape, visible.start)
        rule = ScoreRule(scale=scale, visible=visible, bias=added, softcap=softcap)
        out, lse = attend(q, k, v, rule)
        if sink is not None:
            with_sink = torch.logaddexp(lse, sink.to(lse.dtype)[:, None])
            out = out * torch.exp(lse - with_sink)[..., None].to(out.dtype)
            lse = with_sink
        if read.softly_blind and original is not None and original[3] is not None:
            grouped = original[0].shape[-3:-2] != original[1].shape[-3:-2]
            own = F.scaled_dot_product_attention(*original, scale=scale, enable_gqa=grouped)
            out = torch.where((lse > -torch.inf)[..., None], out, own.reshape(out.shape))
        if rules is not None:
            rules.append(rule)
        for watch in watches:
            name = caller.name(watch)
            kind = caller.kind(name, visible.causal, shape[2], shape[3])
            watch.recorder.add(name, q, k, v, lse, rule, kind=kind, sink=sink, out=out, owned=True)
    finally:
        _thread.busy = False
    return out


def _added(bias: Tensor, read: ReadMask, shape: tuple[int, int, int, int], start: int) -> Any:
    """A bias that comes beside the mask, and what the mask itself adds."""
    table = bias.detach().expand(-1, -1, shape[2], -1)
    rows, cols = slice(0, shape[2]), slice(0, shape[3])
    if read.bias is not None:
        table = table + read.bias.tile(rows, cols, read.visible.start)
    hides = ~read.visible.tile(rows, cols, table.device)
    return compact_bias(table, hides.expand(-1, table.shape[1], -1, -1), start)


def _without_repeats(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
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
