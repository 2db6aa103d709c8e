"""Limits on an answer's time and memory, and what is told of its exceptions."""

from __future__ import annotations

import contextlib
import signal
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from .messages import Failure


class TimeLimit(BaseException):
    """An answer that took too long; no `except Exception` of the answer catches it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeLimit` inside after `seconds` of work, or three times that by the clock.

    A busy machine makes a right answer slow by the clock; only sleeping ones do no work meanwhile. Where
    there are no timers (Windows), the checker's patience is the only limit.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeLimit

    timers = (
        (signal.SIGPROF, signal.ITIMER_PROF, seconds),
        (signal.SIGALRM, signal.ITIMER_REAL, 3 * seconds),
    )
    before = [signal.signal(number, stop) for number, _, _ in timers]
    for _, timer, limit in timers:
        signal.setitimer(timer, limit, 0.5)  # again and again, for code that swallows it
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def limit(memory: int, cpu_seconds: int) -> None:
    """Cap what this process may take beyond what torch already did, where the system can."""
    try:
        import resource
    except ImportError:
        return
    used = 0
    with contextlib.suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    wanted = (
        ("RLIMIT_AS", used + memory),
        ("RLIMIT_CPU", cpu_seconds),
        ("RLIMIT_FSIZE", 1 << 26),
        ("RLIMIT_NOFILE", 256),
        ("RLIMIT_CORE", 0),
    )
    for name, value in wanted:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            resource.setrlimit(getattr(resource, name), (value, value))


def failure(error: BaseException, kind: str = "error") -> Failure:
    """What is told of an exception: its type, its message and the answer's own line."""
    where, line = "", ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith("<answer"):
            where = f"{frame.filename[8:-1]}line {frame.lineno}"
            line = frame.line or ""
    if isinstance(error, TimeLimit):
        kind = "time"
    try:
        message = str(error)[:500]
    except BaseException:  # a class of the answer's own, whose text cannot be had
        message = ""
    return Failure(kind, type(error).__name__, message, where, line[:200])
