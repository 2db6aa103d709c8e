"""Checkpoints: whole or not there, whatever happens while they are written."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

from regard.errors import TrainError
from regard.train.checkpoint import checkpoints, latest, save_checkpoint


def tensors(value):
    return {"weight": torch.full((7, 5), float(value)), "step": torch.tensor(3.0)}


def save(folder, step):
    return save_checkpoint(folder, step, tensors(step), {"step": step})


def test_what_is_saved_comes_back(tmp_path):
    """Tensors bit for bit, and the state beside them; of several the newest."""
    for step in (2, 3, 11):
        save(tmp_path, step)
    found = latest(tmp_path)
    assert found.state["step"] == 11
    assert torch.equal(found.tensors()["weight"], tensors(11)["weight"])
    assert [path.name[:13] for path in checkpoints(tmp_path)] == ["step-00000003", "step-00000011"]


def test_no_checkpoint_is_none(tmp_path):
    """An empty folder and a missing one have none."""
    assert latest(tmp_path) is None
    assert latest(tmp_path / "missing") is None


def test_a_step_saved_again_takes_the_place_of_the_first(tmp_path):
    """A run taken up from an older checkpoint comes by a step a second time: one file of it is left."""
    save(tmp_path, 3)
    save(tmp_path, 5)
    again = save_checkpoint(tmp_path, 5, tensors(7), {"step": 5, "seconds": 2})
    assert [path.name[:13] for path in checkpoints(tmp_path)] == ["step-00000003", "step-00000005"]
    assert latest(tmp_path).path == again


@pytest.mark.parametrize("harm", ["cut", "flipped", "state", "folder"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, harm):
    """A file cut short, a flipped bit, another state, something else: the one before is taken, and told."""
    first, path = save(tmp_path, 3), save(tmp_path, 5)
    content = bytearray(path.read_bytes())
    if harm == "cut":
        path.write_bytes(content[:-13])
    elif harm == "flipped":
        content[-5] ^= 4
        path.write_bytes(content)
    elif harm == "state":
        path.write_bytes(content.replace(b'{\\"step\\": 5}', b'{\\"step\\": 9}'))
    else:
        path.unlink()
        path.mkdir()
    found = latest(tmp_path)
    assert found.state["step"] == 3
    assert "step-00000005" in found.damaged[0]
    first.write_text("[]")
    with pytest.raises(TrainError, match=r"every checkpoint in .* is damaged"):
        latest(tmp_path)


def run(code, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def test_a_full_disk_keeps_the_checkpoint_before(tmp_path):
    """A file that may not grow: the reason is said, the old checkpoint is whole, nothing half is left."""
    done = run(
        """
        import resource, sys, torch
        from pathlib import Path
        from safetensors import SafetensorError
        from regard.train.checkpoint import save_checkpoint
        folder = Path(sys.argv[1])
        save_checkpoint(folder, 3, {"weight": torch.full((7, 5), 3.0)}, {"step": 3})
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        try:
            save_checkpoint(folder, 5, {"weight": torch.zeros(100, 1000)}, {"step": 5})
        except SafetensorError as error:
            print(error)
        """,
        tmp_path,
    )
    assert "File too large" in done.stdout, done.stderr
    assert latest(tmp_path).state["step"] == 3
    assert list(tmp_path.iterdir()) == [latest(tmp_path).path]


# The calls of a save, in order; a process is killed in place of the nth.
CALLS = """
    import os, signal, sys, torch
    from pathlib import Path
    from regard.train import checkpoint
    folder, fatal = Path(sys.argv[1]), int(sys.argv[2])
    checkpoint.save_checkpoint(folder, 3, {"weight": torch.full((7, 5), 3.0)}, {"step": 3})
    count = 0

    def dangerous(function):
        def call(*args, **kwargs):
            global count
            count += 1
            if count == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)
        return call

    def torn(tensors, path, metadata):
        save_file(tensors, path, metadata)
        os.truncate(path, 50)
        os.kill(os.getpid(), signal.SIGKILL)

    save_file = checkpoint.write_safetensors
    checkpoint.write_safetensors = torn if fatal == 0 else dangerous(save_file)
    checkpoint.os.fsync = dangerous(os.fsync)
    checkpoint._crc_of = dangerous(checkpoint._crc_of)
    Path.replace = dangerous(Path.replace)
    checkpoint.save_checkpoint(folder, 5, {"weight": torch.full((7, 5), 5.0)}, {"step": 5})
    print("calls", count)
"""


@pytest.mark.slow  # a process for each of six moments
@pytest.mark.parametrize("fatal", range(6))
def test_a_kill_at_any_moment_of_the_write_leaves_a_whole_checkpoint(tmp_path, fatal):
    """Killed in place of any call of the write: the old checkpoint or the new one is whole."""
    done = run(CALLS, tmp_path, fatal)
    assert done.returncode == -signal.SIGKILL, done.stderr
    found = latest(tmp_path)
    assert found.state["step"] in (3, 5)
    assert torch.equal(found.tensors()["weight"], torch.full((7, 5), float(found.state["step"])))
    save(tmp_path, 7)  # and the run goes on over what was left behind
    assert latest(tmp_path).state["step"] == 7
