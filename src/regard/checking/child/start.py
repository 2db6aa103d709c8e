"""Makes a worker of a process: loads the folder it lies in as a package of another name, and serves.

As a script, for a process that was started afresh: its arguments are `serve` or `once`, and where to look for
packages.
"""

import importlib
import importlib.util
import signal
import sys
from pathlib import Path
from types import ModuleType


def worker() -> ModuleType:
    """The module that serves, without regard in reach: nothing of it is left, not even a package's name."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the checker's to handle
    for name in [name for name in sys.modules if name.partition(".")[0] == "regard"]:
        del sys.modules[name]
    package = ModuleType("_answer")  # a name that no student's import means
    package.__path__ = [str(Path(__file__).parent)]
    sys.modules["_answer"] = package
    return importlib.import_module("_answer.zygote")


if __name__ == "__main__":
    way, *paths = sys.argv[1:]
    sys.path[:] = [*dict.fromkeys([*sys.path, *paths])]
    getattr(worker(), way)()
