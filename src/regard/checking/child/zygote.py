"""A process that has torch loaded and forks one child for each job; `start.py` makes it.

Forking after any parallel torch operation hangs the child, so this process computes nothing. It is a
subreaper: whatever a child leaves behind becomes its own, and is killed before the job counts as ended.
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
from typing import Any

import torch

from . import processes
from .confine import confine
from .harness import work
from .messages import Failure, Loaded, Outcome
from .uncompiled import leave_out_the_compiler
from .wire import Reader, encode

KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SYSTEMROOT", "HOME", "TMPDIR", "MPLCONFIGDIR")
NOT_CONFINED = "this system cannot keep files from it, so it was not run"


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


def _run(source: int, results: int, folder: str) -> None:
    """Make the job that `source` holds in this fresh process, and end it."""
    status = 1
    try:
        with os.fdopen(source, "rb", closefd=False) as file:
            (job,) = Reader().feed(file.read())
        if hasattr(os, "setsid"):
            os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in {0, 1, 2} - {nothing}:
            os.dup2(nothing, stream)
        os.closerange(3, results)
        os.closerange(results + 1, 1 << 16)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        processes.limit(job.memory)
        os.chdir(folder)
        os.environ |= {"HOME": folder, "TMPDIR": folder, "MPLCONFIGDIR": folder}
        tempfile.tempdir = folder
        unconfined = confine(job.answer.folders, folder)
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
                data = encode(Outcome(message.run, error=Failure("unsent", message=str(error))))
            view = memoryview(data)
            while view:
                view = view[os.write(results, view) :]

        # A flood of output goes nowhere, in any alphabet.
        with (
            open(os.devnull, "w", encoding="utf-8") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            if "files" in unconfined and job.must_confine:
                send(Loaded(died=NOT_CONFINED))
            else:
                work(job, send, unconfined)
        status = 0
    finally:
        os._exit(status)


def once(folder: str) -> None:
    """The plain way, where there is no fork: one job from standard input, its results to standard output."""
    _prepare()
    os.write(1, b"R")
    _run(0, os.dup(1), folder)


def serve(number: str) -> None:
    """Fork a child for each job that arrives through the socket of that number, until it is closed.

    A job is the names of modules to import first, a file with the job and a pipe for its results; its end is
    answered with the exit code.
    """
    processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
    _prepare()
    control = socket.socket(fileno=int(number))
    gc.freeze()  # what is here already is no garbage, and not the answers' to find
    with contextlib.suppress(ConnectionError):  # the other side has ended, or wanted nothing
        control.sendall(b"R")
        while True:
            warm, fds, _, _ = socket.recv_fds(control, 4096, 2)
            if not warm:
                return
            for name in json.loads(warm):
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
            with tempfile.TemporaryDirectory(prefix="answer-", ignore_cleanup_errors=True) as folder:
                child = os.fork()
                if child == 0:
                    _run(fds[0], fds[1], folder)
                for fd in fds:
                    os.close(fd)
                ended, status = 0, 0
                # Nothing arrives meanwhile but the end of the other side. Orphans are waited for too.
                while ended != child and not select.select([control], [], [], 0 if ended else 0.004)[0]:
                    ended, status = os.waitpid(-1, os.WNOHANG)
                processes.kill_below(os.getpid())
            control.sendall(b"%d" % os.waitstatus_to_exitcode(status))
