"""How long a class takes: a hundred generated students, five exercises each, graded from an empty folder.

python bench/classroom.py [STUDENTS]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from exercises import FIVE

GOAL = 240.0  # seconds for a hundred students on two cores
ROOT = Path(__file__).parent.parent


def main() -> None:
    """Print the seconds of a first call, and of one that has nothing to do."""
    n_student = int(sys.argv[1]) if sys.argv[1:] else 100
    regard = [sys.executable, "-m", "regard", "assignment"]
    with tempfile.TemporaryDirectory() as folder:

        def run(*command: str) -> float:
            began = time.perf_counter()
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
            return time.perf_counter() - began

        run(sys.executable, str(ROOT / "tests" / "classroom.py"), "submissions", str(n_student))
        run(*regard, "new", "homework.toml", *(word for id in FIVE for word in ("--exercise", id)))
        first, again = (run(*regard, "grade", "homework.toml", "submissions") for _ in range(2))
    print(f"- {n_student} students of {len(FIVE)} exercises: {first:.0f} s (goal for 100: {GOAL:.0f} s)")
    print(f"- again, when nothing has changed: {again:.0f} s")


if __name__ == "__main__":
    main()
