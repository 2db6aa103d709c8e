"""The attention registry of transformers, with an attention function of ours in it for a while.

A function registered without a mask function of the same name is given no mask at all, and the future
leaks without a word: so both are registered, and both go when the last user leaves.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

NAME = "regard"
_FIELD = "_attn_implementation_internal"

_lock = threading.Lock()
_users: dict[int, int] = {}  # how many use each config now, by its id
_before: dict[int, tuple[Any, str]] = {}  # each config in use, and what it said before


@contextmanager
def registered(model: nn.Module, function: Callable[..., Any]) -> Iterator[None]:
    """A block in which a model of transformers that does not call PyTorch's attention calls `function`.

    Does nothing for other models: one on "sdpa" calls PyTorch's, which is seen there.
    """
    configs = _configs(model)
    if not configs:
        yield
        return
    attention, masks = _registries()
    with _lock:
        if not _users:
            attention.register(NAME, function)
            masks.register(NAME, masks._global_mapping["sdpa"])
        for config in configs:
            _users[id(config)] = _users.get(id(config), 0) + 1
            if _users[id(config)] == 1:
                _before[id(config)] = (config, getattr(config, _FIELD))
                setattr(config, _FIELD, NAME)
    try:
        yield
    finally:
        with _lock:
            for config in configs:
                _users[id(config)] -= 1
                if not _users[id(config)]:
                    del _users[id(config)]
                    setattr(config, _FIELD, _before.pop(id(config))[1])
            if not _users:
                attention._global_mapping.pop(NAME, None)
                masks._global_mapping.pop(NAME, None)


def implementation_of(model: nn.Module) -> str | None:
    """What a model of transformers calls for its attention; None for any other model."""
    said = getattr(getattr(model, "config", None), _FIELD, None)
    return said if isinstance(said, str) else None


def _configs(model: nn.Module) -> list[Any]:
    """The configs, of the model and its parts, that choose another attention than PyTorch's."""
    if "transformers" not in sys.modules:  # then the model is none of theirs
        return []
    found: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        said = getattr(config, _FIELD, "sdpa")
        if said != "sdpa" and isinstance(said, str):
            found[id(config)] = config
    return list(found.values())


def _registries() -> tuple[Any, Any]:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    return AttentionInterface, AttentionMaskInterface
