"""The attention registry of transformers: what its functions are given and return, seen from outside.

`AttentionInterface.get_interface` hands out the function a model calls for its attention. While somebody
watches, it hands out the same function with a look at its arguments and its result; the function runs as it
would have, on the model's own masks, whoever registered it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

# Called with the function, its arguments; gives what the function gave.
Look = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

_lock = threading.Lock()
_n_user = 0
_original: Any = None


class _Thread(threading.local):
    """Who looks in this thread; the innermost last."""

    def __init__(self) -> None:
        self.looks: list[Look] = []


_thread = _Thread()


@contextmanager
def looking(look: Look) -> Iterator[None]:
    """A block in which calls of registered attention functions in this thread go through `look`."""
    if "transformers.modeling_utils" not in sys.modules:  # then no model is one of theirs
        yield
        return
    _patch(1)
    _thread.looks.append(look)
    try:
        yield
    finally:
        _thread.looks.remove(look)
        _patch(-1)


def _patch(change: int) -> None:
    """Put the look in place for the first user, take it away after the last."""
    from transformers.modeling_utils import AttentionInterface

    global _n_user, _original
    with _lock:
        if not _n_user:
            _original = AttentionInterface.get_interface
            AttentionInterface.get_interface = _watched(_original)  # type: ignore[method-assign]
        _n_user += change
        if not _n_user:
            AttentionInterface.get_interface = _original  # type: ignore[method-assign]


def _watched(get_interface: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(get_interface)
    def get(*args: Any, **kwargs: Any) -> Any:
        function = get_interface(*args, **kwargs)
        looks = list(_thread.looks)
        if not looks or not callable(function):
            return function

        @wraps(function)
        def seen(*given: Any, **named: Any) -> Any:
            call = function
            for look in looks:  # the innermost look is the outermost call
                call = _through(look, call)
            return call(*given, **named)

        return seen

    return get


def _through(look: Look, function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given, **named: look(function, given, named)
