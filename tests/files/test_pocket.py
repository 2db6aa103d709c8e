"""The models that come with the package: small, described, there without a network, and able."""

import json
import math
import tomllib

import pytest
import torch
from click.testing import CliRunner

from regard.cli import main
from regard.commands.train import train
from regard.decoding.loop import generate
from regard.files import hub
from regard.files.loading import load
from regard.tracing.take import trace
from regard.train.score import answered
from regard.train.settings import HELP, Settings
from regard.train.tasks import generated_task

POCKET = [name for name, model in hub.MODELS.items() if model.shipped]
UNREAD = "The machine had been running for three days, and nobody knew what it was trying to do."


@pytest.fixture(autouse=True)
def no_network(tmp_path, monkeypatch):
    """Nothing was ever downloaded, and nothing can be."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub.subprocess, "Popen", lambda *_, **__: pytest.fail("pip was started"))
    monkeypatch.chdir(tmp_path)


def command(*arguments):
    """The command's finished run, which must have succeeded."""
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize("name", POCKET)
def test_a_pocket_model_is_at_most_four_megabytes_with_its_run_beside_it(name):
    """The weights fit the pocket, and config, metrics, result and card of the run are there."""
    folder = hub.MODELS[name].folder
    assert (folder / "model.safetensors").stat().st_size <= 4_000_000
    assert {path.name for path in folder.iterdir()} == {
        "README.md",
        "config.json",
        "config.toml",
        "metrics.jsonl",
        "model.safetensors",
        "result.json",
        "special_tokens_map.json",
        "tokenizer.json",
    }


@pytest.mark.parametrize("name", POCKET)
def test_the_card_says_what_the_run_says(name):
    """The card's command makes the run's config, its figures are those of result.json, no path is left."""
    folder = hub.MODELS[name].folder
    card = (folder / "README.md").read_text(encoding="utf-8")
    config = (folder / "config.toml").read_text(encoding="utf-8")
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    joined = card.replace("\\\n", " ")
    (line,) = (line.split() for line in joined.splitlines() if line.startswith("regard train"))
    asked = train.make_context("train", line[2:]).params
    given = {name: asked[name] for name in HELP if asked[name] not in (None, ())}
    assert Settings.of(given.pop("task"), given).to_toml() == config
    scores = result["scores"]
    if "exact" in scores:
        assert f"{100 * scores['exact']:.1f} % are right" in card
    else:
        assert f"loss {scores['loss']:.3f}" in card
        assert f"{scores['bits_per_byte']:.2f} bits a\nbyte" in card
    assert f"{result['n_parameter']:,}" in card
    assert not any(str(value).startswith("/") for value in tomllib.loads(config).values())


@pytest.mark.parametrize("name", POCKET)
def test_a_pocket_model_loads_at_once(name):
    """No network, no cache: the model of the run, in float32, with its name and licence."""
    loaded = load(name)
    result = json.loads((hub.MODELS[name].folder / "result.json").read_text(encoding="utf-8"))
    assert (loaded.facts.name, loaded.facts.licence) == (name, "apache-2.0")
    assert loaded.facts.n_parameter == result["n_parameter"]
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert hub.get(name) == hub.present(name) == hub.MODELS[name].folder


def test_pocket_dates_reads_dates_it_has_never_seen():
    """Of 200 dates that training left out, drawn with a seed of their own, nearly all are right."""
    task = generated_task(Settings.of("dates"))
    pairs = [task.example(7919, index, held_out=True) for index in range(200)]
    answers = answered(load("pocket-dates"), pairs)
    assert sum(answer == target for answer, (_, target) in zip(answers, pairs, strict=True)) >= 196


@pytest.mark.parametrize(
    "written", ["3 March 2021", "March 3, 2021", "3. März 2021", "3 mars 2021", "2021年3月3日", "03.03.2021"]
)
def test_pocket_dates_knows_how_people_write_a_date(written):
    """The same day in six ways, written here by hand."""
    assert generate(load("pocket-dates"), written, max_new=16).texts == ("2021-03-03",)


def test_pocket_dates_reads_each_part_of_the_answer_from_its_own_part_of_the_date():
    """Year, month and day of the answer each look most at the characters that name them."""
    source, target = "17 October 1963", "1963-10-17"
    weights = trace(load("pocket-dates"), source, target=target).weights(0, 0)
    # Row i chooses character i of the target. A character's state holds its neighbours too, hence the edges.
    places = {"day": slice(0, 3), "month": slice(2, 11), "year": slice(10, len(source) + 1)}
    rows = {"year": slice(0, 4), "month": slice(5, 7), "day": slice(8, 10)}
    for part, chosen in rows.items():
        seen = {name: float(weights[chosen, place].sum()) for name, place in places.items()}
        assert max(seen, key=seen.__getitem__) == part, (part, seen)


def test_pocket_gpt_has_learned_english():
    """A sentence it has not read surprises it far less than chance, and far less than its words shuffled."""
    loaded = load("pocket-gpt")

    def loss(text):
        ids = torch.tensor([loaded.tokenizer.encode(text)])
        with torch.no_grad():
            logits = loaded.model(ids[:, :-1]).logits
        # Chance is the logarithm of the vocabulary.
        return float(torch.nn.functional.cross_entropy(logits[0], ids[0, 1:]))

    words = UNREAD.split()
    shuffled = " ".join(words[index] for index in torch.randperm(len(words), generator=_seeded(11)).tolist())
    assert loss(UNREAD) < 0.7 * math.log(loaded.facts.vocab)
    assert loss(UNREAD) < loss(shuffled) - 0.3


def _seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_pocket_gpt_is_a_gpt2_for_transformers_too():
    """transformers loads the shipped folder and gives the same logits."""
    from transformers import GPT2LMHeadModel

    loaded = load("pocket-gpt")
    theirs = GPT2LMHeadModel.from_pretrained(hub.MODELS["pocket-gpt"].folder).eval()
    ids = torch.tensor([loaded.tokenizer.encode(UNREAD)])
    with torch.no_grad():
        expected, found = theirs(ids).logits, loaded.model(ids).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)  # float32 sums in another order


def test_regard_models_lists_them_as_shipped():
    """Both are there, with a path that loads, and need no `get`; the others are not here."""
    rows = {row["name"]: row for row in json.loads(command("models", "--json").stdout)}
    assert {name for name, row in rows.items() if row["shipped"]} == set(POCKET)
    for name in POCKET:
        assert load(rows[name]["path"]).facts.n_parameter == load(name).facts.n_parameter
    assert rows["minilm"]["path"] is None
    assert command("models").stdout.count("shipped") == len(POCKET)


def test_regard_generate_answers_with_pocket_dates():
    """A date goes in, ISO 8601 comes out, and nothing else."""
    assert command("generate", "3 March 2021", "--model", "pocket-dates").stdout == "2021-03-03\n"


def test_regard_generate_continues_with_pocket_gpt():
    """The text comes first, then as many tokens as asked for; the same each time."""
    asked = ("generate", "A hacker is", "--model", "pocket-gpt", "--max-new", "13")
    first, again = command(*asked).stdout, command(*asked).stdout
    assert first.startswith("A hacker is ")
    assert first == again
    assert json.loads(command(*asked, "--json").stdout)["tokens"] == 13


def test_regard_look_shows_the_alignment_of_pocket_dates():
    """The one layer is cross-attention: the answer's characters look at the question's."""
    found = json.loads(command("look", "3 March 2021", "--model", "pocket-dates", "--json").stdout)
    assert "".join(found["cols"]).replace("␣", " ").startswith("3 March 2021")
    assert "".join(found["rows"]).startswith("2021-03-03")  # a row is named by what is written there
    assert torch.tensor(found["weights"]).sum(1).allclose(torch.ones(len(found["rows"])))


@pytest.mark.parametrize("name", ["heads", "prune"])
def test_a_recurrent_model_has_no_heads_and_that_is_said(name):
    """An error in words, which says what to do instead."""
    result = CliRunner().invoke(main, [name, "--model", "pocket-dates"])
    assert result.exit_code == 2
    assert "no heads" in result.stderr
    assert "regard look" in result.stderr


def test_regard_heads_says_what_the_heads_of_pocket_gpt_do():
    """Every head has its row, and training has left marks that random weights have not."""
    said = json.loads(command("heads", "--model", "pocket-gpt", "--against", "random", "--json").stdout)
    assert len(said["heads"]) == 16
    assert said["shares"]["pocket-gpt"] != said["shares"]["random weights"]
