"""Whole runs, tiny: their folders, their results, resuming them, and what stops them."""

import json
import os
import random
import signal
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner

from regard.cli import main
from regard.decoding.loop import generate
from regard.decoding.masked import fill_mask
from regard.errors import ArgumentError, LoadError, TrainError
from regard.files.loading import load
from regard.tracing.take import trace
from regard.train import Settings, checkpoint, train
from regard.train.display import read_metrics
from regard.train.run import resume

TINY = {
    "hidden_dim": 17,
    "embed_dim": 11,
    "steps": 6,
    "eval_every": 3,
    "save_every": 2,
    "log_every": 1,
    "eval_size": 5,
    "batch_tokens": 211,
    "symbols": 11,
    "max_words": 5,
    "tensorboard": False,
}


@pytest.fixture(autouse=True)
def few_final_examples(monkeypatch):
    """Score the finished model on a handful."""
    monkeypatch.setattr("regard.train.corpus.FINAL_SIZE", 7)


def settings_of(task, out, **given):
    return Settings.of(task, {**TINY, "out": str(out), **given})


def final_weights(folder):
    loaded = checkpoint.latest(folder / "checkpoints").tensors()
    return {name: tensor.clone() for name, tensor in loaded.items()}  # the file may be damaged later


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_has_its_folder_and_its_model_works(tmp_path):
    """Config, tokenizer, metrics, checkpoints, pictures and a model that loads, answers and is traced."""
    run = train(settings_of("dates", tmp_path / "run"), quiet=True)
    assert run.finished
    assert run.step == 6
    there = {path.name for path in run.folder.iterdir()}
    assert {"config.toml", "tokenizer.json", "metrics.jsonl", "checkpoints", "best", "result.json"} <= there
    assert (run.folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    metrics = read_metrics(run.folder / "metrics.jsonl")
    assert [each["step"] for each in metrics if each["kind"] == "train"] == [1, 2, 3, 4, 5, 6]
    assert [each["step"] for each in metrics if each["kind"] == "valid"] == [3, 6]
    loaded = load(run.best)
    assert loaded.facts.family == "seq2seq"
    answer = generate(loaded, "5 March 1987", max_new=12)
    found = trace(loaded, "5 March 1987", target="1987-03-05")
    weights = found.weights(0, 0)
    assert weights.shape == (12, 13)  # <bos>, ten characters, <eos>; twelve characters and <eos>
    torch.testing.assert_close(weights.sum(-1), torch.ones(12))
    assert isinstance(answer.texts[0], str)


def test_the_finished_model_scores_as_the_run_says(tmp_path):
    """The exact match of result.json is that of the model in best/ on the same held-out dates."""
    from regard.train.corpus import open_corpus

    settings = settings_of("copy", tmp_path / "run", steps=90, lr=0.02, max_words=2, symbols=5, eval_every=30)
    run = train(settings, quiet=True)
    pairs = open_corpus(settings, run.folder).test.pairs
    loaded = load(run.best)
    answers = [generate(loaded, source, max_new=11).texts[0] for source, _ in pairs]
    right = sum(answer == target for answer, (_, target) in zip(answers, pairs, strict=True))
    assert run.scores["exact"] == pytest.approx(right / len(pairs))
    metrics = [each["loss"] for each in read_metrics(run.folder / "metrics.jsonl") if each["kind"] == "valid"]
    assert metrics[-1] < metrics[0]


def write_text(path, lines=401):
    words = "the cat sat on a mat and saw the moon over hills".split()
    chosen = random.Random(5)
    path.write_text("".join(" ".join(chosen.choices(words, k=7)) + ".\n" for _ in range(lines)))
    return str(path)


@pytest.mark.parametrize("model", ["gpt2", "llama", "bert"])
def test_a_language_model_loads_into_transformers(tmp_path, model):
    """best/ is a folder of the family: transformers computes the same logits from it."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    text = write_text(tmp_path / "text.txt")
    sizes = {"model": model, "n_layer": 2, "model_dim": 12, "n_head": 3, "context": 13, "dropout": 0.1}
    run = train(settings_of("lm", tmp_path / "run", text=text, **sizes), quiet=True)
    theirs = (AutoModelForMaskedLM if model == "bert" else AutoModelForCausalLM).from_pretrained(run.best)
    loaded = load(run.best)
    tokens = torch.tensor([loaded.tokenizer.encode("the cat sat")])
    with torch.no_grad():
        ours, other = loaded.model(tokens).logits, theirs.eval()(tokens).logits
    torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)  # float32, two implementations
    if model == "bert":
        assert fill_mask(loaded, "the <mask>at")[0].position == 4
    else:
        bits = run.scores["loss"] / 0.6931471805599453
        assert run.scores["bits_per_byte"] == pytest.approx(bits)  # one byte for each character


@pytest.mark.parametrize("model", ["t5", "seq2seq"])
def test_a_translation_model_trains_from_pairs(tmp_path, model):
    """Pairs of a TSV file; BLEU and chrF carry sacrebleu's signatures; T5 loads into transformers."""
    words = "one two three four five six seven".split()
    chosen = random.Random(3)
    rows = [chosen.choices(words, k=chosen.randint(2, 5)) for _ in range(211)]
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{' '.join(row)}\t{' '.join(row[::-1])}\n" for row in rows))
    sizes = {"model": model, "model_dim": 12, "n_head": 3, "tokenizer": "word", "valid_fraction": 0.1}
    run = train(settings_of("translate", tmp_path / "run", pairs=str(path), **sizes), quiet=True)
    assert "version:" in run.scores["bleu_signature"]
    assert 0 <= run.scores["bleu"] <= 100
    assert (run.folder / "alignment-1.png").exists()
    if model == "t5":
        from transformers import T5ForConditionalGeneration

        loaded = load(run.best)
        theirs = T5ForConditionalGeneration.from_pretrained(run.best).eval()
        source, target = torch.tensor([[9, 8, 7, 2]]), torch.tensor([[0, 7, 8]])
        with torch.no_grad():
            ours = loaded.model(source, target).logits
            other = theirs(input_ids=source, decoder_input_ids=target).logits
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)  # float32, two implementations


def test_keeping_and_averaging_the_best(tmp_path):
    """The result is the mean of the kept models, whose steps are told."""
    from safetensors.torch import load_file

    settings = settings_of("copy", tmp_path / "run", steps=7, eval_every=1, keep_best=3, average=True)
    run = train(settings, quiet=True)
    steps = json.loads((run.folder / "result.json").read_text())["of_steps"]
    assert len(steps) == 3
    kept = [load_file(path) for step in steps for path in (run.folder / "kept").glob(f"step-{step:08d}-*")]
    result = load(run.best).model.state_dict()
    for name, tensor in result.items():
        mean = sum(each[name].double() for each in kept) / 3
        torch.testing.assert_close(tensor.double(), mean, rtol=1e-6, atol=1e-7)
    scores = {
        each["step"]: (each["exact"], -each["loss"])
        for each in read_metrics(run.folder / "metrics.jsonl")
        if each["kind"] == "valid"
    }
    assert steps == sorted(scores, key=lambda step: scores[step], reverse=True)[:3]


def test_early_stopping_ends_the_run(tmp_path):
    """Without a better score in as many evaluations as `patience` says, training is over, and finished."""
    run = train(
        settings_of("copy", tmp_path / "run", steps=50, eval_every=1, patience=2, lr=1e-12), quiet=True
    )
    assert run.finished
    assert run.step < 50
    assert "no better score in 2 evaluations" in run.stopped


def interrupt_at(monkeypatch, step, signal_number=signal.SIGINT):
    """Send this process a signal after an update."""
    from regard.train.loop import Training

    update = Training.update

    def updated(self):
        measured = update(self)
        if self.progress.step == step:
            os.kill(os.getpid(), signal_number)
        return measured

    monkeypatch.setattr(Training, "update", updated)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_saves_and_goes_on_to_the_same_bits(tmp_path, monkeypatch, capsys, number):
    """Ctrl-C in the middle: saved at that step, told how to go on, and resumed to the bits of a whole run."""
    whole = train(settings_of("copy", tmp_path / "whole", dropout=0.3, n_layer=2), quiet=True)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 3, number)
        stopped = train(settings_of("copy", tmp_path / "run", dropout=0.3, n_layer=2))
    assert not stopped.finished
    assert stopped.step == 3
    assert f"regard train --resume {tmp_path / 'run'}" in capsys.readouterr().err
    done = resume(tmp_path / "run", quiet=True)
    assert done.finished
    assert_same_bits(final_weights(whole.folder), final_weights(done.folder))
    assert done.scores == whole.scores
    told = [read_metrics(run.folder / "metrics.jsonl") for run in (whole, done)]
    assert told[0] == told[1]
    assert resume(tmp_path / "run").scores == whole.scores  # a finished run is not trained again


def test_resuming_in_another_place_is_an_error(tmp_path):
    """A folder that is no run, and one that is not there, are told apart from a run."""
    with pytest.raises(LoadError, match="There is none in it"):
        resume(tmp_path)
    with pytest.raises(LoadError, match="It does not exist"):
        resume(tmp_path / "missing")


def test_a_run_is_not_written_over(tmp_path):
    """A folder with a run or with files in it is refused."""
    train(settings_of("copy", tmp_path / "run", steps=1), quiet=True)
    with pytest.raises(ArgumentError, match="holds a run already"):
        train(settings_of("copy", tmp_path / "run"), quiet=True)
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "x").touch()
    with pytest.raises(ArgumentError, match="not an empty folder"):
        train(settings_of("copy", tmp_path / "file"), quiet=True)


def test_a_nan_names_the_last_checkpoint(tmp_path, monkeypatch):
    """A loss that is no number ends in words that name the step and the checkpoint before it."""
    from regard.train.loop import Training

    update = Training.update

    def updated(self):
        if self.progress.step == 4:
            next(self.objective.parameters()).data.fill_(float("nan"))
        return update(self)

    monkeypatch.setattr(Training, "update", updated)
    with pytest.raises(TrainError, match=r"the loss of step 5 is nan.*step-00000004-"):
        train(settings_of("copy", tmp_path / "run"), quiet=True)
    assert checkpoint.latest(tmp_path / "run" / "checkpoints").state["step"] == 4


def test_a_full_disk_names_the_last_checkpoint(tmp_path, monkeypatch):
    """What could not be written ends the run in words; the checkpoint before it is whole."""
    write = checkpoint.write_checked

    def full(folder, step, tensors, state):
        if step == 4:
            raise OSError(28, "No space left on device")
        return write(folder, step, tensors, state)

    monkeypatch.setattr(checkpoint, "write_checked", full)
    with pytest.raises(TrainError, match=r"cannot go on: .*No space left.*step-00000002-"):
        train(settings_of("copy", tmp_path / "run"), quiet=True)
    assert checkpoint.latest(tmp_path / "run" / "checkpoints").state["step"] == 2


def test_the_command_trains_and_resumes(tmp_path):
    """`regard train` from a TOML file with an option over it, as JSON; `--resume` of it says the same."""
    config = tmp_path / "config.toml"
    values = {**TINY, "task": "sort", "out": str(tmp_path / "run")}
    config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    told = CliRunner().invoke(main, ["train", "--config", str(config), "--steps", "4", "--json", "--quiet"])
    assert told.exit_code == 0, told.output
    said = json.loads(told.output)
    assert said["step"] == 4
    again = CliRunner().invoke(main, ["train", "--resume", said["run"], "--json"])
    assert json.loads(again.output)["scores"] == said["scores"]
    refused = CliRunner().invoke(main, ["train", "--resume", said["run"], "--steps", "9"])
    assert refused.exit_code == 2
    assert "leave out steps" in refused.output


def test_metrics_are_written_for_tensorboard(tmp_path):
    """TensorBoard's own reader finds the losses of metrics.jsonl."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(settings_of("copy", tmp_path / "run", tensorboard=True, steps=3), quiet=True)
    found = EventAccumulator(str(run.folder / "tensorboard")).Reload().Scalars("train/loss")
    told = [each for each in read_metrics(run.folder / "metrics.jsonl") if each["kind"] == "train"]
    assert [each.step for each in found] == [1, 2, 3]
    assert [each.value for each in found] == pytest.approx([each["loss"] for each in told])


DAMAGE = {
    "no result": ("result.json", b"{}"),
    "half a result": ("result.json", b'{"step": 6, "sto'),
    "metrics that are no text": (
        "metrics.jsonl",
        b'\xff\xfe\n{"step": []}\n[1]\n{"kind": "train", "step": 1}\n',
    ),
    "a checkpoint that is none": ("checkpoints/step-00000006-*", b"[" * 100_000),
}


@pytest.mark.parametrize(("name", "content"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_does_not_stop_a_run(tmp_path, name, content):
    """The result is made again from the newest checkpoint that is whole, with the same bits."""
    folder = train(settings_of("copy", tmp_path / "run"), quiet=True).folder
    weights, result = final_weights(folder), json.loads((folder / "result.json").read_text())
    if name != "result.json":
        (folder / "result.json").unlink()
    next(folder.glob(name), folder / name).write_bytes(content)
    assert resume(folder, quiet=True).scores == result["scores"]
    assert_same_bits(final_weights(folder), weights)


def test_a_changed_number_in_the_state_is_noticed(tmp_path):
    """The checksum is of the state too: the run goes on from the checkpoint before, to the same bits."""
    folder = train(settings_of("copy", tmp_path / "run"), quiet=True).folder
    weights, (path,) = final_weights(folder), (folder / "checkpoints").glob("step-00000006-*")
    content = path.read_bytes()
    path.write_bytes(content.replace(b'\\"window\\": 0', b'\\"window\\": 1'))
    assert path.read_bytes() != content
    (folder / "result.json").unlink()
    assert checkpoint.latest(folder / "checkpoints").state["step"] == 4
    resume(folder, quiet=True)
    assert_same_bits(final_weights(folder), weights)


def test_a_damaged_best_model_is_refused(tmp_path):
    """Weights that were kept have a checksum too: a flipped bit is no other result."""
    folder = train(settings_of("copy", tmp_path / "run"), quiet=True).folder
    (folder / "result.json").unlink()
    for path in (folder / "kept").iterdir():
        content = bytearray(path.read_bytes())
        content[-3] ^= 16
        path.write_bytes(content)
    with pytest.raises(TrainError, match="its checksum differs"):
        resume(folder, quiet=True)


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path):
    """A second --resume would write every line of metrics twice: it is refused, and the run is left alone."""
    folder = tmp_path / "run"
    code = (
        "import sys, time, regard.train.run as run\n"
        "from regard.train import Settings\n"
        f"settings = Settings.of('copy', {dict(TINY, out=str(folder))!r})\n"
        "run._Running.go = lambda self: (print('training', flush=True), time.sleep(60))\n"
        "run.train(settings, quiet=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "training\n"
        before = sorted(folder.rglob("*"))
        with pytest.raises(TrainError, match="another process"):
            resume(folder, quiet=True)
        assert sorted(folder.rglob("*")) == before
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    resume(folder, quiet=True)  # the lock went with its process


def test_a_failed_start_leaves_nothing_in_the_way(tmp_path):
    """The corrected retry takes the same folder."""
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n" * 200)
    for wrong in ({"text": (str(tmp_path / "missing.txt"),)}, {"text": (str(text),), "device": "nonsense"}):
        with pytest.raises((LoadError, ArgumentError)):
            train(settings_of("lm", tmp_path / "run", model="gpt2", **wrong), quiet=True)
        assert not (tmp_path / "run").exists()
    run = train(settings_of("lm", tmp_path / "run", model="gpt2", text=(str(text),), context=8), quiet=True)
    assert run.finished
