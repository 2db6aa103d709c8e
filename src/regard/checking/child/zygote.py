"""A process that has torch loaded and forks one child for each job; `start.py` runs it.

Forking after any parallel torch operation hangs the child, so this process computes nothing at all. It is a
subreaper: whatever a child leaves behind becomes its own, and is killed before the job counts as ended.
A process-count limit would do nothing for root, so a fork bomb is stopped by freezing its tree first.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from typing import Any

from .harness import work
from .messages import Failure, Outcome
from .processes import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    TOO_MANY_PROCESSES,
    descendants,
    kill_tree,
    limit,
    prctl,
)
from .wire import Reader, encode

MOST_PROCESSES = 48  # that an answer may start before it is stopped


class NoRegard:
    """Refuses to import regard: an answer is checked without the library that solves it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "regard":
            raise ModuleNotFoundError("regard cannot be imported in an answer: write it yourself.", name=name)


def _child(job: int, results: int, limits: dict[str, Any]) -> None:
    """Run one job in this fresh process, and never return."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # a flood of output goes nowhere
        os.dup2(nothing, stream)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    limit(limits["memory"], limits["cpu_seconds"])
    os.chdir(limits["folder"])
    with os.fdopen(job, "rb") as file:
        raw = file.read()
    (job_message,) = Reader().feed(raw)

    mine = os.getpid()

    def send(message: Any) -> None:
        if os.getpid() != mine:  # the answer forked, and this is the copy
            os._exit(0)
        try:
            data = encode(message)
        except Exception as error:  # an answer may return what no message can hold
            if not isinstance(message, Outcome):
                raise
            unsent = Failure("unsent", message=str(error))
            data = encode(Outcome(message.answer, message.run, error=unsent))
        view = memoryview(data)
        while view:
            view = view[os.write(results, view) :]

    work(job_message, send)


def serve(control: socket.socket) -> None:
    """Fork a child for each job that arrives, until the other side closes."""
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
                _child(job, results, limits)
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


def main(number: int) -> None:
    """Serve the socket of that number."""
    sys.meta_path.insert(0, NoRegard())
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    import torch

    torch.set_num_threads(1)
    # The first operation on the meta device loads much of torch: once here, not in each child.
    torch.softmax(torch.empty(2, device="meta") + 1, 0)
    serve(socket.socket(fileno=number))
