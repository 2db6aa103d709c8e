"""Keep freed memory for the next tensor, where the C library would return it to the system.

A forward pass frees and asks for the same few megabytes in every layer. glibc returns them each time, and
each page costs a fault when it is written to again: a seventh of SmolLM2's time at 512 tokens, measured.
Our command line, server and trainer ask for it; importing Regard does not. `REGARD_KEEP_ALLOCATOR=1`, or a
malloc setting of the user's own, leaves everything as it is.
"""

import ctypes
import os
from collections.abc import Callable

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's names for what mallopt sets
KEPT_BYTES = 512 << 20  # free memory that stays with the process
LARGEST_BYTES = 256 << 20  # of one tensor whose memory is kept; a larger one is given back at once
# Whoever set one of these, or says no by the last, decides.
SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "REGARD_KEEP_ALLOCATOR")


def keep_freed_memory() -> bool:
    """Ask glibc to keep freed memory for the next tensor.

    Returns:
        Whether it does; False where there is no glibc or the user has chosen otherwise.
    """
    choose = _of_glibc("mallopt")
    return bool(choose(TRIM_THRESHOLD, KEPT_BYTES)) and bool(choose(MMAP_THRESHOLD, LARGEST_BYTES))


def give_back_memory() -> None:
    """Return what is free: after a long text half a gigabyte, which the next short one will not need."""
    _of_glibc("malloc_trim")(0)


def _of_glibc(name: str) -> Callable[..., int]:
    """Return a function of glibc; one that does nothing without glibc or if the user decides about memory."""
    if any(name in os.environ for name in SETTINGS):
        return lambda *_: 0
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return lambda *_: 0
    return function
