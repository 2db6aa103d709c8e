"""Attention of anybody's model, observed where it is computed: the model runs its own code, to the bit.

Inside `watching(model, recorder)` every function of PyTorch's that the model calls is seen, and four doors
take note of attention:

    PyTorch's     F.scaled_dot_product_attention, the kernels below it, nn.MultiheadAttention, flex_attention
    registered    a function of transformers' attention registry that none of the others could look into
    by hand       softmax over products: `by_hand`
    ours          layers of this library inside a user's module report themselves

What went in and what came out is kept. Weights are recovered from queries, keys and the model's own mask, and
the recorder checks them against the output that the model computed. Where somebody intervenes, and only
there, another output takes its place after that.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from regard.attention.scores import ScoreRule
from regard.attention.visibility import Visibility
from regard.errors import UnsupportedError
from regard.layers.attention import AdditiveAttention, MultiHeadAttention
from regard.models.seq2seq import DotAttention
from regard.tracing.by_hand import SOFTMAX, Fate, Follower, Layout, Product, Weights, Written, explained
from regard.tracing.changes import Called, Change
from regard.tracing.fast_paths import fast_paths
from regard.tracing.hf_registry import looking
from regard.tracing.layers import Kind, all_scores
from regard.tracing.masks import MaskReader, ReadMask, compact_bias
from regard.tracing.ours import Put, refuse_dropout, reporting
from regard.tracing.recorder import Recorder, ToHeads

_CROSS_WORDS = ("cross", "encoder_attn", "encdec", "multihead_attn", "multi_head_attn")
_SOURCE_WORDS = ("key_value_states", "encoder_hidden_states")
_HEAD_WORDS = ("num_heads", "num_attention_heads", "n_head", "n_heads", "nhead", "heads", "h")
_KERNELS = re.compile(r"_scaled_dot_product_(flash|efficient|cudnn|fused)")
_CALLED_ATTENTION = re.compile(r"att(entio)?n", re.IGNORECASE)
_BLOCK = 1 << 21  # scores computed at once where no kernel gives their sums
_FEW = 1 << 18  # scores: summed in less time than the layer around them takes
_LARGE = 20.0  # scores of this size are off by 1e-6 in float32
_OURS = (MultiHeadAttention, AdditiveAttention, DotAttention)


class _Thread(threading.local):
    """The doors of this thread; the innermost last."""

    def __init__(self) -> None:
        self.doors: list[_Door] = []


_thread = _Thread()


@contextmanager
def watching(model: nn.Module, recorder: Recorder | None, change: Put | None = None) -> Iterator[None]:
    """A block in which every attention that `model` computes in this thread is seen.

    It goes to `recorder`; then `change` says what takes the place of its output.
    """
    door = _Door(model, recorder, change)
    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        stack.enter_context(reporting(model, recorder, change))
        stack.enter_context(fast_paths(model, watched_only))
        stack.enter_context(looking(door.look))
        stack.enter_context(door)
        _thread.doors.append(door)
        stack.callback(_thread.doors.remove, door)
        yield
    if recorder is not None:
        recorder.remarks |= door.remarks(model, recorder.seen)


@contextmanager
def uncompiled() -> Iterator[None]:
    """A block in which code that torch.compile has compiled runs as it was written: only that can be seen."""
    if "torch._dynamo" not in sys.modules:  # then nothing is compiled
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def watched_only() -> bool:
    """Whether attention of this thread is watched, and left as it is."""
    return bool(_thread.doors) and all(door.change is None for door in _thread.doors)


class _Door(TorchFunctionMode):
    """Sees every function of PyTorch's that runs, and takes note of those that are attention."""

    def __init__(self, model: nn.Module, recorder: Recorder | None, change: Put | None) -> None:
        super().__init__()
        self.modules = {id(module): (name, module) for name, module in model.named_modules()}
        self.recorder, self.change = recorder, change
        self.read = MaskReader()
        self.follow = Follower()
        self.n_seen = 0
        self.last: tuple[int, Tensor, Tensor] | None = None  # call, queries and keys of the layer seen last
        self.fates: list[Fate] = []  # of every softmax that the model took
        self.rewritten: list[str] = []  # where what met the values is not what the softmax gave

    def remarks(self, model: nn.Module, seen: list[str]) -> dict[str, str]:
        """What is to be said of a run that is over, by the names that facts of a trace have."""
        changed = ", ".join(dict.fromkeys(self.rewritten))
        other = (fate.module for fate in self.fates if not (fate.met or fate.of_scores))
        said = {
            "not_seen": ", ".join(_not_seen(model, seen, self.fates)),
            "changed": "weights are changed after their softmax (gated, mixed, cut into blocks), and held as "
            f"they met the values, in {changed}" * bool(changed),
            # A router's, a classifier's.
            "other_softmax": ", ".join(dict.fromkeys(re.sub(r"\b\d+\b", "*", name) for name in other)),
        }
        return {name: words for name, words in said.items() if words}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = _names.get(func)
        if name is None:
            name = _names[func] = str(getattr(func, "__name__", func)).partition(".")[0]
        if name in _ATTENTION:
            return _ATTENTION[name](self, func, args, kwargs)
        dropped = self.follow.dropped(name, args, kwargs)
        if dropped:
            refuse_dropout(dropped)
        out = func(*args, **kwargs)
        written = self.follow(name, args, kwargs, out)
        if written is not None:
            return self._by_hand(written)
        if name in SOFTMAX and isinstance(softmax := self.follow.mark_of(out), Weights):
            self._softmax(softmax)
        return out

    def _softmax(self, softmax: Weights) -> None:
        """Note where a softmax was taken: one that meets no values must be named in the end."""
        caller = _Caller.find(self.modules)
        if caller is not None and softmax.values.shape[-1] > 1:
            softmax.fate.module = caller.name
            softmax.fate.of_scores |= bool(_CALLED_ATTENTION.search(type(caller.module).__name__))
            self.fates.append(softmax.fate)

    def _scaled_dot_product(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """PyTorch's function of that name, or a kernel of it, called directly."""
        call = _Call.of(func, args, kwargs)
        if call.dropout:
            refuse_dropout(call.dropout)
        with _LogSumExp() as kernel:  # type: ignore[no-untyped-call]
            out = func(*args, **kwargs)
        return self._take(call, out, kernel.lse)

    def _inside(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of PyTorch's written in Python: its own code, in which its calls are seen."""
        # It asks at its door whether somebody wants to see it, which would lead back here: the same code
        # with that one name changed, for this call alone.
        names = {**func.__globals__, "has_torch_function": _never, "has_torch_function_unary": _never}
        same = FunctionType(func.__code__, names, func.__name__, func.__defaults__)
        same.__kwdefaults__ = func.__kwdefaults__
        with self:
            return same(*args, **kwargs)

    def _flex(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """PyTorch's flex_attention: the scores after its modifications, computed once more."""
        from torch._higher_order_ops.flex_attention import _math_attention_inner

        out = func(*args, **kwargs)
        q, k, v, modify, mask, scale, options, *buffers = args
        with torch.no_grad():
            group = q.shape[1] // k.shape[1]
            k, v = (tensor.repeat_interleave(group, 1) if group > 1 else tensor for tensor in (k, v))
            *_, scores = _math_attention_inner(q, k, v, modify, mask, scale, options, *buffers)
            weights = torch.softmax(scores, -1).nan_to_num(0.0)
        product = Product(q, k, scale)
        softmax = Weights(weights, scores, product, Fate(met=True))
        return (self._by_hand(Written(weights, v, out[0], _as_it_is, softmax, product)), *out[1:])

    def _by_hand(self, written: Written) -> Tensor:
        """Attention that the model wrote out itself: its output, or what takes its place."""
        caller = _Caller.find(self.modules)
        if caller is None:
            return written.out
        layout_of = partial(_layout, batch=_batch(self.modules), n_head=caller.n_head)
        lead = torch.broadcast_shapes(written.weights.shape[:-2], written.v.shape[:-2])
        layout = layout_of(written.out.new_empty(*lead, 0, 0))

        def to_heads(out: Tensor) -> Tensor:
            return layout.four(written.arrange_out(out))

        self.n_seen += 1
        if self.recorder is not None:
            self._record_by_hand(self.recorder, caller, written, layout, layout_of, to_heads)
        weights, v = layout.four(written.weights), layout.four(written.v)
        kind = caller.kind(False, *weights.shape[2:])
        scores = (
            None
            if written.softmax is None
            else layout_of(written.softmax.scores).four(written.softmax.scores)
        )
        called = Called.by_weights(caller.name, kind, weights, v, scores)
        return self._changed(caller, called, written.out, to_heads)

    def _record_by_hand(
        self, recorder: Recorder, caller: _Caller, written: Written, layout: Layout,
        layout_of: Callable[[Tensor], Layout], to_heads: ToHeads,
    ) -> None:  # fmt: skip
        weights, v = layout.four(written.weights.detach()), layout.four(written.v.detach())
        rule = None
        if written.softmax is None or _same_weights(written.softmax, weights, layout_of):
            rule = explained(written, weights, layout_of)
        else:
            self.rewritten.append(caller.name)
        n_query, n_key = weights.shape[2:]
        kind = caller.kind(rule is not None and rule.rule.visible.causal, n_query, n_key)
        if rule is None:
            recorder.add_weights(caller.name, weights, kind=kind, v=v, out=written.out, to_heads=to_heads)
        else:
            k, v = _without_repeats(rule.q, rule.k, v)
            if self._again(recorder, caller, rule.q, k, v):
                return
            recorder.add(
                caller.name, rule.q, k, v, rule.lse, rule.rule, kind=kind, sink=rule.sink, alike=rule.alike,
                out=written.out, to_heads=to_heads,
            )  # fmt: skip

    def _again(self, recorder: Recorder, caller: _Caller, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """Whether this is the last layer once more, with other values, as differential attention has it.

        Its weights are known then; the values are kept side by side.
        """
        last, self.last = self.last, (caller.call, q, k)
        same = last is not None and last[0] == caller.call and last[1].shape == q.shape
        if last is None or not (same and torch.equal(last[1], q) and torch.equal(last[2], k)):
            return False
        recorder.widen(v)
        return True

    def look(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A registered attention function of transformers: where nothing in it was seen, it is itself."""
        before, n_fate = self.n_seen, len(self.fates)
        out = function(*args, **kwargs)
        if self.n_seen == before:
            for fate in self.fates[n_fate:]:  # a softmax of its own is what is taken here
                fate.met = True
            call = _Call.registered(*args, **kwargs)
            if call.dropout:
                refuse_dropout(call.dropout)
            return self._take(call, out, None)
        return out

    def _take(self, call: _Call, given: Any, lse: Tensor | None) -> Any:
        """Note one call of an attention function: its arguments, what it gave, the sums its kernel gave.

        Answers with what it gave, or with another output in its place.
        """
        out: Tensor = given if isinstance(given, Tensor) else given[0]
        caller = _Caller.find(self.modules)
        if caller is None:
            return given
        lead = call.lead
        q, k, v = (_four_dimensional(tensor, lead, call.grouped) for tensor in (call.q, call.k, call.v))
        if out.dtype != q.dtype:  # autocast gives the kernel fewer digits than the function was given
            q, k, v = (tensor.to(out.dtype) for tensor in (q, k, v))
        mask = call.mask
        if mask is not None and mask.dim() > 2 and len(lead) != 2:
            mask = _four_dimensional(mask, lead, False)
        shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        k, v = _without_repeats(q, k, v)
        read = self.read(mask, shape)
        visible = Visibility(causal=True) & read.visible if call.causal else read.visible
        bias = read.bias if call.bias is None else _added(call.bias, read, shape, visible.start)
        rule = ScoreRule(scale=call.scale, visible=visible, bias=bias, softcap=call.softcap)
        kind = caller.kind(visible.causal, shape[2], shape[3])
        heads = partial(call.heads, shape=q.shape)
        self.n_seen += 1
        if self.recorder is not None:
            self._record(
                self.recorder,
                caller,
                kind,
                call,
                rule,
                out,
                lse,
                (q.detach(), k.detach(), v.detach()),
                read.alike,
            )
        called = Called.by_rule(caller.name, kind, q, k, v, rule, call.sink, read.alike)
        changed = self._changed(caller, called, out, heads)
        return changed if isinstance(given, Tensor) else (changed, *given[1:])

    def _record(
        self, recorder: Recorder, caller: _Caller, kind: Kind, call: _Call, rule: ScoreRule, out: Tensor,
        lse: Tensor | None, qkv: tuple[Tensor, Tensor, Tensor], alike: Tensor | None,
    ) -> None:  # fmt: skip
        q, k, v = qkv
        if lse is None or lse.numel() != q.shape[0] * q.shape[1] * q.shape[2] or _rough(q, k, rule):
            lse = _row_sums(q.contiguous(), k.contiguous(), rule)  # as they will be kept
        else:  # a kernel says 0 of a row that sees nothing
            lse = lse.reshape(q.shape[:3])
            sees = rule.visible.rows_that_see(q.shape[2], k.shape[2], q.device)
            lse = lse if sees is None else torch.where(sees, lse, -torch.inf)
        if call.sink is not None:
            lse = torch.logaddexp(lse, call.sink.to(lse.dtype)[:, None])
        if self._again(recorder, caller, q, k, v):
            return
        recorder.add(
            caller.name, q, k, v, lse, rule, kind=kind, sink=call.sink, alike=alike,
            out=out, to_heads=partial(call.heads, shape=q.shape), owned=True,
        )  # fmt: skip

    def _changed(self, caller: _Caller, called: Called, out: Tensor, to_heads: ToHeads) -> Tensor:
        """The output after every change, by the innermost door: the others have seen it then."""
        doors = [door for door in _thread.doors if id(caller.module) in door.modules]
        changes = [(door, door.change) for door in doors if door.change is not None]
        if not changes or doors[-1] is not self:
            return out
        heads = before = to_heads(out)
        for door, change in changes:
            heads = change(replace(called, name=door.modules[id(caller.module)][0] or "attention"), heads)
        return out if heads is before else _placed(heads, out, to_heads)


def _placed(heads: Tensor, out: Tensor, to_heads: ToHeads) -> Tensor:
    """Outputs of heads in the layout that `out` has: the inverse of `to_heads`."""
    places = to_heads(torch.arange(out.numel(), device=out.device).view(out.shape)).reshape(-1)
    if places.numel() != out.numel():
        raise UnsupportedError("heads of this attention share their output: nothing can take its place.")
    order = torch.empty_like(places)
    order[places] = torch.arange(places.numel(), device=places.device)
    return heads.reshape(-1)[order].view(out.shape)


def _not_seen(model: nn.Module, seen: list[str], fates: list[Fate]) -> list[str]:
    """What of the model may be attention and was not seen."""
    names = [name.partition("#")[0] for name in seen]
    missing = [
        f"{name} (a softmax that was not seen to meet values)"
        for name in dict.fromkeys(fate.module for fate in fates if fate.of_scores and not fate.met)
    ]
    missing += [
        f"{name} (compiled by torch.jit: nobody sees into it)"
        for name, module in model.named_modules()
        if isinstance(module, torch.jit.ScriptModule)
    ]
    # The layers of a stack in which there was none, while others of it have some.
    stacks: list[str] = []
    for stack, modules in model.named_modules():
        if isinstance(modules, nn.ModuleList) and not any(stack.startswith(f"{outer}.") for outer in stacks):
            stacks.append(stack)
            places = [f"{stack}.{index}" if stack else str(index) for index in range(len(modules))]
            with_attention = [any(f"{name}.".startswith(f"{place}.") for name in names) for place in places]
            if any(with_attention):
                missing += [place for place, has in zip(places, with_attention, strict=True) if not has]
    return missing


_names: dict[Any, str] = {}
_Handler = Callable[[_Door, Any, tuple[Any, ...], dict[str, Any]], Any]
_ATTENTION: dict[str, _Handler] = {
    "scaled_dot_product_attention": _Door._scaled_dot_product,
    "_scaled_dot_product_flash_attention_for_cpu": _Door._scaled_dot_product,
    "_scaled_dot_product_flash_attention": _Door._scaled_dot_product,
    "multi_head_attention_forward": _Door._inside,
    "gumbel_softmax": _Door._inside,
    "flex_attention": _Door._flex,
}


class _LogSumExp(TorchDispatchMode):
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
class _Call:
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
    def of(cls, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
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
    ) -> _Call:
        """A call of a function in the registry of transformers."""
        if is_causal is None:
            is_causal = getattr(module, "is_causal", True)
        if not isinstance(attention_mask, Tensor):
            attention_mask = None
        causal = bool(is_causal) and attention_mask is None and query.shape[2] > 1
        grouped = query.shape[1] != key.shape[1]
        return cls(
            query,
            key,
            value,
            attention_mask,
            dropout,
            causal,
            scaling,
            grouped,
            position_bias,
            softcap,
            s_aux,
            True,
        )

    @property
    def lead(self) -> tuple[int, ...]:
        """The dimensions before (query, qk_dim)."""
        if self.grouped:
            return tuple(self.q.shape[:-2])
        return tuple(torch.broadcast_shapes(self.q.shape[:-2], self.v.shape[:-2]))

    def heads(self, out: Tensor, shape: torch.Size) -> Tensor:
        """The output, or its gradient, as (batch, head, query, v_dim)."""
        return out.transpose(1, 2) if self.turned else out.reshape(*shape[:3], out.shape[-1])


def _function_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> _Call:
    return _Call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


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
) -> _Call:
    return _Call(query, key, value, attn_mask, dropout_p, is_causal, scale, query.shape[1] != key.shape[1])


def _rough(q: Tensor, k: Tensor, rule: ScoreRule) -> bool:
    """Whether scores are so large that a kernel's rounding shows in the weights, and few enough to sum anew.

    Rows that our own scores were summed for sum to 1 whatever the rounding.
    """
    if q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] > _FEW or q.dtype != torch.float32:
        return False
    longest_q, longest_k = (float(torch.linalg.vector_norm(tensor, dim=-1).max()) for tensor in (q, k))
    return not abs(rule.scale_for(q.shape[3])) * longest_q * longest_k < _LARGE  # NaN: summed too


def _row_sums(q: Tensor, k: Tensor, rule: ScoreRule) -> Tensor:
    """The log-sum-exp of every row, a block of rows at a time."""
    cols = slice(0, k.shape[2])
    step = max(1, _BLOCK // max(1, q.shape[0] * q.shape[1] * k.shape[2]))
    blocks = [slice(first, min(q.shape[2], first + step)) for first in range(0, q.shape[2], step)]
    sums = []
    for rows in blocks:
        scores = all_scores(q, k, rule, rows, cols, widen=False)
        visible = rule.visible.tile(rows, cols, q.device)
        sums.append(torch.logsumexp(torch.where(visible, scores, -torch.inf), -1))
    return torch.cat(sums, -1)


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


def _never(*_: object) -> bool:
    return False


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _layout(tensor: Tensor, batch: int | None, n_head: int | None) -> Layout:
    return Layout(tuple(tensor.shape[:-2]), batch, n_head)


def _same_weights(softmax: Weights, weights: Tensor, layout_of: Callable[[Tensor], Layout]) -> bool:
    """Whether what met the values is what the softmax gave, but for a last column of a sink."""
    given = layout_of(softmax.values).four(softmax.values.detach()).to(weights.dtype)
    if given.shape[:3] == weights.shape[:3] and given.shape[3] - weights.shape[3] in (0, 1):
        given = given[..., : weights.shape[3]]
    elif given.numel() == weights.numel():  # its dimensions may stand in another order
        given, weights = given.flatten().sort()[0], weights.flatten().sort()[0]
    else:
        return False
    return torch.equal(given, weights) or torch.equal(given.nan_to_num(2.0), weights.nan_to_num(2.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Caller:
    """The module from which attention was called."""

    name: str
    module: nn.Module
    cross: bool
    call: int  # a number for this run of it

    @classmethod
    def find(cls, modules: dict[int, tuple[str, nn.Module]]) -> _Caller | None:
        """The innermost module of the model on the stack of calls; None where it is none, or one of ours."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            seen = frame.f_locals
            module = seen.get("self")
            if isinstance(module, (Recorder, Change, *_OURS)):
                return None  # what we compute ourselves
            if isinstance(module, nn.Module) and id(module) in modules:
                cross = any(isinstance(seen.get(word), Tensor) for word in _SOURCE_WORDS)
                if isinstance(module, nn.MultiheadAttention):
                    cross = seen.get("key") is not seen.get("query")
                return cls(modules[id(module)][0] or "attention", module, cross, id(frame))
            frame = frame.f_back
        return None

    @property
    def n_head(self) -> int | None:
        """How many heads the module says it has."""
        for word in _HEAD_WORDS:
            said = getattr(self.module, word, None)
            if isinstance(said, int) and said > 0:
                return said
        return None

    def kind(self, causal: bool, n_query: int, n_key: int) -> Kind:
        """Cross-attention by name or argument; a single query over more keys is a step with a cache."""
        named = any(word in self.name.lower() for word in _CROSS_WORDS)
        another = n_query not in (1, n_key) and not causal
        return "cross" if self.cross or named or another else "self"


def _batch(modules: dict[int, tuple[str, nn.Module]]) -> int | None:
    """How many sequences the model was given: the first dimension of its first tensor, where it has one."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        seen = frame.f_locals
        if modules.get(id(seen.get("self")), ("inner", None))[0] == "":
            for value in (*seen.values(), *(seen.get("kwargs") or {}).values()):
                if isinstance(value, Tensor) and value.dim() > 1:
                    return value.shape[0]
        frame = frame.f_back
    return None


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
