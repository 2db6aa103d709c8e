"""A time limit for an answer's code, and what is told of its exceptions."""

from __future__ import annotations

import contextlib
import signal
import traceback
from collections.abc import Iterator
from types import FrameType

from .messages import Failure


class TimeLimit(BaseException):
    """An answer that took too long; no `except Exception` of the answer catches it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeLimit` inside after `seconds` of work, or three times that by the clock.

    A busy machine makes a right answer slow by the clock; only sleeping ones do no work meanwhile.
    """

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


def failure(error: BaseException, kind: str = "error") -> Failure:
    """What is told of an exception: its type, its message and the answer's own line."""
    where, line = "", ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith("<answer"):
            where = f"{frame.filename[8:-1]}line {frame.lineno}"
            line = frame.line or ""
    if isinstance(error, TimeLimit):
        kind = "time"
    return Failure(kind, type(error).__name__, str(error)[:500], where, line[:200])
