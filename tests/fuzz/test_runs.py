"""Training that is killed, and runs whose files are damaged: they go on to the same bits, or are refused."""

import os
import shutil
import signal
import time

import pytest
from fuzzing import attack, damaged_bytes, damaged_text

from regard.train import Settings, train
from regard.train.run import resume

TINY = {
    "hidden_dim": 7, "embed_dim": 5, "steps": 6, "eval_every": 2, "save_every": 2, "log_every": 1,
    "threads": 1, "eval_size": 2, "batch_tokens": 101, "symbols": 11, "max_words": 3,
    "tensorboard": False, "keep_best": 2,
}  # fmt: skip


class Figure:
    """Stands for a picture, which takes longer to draw than such a run."""

    def savefig(self, path):
        path.write_bytes(b"")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr("regard.train.corpus.FINAL_SIZE", 3)
    monkeypatch.setattr("regard.train.run.alignment_maps", lambda *_: None)
    monkeypatch.setattr("regard.train.display.curves", lambda *_, **__: Figure())


def result_of(folder):
    """The bits that must be the same."""
    return (folder / "best" / "model.safetensors").read_bytes()


def test_damaged_runs(record_property, tmp_path):
    """A run's folder with one file damaged."""
    whole, stopped, work = tmp_path / "whole", tmp_path / "stopped", tmp_path / "work"
    train(Settings.of("copy", {**TINY, "out": str(whole)}), quiet=True)
    shutil.copytree(whole, stopped)
    # As a kill after step 4 leaves it: no result, one checkpoint less.
    next((stopped / "checkpoints").glob("step-00000006-*")).unlink()
    (stopped / "result.json").unlink()
    shutil.rmtree(stopped / "best")

    def case(rng):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(rng.choice((whole, stopped, stopped)), work)
        files = sorted(path for path in work.rglob("*") if path.is_file() and path.suffix != ".png")
        files = [path for path in files if path.parent.name != "best" and path.name != "config.toml"]
        victim = rng.choice(files)
        content = victim.read_bytes()
        if rng.random() < 0.05:
            victim.unlink()
        elif victim.suffix == ".json":
            victim.write_bytes(damaged_text(rng, content.decode()))
        else:
            victim.write_bytes(damaged_bytes(rng, content))
        resume(work, quiet=True)
        assert result_of(work) == result_of(whole), f"{victim} made another model"
        return "resumed to the bit"

    attack(record_property, "run", case, few=25, many=3_000)


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_killed_runs(record_property, tmp_path):
    """kill -9 at up to three random moments of a run that saves after every update, dropout on."""
    settings = {**TINY, "steps": 25, "save_every": 1, "eval_every": 5, "dropout": 0.3, "n_layer": 2}
    whole, work = tmp_path / "whole", tmp_path / "work"
    began = time.monotonic()
    train(Settings.of("copy", {**settings, "out": str(whole)}), quiet=True)
    duration = time.monotonic() - began

    def killed_after(seconds):
        """Train or go on in another process; whether it had to be killed."""
        process = os.fork()
        if not process:
            try:
                if (work / "config.toml").exists():
                    resume(work, quiet=True)
                else:
                    train(Settings.of("copy", {**settings, "out": str(work)}), quiet=True)
                os._exit(0)
            finally:
                os._exit(1)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                assert status == 0, "it ended with an error"
                return False
            time.sleep(0.001)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        return True

    def case(rng):
        shutil.rmtree(work, ignore_errors=True)
        n_kill = sum(killed_after(rng.uniform(0, duration)) for _ in range(3))
        assert not killed_after(15), "it hangs"
        assert result_of(work) == result_of(whole)
        assert (work / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
        return f"equal to the bit after {n_kill} kills"

    attack(record_property, "kill -9", case, few=2, many=50)
