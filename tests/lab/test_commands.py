"""`regard lab` and `regard cost`, as they are called."""

import json

import pytest
from click.testing import CliRunner

from regard.cli import main
from regard.costs.model import cost
from regard.costs.roofline import measure_machine, placed, roofline_figure, short_number
from regard.lab.catalogue import EXPERIMENTS
from regard.models.families import FAMILIES

SMOLLM2 = FAMILIES["llama"].config(FAMILIES["llama"].sizes["smollm2"])


@pytest.fixture
def regard_in(tmp_path, monkeypatch):
    """Runs the command in an empty folder."""

    def run(*arguments):
        monkeypatch.chdir(tmp_path)
        return CliRunner().invoke(main, arguments, catch_exceptions=False)

    return run


def test_lab_lists_every_experiment(regard_in):
    """One line each, with its claim."""
    lines = " ".join(regard_in("lab").stdout.split())
    assert all(f"{name} " in lines and claim in lines for name, claim in EXPERIMENTS.items())
    assert json.loads(regard_in("lab", "--json").stdout) == EXPERIMENTS


def test_lab_runs_one_and_writes_its_page_and_numbers(regard_in, tmp_path):
    """The page holds the sentence, the JSON the verdict; the folder is made."""
    result = regard_in("lab", "wide-values", "--quick", "--out", "here/there")
    assert result.exit_code == 0
    assert "Confirmed: " in result.stdout
    page = (tmp_path / "here/there/wide-values.html").read_text()
    said = json.loads((tmp_path / "here/there/wide-values.json").read_text())
    assert said["verdict"] == "confirmed"
    assert said["sentence"] in page


def test_lab_as_json_is_json_alone(regard_in, tmp_path):
    """Nothing but the result is on the output, and no file is written that nobody asked for."""
    said = json.loads(regard_in("lab", "nonlinear", "--quick", "--json").stdout)
    assert said["id"] == "nonlinear"
    assert "html" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["lab", "nothing"], "there is no experiment 'nothing'"),
        (["lab", "heads", "--all"], "give NAME or --all, not both"),
        (["cost", "--model", "nowhere"], "nowhere"),
        (["cost", "--model", "gpt2", "--out", "no/cost.png"], "cannot write 'no/cost.png'"),
        (["cost", "--context", "0"], "--context"),
    ],
    ids=["unknown", "both", "model", "folder", "context"],
)
def test_what_cannot_be_done_is_one_clear_line(regard_in, arguments, reason):
    """A refusal is a sentence with exit code 2."""
    result = regard_in(*arguments)
    assert result.exit_code == 2
    assert reason in result.stderr
    assert "Traceback" not in result.stderr


def test_cost_prints_the_tables_and_draws_the_roofline(regard_in, tmp_path):
    """The numbers are those of the cost model; what-if has kv heads 1, 3, 9 and latent."""
    arguments = ("cost", "--model", "smollm2", "--context", "8192", "--batch", "8", "--seconds", "0.01")
    said = json.loads(regard_in(*arguments, "--json", "--out", "cost.png").stdout)
    whole = cost(SMOLLM2, "decode", batch=8, length=8191)
    assert said["phases"]["decode"]["operations"] == whole.operations
    assert said["phases"]["decode"]["cache_bytes"] == whole.cache_bytes
    assert list(said["what_if"]) == ["1 kv (multi-query)", "3 kv (grouped)", "9 kv (multi-head)", "latent"]
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    shown = regard_in(*arguments, "--formulas").stdout
    assert "weighted values" in shown
    assert "2 L b t g k d" in shown
    assert "waits for" in shown


@pytest.mark.parametrize("model", ["gpt2", "bert", "t5", "minilm"])
def test_cost_takes_every_family(regard_in, model):
    """An encoder has no decoding step, the others have."""
    result = regard_in("cost", "--model", model, "--context", "64", "--seconds", "0.01", "--json")
    assert ("decode" in json.loads(result.stdout)["phases"]) == (model in ("gpt2", "t5"))


def test_each_operation_waits_for_what_takes_longer():
    """Times and bottleneck follow from peak and bandwidth, and the roof bends where both are equal."""
    machine = measure_machine(seconds=0.01, n_byte=1 << 20)
    assert machine.peak > 0
    assert machine.bandwidth > 0
    whole = cost(SMOLLM2, "decode", batch=2, length=99)
    for each in placed(whole, machine):
        reading, computing = each.row.n_byte / machine.bandwidth, each.row.n_operation / machine.peak
        assert each.seconds == max(reading, computing)
        assert (each.waits_for == "memory") == (each.row.intensity <= machine.ridge)
    figure = roofline_figure([whole], machine)
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"


def test_numbers_are_short():
    """Three figures and a letter."""
    assert [short_number(each) for each in (0, 999, 12_345, 1.5e9)] == ["0", "999", "12.3 k", "1.5 G"]
