"""Folders of families that only transformers knows, through the commands: done, or refused in words."""

import json
import re

import pytest
from click.testing import CliRunner
from foreign_folders import make_folder

from regard.cli import main

TEXT = "w5 w17 w3 w42 w8 w29 w11"
DECODERS = (
    "opt", "starcoder2", "phi", "gptj", "gpt_neo", "gpt_bigcode", "bloom", "falcon", "phi3", "gemma",
    "cohere", "olmo", "olmo2", "stablelm", "mpt", "codegen", "granite", "persimmon", "deepseek_v3",
    "mixtral", "qwen2_moe", "gpt_oss", "xglm", "nemotron",
)  # fmt: skip
ENCODERS = ("albert", "roberta", "distilbert", "electra", "modernbert")
BOTH = ("bart", "pegasus", "marian", "blenderbot")
# What a family has not, and what is said then.
NO_TEXT = {
    "why": "mask token in it once",
    "prune": "foretells no token",
    "generate": "generates no text",
}
NO_ONE_TEXT = {"why": "predicts a token from one text", "prune": "foretells no token"}
NO_ANSWER = {**NO_ONE_TEXT, "heads": "an encoder-decoder answers"}
REFUSED = {
    **dict.fromkeys(ENCODERS, NO_TEXT),
    **dict.fromkeys(BOTH, NO_ANSWER),
    "bart": NO_ONE_TEXT,  # makes up an answer where none is given
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:the trace does not agree:UserWarning"),
]


def run(folder, lines, *names):
    """What each command prints, or the words of its refusal, by its name."""
    html = folder / "page.html"
    commands = {
        "look": ("look", TEXT, "--save", str(html), "--target", "w3 w4"),
        "heads": ("heads", "--texts", str(lines), "--json"),
        "why": ("why", TEXT, "--top", "2", "--json"),
        "prune": ("prune", "--texts", str(lines), "--shares", "0,1", "--json"),
        "generate": ("generate", TEXT, "--max-new", "3", "--json"),
        "cost": ("cost", "--context", "24", "--json"),
    }
    said = {}
    for name in names or commands:
        command = commands[name]
        if name == "look" and "seq2seq" not in folder.name:
            command = command[:-2]
        result = CliRunner().invoke(main, [*command, "--model", str(folder)])
        refused = REFUSED.get(folder.name.partition("-")[0], {}).get(name)
        if refused is not None:
            assert result.exit_code == 2, (name, result.output)
            assert re.search(refused, result.output), (name, result.output)
            continue
        assert result.exit_code == 0, (name, result.output, result.exception)
        said[name] = html.read_text() if name == "look" else json.loads(result.stdout)
    return said


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text(f"{TEXT}\nw9 w2 w40 w7 w13 w2 w40\n")
    return path


def judge(model_type, said):
    """Numbers that a command must have found, where it ran."""
    assert "w42" in said["look"]
    if "heads" in said:
        heads = said["heads"]["heads"]
        assert heads
        assert all(0 <= head["previous"] <= 1 for head in heads if head.get("previous") is not None)
    if "generate" in said:
        assert said["generate"]["tokens"] == 3, model_type
    if "prune" in said:
        losses = said["prune"]["curves"][0]["loss"]
        assert losses[0] != losses[1]


@pytest.mark.parametrize("model_type", DECODERS[:3])
def test_three_families_are_looked_at_measured_and_written_with(model_type, lines, tmp_path):
    folder = make_folder(model_type, "causal", tmp_path / f"{model_type}-causal")
    judge(model_type, run(folder, lines, "look", "heads", "generate"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "head"),
    [(name, "causal") for name in DECODERS]
    + [(name, "masked") for name in ENCODERS]
    + [(name, "seq2seq") for name in BOTH],
)
def test_thirty_families_go_through_every_command(model_type, head, lines, tmp_path):
    """Each command gives its numbers, or the refusal that is named above: no other error."""
    said = run(make_folder(model_type, head, tmp_path / f"{model_type}-{head}"), lines)
    judge(model_type, said)
    assert len(said) + len(REFUSED.get(model_type, {})) == 6
