"""Processes below a process: found, frozen, ended. Linux tells; elsewhere the process group must do."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TOO_MANY_PROCESSES = 1001  # in place of an exit code
KILL_SECONDS = 20.0  # a killed process may need a while on a machine that stood still


def prctl(option: int, value: int) -> None:
    """Set an option of this process, on Linux."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # Linux only; elsewhere the process group must do
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Every process below `root`, from /proc; empty where there is no /proc."""
    parents: dict[int, list[int]] = {}
    with contextlib.suppress(OSError):
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                        parent = int(file.read().rpartition(")")[2].split()[1])
                    parents.setdefault(parent, []).append(int(entry))
    found, queue = [], [root]
    while queue:
        below = parents.get(queue.pop(), [])
        found += below
        queue += below
    return found


def is_running(pid: int) -> bool:
    """Whether there is such a process and it has not ended (one that nobody waited for has)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def kill_below(root: int) -> set[int]:
    """Send every process below `root` its end, those that are still being started too; their numbers."""
    frozen: set[int] = set()
    for _ in range(200):  # freeze until nobody new turns up: what is frozen cannot fork
        new = set(descendants(root)) - frozen
        if not new:
            break
        for pid in new:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGSTOP)
        frozen |= new
    for pid in frozen:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return frozen


def kill_tree(child: int) -> None:
    """End the child, its group, and all that it left behind, and wait until they are gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGSTOP)
    kill_below(os.getpid())
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # where there is no /proc to look into
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            for left in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(left, signal.SIGKILL)
            time.sleep(0.005)


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
        ("RLIMIT_CORE", 0),
    )
    for name, value in wanted:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            resource.setrlimit(getattr(resource, name), (value, value))
