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
import math
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
from queue import LifoQueue
from typing import TYPE_CHECKING, NoReturn

from regard.checking.child import start
from regard.checking.child.confine import KILL_SECONDS, activity, descendants, kill_below, memory_of
from regard.errors import RegardError

if TYPE_CHECKING:  # these import torch, after which a worker cannot be forked
    from regard.checking.child.messages import Answer, Job, LoadReport, Order, Outcome, Statement

NOT_STARTED = "the process that runs answers did not start: what it said stands above."
LEFT = "it ended Python with exit code {}"
REASONS: dict[int | None, str] = {
    None: "it ended the process that runs it",
    -11: "it crashed Python (a segmentation fault)",
    **dict.fromkeys((-9, -24), "it used too much time or memory and was stopped"),  # SIGKILL, SIGXCPU
}
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
PATIENCE = 2  # times its limit: what a slow call gets when it is tried once more, alone
BY_THE_CLOCK = 20  # times a limit, whatever the processes do
MOST_PROCESSES = 48  # of one answer: a limit of the system's would do nothing for root
LOOK_SECONDS = 0.05  # from one look at its processes to the next


@dataclass(frozen=True, slots=True)
class Limits:
    """What an answer may take."""

    # Seconds count in which an answer computes or sleeps, not those in which it waits for a processor.
    run_seconds: float = 1.5  # of computing, or of sleeping, in one call
    stall_seconds: float = 7.0  # without a sign of life: only code that swallows the limit above gets here
    job_seconds: float = 20.0  # all calls together
    memory: int = 1 << 30  # bytes beyond what torch itself takes, of all its processes together
    restarts: int = 3
    kill_seconds: float = KILL_SECONDS  # until a worker whose answer was ended is ended itself
    must_confine: bool = False  # refuse to run answers where our files cannot be kept from them


@dataclass
class Ran:
    """What became of an answer."""

    loaded: LoadReport | None = None
    runs: dict[int, Outcome] = field(default_factory=dict)  # by id
    loading: Statement | None = None  # that is being executed


def _command(way: str) -> list[str]:
    """What starts a worker afresh, with the packages of this process but not what lies in its folder."""
    here = {os.getcwd(), str(Path(sys.argv[0]).parent.resolve())}
    paths = [path for path in sys.path if path not in here and os.path.isdir(path)]
    return [sys.executable, "-I", start.__file__, way, *paths]


class _Forking:
    """A zygote, forked from this process or started afresh, and the socket to it."""

    def __init__(self, *, fork_here: bool = False) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ready = self.gone = False
        if fork_here:
            self.pid = os.fork()
            if self.pid == 0:
                _serve(theirs)
        else:
            into = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
            environment = os.environ | ONE_THREAD
            self.pid = os.posix_spawn(sys.executable, _command("serve"), environment, file_actions=into)
        theirs.close()

    def wait_until_ready(self) -> None:
        """Return when torch is loaded there."""
        if not self.ready and self.control.recv(1) != b"R":
            raise RegardError(NOT_STARTED)
        self.ready = True

    def begin(self, job: bytes) -> None:
        """Have a job made; `OSError` where the zygote has ended."""
        self.control.send(job)

    def ended(self, seconds: float) -> bool:
        """Whether the child and all below it have ended, or do so within this time."""
        return bool(select.select([self.control], [], [], seconds)[0])

    def stop(self) -> None:
        """End the child and all that it started."""
        kill_below(self.pid)

    def status(self, seconds: float) -> int | None:
        """The exit code of the child; None when the zygote has ended too, as it must if it is silent."""
        if not self.ended(seconds):
            self._kill()
        data = b""
        with contextlib.suppress(OSError):
            data = self.control.recv(64)
        self.gone = not data
        return int(data) if data else None

    def close(self) -> None:
        """End the zygote; it ends whatever it still runs."""
        self.control.close()
        deadline = time.monotonic() + KILL_SECONDS
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                if time.monotonic() > deadline:
                    self._kill()
                time.sleep(0.002)

    def _kill(self) -> None:
        """End the zygote and all below it: it does not answer, and would answer late."""
        kill_below(self.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def _serve(control: socket.socket) -> NoReturn:
    """Be a zygote from now on, in a process that was forked from one that did nothing but import torch."""
    try:
        os.dup2(control.fileno(), 0)
        os.closerange(3, 1 << 16)
        start.worker().serve()
    finally:
        os._exit(1)


class _Plain:
    """A process for one job, and pipes to it: the way of systems that cannot fork."""

    def __init__(self) -> None:
        self.ready = self.gone = False
        pipe, environment = subprocess.PIPE, os.environ | ONE_THREAD
        self.process = subprocess.Popen(_command("once"), stdin=pipe, stdout=pipe, env=environment)
        self.pid = self.process.pid

    def wait_until_ready(self) -> None:
        """Return when torch is loaded there."""
        assert self.process.stdout is not None
        if not self.ready and self.process.stdout.read(1) != b"R":
            raise RegardError(NOT_STARTED)
        self.ready = True

    def begin(self, job: bytes) -> None:
        """Have the job made; `OSError` where the process has ended."""
        assert self.process.stdin is not None
        with self.process.stdin as pipe:
            pipe.write(job)

    def ended(self, seconds: float) -> bool:
        """Whether the process has ended, or does so within this time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.returncode is not None

    def stop(self) -> None:
        """End the process and its group."""
        with contextlib.suppress(OSError, AttributeError):  # Windows has no such things
            kill_below(self.pid)
            os.killpg(self.pid, signal.SIGKILL)
        self.process.kill()

    def status(self, seconds: float) -> int:
        """The exit code of the process, with all that it leaves behind ended."""
        self.close()
        return self.process.returncode

    def close(self) -> None:
        """End the process."""
        self.gone = True
        with self.process:  # closes its pipes and waits
            self.stop()


class Runner:
    """A pool of workers: `run` from any thread.

    `fork_here` is for a command, which has this process to itself: torch is imported here, with one thread.
    """

    def __init__(self, n_worker: int = 1, limits: Limits | None = None, *, fork_here: bool = False) -> None:
        self.limits = limits or Limits()
        self.n_worker = n_worker
        self.idle: LifoQueue[_Forking | _Plain] = LifoQueue()
        self.alone = threading.Lock()  # held by who takes every worker
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
        """Run an answer; what took too long is tried once more, alone, before it counts.

        Args:
            answer: The answer.
            orders: The calls to make.
            warm: Modules to import before it runs, outside of its time.

        Returns:
            What became of it.
        """
        worker = self.idle.get()
        try:
            worker, ran = self._run(worker, answer, orders, self.limits, warm)
        finally:
            self.idle.put(worker)
        if any(outcome.error is not None and outcome.error.kind == "time" for outcome in ran.runs.values()):
            slow = [order for order in orders if _took_too_long(ran.runs.get(order.id))]
            self._run_alone(answer, slow, ran, warm)
        return ran

    def _run_alone(self, answer: Answer, slow: Sequence[Order], ran: Ran, warm: Sequence[str]) -> None:
        """Make calls again that took too long, while no other answer runs, and with more patience.

        One that is done in time after all counts as it is, another as slow. Where the first does not end,
        the others are not tried.
        """
        from regard.checking.child.messages import Failure

        stall, run = (PATIENCE * limit for limit in (self.limits.stall_seconds, self.limits.run_seconds))
        limits = replace(self.limits, stall_seconds=stall, run_seconds=run)
        if ran.loaded is not None:
            answer = replace(answer, skip=[statement.number for statement in ran.loaded.skipped])
        with self.alone:
            workers = [self.idle.get() for _ in range(self.n_worker)]
            try:
                for part in (slow[:1], slow[1:]):
                    workers[0], again = self._run(workers[0], answer, part, limits, warm)
                    for id, outcome in again.runs.items():
                        if outcome.error is None and outcome.seconds > self.limits.run_seconds:
                            error = Failure("slow", message=f"{outcome.seconds:.1f}")
                            outcome = replace(outcome, error=error)
                        ran.runs[id] = outcome
                    if any(_took_too_long(outcome) for outcome in again.runs.values()):
                        break
            finally:
                for worker in workers:
                    self.idle.put(worker)

    def _run(
        self,
        worker: _Forking | _Plain,
        answer: Answer,
        orders: Sequence[Order],
        limits: Limits,
        warm: Sequence[str],
    ) -> tuple[_Forking | _Plain, Ran]:
        """Run an answer in a worker; return the worker that is left, and what became of the answer."""
        from regard.checking.child.messages import Failure, Job, LoadReport, Outcome

        ran = Ran()
        fatal: list[Statement] = []  # that ended the process
        n_child, seconds = 0, limits.job_seconds
        while left := [order for order in orders if order.id not in ran.runs]:
            if worker.gone:
                worker.close()
                worker = self._worker()
            worker.wait_until_ready()
            job = Job(answer, left, limits.run_seconds, limits.memory, limits.must_confine)
            reason, used = self._child(worker, job, warm, ran, replace(limits, job_seconds=seconds))
            n_child, seconds = n_child + 1, seconds - used
            exhausted = seconds <= 0 or n_child > limits.restarts
            if ran.loaded is None and ran.loading is not None and not exhausted:
                fatal.append(replace(ran.loading, reason=reason))  # the next child leaves it out
                answer = replace(answer, skip=[*answer.skip, ran.loading.number])
                continue
            ran.loaded = ran.loaded or LoadReport(died=reason)
            if ran.loaded.problem:
                break
            for place, id in enumerate(order.id for order in left if order.id not in ran.runs):
                if place == 0 or exhausted:
                    error = Failure("not run") if place else Failure("died", message=reason)
                    ran.runs[id] = Outcome(id, error=error)
        if ran.loaded is not None:
            ran.loaded = replace(ran.loaded, skipped=[*ran.loaded.skipped, *fatal])
        return worker, ran

    def _child(
        self, worker: _Forking | _Plain, job: Job, warm: Sequence[str], ran: Ran, limits: Limits
    ) -> tuple[str, float]:
        """Have one child make as many of the runs as it can; why it made no more, and the seconds it took."""
        from regard.checking.child.messages import LoadReport, Outcome, Statement
        from regard.checking.child.wire import Reader, WireError, encode

        reader, reason = Reader(), ""
        began = last = looked = time.monotonic()
        usual = memory_of([worker.pid])
        used = quiet = 0.0  # seconds that count: in all, and since the last sign of life
        # A zygote's own time is not the answer's; a worker that cannot fork runs the answer itself.
        own = [worker.pid] if isinstance(worker, _Plain) else []
        computed = activity(own)[0]
        most_seconds = max(limits.job_seconds, 0.2)
        folder = tempfile.mkdtemp(prefix="answer-")
        Path(folder, "job").write_bytes(encode(job))
        with open(f"{folder}/results", "a+b", buffering=0) as results:
            with contextlib.suppress(OSError):  # it ended between two jobs
                worker.begin(json.dumps([folder, *warm]).encode())
            ended = False
            while not ended and not reason:
                ended, data, now = worker.ended(LOOK_SECONDS), results.read(), time.monotonic()
                last, quiet = (now, 0.0) if data else (last, quiet)
                try:
                    for message in reader.feed(data):
                        match message:
                            case Statement():
                                ran.loading = message
                            case LoadReport():
                                ran.loaded = message
                            case Outcome():
                                ran.runs[message.run] = message
                            case _:
                                raise WireError(f"a {type(message).__name__}")
                except WireError as error:
                    reason = f"it wrote something else where its results belong ({error})"
                if quiet >= limits.stall_seconds or now >= last + BY_THE_CLOCK * limits.stall_seconds:
                    reason = f"a call computed for {limits.stall_seconds:g} s and did not end"
                elif used >= most_seconds or now >= began + BY_THE_CLOCK * most_seconds:
                    reason = "the whole check took too long"
                elif now >= looked + LOOK_SECONDS:
                    below = descendants(worker.pid)
                    processes = [*own, *below]
                    seconds, active = activity(processes)
                    # What has no processor yet, or is not forked yet, is not to blame. What is asleep at a
                    # look need not have been since the last, which is long ago where we had to wait too.
                    slept = min(now - looked, 2 * LOOK_SECONDS)
                    more = max(0.0, seconds - computed) if active or not processes else slept
                    more = now - looked if math.isnan(seconds) else more
                    computed, looked = max(computed, seconds), now
                    used, quiet = used + more, quiet + more
                    if len(below) > MOST_PROCESSES:
                        reason = "it started too many processes"
                    elif memory_of([worker.pid, *below], beyond=usual) > limits.memory:
                        reason = "it used too much memory and was stopped"
        if reason:
            worker.stop()
        status = worker.status(limits.kill_seconds)
        with contextlib.suppress(RecursionError):  # folders in folders without end
            shutil.rmtree(folder, ignore_errors=True)
        if not reason and (status is None or status in REASONS):
            reason = REASONS[status]
        reason = reason or (
            f"it was ended by signal {-status}" if status and status < 0 else LEFT.format(status)
        )
        return reason, used


def _took_too_long(outcome: Outcome | None) -> bool:
    """Return whether a call was stopped by a limit of time, or not made because others were."""
    return outcome is not None and outcome.error is not None and outcome.error.kind in ("time", "not run")
