"""Hostile answers, by kind: none passes, none lasts, none costs another answer its result."""

import json
import re
from pathlib import Path

import pytest

from regard.checking.catalogue import TEMPLATE, from_folder
from regard.checking.check import Checker
from regard.checking.reports import ci, html, terminal
from regard.checking.runner import Limits, Runner
from regard.checking.starters import new_exercise

FORMULAS = str(TEMPLATE / "exercise.toml")
MODULES = "builtins, ctypes, gc, os, signal, socket, subprocess, sys, threading, time, tomllib, torch"
HEAD = f"import {MODULES}\n"

# What the body of an answer does before it returns a wrong result, if it gets there.
BODIES = {
    "loops: forever": "while True: pass",
    "loops: swallowing its limit": "while True:\n        try:\n            while True: pass\n"
    "        except BaseException: pass",
    "loops: inside of C": "sum(range(10**11))",
    "sleeps: in a call": "time.sleep(100)",
    "sleeps: with signals blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32)); time.sleep(100)",
    "signals: ignored": "[signal.signal(n, signal.SIG_IGN) for n in (14, 15, 27)]\n    while True: pass",
    "signals: timers switched off": "signal.setitimer(signal.ITIMER_PROF, 0); signal.setitimer(0, 0)\n"
    "    while True: pass",
    "signals: to its group": "os.killpg(0, 9)",
    "signals: to its parent": "os.kill(os.getppid(), 9)",
    "forks: without end": "while True: os.fork()",
    "forks: a copy that returns": "os.fork()",
    "forks: a daemon": "os.fork() or (os.setsid(), time.sleep(100))",
    "forks: many programs": "[subprocess.Popen(['sleep', '876543']) for _ in range(100)]",
    "threads: that never end": "threading.Thread(target=time.sleep, args=[1000]).start()",
    "threads: many busy ones": "busy = lambda: [0 for _ in iter(int, 1)]\n"
    "    [threading.Thread(target=busy, daemon=True).start() for _ in range(20)]",
    "exits: exit": "exit()",
    "exits: as if all were well": "os._exit(0)",
    "exits: with the code of one not confined": "os._exit(93)",
    "exits: through an exception": "raise SystemExit(0)",
    "exits: an interrupt": "raise KeyboardInterrupt",
    "floods: output": "for _ in range(10**6): print('x' * 1000)",
    "floods: a pipe": "os.write(1, b'x' * 10**7)",
    "floods: the results": "[os.write(n, bytes(10**6)) for n in range(3, 40) if not os.isatty(n)]",
    "floods: a message without end": "raise ValueError('x' * 10**8)",
    "memory: at once": "torch.zeros(10**11)",
    "memory: little by little": "kept = []\n    while True: kept.append(bytearray(10**7))",
    "memory: in all processes": "os.fork(); os.fork(); kept = torch.ones(10**8)\n    time.sleep(3)",
    "memory: a huge result": "return torch.zeros(10**7).expand(50, -1)",
    "memory: nested without end": "result = []\n    for _ in range(10**5): result = [result]\n"
    "    return result",
    "patches: equal to all": "torch.Tensor.__eq__ = lambda a, b: True; torch.equal = lambda *a, **k: True",
    "patches: allclose": "torch.allclose = torch.isclose = lambda *a, **k: True",
    "patches: builtins": "builtins.abs = builtins.float = builtins.isinstance = lambda *a: True",
    "patches: the harness": "sys.modules['_answer.harness'].packed = lambda value: None",
    "patches: what encodes results": "sys.modules['_answer.zygote'].encode = lambda message: b'passed'",
    "patches: results of others": "for o in gc.get_objects():\n"
    "        if type(o) is dict and 'value' in o: o['value'] = 2 * x",
    "results: equal to everything": "class E(torch.Tensor):\n        __eq__ = __le__ = lambda *a: True\n"
    "    return x.as_subclass(E)",
    "results: an object equal to all": "class E:\n        __eq__ = lambda *a: True\n    return E()",
    "results: infinite, which means anything": "return torch.full_like(x, float('inf'))",
    "results: not a number": "return torch.full_like(x, float('nan'))",
    "searches: frames": "frame = sys._getframe()\n    while frame:\n"
    "        if 'expected' in frame.f_locals: return frame.f_locals['expected']\n"
    "        frame = frame.f_back",
    "searches: objects": "found = [o for o in gc.get_objects() if type(o).__name__ == 'Expected']\n"
    "    return found[0].value",
    "reads: our formulas": f"formulas = tomllib.loads(open({FORMULAS!r}).read())['formulas']\n"
    "    return eval(formulas['by'], {'of': x, 'factor': eval(formulas['factor'])})",
    "imports: regard without our finder": "del sys.meta_path[0]\n"
    "    from regard.checking.catalogue import TEMPLATE, load_folder\n"
    "    from regard.checking.trials import Case\n"
    "    return load_folder(TEMPLATE).checks.reference(Case((x,)))",
    "writes: the home": "open(os.path.expanduser('~root/x'), 'w').write('x')",
    "sockets: a server": "socket.create_connection(('1.1.1.1', 53), timeout=5)",
    "crashes: a null pointer": "ctypes.string_at(0)",
    "crashes: the stack": "f = lambda f: f(f)\n    sys.setrecursionlimit(10**9); f(f)",
    "crashes: abort": "os.abort()",
    "messages: half a pair of Unicode": "raise ValueError('\\ud800')",
    "messages: escape sequences": "raise ValueError('\\x1b[2J\\x1b]0;owned\\x07')",
    "messages: that cannot be had": "raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})()",
}
# Whole files.
FILES = {
    "nested: minus signs": "x=" + "-" * 200_000 + "1",
    "nested: brackets": "x=" + "[" * 5000,
    "nested: sums": "x=" + "1+" * 100_000 + "1",
    "bytes: no text": "\0\x01\x02",
    "loads: forever": "while True: pass\ndef double_it(x): return x",
    "loads: leaves": "import os\nos._exit(0)\ndef double_it(x): return x",
    "names: a class": "class double_it:\n    def __new__(cls, *a): raise BaseException",
}
RIGHT = "def double_it(x):\n    return 2 * x\n"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All of them in one batch, right answers between them, by name."""
    folder = tmp_path_factory.mktemp("hostile")
    new_exercise("double-it", folder / "course" / "double_it")
    texts = {name: f"{HEAD}def double_it(x):\n    {body}\n    return x\n" for name, body in BODIES.items()}
    texts |= FILES
    paths = {}
    for number, (name, text) in enumerate(texts.items()):
        for kind, content in (("hostile", text), ("right", RIGHT)):
            path = folder / f"{kind}{number:02}.py"
            path.write_text(content, encoding="utf-8", errors="surrogatepass")
            paths[str(path)] = name if kind == "hostile" else f"after {name}"
    limits = Limits(run_seconds=0.2, stall_seconds=1.0, job_seconds=2.0, memory=1 << 28, restarts=1)
    with Runner(2, limits) as runner:
        checker = Checker(from_folder(folder / "course"), runner, seed=5)
        return {paths[result.file]: result for result in checker.check_files(list(paths), "double-it")}


@pytest.mark.parametrize("name", [*BODIES, *FILES])
def test_a_hostile_answer_fails_and_the_next_one_is_checked(results, name):
    """It has a result, which is no pass; the right answer after it passes."""
    assert not results[name].passed
    assert "mistake of ours" not in results[name].checks[0].message
    assert results[f"after {name}"].passed


def test_nothing_is_left_of_them(results):
    """No process of theirs runs on."""
    commands = [path.read_text() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any("876543" in command for command in commands)


def test_every_report_can_be_written_and_moves_no_cursor(results):
    """What they say is text: no escape sequence, nothing that a file cannot hold."""
    everything = list(results.values())
    shown = "\n".join(terminal.report(result, width=1000) for result in everything)
    shown = re.sub("\x1b\\[[0-9;]*m", "", shown)  # our own colours
    reports = (shown, html.page(everything), ci.junit(everything))
    for text in (*reports, json.dumps([result.as_json() for result in everything])):
        text.encode()
        assert "\x1b" not in text
    assert "\\x1b[2J" in reports[0]
    assert "\\ud800" in reports[0]
