"""PyTorch's encoder layers run twice while they are watched: to be seen, and for their result.

`nn.TransformerEncoder`, its layers and `nn.MultiheadAttention` have a fast path in eval mode, with other
roundings, and with zeros for padding. It is not taken where somebody looks, nor where there are hooks: so
`forward` itself is wrapped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from regard.attention import torch_ops

_FAST = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
_lock = threading.Lock()
_users: dict[nn.Module, int] = {}  # how many have asked for it
_unwrapped: dict[nn.Module, Callable[..., Any]] = {}


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
    modules = with_fast_path(model).values()
    with _lock:
        for module in modules:
            if module not in _users:
                _unwrapped[module] = module.forward
                module.forward = partial(_twice, module, module.forward, watched)
            _users[module] = _users.get(module, 0) + 1
    try:
        yield
    finally:
        with _lock:
            for module in modules:
                _users[module] -= 1
                if not _users[module]:
                    del _users[module], module.forward
                    if module.forward != (forward := _unwrapped.pop(module)):  # one of the instance's own
                        module.forward = forward


def _twice(
    module: nn.Module, forward: Callable[..., Any], watched: Callable[[], bool], *args: Any, **kwargs: Any
) -> Any:
    out = forward(*args, **kwargs)
    if module.training or torch.is_grad_enabled() or torch_ops.UNSEEN is None or not watched():
        return out
    with torch_ops.UNSEEN():
        return forward(*args, **kwargs)
