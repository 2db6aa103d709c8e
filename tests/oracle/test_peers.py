"""Models of timm, open_clip, x-transformers and small training scripts, in an environment of their own."""

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

PEERS = {
    "timm": ("timm==1.0.30", "torchvision==0.28.0"),
    "open_clip": ("open_clip_torch==3.3.0", "timm==1.0.30", "torchvision==0.28.0", "ftfy==6.3.1", "wcwidth"),
    "x_transformers": (
        "x-transformers==2.31.10",
        "einx==0.4.3",
        "frozendict",
        "loguru",
        "torch-einops-utils==0.2.0",
    ),
    "nanogpt": (),
}


@pytest.fixture
def environment(tmp_path):
    """Python in a new environment that borrows what is installed here, and nothing goes the other way."""
    venv.create(tmp_path / "environment", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "environment" / "lib").glob("python*/site-packages")
    here = [path for path in sys.path if path.endswith(("site-packages", "src"))]
    (packages / "borrowed.pth").write_text("\n".join(here), encoding="utf-8")
    return tmp_path / "environment" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.parametrize("peer", PEERS)
def test_models_of_another_library_are_traced(peer, environment):
    """Outputs to the bit; every softmax that a spy sees is in the trace, or its place is named there."""
    if PEERS[peer]:
        install = [sys.executable, "-m", "pip", "--python", environment, "install", "--quiet", "--no-deps"]
        done = subprocess.run([*install, *PEERS[peer]], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{peer} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = Path(__file__).with_name("peers.py")
    done = subprocess.run([environment, script, peer], capture_output=True, text=True, env=clean)
    assert done.returncode == 0, done.stderr[-2000:]
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert results
    for result in results:
        assert result["same_output"], result
        assert result["passed"], result
        named = set(re.findall(r"[\w.*]+", result["marks"]))
        silent = {re.sub(r"\b\d+\b", "*", place) for place in result["missing"] if place not in named}
        assert silent <= named, result
        assert len(result["missing"]) < result["n_softmax"] or "changed after" in result["marks"], result
