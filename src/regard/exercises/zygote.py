"""A process that has torch loaded and forks one child for each job. Run as a script, never imported for work.

Forking after any parallel torch operation hangs the child, so this process computes nothing at all. It is a
subreaper: whatever a child leaves behind becomes its own, and is killed before the job counts as ended.
A process-count limit would do nothing for root, so a fork bomb is stopped by freezing its tree first.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MOST_PROCESSES = 48  # that an answer may start before it is stopped
TOO_MANY_PROCESSES = 1001  # in place of an exit code
KILL_SECONDS = 20.0  # a killed process may need a while on a machine that stood still
HERE = Path(__file__).parent


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # Linux only; elsewhere the process group must do
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _load(name: str) -> ModuleType:
    """A file of this folder as a module of its own, without importing the package around it."""
    spec = importlib.util.spec_from_file_location(f"_answer_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[f"_answer_{name}"] = module  # under a name that no student's import means
    spec.loader.exec_module(module)
    return module


class NoRegard:
    """Refuses to import regard: an answer is checked without the library that solves it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "regard":
            raise ModuleNotFoundError("regard cannot be imported in an answer: write it yourself.", name=name)


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


def _limit(memory: int, cpu_seconds: int) -> None:
    """Cap what this process may take beyond what torch already did."""
    import resource  # here: only Unix has it

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


def _child(job: int, results: int, limits: dict[str, int], wire: ModuleType, harness: ModuleType) -> None:
    """Run one job in this fresh process, and never return."""
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # a flood of output goes nowhere
        os.dup2(nothing, stream)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _limit(limits["memory"], limits["cpu_seconds"])
    os.chdir(limits["folder"])
    with os.fdopen(job, "rb") as file:
        raw = file.read()
    (message,) = wire.Reader().feed(raw)

    own = os.getpid()

    def send(tree: Any) -> None:
        if os.getpid() != own:  # the answer forked, and this is the copy
            os._exit(0)
        try:
            data = wire.encode(tree)
        except Exception as error:  # an answer may return what no message can hold
            data = wire.encode(
                {**{key: tree[key] for key in ("answer", "run") if key in tree}, "unsent": str(error)}
            )
        view = memoryview(data)
        while view:
            view = view[os.write(results, view) :]

    harness.work(message, send)


def serve(control: socket.socket) -> None:
    """Fork a child for each job that arrives, until the other side closes."""
    wire, harness, *_ = (_load(name) for name in ("wire", "harness", "comments", "loader"))
    control.sendall(b"R")
    while True:
        header, fds, _, _ = socket.recv_fds(control, 4096, 2)
        if not header:
            return
        # An order to kill what had ended by itself comes late, and means nothing any more.
        header = header.lstrip(b"K")
        if not header:
            continue
        limits = json.loads(header)
        for name in limits.pop("warm", []):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        limits["folder"] = tempfile.mkdtemp(prefix="answer-")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                control.close()
                job, results = fds
                _child(job, results, limits, wire, harness)
                status = 0
            finally:
                os._exit(status)
        for fd in fds:
            os.close(fd)
        status, ended = 0, False
        looked = time.monotonic()
        while not ended:
            if time.monotonic() - looked > 0.05:
                looked = time.monotonic()
                if len(descendants(os.getpid())) > MOST_PROCESSES:
                    kill_tree(child)
                    status = TOO_MANY_PROCESSES
                    break
            ready, _, _ = select.select([control], [], [], 0.004)
            if ready:  # either "kill it" or the other side is gone
                gone = not control.recv(1)
                kill_tree(child)
                shutil.rmtree(limits["folder"], ignore_errors=True)
                if gone:
                    return
                status, ended = -signal.SIGKILL, True
                break
            try:
                # Orphans of the child are waited for too, so that they do not pile up.
                pid, raw = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pid, raw = child, 0
            if pid == child:
                status, ended = os.waitstatus_to_exitcode(raw), True
                kill_tree(child)
        shutil.rmtree(limits["folder"], ignore_errors=True)
        control.sendall(json.dumps(status).encode() + b"\n")


def main() -> None:
    """Serve the socket whose number is the first argument; the rest is where to look for packages."""
    fd, *paths = sys.argv[1:]
    sys.path[:] = [*dict.fromkeys([*sys.path, *paths])]
    sys.meta_path.insert(0, NoRegard())
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the checker's to handle
    import torch

    torch.set_num_threads(1)
    # The first operation on the meta device loads much of torch: once here, not in each child.
    torch.softmax(torch.empty(2, device="meta") + 1, 0)
    serve(socket.socket(fileno=int(fd)))


if __name__ == "__main__":
    main()
