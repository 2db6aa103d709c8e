"""Functions of others that are wrapped while somebody watches: what a model gets from them stays the same.

`AttentionInterface.get_interface` of transformers hands out the function a model calls for its attention.
Watched, it hands out the same function with a look at its arguments and its result; the function runs as it
would have, on the model's own masks, whoever registered it.

`nn.TransformerEncoder`, its layers and `nn.MultiheadAttention` have a fast path in eval mode, with other
roundings, and with zeros for padding. It is not taken where somebody looks, nor where there are hooks: so
`forward` itself is wrapped, and runs twice, to be seen and for its result.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import nn

from regard.attention import torch_ops

_FAST = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
_lock = threading.Lock()
_users: Counter[tuple[int, str]] = Counter()  # of what is wrapped: how many have asked for it
_unwrapped: dict[tuple[int, str], Any] = {}


@contextmanager
def _wrapped(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """A block in which an attribute is wrapped: by the first who asks for it, until the last has left."""
    key = (id(owner), name)
    with _lock:
        if not _users[key]:
            _unwrapped[key] = vars(owner).get(name)  # None: it is the class's, or inherited
            setattr(owner, name, wrap(getattr(owner, name)))
        _users[key] += 1
    try:
        yield
    finally:
        with _lock:
            _users[key] -= 1
            if not _users[key]:
                del _users[key]
                delattr(owner, name)
                if (original := _unwrapped.pop(key)) is not None:
                    setattr(owner, name, original)


def registered_functions(looks: Callable[[], Sequence[Callable[..., Any]]]) -> AbstractContextManager[None]:
    """A block in which calls of registered attention functions go through `looks`, those of the thread.

    A look is called with the function and its arguments, and gives what the function gave.
    """
    if "transformers.modeling_utils" not in sys.modules:  # then no model is one of theirs
        return nullcontext()
    from transformers.modeling_utils import AttentionInterface

    def wrap(get_interface: Callable[..., Any]) -> Callable[..., Any]:
        def get(*args: Any, **kwargs: Any) -> Any:
            function = get_interface(*args, **kwargs)
            for look in looks() if callable(function) else ():  # the innermost look is the outermost call
                function = update_wrapper(partial(look, function), function)
            return function

        return update_wrapper(get, get_interface)

    return _wrapped(AttentionInterface, "get_interface", wrap)


def with_fast_path(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that have a fast path, the outermost, by name."""
    modules: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        inside = any(not outer or name.startswith(f"{outer}.") for outer in modules)
        if isinstance(module, _FAST) and not inside:
            modules[name] = module
    return modules


@contextmanager
def fast_paths(model: nn.Module, watched: Callable[[], bool]) -> Iterator[None]:
    """A block in which such modules give what they would unwatched; `watched` asks whether they are."""

    def twice(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        out = forward(*args, **kwargs)
        if module.training or torch.is_grad_enabled() or torch_ops.UNSEEN is None or not watched():
            return out
        with torch_ops.UNSEEN():
            return forward(*args, **kwargs)

    with ExitStack() as stack:
        for module in with_fast_path(model).values():
            stack.enter_context(_wrapped(module, "forward", partial(partial, twice, module)))
        yield
