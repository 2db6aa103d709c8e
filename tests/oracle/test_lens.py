"""Patching, effects, paths, attribution, logit lens and composition, against TransformerLens on one GPT-2."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from oracle.test_peers import environment  # noqa: F401  # a fixture

NEEDS = (
    "transformer_lens==2.16.1", "fancy_einsum", "better_abc", "datasets==5.2.0", "multiprocess", "dill",
    "pyarrow", "pandas", "xxhash", "python-dateutil", "pytz", "tzdata", "sentencepiece", "typeguard",
    "accelerate", "transformers_stream_generator",
)  # fmt: skip


@pytest.mark.slow
def test_experiments_equal_those_of_transformer_lens(environment):  # noqa: F811
    """Every number to 1e-5, by head, by position, by layer and by pair of heads."""
    install = [sys.executable, "-m", "pip", "--python", environment, "install", "--quiet", "--no-deps"]
    done = subprocess.run([*install, *NEEDS], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"TransformerLens cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = Path(__file__).with_name("lens.py")
    done = subprocess.run([environment, script], capture_output=True, text=True, env=clean)
    assert done.returncode == 0, done.stderr[-2000:]
    apart = json.loads(done.stdout.splitlines()[-1])
    assert apart.pop("size") > 0.1
    assert set(apart) >= {
        "heads",
        "positions",
        "total",
        "direct",
        "paths, frozen",
        "paths, recomputed",
        "lens",
    }
    assert max(apart.values()) < 1e-5, apart
