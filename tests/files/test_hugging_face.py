"""Models of the Hugging Face Hub by name, against a hub of our own on loopback and a cache that is filled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_on_loopback import COMMIT, serving

import regard
from regard.errors import LoadError
from regard.files import hub, hugging_face

WANTED = {"config.json", "tokenizer.json", "special_tokens_map.json", "README.md", "model.safetensors"}
POCKET = hub.MODELS["pocket-gpt"].folder
FILES = {name: (POCKET / name).read_bytes() for name in WANTED}
# What is never downloaded: pickles, code, other people's formats.
OTHERS = {"pytorch_model.bin": b"pickle", "modeling_gpt.py": b"raise SystemExit", "onnx/model.onnx": b"onnx"}


@pytest.fixture
def home(tmp_path):
    """A user's environment with an empty Hugging Face cache, and no network but what a test adds."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return {
        **kept,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": "http://127.0.0.1:9",  # the discard port: nobody answers
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def run(home, *line, **more):
    """Run `regard` as a person would, with nobody at the terminal."""
    command = [sys.executable, "-m", "regard", *line]
    environment = {**home, **more}
    return subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def python(home, code, **more):
    environment = {**home, **more}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def snapshots(home):
    return sorted(Path(home["HF_HOME"]).glob("hub/models--*/snapshots/*"))


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("gpt2", "openai-community/gpt2"),
        ("gpt2-xl", "openai-community/gpt2-xl"),
        ("bert-base-uncased", "google-bert/bert-base-uncased"),
        ("t5-small", "google-t5/t5-small"),
        ("distilgpt2", "distilbert/distilgpt2"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("openai-community/gpt2", "openai-community/gpt2"),
        *((name, None) for name in ("minilm", "nowhere", "./gpt2", "a/b/c", "../gpt2", "a/x.gguf", "a/", "")),
    ],
)
def test_a_name_is_the_hubs_or_is_not(name, full):
    """Short names of old are the Hub's; other names without an owner, and paths, are never asked for."""
    assert hugging_face.repository(name) == full


def test_a_model_is_announced_asked_for_downloaded_once_and_then_used_from_the_cache(home):
    """Without --yes nothing is fetched; with it safetensors, config and tokenizer alone; then no network."""
    with serving({"openai-community/gpt2": FILES | OTHERS}) as (address, asked):
        line = ("generate", "A hacker is", "--model", "gpt2", "--max-new", "5")
        refused = run(home, *line, HF_ENDPOINT=address)
        assert refused.returncode == 2
        assert "gpt2 is not here yet. --yes downloads openai-community/gpt2" in refused.stderr
        assert "4 MB" in refused.stderr
        assert not any("/resolve/" in path for _, path, _ in asked)
        done = run(home, *line, "--yes", HF_ENDPOINT=address)
        assert done.returncode == 0, done.stderr
        assert f"(commit {COMMIT[:12]}): 4 MB from {address}" in done.stderr
    (folder,) = snapshots(home)
    assert {path.name for path in folder.iterdir()} == WANTED
    # The hub is gone: both names answer from the cache, with what the shipped copy of the model says.
    again = run(home, "generate", "A hacker is", "--model", "openai-community/gpt2", "--max-new", "5")
    assert again.stdout == done.stdout
    ours = run(home, "generate", "A hacker is", "--model", "pocket-gpt", "--max-new", "5")
    assert ours.stdout == done.stdout
    offline = python(home, "import regard; print(regard.load('gpt2').facts)", HF_HUB_OFFLINE="1")
    assert offline.stdout.startswith("<gpt2: gpt2, 4 layers, 4 heads, 957,"), offline.stderr


EVERY = """
from click.testing import CliRunner
from regard.cli import main
lines = [
    "look hacker --terminal --model bert-base-uncased", "heads hacker --model google-bert/bert-base-uncased",
    "why hacker --top 1 --model bert-base-uncased", "cost --seconds 0.01 --model bert-base-uncased",
]
for line in lines:
    done = CliRunner().invoke(main, line.split())
    assert done.exit_code == 0, (line, done.output)
    print(line, len(done.output) > 100)
"""


def test_every_command_takes_a_name_of_the_hub(home):
    """A cache filled by somebody else's tools is used at once, without a network."""
    folder = Path(home["HF_HOME"], "hub", "models--google-bert--bert-base-uncased")
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    for name, data in FILES.items():
        (folder / "snapshots" / COMMIT / name).write_bytes(data)
    done = python(home, EVERY)
    assert done.stdout.count("True") == 4, done.stderr


def test_a_token_is_sent_and_a_revision_is_pinned(home):
    """HF_TOKEN opens a private model; a revision is what is fetched, and another one is not there."""
    with serving({"me/mine": FILES}, token="hf_secret") as (address, asked):
        closed = python(home, "import regard; regard.load('me/mine')", HF_ENDPOINT=address)
        assert "no such model at" in closed.stderr
        assert "set HF_TOKEN" in closed.stderr
        code = "import regard; print(regard.load('me/mine', revision={!r}).facts.name)"
        opened = python(home, code.format("v1"), HF_ENDPOINT=address, HF_TOKEN="hf_secret")
        assert opened.stdout.strip() == "me/mine", opened.stderr
        assert any("/revision/v1" in path for _, path, _ in asked)
        none = python(home, code.format("v9"), HF_ENDPOINT=address, HF_TOKEN="hf_secret")
        assert "has no revision 'v9'" in none.stderr
    assert python(home, code.format("v1")).stdout.strip() == "me/mine"
    assert "could not be downloaded" in python(home, code.format("main")).stderr


@pytest.mark.parametrize(
    ("files", "more", "said"),
    [
        ({"pytorch_model.bin": b"x", "config.json": b"{}"}, {}, "weights are read from safetensors only"),
        (FILES, {"gated": ["a/model"]}, "a/model is gated: accept its terms at"),
    ],
    ids=["pickles", "gated"],
)
def test_what_cannot_be_had_is_refused_in_one_sentence(home, files, more, said):
    """No pickle is downloaded, and a gated model says where to accept its terms."""
    with serving({"a/model": files}, **more) as (address, asked):
        done = run(home, "generate", "hi", "--model", "a/model", "--yes", HF_ENDPOINT=address)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert snapshots(home) == []
    assert not any("/resolve/" in path for _, path, _ in asked)


def test_without_a_network_or_when_offline_the_answer_says_what_to_do(home):
    """Nobody answers: check the network or bring the folder. HF_HUB_OFFLINE: unset it."""
    unreachable = run(home, "generate", "hi", "--model", "a/model", "--yes")
    assert unreachable.returncode == 2
    assert "check the network, or download it elsewhere with `hf download a/model`" in unreachable.stderr
    offline = run(home, "generate", "hi", "--model", "a/model", "--yes", HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE forbids a download" in offline.stderr
    assert "Traceback" not in unreachable.stderr + offline.stderr


def test_without_the_extra_the_answer_names_it(monkeypatch):
    """What is not installed is named with the command that installs it."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(LoadError, match=r"pip install 'regard\[hf\]'"):
        regard.load("openai-community/gpt2")
    assert hugging_face.cached("gpt2") is None


def test_a_snapshot_that_lacks_a_shard_is_not_used(tmp_path):
    """An interrupted download leaves a folder: it counts only with every file that its index names."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / hugging_face.INDEX).write_text(
        '{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}'
    )
    (tmp_path / "one.safetensors").write_bytes(b"")
    assert not hugging_face._whole(tmp_path)
    (tmp_path / "two.safetensors").write_bytes(b"")
    assert hugging_face._whole(tmp_path)
