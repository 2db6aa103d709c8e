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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from queue import Empty, Full, LifoQueue, Queue
from typing import IO, TYPE_CHECKING, Any, NoReturn

from regard.checking.child import start
from regard.checking.child.processes import (
    KILL_SECONDS,
    NOT_CONFINED,
    TOO_MANY_PROCESSES,
    TOO_MUCH_MEMORY,
    is_running,
    kill_below,
)
from regard.errors import RegardError

if TYPE_CHECKING:  # these import torch, after which a worker cannot be forked
    from regard.checking.child.messages import Job, Loaded, Outcome, Skipped

GONE = 1000  # in place of an exit code: the worker itself has ended
TOO_LONG = "the whole check took too long"
REASONS = {
    GONE: "it ended the process that runs it",
    TOO_MANY_PROCESSES: "it started too many processes",
    TOO_MUCH_MEMORY: "it used too much memory and was stopped",
    NOT_CONFINED: "this system cannot keep files from it, so it was not run",
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
    """What became of one answer of a job."""

    loaded: Loaded | None = None
    runs: dict[int, Outcome] = field(default_factory=dict)  # by id


@dataclass
class _Place:
    """Where a child is: which answer, which statement of it is being executed, how many answers are done."""

    answer: int
    loading: tuple[int, str] | None = None
    n_done: int = 0


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
            raise RegardError("the process that runs answers did not start: what it said stands above.")
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
    """A process of its own for each job, and pipes to it: the way of systems that cannot fork."""

    ready = gone = False  # it is there when a job is

    def begin(self, job: bytes, settings: dict[str, Any]) -> None:
        """Start the process, and give it the job when torch is loaded there."""
        self.folder = tempfile.mkdtemp(prefix="answer-")
        self.process = subprocess.Popen(
            _command("once", json.dumps({**settings, "folder": self.folder})),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ONE_THREAD},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if self.process.stdout.read(1) != b"R":
            self.status(0.0)
            raise RegardError("the process that runs answers did not start: what it said stands above.")
        with contextlib.suppress(OSError), self.process.stdin:
            self.process.stdin.write(job)
        self.parts: Queue[bytes] = Queue(maxsize=16)
        threading.Thread(target=_pump, args=[self.process.stdout, self.parts], daemon=True).start()

    def wait_until_ready(self) -> None:
        """Nothing is waited for before there is a job."""

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
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        return self.process.wait()

    def close(self) -> None:
        """Nothing runs between jobs."""


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

    @contextlib.contextmanager
    def _borrowed(self) -> Iterator[list[_Forking | _Plain]]:
        held = [self.idle.get()]
        try:
            held[0].wait_until_ready()
            yield held
        finally:
            self.idle.put(held[0])

    def run(self, job: Job, *, patient: bool = False, warm: Sequence[str] = ()) -> list[Ran]:
        """What became of each answer.

        `patient` is for our own code, such as known mistakes: there the job has a minute. `warm` are modules
        to import before the answer runs, outside of its time.
        """
        from regard.checking.child.messages import Failure, Loaded, Outcome, Skipped

        limits = self.limits
        answers = list(job.answers)
        results = [Ran() for _ in answers]
        fatal: list[list[Skipped]] = [[] for _ in answers]  # statements that ended the process
        first, restarts, died = 0, 0, -1
        left = 60.0 if patient else limits.job_seconds
        with self._borrowed() as held:
            while first < len(answers):
                done = results[first].runs
                # Only the answer that died is resumed; those after it have all their runs to make.
                some = [answers[first]] if done else answers[first:]
                orders = [order for order in job.orders if order.id not in done]
                part = replace(job, answers=some, orders=orders, seconds=limits.run_seconds)
                place, reason, seconds = self._child(held, part, warm, results, first, left)
                left -= seconds
                if not reason:
                    first += len(some)
                    continue
                number = place.answer
                restarts = restarts + 1 if number == died else 1
                died = number
                result, answer = results[number], answers[number]
                exhausted = left <= 0 or restarts > limits.restarts
                if result.loaded is None:
                    if place.loading is None or exhausted:
                        result.loaded = Loaded(number, died=reason)
                        first = number + 1
                    else:  # leave out the statement that ended the process
                        statement, where = place.loading
                        answers[number] = replace(answer, skip=[*answer.skip, statement])
                        fatal[number].append(Skipped(where, reason, statement))
                        first = number
                    continue
                missing = [order.id for order in job.orders if order.id not in result.runs]
                for position, run in enumerate(missing):
                    if position == 0:
                        result.runs[run] = Outcome(number, run, error=Failure("died", message=reason))
                    elif exhausted:
                        result.runs[run] = Outcome(number, run, error=Failure("not run"))
                first = number + 1 if exhausted or len(missing) <= 1 else number
        for result, statements in zip(results, fatal, strict=True):
            if result.loaded is None or result.loaded.died:
                continue
            result.loaded = replace(result.loaded, skipped=[*result.loaded.skipped, *statements])
            for order in [] if result.loaded.missing else job.orders:
                # An answer may claim to be done before it is.
                result.runs.setdefault(order.id, Outcome(run=order.id, error=Failure("not run")))
        return results

    def _child(
        self,
        held: list[_Forking | _Plain],
        job: Job,
        warm: Sequence[str],
        results: list[Ran],
        first: int,
        most_seconds: float,
    ) -> tuple[_Place, str, float]:
        """Run one child: how far it came, why no further if it did not make every run, and its seconds."""
        from regard.checking.child.wire import Reader, WireError, encode

        limits = self.limits
        if held[0].gone:
            held[0].close()
            held[0] = self._worker()
            held[0].wait_until_ready()
        worker = held[0]
        reader, place, reason = Reader(), _Place(first), ""
        settings = {"memory": limits.memory, "cpu_seconds": 60, "warm": list(warm)}
        try:
            worker.begin(encode(job), {**settings, "must_confine": limits.must_confine})
        except OSError:  # it ended between two jobs
            return place, _reason(worker.status(limits.kill_seconds)), 0.0
        began = last = time.monotonic()
        end = began + max(most_seconds, 0.2)
        while True:
            data = worker.read(min(end, last + limits.stall_seconds) - time.monotonic())
            now = time.monotonic()
            if data == b"":
                break
            if reason:  # it was told to end: what still comes is not looked at
                if now >= end:
                    worker.kill()
                    break
                continue
            if data is None or now >= end:
                stalled = now >= last + limits.stall_seconds
                reason = "an endless loop, or a call that takes too long" if stalled else TOO_LONG
            else:
                last = now
                try:
                    for message in reader.feed(data):
                        _record(message, results, first, place)
                except (WireError, ValueError, IndexError) as error:
                    reason = f"it wrote something else where its results belong ({error})"
            if reason:
                worker.stop()
                last = end = now + limits.kill_seconds
        status = worker.status(limits.kill_seconds)
        finished = place.n_done == len(job.answers)
        return place, "" if finished else reason or _reason(status), time.monotonic() - began


def _record(message: object, results: list[Ran], first: int, place: _Place) -> None:
    """Put a message where it belongs, and note where the child is now."""
    from regard.checking.child.messages import Done, Loaded, Loading, Outcome

    if not isinstance(message, Loading | Loaded | Outcome | Done) or message.answer < 0:
        raise ValueError(f"a {type(message).__name__}")
    place.answer = first + message.answer
    result = results[place.answer]
    if isinstance(message, Loading):
        place.loading = (message.number, message.where)
    elif isinstance(message, Loaded):
        result.loaded, place.loading = message, None
        place.n_done += bool(message.missing)
    elif isinstance(message, Done):
        place.n_done += 1
    else:
        result.runs[message.run] = message


def _reason(status: int) -> str:
    """Why a child ended early, in words."""
    if status in REASONS:
        return REASONS[status]
    return f"it was ended by signal {-status}" if status < 0 else f"it ended Python with exit code {status}"
