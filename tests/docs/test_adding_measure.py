"""The page on adding a measure is the measure: its changes are applied to a copy, and its test is run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding" / "measure.md").read_text(encoding="utf-8")


def test_the_changes_of_the_page_add_a_measure(tmp_path):
    """Two changes and a test, as they stand there; nothing else is touched."""
    changes = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.M | re.S)
    (test,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    assert len(changes) == 2
    kept = shutil.ignore_patterns("__pycache__", "static", "exercises", "*.safetensors")
    shutil.copytree(ROOT / "src" / "regard", tmp_path / "src" / "regard", ignore=kept)
    for change in changes:
        # A repository around the folder would make git look for the files there.
        env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
        subprocess.run(["git", "apply", "-"], input=change, text=True, cwd=tmp_path, env=env, check=True)
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run([sys.executable, "-c", test], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
