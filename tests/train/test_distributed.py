"""Two processes on gloo: the gradients of one, and checkpoints that go from two to one and back."""

import json
import os
import socket
import subprocess
import sys

import pytest
import torch

from regard.train import checkpoint
from regard.train.distributed import here
from regard.train.run import resume
from regard.train.settings import Settings

SMALL = {
    "hidden_dim": 13,
    "embed_dim": 11,
    "model_dim": 12,
    "n_head": 3,
    "steps": 4,
    "eval_every": 4,
    "save_every": 2,
    "eval_size": 5,
    "batch_tokens": 101,
    "symbols": 11,
    "max_words": 5,
    "dropout": 0.0,
    "tensorboard": False,
    "threads": 1,
    "lr": 1e-3,
}

PROCESS = """
import sys
import regard.train.corpus
regard.train.corpus.FINAL_SIZE = 7
from regard.train import Settings, train
from regard.train.loop import Training
from regard.train.distributed import here
from regard.train.run import resume
import json, torch
from regard.train.distributed import whole

how, path, folder, stop = sys.argv[1:]
update = Training.update

def updated(self):
    measured = update(self)
    if self.progress.step == 1:
        gradients = {n: whole(p.grad).contiguous() for n, p in self.objective.model.named_parameters()}
        if self.world.first:
            from safetensors.torch import save_file
            save_file(gradients, folder + ".gradients")
    if self.progress.step == int(stop) and self.world.first:
        import os, signal
        os.kill(os.getpid(), signal.SIGTERM)
    return measured

Training.update = updated
if how == "train":
    train(Settings.read(path, {"out": folder}), quiet=True)
else:
    resume(folder, quiet=True)
"""


def launch(n_process, how, config, folder, stop=0):
    """Run the script in so many processes, as torchrun would set them up."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-c", PROCESS, how, str(config), str(folder), str(stop)]
    processes = [
        subprocess.Popen(
            command,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n_process)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(n_process)
    ]
    try:
        told = [process.communicate(timeout=150)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert all(process.returncode == 0 for process in processes), "\n".join(told)


def config_of(tmp_path, **given):
    path = tmp_path / "config.toml"
    path.write_text(Settings.of("reverse", {**SMALL, **given}).to_toml())
    return path


def weights(folder):
    return checkpoint.latest(folder / "checkpoints").tensors()


@pytest.mark.slow  # each process imports torch
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
@pytest.mark.parametrize("model", ["seq2seq", "t5"])
def test_two_processes_have_the_gradients_of_one(tmp_path, model, sharding):
    """The first gradient and the trained weights, to rounding: a sum in another order."""
    from safetensors.torch import load_file

    config = config_of(tmp_path, model=model, sharding=sharding)
    launch(1, "train", config, tmp_path / "one")
    launch(2, "train", config, tmp_path / "two")
    one, two = (load_file(tmp_path / f"{name}.gradients") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name, gradient in one.items():
        torch.testing.assert_close(two[name], gradient, rtol=1e-4, atol=1e-6)
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two")]
    assert results[0]["scores"]["loss"] == pytest.approx(results[1]["scores"]["loss"], rel=1e-3)


@pytest.mark.slow  # each process imports torch
@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)], ids=["two-to-one", "one-to-two"])
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_a_checkpoint_goes_on_in_another_number_of_processes(tmp_path, sharding, first, second):
    """Stopped at step 2 in one number of processes and resumed in another: the weights of a whole run."""
    config = config_of(tmp_path, model="t5", sharding=sharding)
    launch(1, "train", config, tmp_path / "whole")
    launch(first, "train", config, tmp_path / "run", stop=2)
    assert checkpoint.latest(tmp_path / "run" / "checkpoints").state["step"] == 2
    launch(second, "resume", config, tmp_path / "run")
    whole, run = weights(tmp_path / "whole"), weights(tmp_path / "run")
    assert whole.keys() == run.keys()
    for name, tensor in whole.items():
        if name.startswith("model."):
            # Four steps of AdamW at 1e-3 move a weight by 4e-3 at most; rounding moves it far less.
            torch.testing.assert_close(run[name], tensor, rtol=0, atol=2e-4)


def test_a_rank_left_over_from_something_else_is_no_world(monkeypatch):
    """Only where there are several processes is one of them not the one that speaks."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert here().first
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert not here().first


@pytest.mark.slow  # each process imports torch
def test_the_command_runs_under_torchrun_and_speaks_once(tmp_path):
    """`torchrun -m regard train`, as the guide has it: one run, one voice, and it can be taken up by one."""
    config = config_of(tmp_path)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "regard", "train", "--config", config, "--out", tmp_path / "run", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    (said,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert resume(tmp_path / "run", quiet=True).scores == said["scores"]
