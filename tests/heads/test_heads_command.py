"""`regard heads` and `regard prune`, as a person calls them."""

import csv
import json

import pytest
from click.testing import CliRunner
from tiny_models import tiny

from regard.cli import main
from regard.files.loading import load
from regard.heads import label, measure
from regard.registry import LABELS, OTHER_LABELS
from regard.tracing.take import trace

TEXT = "The dog, which had slept, saw the cat. The cat saw the dog."


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Runs a command in an empty folder and gives its result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments):
        return CliRunner().invoke(main, list(arguments))

    return run


def test_heads_prints_a_table_and_writes_a_picture(call, tmp_path):
    """Labels with their scores, the share of each label, and where the picture is."""
    result = call("heads", TEXT, "--sort", "previous", "--top", "3", "--out", "heads.png")
    assert result.exit_code == 0, result.output
    first = result.output.partition("──\n")[2]  # below the columns' names
    assert first.split()[:3] == ["0", "2", "previous-token"]
    assert "69 more heads" in result.output
    assert "Share of heads" in result.output
    assert "The picture is in heads.png" in result.output
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")


def test_heads_as_json_has_every_head_and_its_measures(call, tmp_path):
    """One entry for each head, numbers or null, and the table of rules; no file that nobody asked for."""
    result = call("heads", TEXT, "--json")
    said = json.loads(result.stdout)
    assert len(said["heads"]) == 72
    one = next(each for each in said["heads"] if (each["layer"], each["head"]) == ("encoder.0.self", 2))
    assert one["label"] == "previous-token"
    assert one["offset"] == -1
    assert one["low"] is None  # one text has no interval
    assert set(said["shares"]["minilm"]) == set(LABELS)
    assert len(said["rules"]) == len(LABELS) - len(OTHER_LABELS)
    assert said["png"] is None
    assert list(tmp_path.iterdir()) == []


def test_a_saved_trace_is_measured_without_its_model(call, tmp_path):
    """The same labels as of the trace in memory, in all forms; what would run a model is refused."""
    saved = trace(tiny("llama"), TEXT)
    saved.save(tmp_path / "some.trace")
    said = json.loads(call("heads", "some.trace", "--json").stdout)
    assert [head["label"] for head in said["heads"]] == [head.label for head in label(measure(saved))]
    assert (said["model"], said["n_text"]) == ("llama", 1)
    drawn = call("heads", "some.trace", "--out", "heads.png", "--csv", "heads.csv")
    assert drawn.exit_code == 0, drawn.output
    assert (tmp_path / "heads.png").exists()
    refused = call("heads", "some.trace", "--random")
    assert refused.exit_code == 2
    assert "leave out --texts" in refused.output


def test_heads_as_csv_reads_back(call, tmp_path):
    """All heads, one a line, whatever the table shows."""
    assert call("heads", TEXT, "--csv", "heads.csv", "--top", "1").exit_code == 0
    with (tmp_path / "heads.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 72
    assert 0.9 < float(rows[2]["previous"]) <= 1.0


def test_heads_prints_csv_alone_for_a_pipe(call, tmp_path):
    """With --csv - standard output is the table of all heads, and no file is called -."""
    result = call("heads", TEXT, "--csv", "-")
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert len(rows) == 72
    assert float(rows[5]["uniformity"]) <= 1.0
    assert not (tmp_path / "-").exists()


def test_heads_says_where_a_text_is_too_short(call):
    """Labels of three tokens come with a warning, in words."""
    assert "Only 3 tokens had a choice where to look" in call("heads", "a").stdout


def test_heads_against_random_weights(call):
    """Trained and untrained stand side by side: random weights have nothing but broad heads."""
    shares = json.loads(call("heads", TEXT, "--against", "random", "--json").stdout)["shares"]
    assert shares["random weights"]["like random"] == 1.0
    assert shares["minilm"]["delimiter"] > 0.1


def test_heads_reads_a_file_of_texts_and_goes_on(call, tmp_path):
    """A text a line gives intervals; with a state file the second call has nothing left to do."""
    (tmp_path / "texts.txt").write_text("The cat sat.\n\nA dog ran, and ran.\nRain fell on the town.\n")
    arguments = ["heads", "--texts", "texts.txt", "--state", "state", "--json"]
    first, second = (json.loads(call(*arguments).stdout) for _ in range(2))
    assert first["n_text"] == 3
    assert first["heads"][2]["low"] < first["heads"][2]["score"] <= first["heads"][2]["high"]
    assert first["heads"] == second["heads"]
    assert (tmp_path / "state").is_file()


def test_prune_draws_the_curve_and_saves_a_smaller_model(call, tmp_path):
    """Three orders from one start, a picture, and a folder that loads with fewer heads."""
    (tmp_path / "texts.txt").write_text("abcabcabc\nxyzzyxyz\n")
    result = call(
        "prune", "--model", "gpt2", "--random", "--texts", "texts.txt", "--shares", "0,0.5", "--json",
        "--save", "smaller", "--remove", "0.25", "--out", "prune.png",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert [curve["order"] for curve in said["curves"]] == ["least first", "random", "most first"]
    assert len({curve["loss"][0] for curve in said["curves"]}) == 1
    assert (tmp_path / "prune.png").read_bytes().startswith(b"\x89PNG")
    kept = load(tmp_path / "smaller").model.config.kept_heads
    assert sum(map(len, kept)) == 108  # of 144


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["heads", " "], "TEXT is empty"),
        (["heads", TEXT, "--texts", "texts.txt"], "TEXT or --texts, not both"),
        (["heads", "--texts", "empty.txt"], "has no text"),
        (["heads", TEXT, "--csv", "-", "--json"], "--csv - and --json both print"),
        (["heads", TEXT, "--model", "nowhere"], "there is no model 'nowhere'"),
        (["heads", TEXT, "--out", "no/such/folder.png"], "cannot write 'no/such/folder.png'"),
        (["heads", TEXT, "--csv", "no/such/folder.csv"], "cannot write 'no/such/folder.csv'"),
        (["prune", "--model", "minilm"], "no language-model or masked head, so it has no loss of its own"),
        (["prune", "--texts", "texts.txt"], "two texts at least"),
        (["prune", "--shares", "0,half"], "--shares must be numbers"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(call, tmp_path, arguments, reason):
    """The reason, exit code 2, no traceback."""
    (tmp_path / "texts.txt").write_text("one text\n")
    (tmp_path / "empty.txt").write_text("\n")
    result = call(*arguments)
    assert result.exit_code == 2
    assert reason in " ".join(result.output.split())
