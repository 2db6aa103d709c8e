"""Processes below a process, as Linux tells of them: limited, listed, measured, ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# In place of an exit code; the checker puts them into words.
TOO_MANY_PROCESSES, TOO_MUCH_MEMORY, NOT_CONFINED = 1001, 1002, 93
KILL_SECONDS = 20.0  # a killed process may need a while on a machine that stood still


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


def prctl(option: int, value: int) -> None:
    """Set an option of this process, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _fields(pid: str | int) -> list[str]:
    """State, parent and the rest of what /proc says of a process."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def descendants(root: int) -> list[int]:
    """Every process below `root`; none where there is no /proc."""
    parents: dict[int, list[int]] = {}
    with contextlib.suppress(OSError):
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    parents.setdefault(int(_fields(entry)[1]), []).append(int(entry))
    below, queue = [], [root]
    while queue:
        children = parents.get(queue.pop(), [])
        below += children
        queue += children
    return below


def is_running(pid: int) -> bool:
    """Whether there is such a process and it has not ended (one that nobody waited for has)."""
    try:
        return _fields(pid)[0] not in "ZX"
    except (OSError, IndexError):
        return False


def memory_of(pid: int) -> int:
    """Bytes of memory that a process has written to, those shared with the process it was forked from too."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            resident, shared = file.read().split()[1:3]
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")
    return 0


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_below(root: int) -> set[int]:
    """Send every process below `root` its end, those that are still being started too; their numbers."""
    frozen: set[int] = set()
    for _ in range(200):  # freeze until nobody new turns up: what is frozen cannot fork
        new = set(descendants(root)) - frozen
        if not new:
            break
        _signal(new, signal.SIGSTOP)
        frozen |= new
    _signal(frozen, signal.SIGKILL)
    return frozen


def kill_children() -> None:
    """End everything below this process, and wait until it is gone."""
    deadline = time.monotonic() + KILL_SECONDS
    kill_below(os.getpid())
    with contextlib.suppress(ChildProcessError):  # nobody is left
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                _signal(descendants(os.getpid()), signal.SIGKILL)
                time.sleep(0.002)
