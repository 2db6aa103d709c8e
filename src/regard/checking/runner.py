"""Runs jobs in child processes, with limits, and picks up where a child died.

On Linux a worker is one process with torch loaded (child/zygote.py) that forks a child for each job. A
command imports torch once and forks its workers itself, before anything of ours is computed; where that is
too late, as in a notebook, they are started afresh. Elsewhere every job has a process of its own: the plain
way, which REGARD_PLAIN_WORKER=1 asks for. The child sends its outcomes as it goes; when it loops, crashes or
leaves, the run it was at is lost, and a new child makes the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from queue import Empty, Full, LifoQueue, Queue
from typing import IO, TYPE_CHECKING, Any, NoReturn

from regard.checking.child import processes, start
from regard.checking.child.processes import KILL_SECONDS, is_running, kill_below
from regard.errors import RegardError

if TYPE_CHECKING:  # these import torch, after which a worker cannot be forked
    from regard.checking.child.messages import Answer, Job, Loaded, Order, Outcome

GONE = 1000  # in place of an exit code: the worker itself has ended
NOT_STARTED = "the process that runs answers did not start: what it said stands above."
TOO_LONG = "the whole check took too long"
REASONS = {
    GONE: "it ended the process that runs it",
    processes.TOO_MANY_PROCESSES: "it started too many processes",
    processes.TOO_MUCH_MEMORY: "it used too much memory and was stopped",
    processes.NOT_CONFINED: "this system cannot keep files from it, so it was not run",
    -11: "it crashed Python (a segmentation fault)",
    **dict.fromkeys((-9, -24), "it used too much time or memory and was stopped"),  # SIGKILL, SIGXCPU
}
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class Limits:
    """What an answer may take."""

    run_seconds: float = 1.5  # of work in one call; three times that by the clock
    stall_seconds: float = 7.0  # without a sign of life: only code that swallows the limit above gets here
    job_seconds: float = 20.0  # all calls together
    memory: int = 1 << 30  # bytes beyond what torch itself takes, of all its processes together
    restarts: int = 3
    kill_seconds: float = KILL_SECONDS  # until a worker that was told to end an answer is ended itself
    must_confine: bool = False  # refuse to run answers where our files cannot be kept from them


@dataclass
class Ran:
    """What became of an answer."""

    loaded: Loaded | None = None
    runs: dict[int, Outcome] = field(default_factory=dict)  # by id
    loading: tuple[int, str] | None = None  # number and place of the statement that is being executed

    def record(self, message: object) -> None:
        """Take in what the answer's process says; `TypeError` for anything but these messages."""
        from regard.checking.child.messages import Loaded, Loading, Outcome

        if isinstance(message, Loading):
            self.loading = (message.number, message.where)
        elif isinstance(message, Loaded):
            self.loaded, self.loading = message, None
        elif isinstance(message, Outcome):
            self.runs[message.run] = message
        else:
            raise TypeError(f"a {type(message).__name__}")

    def left(self, orders: Sequence[Order]) -> list[Order]:
        """The runs that are still to be made."""
        if self.loaded is not None and (self.loaded.died or self.loaded.missing):
            return []
        return [order for order in orders if order.id not in self.runs]


def _command(way: str, argument: str) -> list[str]:
    """What starts a worker afresh, with the packages of this process but not what lies in its folder."""
    here = {os.getcwd(), str(Path(sys.argv[0]).parent.resolve())}
    paths = [path for path in sys.path if path not in here and os.path.isdir(path)]
    return [sys.executable, "-I", start.__file__, way, argument, *paths]


class _Forking:
    """A zygote, forked from this process or started afresh, and the socket to it."""

    def __init__(self, *, fork_here: bool = False) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ready = self.gone = False
        self.source = -1
        if fork_here:
            self.pid = os.fork()
            if self.pid == 0:
                _serve(theirs.fileno())
        else:
            theirs.set_inheritable(True)
            arguments = _command("serve", str(theirs.fileno()))
            self.pid = os.posix_spawn(sys.executable, arguments, {**os.environ, **ONE_THREAD})
        theirs.close()

    def begin(self, job: bytes, settings: dict[str, Any]) -> None:
        """Have a job made; `OSError` where the zygote has ended."""
        with tempfile.TemporaryFile() as file:
            file.write(job)
            file.seek(0)
            self.source, sink = os.pipe()
            try:
                socket.send_fds(self.control, [json.dumps(settings).encode()], [file.fileno(), sink])
            finally:
                os.close(sink)

    def wait_until_ready(self) -> None:
        """Return when torch is loaded there."""
        if not self.ready and self.control.recv(1) != b"R":
            raise RegardError(NOT_STARTED)
        self.ready = True

    def read(self, seconds: float) -> bytes | None:
        """What the child sends next: nothing more when it and all below it have ended, None when it waits."""
        ready, _, _ = select.select([self.source], [], [], max(0.0, seconds))
        return os.read(self.source, 1 << 16) if ready else None

    def stop(self) -> None:
        """Ask for the child's end."""
        with contextlib.suppress(OSError):
            self.control.send(b"K")

    def kill(self) -> None:
        """End the zygote and all below it from here: it does not answer, and would answer late."""
        killed = kill_below(self.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + KILL_SECONDS
        while any(map(is_running, killed)) and time.monotonic() < deadline:
            time.sleep(0.005)

    def status(self, seconds: float) -> int:
        """The exit code of the child that has ended; a number of our own when the zygote has too."""
        with contextlib.suppress(OSError):
            os.close(self.source)
        for patience, end_it in ((1.0, self.stop), (seconds, self.kill)):  # it may close the pipe and go on
            if select.select([self.control], [], [], patience)[0]:
                break
            end_it()
        data = b""
        with contextlib.suppress(OSError):
            data = self.control.recv(64)
        self.gone = not data
        return int(data) if data else GONE

    def close(self) -> None:
        """End the zygote; it ends whatever it still runs."""
        self.control.close()
        deadline = time.monotonic() + KILL_SECONDS
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                if time.monotonic() > deadline:
                    self.kill()
                time.sleep(0.002)


def _serve(number: int) -> NoReturn:
    """Be a zygote from now on, in a process that was forked from one that did nothing but import torch."""
    try:
        os.closerange(3, number)
        os.closerange(number + 1, 1 << 16)
        start.worker().serve(str(number))
    finally:
        os._exit(1)


def _pump(source: IO[bytes], parts: Queue[bytes]) -> None:
    """Put what comes through a pipe into a queue, which Windows too can wait for with a time limit."""
    with source, contextlib.suppress(Full):  # nobody takes it any more
        while part := os.read(source.fileno(), 1 << 16):
            parts.put(part, timeout=2 * KILL_SECONDS)
        parts.put(b"", timeout=2 * KILL_SECONDS)


class _Plain:
    """A process for one job, and pipes to it: the way of systems that cannot fork."""

    def __init__(self) -> None:
        self.ready = self.gone = False
        self.folder = tempfile.mkdtemp(prefix="answer-")
        self.process = subprocess.Popen(
            _command("once", self.folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ONE_THREAD},
        )
        self.parts: Queue[bytes] = Queue(maxsize=16)

    def wait_until_ready(self) -> None:
        """Return when torch is loaded there."""
        assert self.process.stdout is not None
        if not self.ready and self.process.stdout.read(1) != b"R":
            raise RegardError(NOT_STARTED)
        self.ready = True

    def begin(self, job: bytes, settings: dict[str, Any]) -> None:
        """Have the job made."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError), self.process.stdin:
            self.process.stdin.write(json.dumps(settings).encode() + b"\n" + job)
        threading.Thread(target=_pump, args=[self.process.stdout, self.parts], daemon=True).start()

    def read(self, seconds: float) -> bytes | None:
        """What the child sends next: nothing more when it has ended, None when it waits."""
        with contextlib.suppress(Empty):
            return self.parts.get(timeout=max(0.0, seconds))
        return None

    def stop(self) -> None:
        """End the process and its group."""
        with contextlib.suppress(OSError, AttributeError):  # Windows has no such things
            kill_below(self.process.pid)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()

    kill = stop

    def status(self, seconds: float) -> int:
        """The exit code of the process, with all that it leaves behind ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        self.close()
        return self.process.wait()

    def close(self) -> None:
        """End the process, and remove the folder it wrote to."""
        self.gone = True
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Runner:
    """A pool of workers: `run(job)` from any thread.

    `fork_here` is for a command, which has this process to itself: torch is imported here, with one thread.
    """

    def __init__(self, n_worker: int = 1, limits: Limits | None = None, *, fork_here: bool = False) -> None:
        self.limits = limits or Limits()
        self.n_worker = n_worker
        self.idle: LifoQueue[_Forking | _Plain] = LifoQueue()
        self.plain = sys.platform != "linux" or os.environ.get("REGARD_PLAIN_WORKER", "0") != "0"
        # Once torch has computed or an exercise is read, a fork would carry threads that are not there, and
        # more than an answer may see.
        late = {"torch", "regard.checking.spec"} & set(sys.modules)
        fork_here = fork_here and not self.plain and not late
        if fork_here:
            os.environ.update(ONE_THREAD)  # the work is small, and a process with threads cannot be forked
            import_module("torch")
        for _ in range(n_worker):
            self.idle.put(self._worker(fork_here=fork_here))

    def _worker(self, *, fork_here: bool = False) -> _Forking | _Plain:
        return _Plain() if self.plain else _Forking(fork_here=fork_here)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        for _ in range(self.n_worker):
            self.idle.get().close()

    def run(self, answer: Answer, orders: Sequence[Order], *, warm: Sequence[str] = ()) -> Ran:
        """What became of the answer; `warm` are modules to import before it runs, outside of its time."""
        from regard.checking.child.messages import Failure, Job, Loaded, Outcome, Skipped

        ran = Ran()
        fatal: list[Skipped] = []  # statements that ended the process
        n_child, seconds = 0, self.limits.job_seconds
        worker = self.idle.get()
        try:
            while left := ran.left(orders):
                if worker.gone:
                    worker.close()
                    worker = self._worker()
                worker.wait_until_ready()
                began = time.monotonic()
                job = Job(answer, left, self.limits.run_seconds)
                reason = self._child(worker, job, list(warm), ran, seconds)
                n_child, seconds = n_child + 1, seconds - (time.monotonic() - began)
                exhausted = seconds <= 0 or n_child > self.limits.restarts
                if ran.loaded is None and (ran.loading is None or exhausted):
                    ran.loaded = Loaded(died=reason)
                elif ran.loaded is None and ran.loading is not None:  # leave that statement out
                    number, where = ran.loading
                    answer = replace(answer, skip=[*answer.skip, number])
                    fatal.append(Skipped(where, reason, number))
                for place, order in enumerate(ran.left(orders) if ran.loaded is not None else ()):
                    if place == 0:
                        ran.runs[order.id] = Outcome(order.id, error=Failure("died", message=reason))
                    elif exhausted:
                        ran.runs[order.id] = Outcome(order.id, error=Failure("not run"))
        finally:
            self.idle.put(worker)
        if ran.loaded is not None and not ran.loaded.died:
            ran.loaded = replace(ran.loaded, skipped=[*ran.loaded.skipped, *fatal])
        return ran

    def _child(
        self, worker: _Forking | _Plain, job: Job, warm: list[str], ran: Ran, most_seconds: float
    ) -> str:
        """Have one child make as many of the runs as it can; why it made no more."""
        from regard.checking.child.wire import Reader, WireError, encode

        limits = self.limits
        reader, reason = Reader(), ""
        settings = {"memory": limits.memory, "cpu_seconds": 60, "warm": warm}
        try:
            worker.begin(encode(job), {**settings, "must_confine": limits.must_confine})
        except OSError:  # it ended between two jobs
            return _reason(worker.status(limits.kill_seconds))
        last = time.monotonic()
        end = last + max(most_seconds, 0.2)
        while not reason:
            data = worker.read(min(end, last + limits.stall_seconds) - time.monotonic())
            now = time.monotonic()
            if data == b"":
                break
            if data is None or now >= end:
                stalled = now >= last + limits.stall_seconds
                reason = "an endless loop, or a call that takes too long" if stalled else TOO_LONG
                continue
            last = now
            try:
                for message in reader.feed(data):
                    ran.record(message)
            except (WireError, TypeError) as error:
                reason = f"it wrote something else where its results belong ({error})"
        if reason:
            worker.stop()
            end = time.monotonic() + limits.kill_seconds
            while worker.read(end - time.monotonic()) != b"":  # what still comes is not looked at
                if time.monotonic() >= end:
                    worker.kill()
                    break
        status = worker.status(limits.kill_seconds)
        return reason or _reason(status)


def _reason(status: int) -> str:
    """Why a child ended early, in words."""
    if status in REASONS:
        return REASONS[status]
    return f"it was ended by signal {-status}" if status < 0 else f"it ended Python with exit code {status}"
