"""A process that has torch loaded and forks one child for each job; `start.py` makes it.

Forking after any parallel torch operation hangs the child, so this process computes nothing. It is a
subreaper: whatever a child leaves behind becomes its own, and is killed before the job counts as ended.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from typing import Any

import torch

from . import confine
from .harness import work
from .loader import Schedule
from .messages import Failure, LoadReport, Outcome
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


def _run(folder: str) -> None:
    """Make the job that a folder holds, in this fresh process, which ends with it."""
    status = 1
    try:
        with open(f"{folder}/job", "rb") as file:
            (job,) = Reader().feed(file.read())
        results = os.open(f"{folder}/results", os.O_WRONLY | os.O_APPEND)
        folder = f"{folder}/work"
        os.mkdir(folder)
        os.chdir(folder)
        if hasattr(os, "setsid"):
            os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in {0, 1, 2} - {nothing}:
            os.dup2(nothing, stream)
        os.closerange(3, results)
        os.closerange(results + 1, 1 << 16)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        confine.limit(job.memory)
        os.environ |= {"HOME": folder, "TMPDIR": folder, "MPLCONFIGDIR": folder}
        tempfile.tempdir = folder
        schedule = Schedule()  # a file that is withheld from now on
        unconfined = confine.confine(job.answer.folders, folder)
        confine.prctl(confine.PR_SET_PDEATHSIG, 9)  # after the new namespace, which forgets it
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
                send(LoadReport(died=NOT_CONFINED))
            else:
                work(job, send, unconfined, schedule)
        status = 0
    finally:
        os._exit(status)


def once() -> None:
    """The plain way, where there is no fork: one job, whose folder standard input tells."""
    _prepare()
    os.write(1, b"R")
    _run(json.loads(sys.stdin.readline())[0])


def serve() -> None:
    """Fork a child for each job that the socket at standard input tells of, until it is closed.

    A job is a folder and the names of modules to import first; its end is answered with the exit code.
    """
    confine.prctl(confine.PR_SET_CHILD_SUBREAPER, 1)
    _prepare()
    control = socket.socket(fileno=0)
    gc.freeze()  # what is here already is no garbage, and not the answers' to find
    with contextlib.suppress(ConnectionError):  # the other side has ended, or wanted nothing
        control.sendall(b"R")
        while data := control.recv(1 << 16):
            folder, *warm = json.loads(data)
            for name in warm:
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
            child = os.fork()
            if child == 0:
                _run(folder)
            ended, status = 0, 0
            # Nothing arrives meanwhile but the end of the other side. Orphans are waited for too.
            while ended != child and not select.select([control], [], [], 0 if ended else 0.004)[0]:
                ended, status = os.waitpid(-1, os.WNOHANG)
            confine.kill_below(os.getpid())
            if ended != child:
                shutil.rmtree(folder, ignore_errors=True)
            control.sendall(b"%d" % os.waitstatus_to_exitcode(status))
