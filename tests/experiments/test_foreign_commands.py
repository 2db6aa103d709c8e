"""`regard why`, `heads`, `prune` and `generate` on a folder that only transformers knows."""

import json

import pytest
from click.testing import CliRunner
from heads.test_foreign_heads import foreign, tokenizer

from regard.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("folders") / "neox"
    foreign("gpt_neox").save_pretrained(path)
    tokenizer().save(str(path / "tokenizer.json"))
    return str(path)


def call(*args, code=0):
    result = CliRunner().invoke(main, args)
    assert result.exit_code == code, result.output
    return result.output


def test_why_prints_a_table_and_json(folder, tmp_path):
    """The same findings either way; the picture is where it was asked for."""
    text = "w5 w17 w3 w42 w8"
    said = json.loads(call("why", text, "--model", folder, "--top", "2", "--json"))
    printed = call("why", text, "--model", folder, "--top", "2", "--out", str(tmp_path / "why.png"))
    assert said["target"] in printed
    assert {one["kind"] for one in said["findings"]} == {"head", "edge", "position"}
    assert f"{said['findings'][0]['change']:+.3f}" in printed
    assert (tmp_path / "why.png").stat().st_size > 5000
    assert "one token" in call("why", text, "--model", folder, "--target", "w5 w3", code=2)
    assert "empty" in call("why", "  ", "--model", folder, code=2)


def test_heads_prune_and_generate_take_the_folder(folder, tmp_path):
    """Measures of its heads, what their loss costs, and a text; a smaller model of it cannot be saved."""
    lines = tmp_path / "lines.txt"
    lines.write_text("w5 w17 w3 w42 w8 w29 w11\nw9 w2 w40 w7 w13 w2 w40\n")
    measured = json.loads(call("heads", "--texts", str(lines), "--model", folder, "--json"))
    assert len(measured["heads"]) == 8
    curves = json.loads(call("prune", "--texts", str(lines), "--model", folder, "--shares", "0,1", "--json"))
    assert curves["curves"][0]["loss"][0] != curves["curves"][0]["loss"][1]
    save = ("--save", str(tmp_path / "smaller"))
    refused = call("prune", "--texts", str(lines), "--model", folder, "--shares", "0", *save, code=2)
    assert "model of our own" in refused
    assert call("generate", "w5 w17 w3", "--model", folder, "--max-new", "3").startswith("w5 w17 w3")
