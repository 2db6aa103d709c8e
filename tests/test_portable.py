"""Every machine: importing changes nothing and needs no Linux, and every text file says its encoding."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import regard

SOURCE = Path(regard.__file__).parent

# Everything of ours is imported in a process that is made to look like another system: without the modules,
# functions and signals that only Unix or Linux has. What others import they have imported before.
IMPORTED = """
import ast, builtins, importlib, os, pkgutil, random, signal, socket, sys, threading, types, warnings
from pathlib import Path
import numpy, torch
from torch.utils._python_dispatch import TorchDispatchMode

source = Path(sys.argv[1])
ours = [m.name for m in pkgutil.walk_packages([str(source)], "regard.") if not m.name.endswith("__main__")]
unix = {"resource", "fcntl", "termios", "pwd", "grp", "pty", "tty", "posix", "_posixsubprocess", "readline"}
for path in source.rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module]
        else:
            continue
        for name in names:
            if name.partition(".")[0] not in unix | {"regard", "msvcrt"}:
                try:
                    importlib.import_module(name)
                except ImportError:  # a package that only some commands need
                    pass

class Operations(TorchDispatchMode):
    seen = []

    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))

def state():
    tasks = Path("/proc/self/task")
    return {
        "torch threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "default dtype and device": (torch.get_default_dtype(), torch.get_default_device()),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul": (torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32),
        "backends": (torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled,
                     torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic,
                     torch.backends.quantized.engine, torch.backends.cuda.flash_sdp_enabled()),
        "autocast": torch.is_autocast_enabled("cpu"),
        "random numbers": (torch.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state())),
        "environment": dict(os.environ),
        "warnings": list(warnings.filters),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "threads": (threading.active_count(), len(list(tasks.iterdir())) if tasks.exists() else 0),
    }

before = state()
sys.platform = "win32"
sys.modules["msvcrt"] = types.ModuleType("msvcrt")
for name in unix:
    sys.modules[name] = None  # importing it is an ImportError now
for module, names in {
    os: "fork forkpty killpg setsid getuid geteuid getpgid waitid sched_getaffinity memfd_create",
    socket: "send_fds recv_fds AF_UNIX",
    signal: "SIGALRM SIGKILL SIGHUP SIGSTOP SIGUSR1 SIGPROF SIGXCPU SIGCHLD SIGPIPE setitimer alarm",
}.items():
    for name in names.split():
        delattr(module, name)
opened = builtins.open

def no_proc(path, *args, **options):
    assert not str(path).startswith("/proc"), f"{path} is opened"
    return opened(path, *args, **options)

builtins.open = no_proc
import ctypes
ctypes.CDLL = lambda name, *_, **__: sys.exit(f"the C library is asked for: {name}")
with Operations():
    for name in ours:
        importlib.import_module(name)
    for name in sys.modules["regard"].__all__:
        getattr(sys.modules["regard"], name)
sys.platform = "linux"
builtins.open = opened
after = state()
print([what for what in before if before[what] != after[what]], Operations.seen, len(ours) > 150)
"""


def test_importing_changes_nothing_and_needs_no_particular_system():
    """No malloc option, tensor operation, thread, flag, seed or signal; no fork, /proc, `resource`, ..."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORTED, SOURCE],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
    )
    assert (done.stdout, done.returncode) == ("[] [] True\n", 0), done.stderr


def without_encoding(source):
    """The lines that open a file as text, or a process's output, and do not say in which encoding."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        said = {keyword.arg for keyword in node.keywords}
        name = ast.unparse(node.func).rpartition(".")[2]
        constants = [
            part.value
            for part in (*node.args, *(k.value for k in node.keywords))
            if isinstance(part, ast.Constant)
        ]
        binary = any(
            isinstance(value, str) and value in ("rb", "wb", "ab", "xb", "a+b", "r+b") for value in constants
        )
        if name in ("read_text", "write_text"):
            text = isinstance(node.func, ast.Attribute)
        elif name in ("open", "fdopen", "open_file"):
            other = ("os.open", "webbrowser.open", "archive.open", "Image.open", "tarfile.open")
            text = ast.unparse(node.func) not in other and not binary
        else:
            text = ast.unparse(node.func).startswith("subprocess.") and "text" in said
        if text and "encoding" not in said and "utf-8" not in constants:
            found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("path.read_text()", True),
        ("path.write_text('a')", True),
        ("path.write_text('a', encoding='utf-8')", False),
        ("open(path)", True),
        ("open(path, 'rb')", False),
        ("path.open('w')", True),
        ("path.open('w', encoding='utf-8')", False),
        ("subprocess.run(['a'], text=True)", True),
    ],
)
def test_the_check_finds_each_way_of_opening(line, wrong):
    """The check below fails on every form a missing encoding can take, and on no right one."""
    assert bool(without_encoding(line)) == wrong


def test_every_text_file_says_its_encoding():
    """Windows would take another than UTF-8."""
    files = {
        path.relative_to(SOURCE): without_encoding(path.read_text(encoding="utf-8"))
        for path in SOURCE.rglob("*.py")
    }
    assert {path: lines for path, lines in files.items() if lines} == {}
