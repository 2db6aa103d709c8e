"""Locks between processes: the system lets go of one when its process ends, however it ends."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_SECONDS = 0.1
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # a file system that has none


@contextmanager
def held(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock file at `path`; `BlockingIOError` where somebody else does and nobody waits."""
    with path.open("a+b") as file:
        while True:
            try:
                if sys.platform == "win32":
                    import msvcrt

                    file.seek(0)
                    msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
                else:
                    import fcntl

                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, PermissionError) as error:  # somebody else has it
                if not wait:
                    raise BlockingIOError(errno.EAGAIN, "held by another process") from error
                time.sleep(_POLL_SECONDS)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                break
        yield  # closing the file unlocks it
