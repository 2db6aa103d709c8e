"""The script of a worker: loads the folder it lies in as a package of another name, and serves.

Arguments: the number of the socket to serve, then where to look for packages.
"""

import importlib
import importlib.util
import signal
import sys
from pathlib import Path


def main() -> None:
    """Serve, without regard in reach: nothing of it is imported, not even as the name of a package."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the checker's to handle
    here = Path(__file__).parent
    spec = importlib.util.spec_from_file_location(
        "_answer", here / "__init__.py", submodule_search_locations=[str(here)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{here} cannot be loaded")
    package = importlib.util.module_from_spec(spec)
    sys.modules["_answer"] = package  # a name that no student's import means
    spec.loader.exec_module(package)
    number, *paths = sys.argv[1:]
    sys.path[:] = [*dict.fromkeys([*sys.path, *paths])]
    importlib.import_module("_answer.zygote").main(int(number))


if __name__ == "__main__":
    main()
