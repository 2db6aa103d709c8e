"""Child processes: what an answer does to itself costs it its own runs and nothing more."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from regard.checking.child.confine import descendants
from regard.checking.child.messages import Answer, Case, Cell, Order
from regard.checking.runner import Limits, Runner


def ran(runner, source, sizes=(2, 3, 5)):
    """What becomes of calling `f` of the source once for each size."""
    orders = [Order(n, Case((torch.arange(float(size)),))) for n, size in enumerate(sizes)]
    return runner.run(Answer([Cell("", source)], {"f": -1}), orders)


def with_line(line):
    """An answer that doubles, and at size 3 does something else first."""
    head = "import os, sys, time\nimport torch\ndef f(x):\n"
    return f"{head}    if len(x) == 3:\n        {line}\n    return 2 * x\n"


# REGARD_PLAIN_WORKER=1 runs the others through the plain way.
zygote = pytest.mark.skipif(
    os.environ.get("REGARD_PLAIN_WORKER", "0") != "0", reason="the plain way has no process between jobs"
)

FATAL = {
    "leaves at once": "os._exit(3)",
    "crashes": "import ctypes; ctypes.string_at(0)",
    "kills itself": "os.kill(os.getpid(), 9)",
    "swallows its limit": "exec('while True:\\n try:\\n  while True: pass\\n except BaseException: pass')",
    "forks without end": "exec('while True: os.fork()')",
    "writes into pipes": "[os.write(n, b'x' * 64) for n in range(3, 30) "
    "if os.path.exists(f'/proc/self/fd/{n}')]",
}
CAUGHT = {
    "loops": "exec('while True: pass')",
    "sleeps": "time.sleep(100)",
    "exits": "sys.exit(0)",
    "is interrupted": "raise KeyboardInterrupt",
    "allocates too much": "torch.zeros(10**12)",
    "recurses without end": "f(x)",
    "imports regard": "import regard",
    "imports our attention": "from regard.attention.softmax import masked_softmax",
}


@pytest.mark.parametrize("line", CAUGHT.values(), ids=CAUGHT)
def test_what_can_be_caught_costs_one_run(runner, line):
    """A loop, an exit, a huge allocation: this run has an error, the runs before and after it a result."""
    result = ran(runner, with_line(line))
    assert result.runs[1].error.kind in ("error", "time")
    for n, size in ((0, 2), (2, 5)):
        assert torch.equal(result.runs[n].value, 2 * torch.arange(float(size)))


@pytest.mark.parametrize("line", FATAL.values(), ids=FATAL)
def test_what_ends_the_process_costs_one_run(runner, line):
    """A crash, a kill or a fork bomb ends the child; a new one makes the runs that are left."""
    result = ran(runner, with_line(line))
    assert result.runs[1].error.kind in ("died", "time")
    for n, size in ((0, 2), (2, 5)):
        assert torch.equal(result.runs[n].value, 2 * torch.arange(float(size)))
    after = ran(runner, "def f(x): return x")
    assert all(run.error is None for run in after.runs.values())


@zygote
def test_a_worker_that_dies_costs_no_other_run(runner):
    """The run that was being made is lost; a new worker makes the others."""
    worker = runner.idle.queue[0]
    threading.Timer(0.5, os.kill, [worker.pid, signal.SIGKILL]).start()
    result = ran(runner, with_line("time.sleep(1)"))
    assert result.runs[1].error.kind == "died"
    for n, size in ((0, 2), (2, 5)):
        assert torch.equal(result.runs[n].value, 2 * torch.arange(float(size)))


def daemon(seconds):
    """A line that starts a process of its own, to be found by how long it would sleep."""
    return f"subprocess.Popen(['sleep', '{seconds}'], start_new_session=True)"


def sleeping(seconds):
    """Each such process on this machine, with its state and parent."""
    found = []
    for pid in descendants(0):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if f"sleep\0{seconds}\0".encode() == Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append((pid, Path(f"/proc/{pid}/stat").read_text().split()[2:4]))
    return found


@zygote
def test_nothing_is_left_running(runner):
    """Processes that an answer leaves behind, also daemons, are gone when the job ends."""
    result = ran(runner, f"import subprocess\ndef f(x):\n    {daemon(987654)}\n    return x\n")
    assert [run.error for run in result.runs.values()] == [None] * 3
    assert sleeping(987654) == []


@zygote
def test_a_worker_that_no_longer_answers_is_ended_with_all_below_it():
    """The process that would end an answer hangs: both go, and the next answer has a new worker."""
    source = f"import os, signal, subprocess, time\ndef f(x):\n    {daemon(987655)}\n    time.sleep(50)\n"
    limits = Limits(run_seconds=60.0, stall_seconds=1.0, job_seconds=2.0, kill_seconds=0.5, restarts=0)
    with Runner(limits=limits) as runner:
        worker = runner.idle.queue[0]
        worker.wait_until_ready()
        threading.Timer(0.5, os.kill, [worker.pid, signal.SIGSTOP]).start()
        result = ran(runner, source)
        assert result.runs[0].error.kind == "died"
        assert sleeping(987655) == []
        after = ran(runner, "def f(x): return x")
    assert all(run.error is None for run in after.runs.values())


def test_a_forked_copy_of_an_answer_sends_nothing(runner):
    """`os.fork()` in an answer gives two processes; only the first one's results count, once."""
    result = ran(runner, "import os\ndef f(x):\n    os.fork()\n    return 2 * x\n")
    assert sorted(result.runs) == [0, 1, 2]
    assert torch.equal(result.runs[2].value, 2 * torch.arange(5.0))


def test_a_flood_of_output_goes_nowhere(runner):
    """Printing a hundred thousand lines costs time, and no result."""
    result = ran(runner, "def f(x):\n    for _ in range(10**5): print('flood')\n    return x\n")
    assert [outcome.error for outcome in result.runs.values()] == [None] * 3


def test_statements_that_end_python_while_loading_are_left_out(runner):
    """`os._exit` at the top of a file is skipped with its line, and the answer below it is still run."""
    result = ran(runner, "import os\nos._exit(1)\ndef f(x): return x\n")
    assert [statement.where for statement in result.loaded.skipped] == ["line 2"]
    assert all(run.error is None for run in result.runs.values())


def test_the_child_holds_no_expected_value(runner):
    """Neither the library nor what it is compared with is in the process of an answer."""
    spy = (
        "import sys, gc\ndef f(x):\n"
        "    names = [name for name in sys.modules if name.split('.')[0] == 'regard']\n"
        "    import torch\n"
        "    seen = [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and t.numel() == 101]\n"
        "    return len(names), len(seen)\n"
    )
    result = ran(runner, spy)
    assert result.runs[0].value == (0, 0)


def test_an_answer_that_always_loops_is_given_up(runner):
    """After a few runs that take too long the rest is not tried, and the next answer gets its turn."""
    loops = ran(runner, "def f(x):\n    while True: pass\n", range(1, 30))
    fine = ran(runner, "def f(x): return x\n", range(1, 30))
    assert {run.error.kind for run in loops.runs.values()} == {"time", "not run"}
    assert all(run.error is None for run in fine.runs.values())


def test_memory_is_limited():
    """An answer may take its share and no more."""
    with Runner(1, Limits(memory=1 << 26)) as small:
        result = ran(small, "import torch\ndef f(x): return torch.zeros(int(len(x) * 4e6)).sum()\n")
    assert result.runs[0].error is None
    assert "allocate" in result.runs[2].error.message


@zygote
def test_the_worker_ends_with_its_owner():
    """A checker that is killed leaves no worker behind."""
    code = (
        "import os, signal, sys; from regard.checking.runner import Runner\n"
        "r = Runner(1); w = r.idle.queue[0]; w.wait_until_ready(); print(w.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    worker = int(done.stdout)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{worker}").exists()


def test_a_slow_call_is_tried_once_more_alone_and_told_with_its_seconds():
    """Seconds of computing count; a call that is done within twice its limit is slow, not endless."""
    burns = (
        "from time import process_time\ndef f(x):\n    start = process_time()\n"
        "    while process_time() < start + 0.1 * len(x): pass\n    return x\n"
    )
    with Runner(1, Limits(run_seconds=0.3)) as quick:
        result = ran(quick, burns)
    assert result.runs[0].error is None
    assert result.runs[1].error is None or result.runs[1].error.kind == "slow"
    assert result.runs[2].error.kind == "slow"
    assert 0.5 <= float(result.runs[2].error.message) < 0.6


@zygote
def test_the_time_that_a_worker_computed_before_is_not_the_answers(monkeypatch):
    """A zygote that has served a whole class has computed for long, and may not have forked yet."""
    with Runner() as runner:
        zygotes_pid = runner.idle.queue[0].pid
        monkeypatch.setattr("regard.checking.runner.descendants", lambda pid: [])
        monkeypatch.setattr(
            "regard.checking.runner.activity", lambda pids: (99.0 if zygotes_pid in pids else 0.0, True)
        )
        runs = ran(runner, with_line("time.sleep(0.5)")).runs
    assert [run.error for run in runs.values()] == [None, None, None]
