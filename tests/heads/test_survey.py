"""Surveys: means and intervals by hand, going on after an interruption, the same on two processes."""

import os
import subprocess
import sys

import pytest
import torch

from regard.errors import LoadError
from regard.files.loading import load
from regard.heads import measure, planted_needle, probes, repeated_tokens, survey, surveys
from regard.heads.measures import ROW_MEASURES
from regard.tracing.take import trace

TEXTS = ["the cat sat.", "a dog, a cat", "rain fell on the town", "the end", "one two one two"]


@pytest.fixture(scope="module")
def loaded():
    return load("minilm", random=True)


def test_means_and_intervals_are_those_of_the_texts(loaded):
    """Mean, and 2.776 standard errors for five texts; copies come from the repeated random tokens."""
    surveyed = survey(loaded, TEXTS, n_repeat=2, n_token=7, progress=False)
    ids = [token for text in TEXTS for token in loaded.tokenizer.encode(text)]
    counts = torch.bincount(torch.tensor(ids), minlength=loaded.tokenizer.vocab_size)
    for name in ("entropy", "previous"):
        stacked = torch.stack([measure(trace(loaded, text), counts=counts)[name] for text in TEXTS])
        torch.testing.assert_close(surveyed.measures[name], stacked.mean(0))
        half = 2.776 * stacked.std(0) / 5**0.5
        torch.testing.assert_close(surveyed.high[name] - surveyed.measures[name], half)
        torch.testing.assert_close(surveyed.measures[name] - surveyed.low[name], half)
    repeats = [measure(trace(loaded, repeated_tokens(loaded, 7, seed)))["induction"] for seed in (0, 1)]
    torch.testing.assert_close(surveyed.measures["induction"], torch.stack(repeats).mean(0))
    assert (surveyed.n_text, surveyed.n_repeat) == (5, 2)


def test_one_text_has_no_interval(loaded):
    """From a single text nothing can be said about how texts differ."""
    surveyed = survey(loaded, TEXTS[:1], n_repeat=0, progress=False)
    assert surveyed.low["entropy"].isnan().all()
    assert len(surveyed.labels()) == 72


def test_repeated_tokens_come_twice_between_what_surrounds_a_text(loaded):
    """Different tokens, none special, the second half as the first; another seed draws others."""
    ids = repeated_tokens(loaded, 11).tolist()
    special = loaded.tokenizer.special
    assert (ids[0], ids[-1], len(ids)) == (special.cls, special.sep, 24)
    assert ids[1:12] == ids[12:23]
    assert len(set(ids[1:12])) == 11
    assert not set(ids[1:12]) & special.all()
    assert ids != repeated_tokens(loaded, 11, seed=1).tolist()


def test_a_needle_is_planted_and_asked_for(loaded):
    """Tokens that the hay has not, once in it and once at the end; each but the last asks for the next."""
    hay = [index % 50 + 300 for index in range(90)]
    ids, asks = planted_needle(loaded, hay, seed=3, n_token=5)
    special = loaded.tokenizer.special
    assert (int(ids[0]), int(ids[-1]), len(ids)) == (special.cls, special.sep, 102)
    needle = ids[-6:-1].tolist()
    assert asks.nonzero()[:, 0].tolist() == [96, 97, 98, 99]
    assert not set(needle) & {*hay, *special.all()}
    inside = ids[1:-6].tolist()
    at = inside.index(needle[0])
    assert inside[at : at + 5] == needle
    assert inside[:at] + inside[at + 5 :] == hay


def test_retrieval_is_measured_on_the_needles_alone(loaded):
    """Seven rows of each, and the measure of a needle's trace by hand."""
    surveyed = survey(loaded, TEXTS, n_repeat=0, n_needle=2, progress=False)
    assert surveyed.n_needle == 2
    assert surveyed.measures.n_query["retrieval"].tolist() == [14] * 6
    hay = [token for text in TEXTS for token in loaded.tokenizer.encode(text, add_special=False)]
    found = []
    for seed in (0, 1):
        ids, asks = planted_needle(loaded, hay, seed)
        table = trace(loaded, ids).weights(2, 4)
        rows = asks.nonzero()[:, 0]
        planted = [ids.tolist().index(int(ids[row])) + 1 for row in rows]
        found.append((table[rows].argmax(-1) == torch.tensor(planted)).double().mean())
    assert float(surveyed.measures["retrieval"][2, 4]) == pytest.approx(float(sum(found)) / 2)


class Interrupted(Exception):
    """Stands for whatever ends a process."""


def test_a_survey_goes_on_where_it_was_interrupted(loaded, tmp_path, monkeypatch):
    """What was done is not done again, and the numbers are those of a survey in one go."""
    state = tmp_path / "state.safetensors"
    options = {"n_repeat": 1, "n_needle": 0, "n_token": 5, "progress": False}
    whole = survey(loaded, TEXTS, **options)
    monkeypatch.setattr(surveys, "SAVE_SECONDS", 0.0)
    calls = []

    def failing(*args, **kwargs):
        calls.append(1)
        if len(calls) == 4:
            raise Interrupted
        return trace(*args, **kwargs)

    monkeypatch.setattr(probes, "trace", failing)
    with pytest.raises(Interrupted):
        survey(loaded, TEXTS, state=state, **options)
    resumed = survey(loaded, TEXTS, state=state, **options)
    assert len(calls) == 4 + 3  # three of six were done, the fourth fell
    for name in ROW_MEASURES:
        assert torch.equal(resumed.measures[name].nan_to_num(nan=-1), whole.measures[name].nan_to_num(nan=-1))
    survey(loaded, TEXTS, state=state, **options)
    assert len(calls) == 7
    assert [file.name for file in tmp_path.iterdir()] == ["state.safetensors"]


def test_the_state_of_another_survey_is_refused(loaded, tmp_path):
    """Other texts or another model do not mix with what is in the file."""
    state = tmp_path / "state.safetensors"
    survey(loaded, TEXTS[:2], state=state, n_repeat=0, progress=False)
    with pytest.raises(LoadError, match="is the state of another survey"):
        survey(loaded, TEXTS[:3], state=state, n_repeat=0, progress=False)
    with pytest.raises(LoadError, match="is the state of another survey"):
        survey(load("minilm", random=True, seed=1), TEXTS[:2], state=state, n_repeat=0, progress=False)
    state.write_bytes(b"not a state")
    with pytest.raises(LoadError, match="is no state of a survey"):
        survey(loaded, TEXTS[:2], state=state, n_repeat=0, progress=False)


SCRIPT = """
import sys, torch
from regard.heads import survey
from regard.files.loading import load
torch.set_num_threads(1)
found = survey(load("minilm", random=True), {texts!r}, n_repeat=2, n_token=7, progress=False,
               state=sys.argv[1] + "/state" if len(sys.argv) > 2 else None)
rank = torch.distributed.get_rank()
torch.save({{name: found.measures[name] for name in found.measures.values}}, f"{{sys.argv[1]}}/{{rank}}.pt")
torch.distributed.destroy_process_group()
"""


def test_two_processes_give_the_numbers_of_one(loaded, tmp_path):
    """Under torchrun each process takes its share and both end with equal, the same, numbers."""
    script = tmp_path / "survey_script.py"
    script.write_text(SCRIPT.format(texts=TEXTS))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", script, tmp_path, "state"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    alone = survey(loaded, TEXTS, n_repeat=2, n_token=7, progress=False)
    for rank in (0, 1):
        kept = torch.load(tmp_path / f"{rank}.pt")
        for name in ROW_MEASURES:
            assert torch.equal(kept[name].nan_to_num(nan=-1), alone.measures[name].nan_to_num(nan=-1)), name
    # What two processes kept, one goes on from.
    assert {file.name for file in tmp_path.glob("state*")} == {"state.0", "state.1"}
    again = survey(loaded, TEXTS, n_repeat=2, n_token=7, progress=False, state=tmp_path / "state")
    assert torch.equal(again.measures["entropy"], alone.measures["entropy"])
