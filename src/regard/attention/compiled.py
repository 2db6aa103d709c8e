"""What compiled code leaves to Python, because the answer decides which code runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable  # type: ignore[untyped-decorator]
def outside(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`, run and not compiled."""
    return function(*args)
