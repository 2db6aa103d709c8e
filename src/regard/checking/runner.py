"""Runs jobs in child processes, with limits, and picks up where a child died.

A worker is one process with torch loaded (child/zygote.py) that forks a child for each job. The child sends
its outcomes as it goes; when it loops, crashes or leaves, the run it was at is lost, and a new child makes
the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import LifoQueue
from typing import TYPE_CHECKING, Any

from regard.checking.child.processes import KILL_SECONDS, TOO_MANY_PROCESSES, is_running, kill_below
from regard.errors import RegardError

if TYPE_CHECKING:  # these import torch, which this process does only after its workers have begun to
    from regard.checking.child.messages import Job, Loaded, Outcome, Skipped

START = Path(__file__).parent / "child" / "start.py"
GONE = 1000  # in place of an exit code: the worker itself has ended


@dataclass(frozen=True, slots=True)
class Limits:
    """What an answer may take."""

    run_seconds: float = 1.5  # of work in one call; three times that by the clock
    stall_seconds: float = 7.0  # without a sign of life: only code that swallows the limit above gets here
    job_seconds: float = 20.0  # all calls together
    memory: int = 1 << 30  # bytes beyond what torch itself takes
    restarts: int = 3
    kill_seconds: float = KILL_SECONDS  # until a worker that was told to end an answer is ended itself


@dataclass
class Ran:
    """What became of one answer of a job."""

    loaded: Loaded | None = None
    runs: dict[int, Outcome] = field(default_factory=dict)  # by id
    printed: str = ""


@dataclass
class _Budget:
    """Until when a job may run."""

    deadline: float


@dataclass
class _Place:
    """Where a child is: which answer, which statement of it is being executed, how many answers are done."""

    answer: int
    loading: tuple[int, str] | None = None
    n_done: int = 0


class _Worker:
    """One zygote process and the socket to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {
            name: value
            for name, value in os.environ.items()
            if name
            in ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "SYSTEMROOT", "MPLCONFIGDIR")
        } | {
            **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
            "MPLBACKEND": "Agg",
            "CUDA_VISIBLE_DEVICES": "",
        }
        paths = [path for path in sys.path if path and Path(path).is_dir()]
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(START), str(theirs.fileno()), *paths],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        theirs.close()
        self.control = ours
        self.ready = False

    def wait_until_ready(self) -> None:
        """Return when torch is loaded there."""
        if not self.ready:
            if self.control.recv(1) != b"R":
                _, errors = self.process.communicate()
                lines = errors.decode(errors="replace").strip().splitlines()
                raise RegardError(
                    f"the process that runs answers did not start: {lines[-1] if lines else 'no message'}."
                )
            self.ready = True

    def kill(self) -> None:
        """End the zygote and all below it from here: it does not answer, and would answer late."""
        killed = kill_below(self.process.pid)
        self.process.kill()
        self.process.wait()
        deadline = time.monotonic() + KILL_SECONDS
        while any(map(is_running, killed)) and time.monotonic() < deadline:
            time.sleep(0.005)

    def close(self) -> None:
        """End the zygote; it ends whatever it still runs."""
        self.control.close()
        try:
            self.process.wait(timeout=KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        if self.process.stderr is not None:
            self.process.stderr.close()


class Runner:
    """A pool of workers: `run(job)` from any thread."""

    def __init__(self, n_worker: int = 1, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.n_worker = n_worker
        self.idle: LifoQueue[_Worker] = LifoQueue()
        self.lock = threading.Lock()
        for _ in range(n_worker):  # started together, so that they load torch side by side
            self.idle.put(_Worker())

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        for _ in range(self.n_worker):
            self.idle.get().close()

    @contextlib.contextmanager
    def _borrowed(self) -> Iterator[list[_Worker]]:
        held = [self.idle.get()]
        try:
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
        total = 60.0 if patient else limits.job_seconds
        answers = list(job.answers)
        results = [Ran() for _ in answers]
        fatal: list[list[Skipped]] = [[] for _ in answers]  # statements that ended the process
        first, restarts, died = 0, 0, -1
        with self._borrowed() as held:
            held[0].wait_until_ready()
            budget = _Budget(time.monotonic() + total)
            while first < len(answers):
                done = results[first].runs
                # Only the answer that died is resumed; those after it have all their runs to make.
                some = [answers[first]] if done else answers[first:]
                orders = [order for order in job.orders if order.id not in done]
                part = replace(job, answers=some, orders=orders, seconds=limits.run_seconds)
                end = self._child(held, part, warm, results, first, budget)
                if end is None:
                    first += len(some)
                    continue
                place, reason = end
                number = place.answer
                restarts = restarts + 1 if number == died else 1
                died = number
                result, answer = results[number], answers[number]
                exhausted = time.monotonic() >= budget.deadline or restarts > limits.restarts
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
                left = [order.id for order in job.orders if order.id not in result.runs]
                for position, run in enumerate(left):
                    if position == 0:
                        result.runs[run] = Outcome(number, run, error=Failure("died", message=reason))
                    elif exhausted:
                        result.runs[run] = Outcome(number, run, error=Failure("not run"))
                first = number + 1 if exhausted or len(left) <= 1 else number
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
        held: list[_Worker],
        job: Job,
        warm: Sequence[str],
        results: list[Ran],
        first: int,
        budget: _Budget,
    ) -> tuple[_Place, str] | None:
        """Run one child; None when it made every run, else where it died, and of what."""
        from regard.checking.child.wire import Reader, WireError, encode

        limits = self.limits
        worker = held[0]
        if worker.process.poll() is not None:
            worker.close()
            worker = held[0] = _Worker()
            began = time.monotonic()
            worker.wait_until_ready()
            budget.deadline += time.monotonic() - began  # loading torch again is not the answer's time
        deadline = budget.deadline
        reader = Reader()
        place = _Place(first)
        with tempfile.TemporaryFile() as file:
            file.write(encode(job))
            file.flush()
            file.seek(0)
            source, sink = os.pipe()
            settings = {"memory": limits.memory, "cpu_seconds": 60, "warm": list(warm)}
            try:
                socket.send_fds(worker.control, [json.dumps(settings).encode()], [file.fileno(), sink])
            except OSError:
                os.close(source)
                worker.kill()
                return place, "it ended the process that runs it"
            finally:
                os.close(sink)
        reason, status, open_end = "", None, True
        last = time.monotonic()
        try:
            while status is None:
                now = time.monotonic()
                wait = min(last + limits.stall_seconds, max(deadline, last + 0.2)) - now
                if wait <= 0 and not reason:
                    stalled = now >= last + limits.stall_seconds
                    reason = (
                        "an endless loop, or a call that takes too long"
                        if stalled
                        else "the whole check took too long"
                    )
                    with contextlib.suppress(OSError):
                        worker.control.send(b"K")
                    last = now + 3600
                waiting: list[Any] = [worker.control, *([source] if open_end else [])]
                patience = limits.kill_seconds if reason else max(0.0, min(wait, 1.0))
                ready, _, _ = select.select(waiting, [], [], patience)
                if source in ready:
                    data = os.read(source, 1 << 16)
                    open_end = bool(data)
                    last = last if reason else time.monotonic()
                    for message in reader.feed(data):
                        _record(message, results, first, place)
                if worker.control in ready and source not in ready:
                    status = _status(worker.control)
                elif not ready and reason:
                    worker.kill()
                    status = -signal.SIGKILL
        except (WireError, OSError, ValueError, IndexError) as error:
            reason = f"it wrote something else where its results belong ({error})"
            with contextlib.suppress(OSError):
                worker.control.send(b"K")
                _status(worker.control)
        finally:
            os.close(source)
        if status == GONE:
            worker.process.wait(timeout=5)
        if place.n_done == len(job.answers):
            return None
        return place, reason or _reason(status or 0)


def _record(message: object, results: list[Ran], first: int, place: _Place) -> None:
    """Put a message where it belongs, and note where the child is now."""
    from regard.checking.child.messages import Loaded, Loading, Outcome, Printed

    if not isinstance(message, Loading | Loaded | Outcome | Printed) or message.answer < 0:
        raise ValueError(f"a {type(message).__name__}")
    place.answer = first + message.answer
    result = results[place.answer]
    if isinstance(message, Loading):
        place.loading = (message.number, message.where)
    elif isinstance(message, Loaded):
        result.loaded, place.loading = message, None
        place.n_done += bool(message.missing)
    elif isinstance(message, Printed):
        result.printed = message.text
        place.n_done += 1
    else:
        result.runs[message.run] = message


def _status(control: socket.socket) -> int:
    """The exit code that the zygote reports; a number of our own when it is gone itself."""
    data = b""
    while not data.endswith(b"\n"):
        part = control.recv(64)
        if not part:
            return GONE
        data += part
    return int(data)


def _reason(status: int) -> str:
    """Why a child ended early, in words."""
    if status == GONE:
        return "it ended the process that runs it"
    if status == TOO_MANY_PROCESSES:
        return "it started too many processes"
    if status == -signal.SIGSEGV:
        return "it crashed Python (a segmentation fault)"
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return "it used too much time or memory and was stopped"
    if status < 0:
        return f"it was ended by signal {-status}"
    return f"it ended Python with exit code {status}"
