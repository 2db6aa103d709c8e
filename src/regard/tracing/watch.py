"""Attention of anybody's model, observed where it is computed: the model runs its own code, to the bit.

Inside `watching(model, recorder)` every function of PyTorch's that the model calls is seen, and attention is
noted wherever it is computed:

    PyTorch's     F.scaled_dot_product_attention, the kernels below it, nn.MultiheadAttention, flex_attention
    registered    a function of transformers' attention registry that none of the others could look into
    by hand       softmax over products: `by_hand`
    ours          layers of this library, in our models and inside anybody's, report themselves

What went in and what came out is kept. Weights are recovered from queries, keys and the model's own mask, and
the recorder checks them against the output that the model computed. Where somebody intervenes, and only
there, another output takes its place after that.

`nn.TransformerEncoder`, its layers and `nn.MultiheadAttention` have a fast path in eval mode, with other
roundings, and with zeros for padding. It is not taken where somebody looks, nor where there are hooks: so
their `forward` runs twice, to be seen and for its result.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from types import FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from regard.attention import torch_ops
from regard.attention.linear import Rule
from regard.attention.scores import ScoreRule
from regard.errors import UnsupportedError
from regard.layers.attention import AdditiveAttention, MultiHeadAttention, Record
from regard.layers.latent import LatentAttention
from regard.layers.layer_id import Kind, LayerId
from regard.models.model import Model
from regard.models.seq2seq import DotAttention
from regard.tracing import by_hand
from regard.tracing.calls import (
    AttentionCall,
    LogSumExp,
    as_it_is,
    read_call,
    read_registered,
    refuse_dropout,
    row_sums,
)
from regard.tracing.recorder import Recorder

# Given a call of attention and the outputs of its heads; answers with those that take their place.
ReplaceOutput = Callable[[AttentionCall, Tensor], Tensor]

_OURS = (MultiHeadAttention, LatentAttention, AdditiveAttention, DotAttention)
_CROSS_WORDS = ("cross", "encoder_attn", "encdec", "multihead_attn", "multi_head_attn")
_SOURCE_WORDS = ("key_value_states", "encoder_hidden_states")
_HEAD_WORDS = ("num_heads", "num_attention_heads", "n_head", "n_heads", "nhead", "heads", "h")
_FAST = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
_CALLED_ATTENTION = re.compile(r"att(entio)?n", re.IGNORECASE)

# Of this thread; the innermost last.
_interceptors: ContextVar[tuple[AttentionInterceptor, ...]] = ContextVar(
    "interceptors", default=()
)  # of this thread; the innermost last


@contextmanager
def watching(
    model: nn.Module, recorder: Recorder | None, change: ReplaceOutput | None = None
) -> Iterator[None]:
    """A block in which every attention that `model` computes in this thread is seen.

    It goes to `recorder`; then `change` says what takes the place of its output.
    """
    interceptor = AttentionInterceptor(model, recorder, change)
    with ExitStack() as stack:
        reporting = _reporting(model, recorder, change)
        for part in (uncompiled(), reporting, _fast_paths(model), _registered(), interceptor):
            stack.enter_context(part)
        _interceptors.set((*_interceptors.get(), interceptor))
        # Two blocks around one model end in the order they began: the interceptors of others stay.
        stack.callback(
            lambda: _interceptors.set(
                tuple(other for other in _interceptors.get() if other is not interceptor)
            )
        )
        yield
    if recorder is not None:
        recorder.remarks |= interceptor.remarks(model, recorder.seen)


@contextmanager
def around_calls(
    model: nn.Module,
    calling: Callable[[tuple[Any, ...], dict[str, Any]], AbstractContextManager[None]],
    thread: int | None = None,
) -> Iterator[None]:
    """A block in which every call of the model, in any thread or only in that one, has a `calling(...)`."""
    running = threading.local()

    def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if thread in (None, threading.get_ident()):
            running.depth = getattr(running, "depth", 0) + 1
            if running.depth == 1:
                running.stack = ExitStack()
                running.stack.enter_context(calling(args, kwargs))

    def end(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        if thread in (None, threading.get_ident()):
            running.depth -= 1
            if running.depth == 0:
                running.stack.close()

    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        stack.enter_context(_fast_paths(model))  # `begin` is too late: a call has its `forward`
        # `generate` calls an encoder by itself, which is the model's child or grandchild.
        fast = tuple(f"{name}." if name else "" for name in _outermost(model, _FAST))
        for name, module in model.named_modules():
            closes = name.startswith(fast) or isinstance(module, nn.TransformerEncoderLayer)
            if name.count(".") < 2 and not (name and closes):  # a hook would close a fast path
                stack.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(end, always_call=True).remove)
        yield


def uncompiled() -> AbstractContextManager[Any]:
    """A block in which code that torch.compile has compiled runs as it was written: only that can be seen."""
    compiled = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


_lock = threading.Lock()
_wraps: dict[tuple[int, str], tuple[int, Any]] = {}  # how many have asked for it, and what it was


@contextmanager
def wrapped(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """A block in which an attribute is wrapped: by the first who asks for it, until the last has left."""
    key = (id(owner), name)
    with _lock:
        n_user, original = _wraps.get(key, (0, vars(owner).get(name)))  # None: the class's, or inherited
        if not n_user:
            setattr(owner, name, wrap(getattr(owner, name)))
        _wraps[key] = n_user + 1, original
    try:
        yield
    finally:
        with _lock:
            n_user, original = _wraps.pop(key)
            if n_user > 1:
                _wraps[key] = n_user - 1, original
            elif original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def _registered() -> AbstractContextManager[None]:
    """A block in which interceptors look at calls of the attention functions that transformers hands out.

    The function runs as it would have, on the model's own masks, whoever registered it.
    """
    if "transformers.modeling_utils" not in sys.modules:  # then no model is one of theirs
        return nullcontext()
    from transformers.modeling_utils import AttentionInterface

    def wrap(get_interface: Callable[..., Any]) -> Callable[..., Any]:
        def get(*args: Any, **kwargs: Any) -> Any:
            function = get_interface(*args, **kwargs)
            for interceptor in (
                _interceptors.get() if callable(function) else ()
            ):  # the innermost is the outermost call
                function = update_wrapper(partial(interceptor.look, function), function)
            return function

        return update_wrapper(get, get_interface)

    return wrapped(AttentionInterface, "get_interface", wrap)


def _outermost(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> dict[str, nn.Module]:
    """The modules of these kinds that are inside no other of them, by name."""
    modules: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        inside = any(not outer or name.startswith(f"{outer}.") for outer in modules)
        if isinstance(module, kinds) and not inside:
            modules[name] = module
    return modules


@contextmanager
def _fast_paths(model: nn.Module) -> Iterator[None]:
    """A block in which such modules give what they would unwatched, where they are not changed."""

    def twice(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        out, interceptors = forward(*args, **kwargs), _interceptors.get()
        watched_only = interceptors and all(interceptor.change is None for interceptor in interceptors)
        if module.training or torch.is_grad_enabled() or torch_ops.UNSEEN is None or not watched_only:
            return out
        with torch_ops.UNSEEN():
            return forward(*args, **kwargs)

    with ExitStack() as stack:
        for module in _outermost(model, _FAST).values():
            stack.enter_context(wrapped(module, "forward", partial(partial, twice, module)))
        yield


@contextmanager
def _unseen() -> Iterator[None]:
    """A block in which no interceptor of this thread sees anything: what is computed is our own affair."""
    before = _interceptors.set(())
    try:
        yield
    finally:
        _interceptors.reset(before)


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The attention layers of this library in a model, by name; raises where one drops weights."""
    layers: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, _OURS):
            refuse_dropout(module.dropout if module.training else 0.0)
            layers[name or "attention"] = module
    return layers


@contextmanager
def _reporting(model: nn.Module, recorder: Recorder | None, change: ReplaceOutput | None) -> Iterator[None]:
    """A block in which attention layers of ours inside `model` report to `recorder` and pass `change`.

    A layer that is given a `record` already reports to that too. Whoever records sees what was computed,
    before any change of it.
    """
    thread = threading.get_ident()

    def ask(
        place: str, module: nn.Module, args: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        if threading.get_ident() != thread:
            return None
        elsewhere = not isinstance(module, MultiHeadAttention | LatentAttention) or len(args) > 1
        kind: Kind = "cross" if elsewhere or kwargs.get("memory") is not None else "self"
        given: Record | None = kwargs.get("record")

        def record(
            name: str, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, rule: Rule
        ) -> Tensor | None:
            known = name if isinstance(model, Model) else place
            called = AttentionCall(known, kind, v, out, q=q, k=k, rule=rule, lse=lse)
            if recorder is not None:
                recorder.add(called)
            changed = None if given is None else given(name, q, k, v, out, lse, rule)
            return changed if change is None else change(called, out if changed is None else changed)

        return args, {**kwargs, "record": record}

    with ExitStack() as stack:
        for place, module in attention_layers(model).items():
            stack.callback(module.register_forward_pre_hook(partial(ask, place), with_kwargs=True).remove)
        yield


class AttentionInterceptor(TorchFunctionMode):
    """Sees every function of PyTorch's that runs, and takes note of those that are attention."""

    def __init__(self, model: nn.Module, recorder: Recorder | None, change: ReplaceOutput | None) -> None:
        super().__init__()
        self.names = {module: name or "attention" for name, module in model.named_modules()}
        self.model, self.recorder, self.change = model, recorder, change
        self.masks: Any = WeakTensorKeyDictionary()
        self.follow = by_hand.Follower()
        self.n_seen = 0
        self.last: tuple[Any, ...] = (0, None, None)  # call, q and k of the last layer
        self.fates: list[by_hand.SoftmaxUse] = []  # of every softmax that the model took
        self.rewritten: list[str] = []  # where a softmax was taken that is not what met the values

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
        if self not in _interceptors.get():
            return func(*args, **kwargs)
        name = _names.get(func)
        if name is None:
            name = _names[func] = str(getattr(func, "__name__", func)).partition(".")[0]
        if name in _ATTENTION:
            return _ATTENTION[name](self, func, args, kwargs)
        refuse_dropout(self.follow.dropped(name, args, kwargs))
        out = func(*args, **kwargs)
        written = self.follow(name, args, kwargs, out)
        if written is not None:
            return self._by_hand(written)
        if name in by_hand.SOFTMAX and isinstance(softmax := self.follow.marks.get(out), by_hand.Weights):
            # One that meets no values must be named in the end.
            caller = self._caller()
            if caller is not None and softmax.values.shape[-1] > 1:
                softmax.fate.module = caller.name
                softmax.fate.of_scores |= bool(_CALLED_ATTENTION.search(type(caller.module).__name__))
                self.fates.append(softmax.fate)
        return out

    def _scaled_dot_product(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """PyTorch's function of that name, or a kernel of it, called directly."""
        with LogSumExp() as kernel:  # type: ignore[no-untyped-call]
            out = func(*args, **kwargs)
        if func is not F.scaled_dot_product_attention:  # a kernel has dropout_p and is_causal next
            more = dict(zip(("dropout_p", "is_causal"), args[3:], strict=False))
            args, kwargs = args[:3], {**more, **kwargs, "enable_gqa": True}
        return self._take(out, kernel.lse, read_call, args, kwargs)

    def _inside(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of PyTorch's written in Python: its own code, in which its calls are seen."""
        # It asks whether somebody wants to see it, which would lead back here: the same code with that one
        # name changed, for this call alone.
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
        softmax = by_hand.Weights(weights, scores, by_hand.Product(q, k, scale), by_hand.SoftmaxUse(met=True))
        return (self._by_hand((weights, v, out[0], as_it_is, softmax)), *out[1:])

    def look(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A registered attention function of transformers: where nothing in it was seen, it is itself."""
        before, n_fate = self.n_seen, len(self.fates)
        out = function(*args, **kwargs)
        if self.n_seen > before:
            return out
        for fate in self.fates[n_fate:]:  # a softmax of its own is what is taken here
            fate.met = True
        return self._take(out, None, read_registered, args, kwargs)

    def _take(
        self,
        given: Any,
        lse: Tensor | None,
        read: Callable[..., AttentionCall],
        args: Any,
        kwargs: dict[str, Any],
    ) -> Any:
        """Note one call of an attention function: what it gave, the sums its kernel gave, its arguments.

        Answers with what it gave, or with another output in its place.
        """
        caller = self._caller()
        if caller is None:
            return given
        out = given if isinstance(given, Tensor) else given[0]
        called = read(self.masks, out, *args, **kwargs)
        known = called if self.recorder is None else replace(called, lse=row_sums(called, lse))
        changed = self._passed(caller, called, known)
        return changed if isinstance(given, Tensor) else (changed, *given[1:])

    def _by_hand(self, written: by_hand.Written) -> Tensor:
        """Attention that the model wrote out itself: its output, or what takes its place."""
        weights, v, out, arrange, softmax = written
        caller = self._caller()
        if caller is None:
            return out
        four = partial(by_hand.to_heads, batch=caller.batch, n_head=caller.n_head)
        lead = torch.broadcast_shapes(weights.shape[:-2], v.shape[:-2])

        def arranged(out: Tensor) -> Tensor:
            return four(arrange(out), lead)

        weights, v = four(weights, lead), four(v, lead)
        scores = None if softmax.scores is None else four(softmax.scores)
        called = AttentionCall("", "self", v, out, arranged, weights=weights, scores=scores)
        known = None
        if self.recorder is not None:
            if scores is None or by_hand.same_weights(softmax, weights.detach(), four):
                known = by_hand.explained(called, softmax.product, four)
            else:
                self.rewritten.append(softmax.fate.module or caller.name)
        return self._passed(caller, called, known or called)

    def _passed(self, caller: _Caller, called: AttentionCall, known: AttentionCall) -> Tensor:
        """Record a call, as far as it is known; its output, or what takes its place.

        Differential attention has one layer's weights twice, with other values: those stand side by side.
        Changes are made by the innermost interceptor: the others have seen the call then.
        """
        assert called.out is not None  # whoever computed it gave one
        self.n_seen += 1
        with _unseen():
            if self.recorder is not None:
                last, self.last = self.last, (caller.call, known.q, known.k)
                again = last[0] == caller.call and all(map(_same, last[1:], self.last[1:]))
                if again and known.v is not None:
                    self.recorder.widen(known.v)
                else:
                    self.recorder.add(caller.named(known))
        interceptors = [
            interceptor for interceptor in _interceptors.get() if caller.module in interceptor.names
        ]
        if interceptors[-1] is not self or all(interceptor.change is None for interceptor in interceptors):
            return called.out
        with _unseen():
            heads = before = called.to_heads(called.out)
            named = caller.named(called)
            for interceptor in interceptors:
                if interceptor.change is not None:
                    heads = interceptor.change(replace(named, name=interceptor.names[caller.module]), heads)
            # A gradient reaches what a change was given, also where it left that as it was.
            same = heads is before and not heads.requires_grad
            return called.out if same else _placed(heads, called.out, called.to_heads)

    def _caller(self) -> _Caller | None:
        """The innermost module of the model on the stack of calls; None where it is none, or one of ours."""
        frame: FrameType | None = sys._getframe(1)
        caller: _Caller | None = None
        while frame is not None:
            seen = frame.f_locals
            module = seen.get("self")
            if caller is None and isinstance(module, _OURS):
                return None  # what we compute ourselves
            if isinstance(module, nn.Module) and module in self.names:
                if caller is None:
                    cross = any(isinstance(seen.get(word), Tensor) for word in _SOURCE_WORDS)
                    if isinstance(module, nn.MultiheadAttention):
                        cross = seen.get("key") is not seen.get("query")
                    caller = _Caller(self.names[module], module, cross, id(frame))
                if module is self.model:
                    for value in (*seen.values(), *(seen.get("kwargs") or {}).values()):
                        if isinstance(value, Tensor) and value.dim() > 1:
                            return replace(caller, batch=value.shape[0])
            frame = frame.f_back
        return caller


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and one.shape == other.shape and torch.equal(one, other)


@dataclass(frozen=True, slots=True, eq=False)
class _Caller:
    """The module from which attention was called."""

    name: str
    module: nn.Module
    cross: bool
    call: int  # a number for this run of it
    batch: int | None = None  # sequences that the model was given: the first size of its first tensor

    @property
    def n_head(self) -> int | None:
        """How many heads the module says it has."""
        sizes = (getattr(self.module, word, None) for word in _HEAD_WORDS)
        return next((size for size in sizes if isinstance(size, int) and size > 0), None)

    def named(self, called: AttentionCall) -> AttentionCall:
        """The call with its layer's name and kind.

        Cross-attention is known by name or argument; a single query over more keys is a step with a cache.
        """
        causal = isinstance(called.rule, ScoreRule) and called.rule.visible.causal
        another = called.shape[2] not in (1, called.shape[3]) and not causal
        cross = self.cross or another or any(word in self.name.lower() for word in _CROSS_WORDS)
        return replace(called, name=self.name, kind="cross" if cross else "self")


def _placed(heads: Tensor, out: Tensor, to_heads: Callable[[Tensor], Tensor]) -> Tensor:
    """Outputs of heads in the layout that `out` has: the inverse of `to_heads`."""
    places = to_heads(torch.arange(out.numel(), device=out.device).view(out.shape)).reshape(-1)
    if places.numel() != out.numel():
        raise UnsupportedError("heads of this attention share their output: nothing can take its place.")
    return heads.reshape(-1)[places.argsort()].view(out.shape)


def _not_seen(model: nn.Module, seen: list[str], fates: list[by_hand.SoftmaxUse]) -> list[str]:
    """What of the model may be attention and was not seen."""
    names = [LayerId.parse(name).module for name in seen]
    unmet = dict.fromkeys(fate.module for fate in fates if fate.of_scores and not fate.met)
    missing = [f"{name} (a softmax that was not seen to meet values)" for name in unmet]
    missing += [
        f"{name} (compiled by torch.jit: nobody sees into it)"
        for name, module in model.named_modules()
        if isinstance(module, torch.jit.ScriptModule)
    ]
    # The layers of a stack in which there was none, while others of it have some.
    for stack, modules in _outermost(model, (nn.ModuleList,)).items():
        places = [f"{stack}.{index}." if stack else f"{index}." for index, _ in modules.named_children()]
        without = [place[:-1] for place in places if not any(f"{name}.".startswith(place) for name in names)]
        missing += without if len(without) < len(places) else []
    return missing


_names: dict[Any, str] = {}
_Handler = Callable[[AttentionInterceptor, Any, tuple[Any, ...], dict[str, Any]], Any]
_ATTENTION: dict[str, _Handler] = {
    "scaled_dot_product_attention": AttentionInterceptor._scaled_dot_product,
    "_scaled_dot_product_flash_attention_for_cpu": AttentionInterceptor._scaled_dot_product,
    "_scaled_dot_product_flash_attention": AttentionInterceptor._scaled_dot_product,
    "multi_head_attention_forward": AttentionInterceptor._inside,
    "gumbel_softmax": AttentionInterceptor._inside,
    "flex_attention": AttentionInterceptor._flex,
}


def _never(*_: object) -> bool:
    return False
