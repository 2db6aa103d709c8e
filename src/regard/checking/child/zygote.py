"""A process that has torch loaded and forks one child for each job; `start.py` makes it.

Forking after any parallel torch operation hangs the child, so this process computes nothing. It is a
subreaper: whatever a child leaves behind becomes its own, and is killed before the job counts as ended.
A process-count limit would do nothing for root, so a fork bomb is stopped by freezing its tree first.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
from typing import Any

import torch

from . import processes
from .confine import confine
from .harness import work
from .messages import Failure, Outcome
from .uncompiled import leave_out_the_compiler
from .wire import Reader, encode

MOST_PROCESSES = 48  # that an answer may start before it is stopped
KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SYSTEMROOT", "HOME", "TMPDIR", "MPLCONFIGDIR")


class NoRegard:
    """Says why regard cannot be imported: an answer is checked without the library that solves it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "regard":
            raise ModuleNotFoundError("regard cannot be imported in an answer: write it yourself.", name=name)


def _prepare() -> None:
    """What every answer finds, in the zygote so that it is done once."""
    sys.meta_path.insert(0, NoRegard())
    for name in set(os.environ) - set(KEPT):
        del os.environ[name]
    os.environ |= {"MPLBACKEND": "Agg", "CUDA_VISIBLE_DEVICES": "", "USER": "student", "LOGNAME": "student"}
    torch.set_num_threads(1)
    leave_out_the_compiler()


def _child(data: bytes, results: int, settings: dict[str, Any]) -> int:
    """Run one job in this fresh process; its exit code."""
    if hasattr(os, "setsid"):
        os.setsid()
    (job,) = Reader().feed(data)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in {0, 1, 2} - {nothing}:
        os.dup2(nothing, stream)
    os.closerange(3, results)
    os.closerange(results + 1, 1 << 16)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    processes.limit(settings["memory"], settings["cpu_seconds"])
    folder = settings["folder"]
    os.chdir(folder)
    os.environ |= {"HOME": folder, "TMPDIR": folder, "MPLCONFIGDIR": folder}
    tempfile.tempdir = folder
    unconfined = confine(job.answer.folders, folder)
    if "files" in unconfined and settings["must_confine"]:
        return processes.NOT_CONFINED
    processes.prctl(processes.PR_SET_PDEATHSIG, 9)  # after the new namespace, which forgets it
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
            data = encode(Outcome(message.run, error=unsent))
        view = memoryview(data)
        while view:
            view = view[os.write(results, view) :]

    # A flood of output goes nowhere, in any alphabet.
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        work(job, send, unconfined)
    return 0


def once(folder: str) -> None:
    """The plain way, where there is no fork: one job from standard input, its results to standard output."""
    _prepare()
    status = 1
    try:
        os.write(1, b"R")
        with os.fdopen(0, "rb", closefd=False) as file:
            settings, data = json.loads(file.readline()), file.read()
        status = _child(data, os.dup(1), {**settings, "folder": folder})
    finally:
        os._exit(status)


def serve(number: str) -> None:
    """Fork a child for each job that arrives through the socket of that number, until it is closed."""
    processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
    _prepare()
    control = socket.socket(fileno=int(number))
    gc.freeze()  # what is here already is no garbage, and not the answers' to find
    status: int | None = 0
    with contextlib.suppress(ConnectionError):  # the other side has ended, or wanted nothing
        control.sendall(b"R")
        while status is not None:
            header, fds, _, _ = socket.recv_fds(control, 4096, 2)
            if not header:
                return
            if header == b"K":
                continue  # an order to kill what had ended by itself comes late
            status = _supervised(control, fds, json.loads(header))
            if status is not None:
                control.sendall(b"%d" % status)


def _supervised(control: socket.socket, fds: list[int], settings: dict[str, Any]) -> int | None:
    """How a child ended that made the job; None when nobody waits for it any more."""
    for name in settings["warm"]:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    inherited = processes.memory_of(os.getpid())
    status, gone, looked = None, False, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="answer-", ignore_cleanup_errors=True) as folder:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with os.fdopen(fds[0], "rb") as file:
                    data = file.read()
                code = _child(data, fds[1], {**settings, "folder": folder})
            finally:
                os._exit(code)
        for fd in fds:
            os.close(fd)
        while status is None and not gone:
            if select.select([control], [], [], 0.004)[0]:  # either "kill it" or the other side is gone
                gone = not control.recv(1)
                status = -signal.SIGKILL
            # Orphans of the child are waited for too, so that they do not pile up.
            while status is None and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    status = os.waitstatus_to_exitcode(ended[1])
            if status is None and time.monotonic() - looked > 0.05:
                below = processes.descendants(os.getpid())
                if len(below) > MOST_PROCESSES:
                    status = processes.TOO_MANY_PROCESSES
                elif sum(max(0, processes.memory_of(pid) - inherited) for pid in below) > settings["memory"]:
                    status = processes.TOO_MUCH_MEMORY
                looked = time.monotonic()
        processes.kill_children()
    return None if gone else status
