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

import math
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from pathlib import Path
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
from regard.layers.block import Block
from regard.layers.delta import UNTRACED, DeltaAttention
from regard.layers.latent import LatentAttention
from regard.layers.layer_id import Kind, LayerId, nth_call
from regard.models.model import Model
from regard.models.seq2seq import DotAttention
from regard.tracing import by_hand
from regard.tracing.calls import (
    AttentionCall,
    LogSumExp,
    as_it_is,
    log_sum_exp,
    read_call,
    read_registered,
    refuse_dropout,
)
from regard.tracing.layout import Layout, measured, usual
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
_interceptors: ContextVar[tuple[AttentionInterceptor, ...]] = ContextVar("interceptors", default=())


@contextmanager
def watching(
    model: nn.Module,
    recorder: Recorder | None,
    change: ReplaceOutput | None = None,
    *,
    layouts: Mapping[str, Layout] | None = None,
    raw: dict[str, Tensor] | None = None,
) -> Iterator[AttentionInterceptor]:
    """A block in which every attention that `model` computes in this thread is seen.

    It goes to `recorder`; then `change` says what takes the place of its output.
    """
    interceptor = AttentionInterceptor(model, recorder, change, layouts, raw)
    with ExitStack() as stack:
        reporting = _reporting(model, recorder, change)
        stack.enter_context(_other_threads(interceptor))
        for part in (uncompiled(), reporting, _fast_paths(model), _registered(), interceptor):
            stack.enter_context(part)
        _interceptors.set((*_interceptors.get(), interceptor))
        # Two blocks around one model end in the order they began: the interceptors of others stay.
        stack.callback(
            lambda: _interceptors.set(
                tuple(other for other in _interceptors.get() if other is not interceptor)
            )
        )
        yield interceptor
    if recorder is not None:
        for called in interceptor.unmet():
            recorder.add(called)
        recorder.remarks |= interceptor.remarks(model, recorder.seen)
        recorder.doubts = interceptor.doubts
        if recorder.doubts:
            recorder.remarks["layout"] = (
                "which dimensions of weights are sequences and which are heads is assumed, not measured, in "
                f"{', '.join(recorder.doubts)}"
            )


@contextmanager
def _other_threads(interceptor: AttentionInterceptor) -> Iterator[None]:
    """A block that notes modules of the model which run in threads that begin inside it: nobody sees them."""
    thread, before = threading.get_ident(), {thread.ident for thread in threading.enumerate()}

    def note(module: nn.Module, args: Any) -> None:
        here = threading.get_ident()
        unseen = here != thread and here not in before and not _interceptors.get()
        if unseen and module in interceptor.names:
            name = interceptor.names[module]
            interceptor.follow.notes.append((f"{name} (it runs in another thread)", None))

    handle = torch.nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()


def measure_layouts(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Layout]:
    """Return what the leading dimensions of each layer's weights are, by running the model on changed inputs.

    Args:
        model: Called several times, without its own hooks.
        args: What it is called with. Nothing is measured where something in it may keep a state.
        kwargs: And by name.

    Returns:
        By the names of layers, as far as the runs tell.
    """
    plain = (Tensor, int, float, bool, str, type(None))
    if not all(isinstance(value, plain) for value in (*args, *kwargs.values())):
        return {}
    heads: dict[str, int | None] = {}

    def run(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        raw: dict[str, Tensor] = {}
        with torch.no_grad(), torch.random.fork_rng(), watching(model, None, raw=raw) as interceptor:
            torch.manual_seed(0)
            model.forward(*args, **kwargs)
        heads.update(interceptor.stated)
        return raw

    try:
        return measured(run, args, kwargs, heads)
    except Exception:  # whatever a model says of inputs that it was not meant for
        return {}


def doubtful_layers(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, int | None]:
    """Return the layers of which it is not sure what are heads, and how many their modules say they have."""
    with torch.no_grad(), torch.random.fork_rng(), watching(model, None) as interceptor:
        model.forward(*args, **kwargs)
    return interceptor.doubts


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
    """Return this library's attention layers in a model, by name; raise where one drops or has no weights."""
    layers: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, Block) and isinstance(module.attention, DeltaAttention):
            raise UnsupportedError(f"{name or 'this block'}: {UNTRACED}.")
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

    def __init__(
        self,
        model: nn.Module,
        recorder: Recorder | None,
        change: ReplaceOutput | None,
        layouts: Mapping[str, Layout] | None = None,
        raw: dict[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.names = {module: name or "attention" for name, module in model.named_modules()}
        self.model, self.recorder, self.change = model, recorder, change
        self.masks: Any = WeakTensorKeyDictionary()
        self.follow = by_hand.Follower(may_change=change is not None)
        self.n_seen = 0
        self.last: tuple[Any, ...] = (0, None, None)  # call, q and k of the last layer
        self.last_by_hand: tuple[Any, ...] = (0, None, None, 0)  # call, weights, token, values so far
        self.token: Any = None  # of the layer that was seen last: its second use has the same
        # Of each softmax the uses of its weights: a token, the weights while they live, values so far.
        self.layers: dict[by_hand.SoftmaxUse, list[tuple[Any, Any, int]]] = {}
        self.of_windows: list[str] = []  # layers each of whose places has keys of its own
        self.rewritten: list[str] = []  # where a softmax was taken that is not what met the values
        self.layouts = layouts or {}  # as measured, by the names of layers
        self.raw = raw  # where given, the weights of each layer are put here, and nothing else is done
        self.named: list[str] = []  # every layer so far
        self.stated: dict[str, int | None] = {}  # heads that the modules of layers say they have
        self.doubts: dict[
            str, int | None
        ] = {}  # layers of which it is not sure what are heads; heads they state
        # Models of transformers keep to what is usual: batch first, then heads.
        self.certain = isinstance(getattr(getattr(model, "config", None), "model_type", None), str)

    def remarks(self, model: nn.Module, seen: list[str]) -> dict[str, str]:
        """What is to be said of a run that is over, by the names that facts of a trace have."""
        changed = ", ".join(dict.fromkeys(self.rewritten))
        uses = [use for use in self.follow.uses if not use.by_exp or use.normalised or use.of_scores]
        other = (use.module for use in uses if not (use.met or use.of_scores or use.by_exp))
        also = {use.module: use.lost[0] for use in uses if use.met and use.lost}
        said = {
            "not_seen": ", ".join(_not_seen(model, seen, uses, self.follow.notes)),
            "changed": "weights are changed after their softmax (gated, mixed, cut into blocks), and held as "
            f"they met the values, in {changed}" * bool(changed),
            "one_query": "each place has keys of its own (a window, or a pooled head), and is counted as a "
            f"sequence or head of one query, in {', '.join(self.of_windows)}" * bool(self.of_windows),
            "also_used": "; ".join(
                f"the softmax of {name} is also used by {how}: that use is not followed"
                for name, how in also.items()
            ),
            # A router's, a classifier's.
            "other_softmax": ", ".join(
                dict.fromkeys(re.sub(r"\b\d+\b", "*", name) for name in other if name)
            ),
        }
        return {name: words for name, words in said.items() if words}

    def unmet(self) -> Iterator[AttentionCall]:
        """Softmaxes over scores that met no values, and were used in no other way: pointers."""
        for use in self.follow.uses:
            weights = use.weights
            if use.met or use.lost or not use.of_scores or weights is None or weights.dim() < 2:
                continue
            lead = tuple(weights.shape[:-2])
            layout = usual(lead, use.batch, None)
            kind: Kind = "self" if weights.shape[-1] == weights.shape[-2] else "cross"
            yield AttentionCall(use.module or "attention", kind, None, None, weights=layout.four(weights))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self not in _interceptors.get():
            return func(*args, **kwargs)
        name = _names.get(func)
        if name is None:
            name = _names[func] = str(getattr(func, "__name__", func)).partition(".")[0]
        if torch_ops.inside_a_transform():
            if name in by_hand.SOFTMAX or name in _ATTENTION:
                self._note("attention inside torch.vmap or torch.func")
            return func(*args, **kwargs)
        if self.change is not None:
            args, kwargs = self.follow.substituted(args, kwargs)
        if name in _ATTENTION:
            return _ATTENTION[name](self, func, args, kwargs)
        if name in ("_sparse_softmax", "sparse_softmax"):
            self._note("a softmax of a sparse tensor")
        refuse_dropout(self.follow.dropped(name, args, kwargs))
        n_use, n_note = len(self.follow.uses), len(self.follow.notes)
        out = func(*args, **kwargs)
        written = self.follow(func, name, args, kwargs, out)
        if written is not None:
            return self._by_hand(written)
        if len(self.follow.uses) > n_use:
            use = self.follow.uses[-1]
            # One that meets no values must be named in the end.
            caller = self._caller()
            if caller is None:
                del self.follow.uses[n_use:]
            else:
                use.module, use.place, use.batch = caller.name, caller.place, caller.batch
                shape = getattr(out, "shape", (1,))
                use.of_scores |= (
                    bool(_CALLED_ATTENTION.search(type(caller.module).__name__)) and not use.by_exp
                )
                if shape[use.dim] < 2:
                    del self.follow.uses[n_use:]
        if len(self.follow.notes) > n_note:
            caller = self._caller()
            self.follow.notes[n_note:] = [
                (f"{caller.name} ({words}{caller.place})", None)
                for words, _ in self.follow.notes[n_note:]
                if caller
            ]
        return out

    def _note(self, words: str) -> None:
        caller = self._caller()
        if caller is not None:
            self.follow.notes.append((f"{caller.name} ({words}{caller.place})", None))

    def _layout(self, name: str, caller: _Caller, lead: tuple[int, ...]) -> Layout:
        """Which of the leading dimensions of a layer's weights are sequences and which are heads."""
        found = self.layouts.get(name)
        if found is not None and tuple(math.prod(part) for part in found.parts) == lead:
            return found
        if isinstance(caller.module, nn.MultiheadAttention) and len(lead) == 1:
            inner = caller.module.num_heads
            return Layout(((lead[0] // inner, inner),), (1,), True)
        # A model that is given (batch, head, position, dim) keeps to it.
        as_given = len(lead) == 2 and len(caller.given) == 4 and caller.given[:2] == lead
        layout = usual(lead, caller.batch, caller.n_head, certain=self.certain or as_given)
        if not layout.sure:
            self.doubts[name] = caller.n_head
        return layout

    def _scaled_dot_product(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """PyTorch's function of that name, or a kernel of it, called directly."""
        with LogSumExp() as kernel:  # type: ignore[no-untyped-call]
            out = func(*args, **kwargs)
        if self.raw is not None:
            self._keep_raw(args, kwargs)
            return out
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
        softmax = by_hand.Weights(weights, scores, by_hand.Product(q, k, scale), (by_hand.SoftmaxUse(met=1),))
        return (self._by_hand(by_hand.Written(weights, v, out[0], as_it_is, softmax)), *out[1:])

    def _keep_raw(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep what moves as weights do: products of queries and keys."""
        caller = self._caller()
        given = [*args, *(kwargs[word] for word in ("query", "key") if word in kwargs)]
        if caller is not None and self.raw is not None and len(given) > 1:
            q, k = given[:2]
            self.named.append(nth_call(caller.name, self.named))
            self.stated[self.named[-1]] = caller.n_head
            if q.dim() == 3 == k.dim():
                self.raw[self.named[-1]] = (q @ k.mT).detach()

    def look(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A registered attention function of transformers: where nothing in it was seen, it is itself."""
        before, n_use = self.n_seen, len(self.follow.uses)
        out = function(*args, **kwargs)
        if self.n_seen > before:
            return out
        for use in self.follow.uses[n_use:]:  # a softmax of its own is what is taken here
            use.met = 1
            use.lost.clear()
        if self.raw is not None:
            return out
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
        query = args[0] if args and read is read_call else None
        if isinstance(query, Tensor) and query.dim() == 3 and not self.certain:
            called = self._folded(caller, called)
        known = called if self.recorder is None else replace(called, lse=log_sum_exp(called, lse))
        last, self.last = self.last, (caller.call, known.q, known.k)
        again = last[0] == caller.call and all(map(_same, last[1:], self.last[1:]))
        self.token = self.token if again else object()
        if not again:
            self.named.append(nth_call(caller.name, self.named))
        changed = self._passed(caller, called, known, self.token, again, 0)
        return changed if isinstance(given, Tensor) else (changed, *given[1:])

    def _folded(self, caller: _Caller, called: AttentionCall) -> AttentionCall:
        """A call with batch and heads in one dimension, taken apart."""
        assert called.q is not None
        assert called.k is not None
        assert called.v is not None
        assert isinstance(called.rule, ScoreRule)
        lead = (called.q.shape[0],)
        layout = self._layout(nth_call(caller.name, self.named), caller, lead)
        compact = not called.rule.tensors and called.uniform_rows is None
        if not compact or called.k.shape[0] != lead[0]:
            return called
        q, k, v = (layout.four(tensor[:, 0]) for tensor in (called.q, called.k, called.v))
        to_heads = called.to_heads

        def four(out: Tensor) -> Tensor:
            return layout.four(to_heads(out)[:, 0])

        return replace(called, q=q, k=k, v=v, to_heads=four)

    def _by_hand(self, written: by_hand.Written) -> Tensor:
        """Attention that the model wrote out itself: its output, or what takes its place."""
        weights, v, out, arrange, softmax = written[:5]
        caller = self._caller()
        if caller is None:
            return out
        lead = tuple(
            weights.shape[:-2] if v is None else torch.broadcast_shapes(weights.shape[:-2], v.shape[:-2])
        )
        # Weights that meet several values, as they are, are one layer whose values stand side by side.
        known_uses = self.layers.setdefault(softmax.use, [])
        met = weights if written.met is None else written.met
        same = next((at for at, (_, other, _) in enumerate(known_uses) if _is(other(), met)), None)
        # So are two softmaxes of one call that give the same, as differential attention may write them.
        call, last_met, last_token, last_v = self.last_by_hand
        twin = same is None and call == caller.call and _same(last_met, met)
        again = same is not None or twin
        if not again:
            self.named.append(nth_call(caller.name, self.named))
        if self.raw is not None:
            if not again:
                self.stated[self.named[-1]] = caller.n_head
                self.raw[self.named[-1]] = weights.detach().expand(*lead, *weights.shape[-2:])
                known_uses.append((None, weakref.ref(met), 0))
            return out
        layout = self._layout(self.named[-1], caller, lead)
        if written.one_query and len(lead) > 1:
            self.of_windows.append(self.named[-1])
        four = layout.four

        def arranged(out: Tensor) -> Tensor:
            return four(arrange(out), lead)

        def cells(weights: Tensor) -> Tensor:
            return four(weights, lead)

        weights = four(weights, lead)
        v = None if v is None else four(v, lead)

        def own(tensor: Tensor, lead: tuple[int, ...] | None = None) -> Tensor:
            """What is folded in another way than the weights that meet the values."""
            sizes = tuple(tensor.shape[:-2] if lead is None else lead)
            same = sizes == tuple(math.prod(part) for part in layout.parts)
            return (layout if same else usual(sizes, caller.batch, caller.n_head)).four(tensor, lead)

        scores = None if softmax.scores is None else own(softmax.scores)
        changing = written.again is not None and self.change is not None
        called = AttentionCall(
            "",
            "self",
            v,
            out,
            arranged,
            weights=weights,
            scores=scores,
            rewrite=partial(by_hand.Rewrite, self.follow, written, cells) if changing else None,
            lost=tuple(softmax.uses),
            layout_sure=layout.sure,
        )
        known = None
        if self.recorder is not None and not again:
            given_same = softmax.scores is not None and by_hand.same_weights(softmax, weights.detach(), own)
            if given_same or softmax.scores is None:
                known = None if v is None else by_hand.explained(called, softmax.product, own)
            if not given_same and softmax.scores is not None:
                self.rewritten.append(softmax.use.module or caller.name)
        if twin:
            token, v_start = last_token, last_v
            known_uses.append((token, weakref.ref(met), v_start + (0 if v is None else v.shape[-1])))
        elif same is None:
            token, v_start = object(), 0
            known_uses.append((token, weakref.ref(met), 0 if v is None else v.shape[-1]))
        else:
            token, other, v_start = known_uses[same]
            known_uses[same] = token, other, v_start + (0 if v is None else v.shape[-1])
        self.last_by_hand = caller.call, met.detach(), token, v_start + (0 if v is None else v.shape[-1])
        called = replace(called, use=int(same is not None))
        return self._passed(caller, called, known or called, token, again, v_start)

    def _passed(
        self,
        caller: _Caller,
        called: AttentionCall,
        known: AttentionCall,
        token: Any,
        again: bool,
        v_start: int,
    ) -> Tensor:
        """Record a call, as far as it is known; its output, or what takes its place.

        A layer whose weights meet several values, `again`, is one layer: those stand side by side. Changes
        are made by the innermost interceptor: the others have seen the call then.
        """
        assert called.out is not None  # whoever computed it gave one
        self.n_seen += 1
        with _unseen():
            if self.recorder is not None:
                if again:
                    if known.v is not None:
                        self.recorder.widen(known.v)
                else:
                    self.recorder.add(caller.named(known))
        interceptors = [one for one in _interceptors.get() if caller.module in one.names]
        if interceptors[-1] is not self or all(one.change is None for one in interceptors):
            return called.out
        with _unseen():
            heads = before = called.to_heads(called.out)
            named = replace(caller.named(called), token=token, v_start=v_start)
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
        place = ""
        while frame is not None:
            seen = frame.f_locals
            if not place and not frame.f_globals.get("__name__", "").startswith(
                ("torch", "regard.tracing", "einops", "jaxtyping", "beartype")
            ):
                place = f", {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            module = seen.get("self")
            if caller is None and isinstance(module, _OURS):
                return None  # what we compute ourselves
            if isinstance(module, nn.Module) and module in self.names:
                if caller is None:
                    cross = any(isinstance(seen.get(word), Tensor) for word in _SOURCE_WORDS)
                    if isinstance(module, nn.MultiheadAttention):
                        cross = seen.get("key") is not seen.get("query")
                    caller = _Caller(self.names[module], module, cross, id(frame), place=place)
                if module is self.model:
                    for value in (*seen.values(), *(seen.get("kwargs") or {}).values()):
                        if isinstance(value, Tensor) and value.dim() > 1:
                            return replace(caller, batch=value.shape[0], given=tuple(value.shape))
            frame = frame.f_back
        return caller


def _is(one: Tensor | None, other: Tensor) -> bool:
    return one is other or _same(one, other)


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
    place: str = ""  # in which line of the source
    given: tuple[int, ...] = ()  # the shape of that tensor

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


def _not_seen(
    model: nn.Module, seen: list[str], uses: list[by_hand.SoftmaxUse], notes: list[tuple[str, Tensor | None]]
) -> list[str]:
    """What of the model may be attention and was not seen."""
    names = [LayerId.parse(name).module for name in seen]
    missing = list[str]()
    for use in uses:
        if use.met or not use.of_scores:
            continue
        how = (
            f"used by {use.lost[0]}"
            if use.lost
            else "a pointer's: shown as they are"
            if use.weights is not None
            else ""
        )
        what = "exponentials of scores" if use.by_exp else "a softmax"
        if use.by_exp and not use.lost:
            continue
        missing.append(
            f"{use.module} ({what} that was not seen to meet values{f', {how}' if how else ''}{use.place})"
        )
    missing += dict.fromkeys(
        f"{words}: the model's own function there is not a softmax, or was not followed" for words, _ in notes
    )
    missing = list(dict.fromkeys(missing))
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
