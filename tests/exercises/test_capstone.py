"""The capstone of docs/exercises.md: a student's own parts train on a text, and their attention opens."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from regard.checking.catalogue import OURS
from regard.tracing.traces import Trace

DOCS = Path(__file__).parents[2] / "docs" / "exercises.md"
PARTS = {"tiny_gpt": "kernel", "train_loop": "sums", "sampling": "thresholds"}


@pytest.mark.slow
def test_the_capstone_of_the_docs_learns_writes_and_is_seen(tmp_path):
    """The script as it is printed, with fewer updates: the loss falls, and each letter has its weights."""
    code = re.search(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)[1]
    assert "n_update, accumulate = 64, 300, 2" in code
    (tmp_path / "capstone.py").write_text(code.replace("64, 300, 2", "16, 20, 2"), encoding="utf-8")
    (tmp_path / "book.txt").write_text(
        "the cat sat on the mat. a dog ran to the cat. " * 40, encoding="utf-8"
    )
    for part, variant in PARTS.items():
        source = (OURS / part / "right" / f"{variant}.py").read_text(encoding="utf-8")
        (tmp_path / f"{part}.py").write_text(source, encoding="utf-8")
    ran = subprocess.run([sys.executable, "capstone.py"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    held_out = [float(loss) for loss in re.findall(r"(?:before|held out): ([\d.]+)", ran.stdout)]
    assert held_out[-1] < 0.9 * held_out[0]
    trace = Trace.load(tmp_path / "capstone.trace")
    assert "".join(trace.tokens[0]) in ran.stdout
    assert len(trace.layers) == 3
