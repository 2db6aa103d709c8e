"""What an answer cannot reach: our files, anybody's home, the network, other processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.checking.check import _load_notes
from regard.checking.child.confine import landlock_version, readable
from regard.checking.child.messages import Answer, Case, Cell, LoadReport, Order
from regard.checking.runner import Limits, Runner
from regard.checking.starters import new_exercise

SOURCE = Path(regard.__file__).parent
ERRORS, REFERENCE = str(SOURCE / "errors.py"), str(SOURCE / "exercises" / "masked_softmax" / "exercise.toml")
# Where the kernel has no Landlock (or is no Linux) the report says so, and these must not pass by skipping.
WITHHELD = [] if landlock_version() else ["files"]


def ran(runner, source, *folders, sizes=(3,)):
    """What becomes of calling `f` of the source once for each size."""
    answer = Answer([Cell("", source)], {"f": -1}, folders=[str(folder) for folder in folders])
    return runner.run(answer, [Order(n, Case((torch.arange(float(size)),))) for n, size in enumerate(sizes)])


def outcome(runner, body, *folders):
    """What came of an answer with that body, which must have been confined."""
    head = "import ctypes, os, pathlib, socket, sys\nimport torch\n"
    result = ran(runner, f"{head}def f(x):\n    {body}\n", *folders)
    assert result.loaded.unconfined == WITHHELD
    return result.runs[0]


REFUSED = {
    "imports regard without our finder": "del sys.meta_path[0]; import regard.attention.softmax",
    "imports regard from its path": "sys.meta_path.clear(); sys.path_hooks.clear(); "
    f"exec(compile(open({str(SOURCE / 'attention' / 'softmax.py')!r}).read(), 'x', 'exec'), {{}})",
    "reads a right variant": f"return open({REFERENCE.replace('exercise.toml', 'right/flat.py')!r}).read()",
    "reads a reference": f"return pathlib.Path({REFERENCE!r}).read_text()",
    "reads what runs it": f"return open({str(SOURCE / 'checking/child/harness.py')!r}).read()",
    "reads it through another way": f"os.chdir('/'); return open('.' + {ERRORS!r}).read()",
    "reads it in a process of its own": f"raise PermissionError if os.system('cat {ERRORS}') else ValueError",
    "links to it": f"os.symlink({str(SOURCE)!r}, 'r'); return open('r/errors.py').read()",
    "reads the password file": "return open('/etc/passwd').read()",
    "reads its parent's environment": "return open(f'/proc/{os.getppid()}/environ').read()",
    "writes to the home": f"open({str(Path.home() / 'regard-was-here')!r}, 'w').write('x')",
    "writes beside itself": "open('/tmp/regard-was-here', 'w').write('x')",
    "reaches a server": "return socket.create_connection(('127.0.0.1', PORT))",
    "sends a packet": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
    "opens a socket of a file": "socket.socket(socket.AF_UNIX).connect('/run/docker.sock')",
    "listens": "socket.create_server(('127.0.0.1', 0))",
    "kills its parent": "os.kill(os.getppid(), 9)",
    "stops the checker": f"os.kill({os.getpid()}, 19)",
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_what_is_not_the_answers_is_refused(runner, body):
    """Each is an error of the answer's, and leaves no trace outside."""
    refused = outcome(runner, body.replace("PORT", "80"))
    assert refused.value is None
    assert refused.error.type in ("PermissionError", "ModuleNotFoundError")
    assert not (Path.home() / "regard-was-here").exists()
    assert not Path("/tmp/regard-was-here").exists()


def test_what_an_answer_needs_is_there(runner, tmp_path):
    """Packages, the standard library, the files beside it, and a folder to write to that is gone later."""
    (tmp_path / "helper.py").write_text("WORD = 'beside'\n")
    (tmp_path / "data.txt").write_text("12")
    body = (
        "import helper, numpy, wsgiref, torch.fft, tempfile; open('mine', 'w').write('x'); "
        f"number = int(open({str(tmp_path / 'data.txt')!r}).read()); "
        "return helper.WORD, number, os.getcwd(), tempfile.mkdtemp(), open('mine').read()"
    )
    allowed = outcome(runner, body, tmp_path)
    assert allowed.error is None
    word, number, folder, inner, mine = allowed.value
    assert (word, number, mine) == ("beside", 12, "x")
    assert inner.startswith(folder)
    assert not Path(folder).exists()


def test_regard_is_withheld_wherever_the_answer_lies():
    """An answer beside the environment that regard is installed in gets that folder without regard."""
    for folder in (SOURCE, *SOURCE.parents):
        rules = dict(readable([str(folder)]))
        reads = {Path(path) for path, rights in rules.items() if rights & 4}
        assert not reads & {SOURCE, *SOURCE.parents, *SOURCE.iterdir()}


def test_memory_is_summed_over_all_processes():
    """Four processes, each within the limit and together beyond it, are stopped."""
    source = (
        "import os, time, torch\ndef f(x):\n    os.fork(); os.fork()\n"
        "    kept = torch.ones(12_000_000)\n    time.sleep(3)\n    return x\n"
    )
    with Runner(limits=Limits(memory=1 << 27, restarts=0)) as small:
        result = ran(small, source)
    assert result.runs[0].error.message == "it used too much memory and was stopped"


def test_what_could_not_be_withheld_is_told():
    """A system without Landlock gives a note."""
    (note,) = _load_notes(LoadReport(unconfined=["files", "the network"]))
    assert "files, the network" in note


SPY = """
import gc, os, sys, types
def double_it(x):
    loaded = sorted(name for name in sys.modules if name.partition(".")[0] == "regard")
    made = {type(o).__module__ for o in gc.get_objects()}
    made |= {str(getattr(o, "__module__", "")) for o in gc.get_objects() if isinstance(o, types.FunctionType)}
    held = sorted(name for name in made if name.startswith("regard."))
    frame = sys._getframe()
    while frame:
        held += [name for name in frame.f_locals if "expected" in name or "reference" in name]
        frame = frame.f_back
    secrets = [name for name in os.environ if "SECRET" in name]
    del sys.meta_path[0]
    try:
        import regard.attention
    except PermissionError:
        raise ValueError(f"loaded {loaded} held {held} secrets {secrets}")
"""


def test_a_worker_forked_by_the_command_holds_nothing_of_ours(tmp_path):
    """Its modules, objects and frames have neither regard nor an expected value; the walls are the same."""
    new_exercise("double-it", tmp_path / "course" / "double_it")
    (tmp_path / "answer.py").write_text(SPY)
    options = ["--from", "course", "--hide-solutions", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "regard", "check", "answer.py", *options],
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "REGARD_SECRET": "secret"},
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    (result,) = json.loads(done.stdout)
    assert "loaded [] held [] secrets []" in result["checks"][0]["message"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answer.py", "course", "regard"]


def test_a_process_for_each_job_gives_the_same_results(monkeypatch):
    """The plain way of systems that cannot fork: what ends the process costs one run, and nothing is left."""
    monkeypatch.setenv("REGARD_PLAIN_WORKER", "1")
    source = "import os\ndef f(x):\n    if len(x) == 3: os._exit(3)\n    return len(x), os.getcwd()\n"
    with Runner() as plain:
        result = ran(plain, source, sizes=(2, 3, 5))
    assert [result.runs[n].value[0] for n in (0, 2)] == [2, 5]
    assert result.runs[1].error.message == "it ended Python with exit code 3"
    assert result.loaded.unconfined == WITHHELD
    assert not any(Path(result.runs[n].value[1]).exists() for n in (0, 2))
