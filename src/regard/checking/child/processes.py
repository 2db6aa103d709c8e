"""Processes below a process, as Linux tells of them: limited, listed, measured, ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
KILL_SECONDS = 20.0  # a killed process may need a while on a machine that stood still
CPU_SECONDS = 60  # of all calls of an answer


def limit(memory: int) -> None:
    """Cap what this process may take beyond what torch already did, where the system can."""
    try:
        import resource
    except ImportError:
        return
    limits = {
        "RLIMIT_AS": _pages(os.getpid())[0] + memory,
        "RLIMIT_CPU": CPU_SECONDS,
        "RLIMIT_FSIZE": 1 << 26,
        "RLIMIT_NOFILE": 256,
        "RLIMIT_CORE": 0,
    }
    for name, value in limits.items():
        with contextlib.suppress(OSError, ValueError, AttributeError):
            resource.setrlimit(getattr(resource, name), (value, value))


def prctl(option: int, value: int) -> None:
    """Set an option of this process, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Every process below `root` that has not ended; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        with contextlib.suppress(OSError, ValueError, IndexError):  # no process, or none any more
            with open(f"/proc/{int(entry)}/stat", encoding="utf-8", errors="replace") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry))
    below = [root]
    for pid in below:
        below += children.get(pid, [])
    return below[1:]


def _pages(pid: int) -> list[int]:
    """Bytes of memory that a process has: all, resident, shared with files; 0 where that is not told."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return [int(pages) * os.sysconf("SC_PAGESIZE") for pages in file.read().split()[:3]]
    return [0, 0, 0]


def memory_of(pids: Iterable[int], beyond: int = 0) -> int:
    """Bytes that processes have written to, of each what is `beyond` that of the one it was forked from."""
    return sum(max(0, resident - shared - beyond) for _, resident, shared in map(_pages, pids))


def kill_below(root: int) -> None:
    """End every process below `root`, those that are being started too, and wait until none runs."""
    deadline = time.monotonic() + KILL_SECONDS
    frozen: set[int] = set()
    while (new := set(descendants(root)) - frozen) and time.monotonic() < deadline:
        _signal(new, "SIGSTOP")  # until nobody new turns up: what is frozen cannot fork
        frozen |= new
    while frozen & set(below := descendants(root)) and time.monotonic() < deadline:
        _signal(below, "SIGKILL")
        time.sleep(0.002)


def _signal(pids: Iterable[int], name: str) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, getattr(signal, name))
