"""`regard look` as a person meets it: the page, its files, the terminal, and where nothing can be had."""

import csv
import json
import os
import pty
import re
import signal
import subprocess
import sys
import urllib.request

import pytest
import torch
from click.testing import CliRunner
from tiny_models import tiny

from regard.cli import main
from regard.errors import LoadError
from regard.files import hub
from regard.tracing.take import trace

RANDOM = ("--model", "minilm", "--random")


@pytest.fixture
def regard_in(tmp_path, monkeypatch):
    """Runs the command in an empty folder, on a terminal of a given width."""

    def run(*arguments, columns=80):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", str(columns))
        return CliRunner().invoke(main, arguments, catch_exceptions=False)

    return run


def test_json_gives_rows_that_sum_to_one(regard_in):
    """Every token spreads a weight of 1 over the tokens, and the seed alone decides how."""
    first, again, other = (
        json.loads(regard_in("look", "a b", *RANDOM, "--seed", seed, "--json").stdout) for seed in "778"
    )
    assert first["rows"] == ["<cls>", "a", "␣", "b", "<sep>"]
    weights = torch.tensor(first["weights"])
    torch.testing.assert_close(weights.sum(1), torch.ones(5))
    assert first["weights"] == again["weights"] != other["weights"]


def test_without_a_terminal_the_page_and_a_picture_are_written(regard_in, tmp_path):
    """In a script nothing waits for a person: two files are written, named, and the command ends."""
    result = regard_in("look", "a b c", *RANDOM, "--out", "here.png")
    assert result.exit_code == 0
    assert "a b c" in result.stdout
    assert "██" in result.stdout
    assert (tmp_path / "here.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "here.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert re.search(r"page is in here\.html \([\d.]+ kB\)", result.stdout)
    assert "picture is in here.png" in result.stdout


def test_without_a_terminal_nothing_is_written_unless_asked(regard_in, tmp_path):
    """No file appears that nobody named: one head is drawn as text, and what to give is said."""
    result = regard_in("look", "a b c", *RANDOM)
    assert result.exit_code == 0
    assert list(tmp_path.iterdir()) == []
    assert "██" in result.stdout
    assert "--port serves the page" in result.stderr


def test_a_named_port_serves_without_a_terminal(regard_in, monkeypatch):
    """--port is a wish to look: the page is served, from the one trace that was taken."""
    served, made = [], []
    from regard.view import run

    taken = run.make_document
    monkeypatch.setattr(run, "make_document", lambda *given: made.append(given) or taken(*given))
    monkeypatch.setattr(
        "regard.view.server.serve",
        lambda session, token, bound, view: (served.append(session), bound.close()),
    )
    result = regard_in("look", "a b", *RANDOM, "--port", "0", "--no-browser")
    assert result.exit_code == 0
    assert "http://127.0.0.1:" in result.stdout
    (session,) = served
    assert json.loads(session.answer("trace", {"model": "minilm (random)", "text": "a b"}))["text"] == "a b"
    assert len(made) == 1


def test_a_heads_weights_are_written_as_csv(regard_in, tmp_path):
    """A line a query, and a column for each key, whose names are all different."""
    saved = trace(tiny("gpt2"), "a b c a")
    saved.save(tmp_path / "some.trace")
    written = regard_in("look", "some.trace", "--layer", "1", "--head", "3", "--csv", "some.csv")
    assert written.exit_code == 0, written.output
    with (tmp_path / "some.csv").open() as file:
        names, *rows = csv.reader(file)
    assert (names[0], len(set(names))) == ("query", 8)
    table = torch.tensor([[float(cell) for cell in row[1:]] for row in rows])
    torch.testing.assert_close(table, saved.weights(1, 3))


def test_text_is_read_from_a_file_or_standard_input(regard_in, tmp_path):
    """--file names a file, and - is standard input."""
    (tmp_path / "some.txt").write_text("xy", encoding="utf-8")
    said = json.loads(regard_in("look", *RANDOM, "--file", "some.txt", "--json").stdout)
    assert said["rows"] == ["<cls>", "x", "y", "<sep>"]
    typed = CliRunner().invoke(main, ["look", *RANDOM, "--file", "-", "--json"], input="zz")
    assert json.loads(typed.stdout)["rows"] == ["<cls>", "z", "z", "<sep>"]


def test_the_files_asked_for_are_written_and_no_others(regard_in, tmp_path):
    """--save, --png and --svg each write their one file."""
    result = regard_in("look", "ab", *RANDOM, "--save", "p.html", "--svg", "p.svg", "--layers", "1,3-4")
    assert result.exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.html", "p.svg"]
    assert b"<svg" in (tmp_path / "p.svg").read_bytes()
    named = re.findall(r'"name":"(encoder\.\d\.self)"', (tmp_path / "p.html").read_text(encoding="utf-8"))
    assert named == ["encoder.1.self", "encoder.3.self", "encoder.4.self"]


@pytest.mark.parametrize("view", ["map", "lines", "text", "heads"])
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_every_view_can_be_drawn_for_a_paper(regard_in, tmp_path, view, kind):
    """--png and --svg write the view asked for, without a browser."""
    result = regard_in("look", "ab", *RANDOM, "--view", view, f"--{kind}", f"a.{kind}", "--query", "2")
    assert result.exit_code == 0, result.output
    written = (tmp_path / f"a.{kind}").read_bytes()
    assert written.startswith(b"\x89PNG") if kind == "png" else b"<svg" in written


def test_views_of_one_head_differ(regard_in, tmp_path):
    """A picture follows --view, --query and --against: no two are the same."""
    asked = [("--view", "map"), ("--view", "text"), ("--view", "text", "--query", "1"), ("--against", "1.3")]
    for index, options in enumerate(asked):
        regard_in("look", "ab", *RANDOM, "--layer", "2", "--head", "5", "--png", f"{index}.png", *options)
    assert len({(tmp_path / f"{index}.png").read_bytes() for index in range(len(asked))}) == len(asked)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--against", "three"), "LAYER.HEAD"),
        (("--against", "9.0"), "there is no layer 9"),
        (("--against", "1.1", "--view", "text"), "a difference of two heads is a map"),
        (("--query", "4"), "there is no query 4"),
    ],
    ids=["words", "no such head", "not a map", "no such token"],
)
def test_a_picture_that_cannot_be_drawn_is_refused(regard_in, options, words):
    """Wrong options are named, and nothing is written."""
    result = regard_in("look", "ab", *RANDOM, "--png", "a.png", *options)
    assert result.exit_code != 0
    assert words in result.output


def test_with_nothing_to_be_had_a_model_that_needs_nothing_is_shown(regard_in, monkeypatch):
    """Without the network a trained model that comes with the package is shown, and that is said."""

    shipped = hub.get("pocket-gpt").parent

    def no_network(name, **more):
        if (shipped / name).exists():
            return shipped / name
        raise LoadError(f"{name} cannot be downloaded: no network.")

    monkeypatch.setattr("regard.files.hub.get", no_network)
    result = regard_in("look", "a b", "--terminal")
    assert result.exit_code == 0
    assert "no network" in result.stderr
    assert "pocket-gpt, which comes with Regard" in result.stderr
    assert "pocket-gpt, layer" in result.stdout
    refused = regard_in("look", "a b", "--terminal", "--model", "minilm")
    assert refused.exit_code == 2
    assert "no network" in refused.stderr


@pytest.mark.parametrize("word", ["$", "$\\frac$", "[bold]", "[/]", "日本語", "e\u0301"], ids=ascii)
def test_any_word_is_only_a_word(regard_in, word):
    """Words that mean something to matplotlib, to rich or to a font do nothing here."""
    assert regard_in("look", f"{word} seen", *RANDOM, "--layer", "0").exit_code == 0


def test_nothing_printed_steers_the_terminal(regard_in):
    """An escape code inside the text is shown as a replacement character."""
    result = regard_in("look", "a \x1b]0;title\x07 b", *RANDOM, "--terminal")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "\x07" not in result.stdout


def test_a_narrow_terminal_shows_what_fits(regard_in):
    """No row is wider than the terminal, and the tokens left out are counted."""
    result = regard_in("look", "abcdefghi" * 9, *RANDOM, "--terminal", columns=61)
    rows = [line for line in result.stdout.splitlines() if "░" in line]
    assert max(map(len, rows)) <= 61
    assert "first 24 of 83 tokens" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([""], "TEXT has no words"),
        ([" \t\n"], "TEXT has no words"),
        (["a", "--png", "nowhere/look.png"], "cannot write 'nowhere/look.png': there is no folder"),
        (["a", "--save", "nowhere/page.html"], "cannot write 'nowhere/page.html': there is no folder"),
        (["a", "--save", "p.html", "--layers", "x"], "--layers must be numbers and ranges"),
        (["a", "--save", "p.html", "--layers", "9"], "--layers must lie in 0 to 5"),
        (["a", "--layers", "1"], "--layers chooses what --save writes"),
        (["a", "--layer", "6"], "there is no layer 6: there are 6."),
        (["a", "--device", "abacus"], "cannot compute on device 'abacus'"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(regard_in, arguments, reason):
    """A refusal is a sentence on the error stream with exit code 2, and nothing on the output."""
    result = regard_in("look", *arguments, *RANDOM)
    assert result.exit_code == 2
    assert result.stdout == ""
    error = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(error) == 1
    assert reason in error[0]


@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is a Unix thing")
def test_on_a_terminal_the_page_is_served_until_ctrl_c(tmp_path):
    """The link that is printed opens the page; Ctrl-C ends the server at once."""
    outside, inside = pty.openpty()
    environment = {
        name: value for name, value in os.environ.items() if name not in ("CI", "DISPLAY", "WAYLAND_DISPLAY")
    }
    environment |= {"REGARD_CACHE": str(tmp_path), "TERM": "dumb", "COLUMNS": "400"}
    command = [sys.executable, "-m", "regard", "look", "a b", *RANDOM, "--port", "0", "--layer", "0"]
    server = subprocess.Popen(command, stdout=inside, stderr=inside, env=environment)
    os.close(inside)
    try:
        said = ""
        while "Ctrl-C" not in said:
            said += os.read(outside, 4096).decode()
        (address,) = re.findall(r"http://127\.0\.0\.1:\S+", said)
        with urllib.request.urlopen(address, timeout=60) as answer:
            shown = answer.read().decode()
        assert "regard-data" in shown
        assert (tmp_path / "page-token").stat().st_mode & 0o077 == 0
        server.send_signal(signal.SIGINT)
        assert server.wait(10) == 0
    finally:
        server.kill()
        server.wait()
        os.close(outside)


def test_a_trace_and_a_text_file_are_opened_by_name(regard_in, tmp_path):
    """x.trace needs no model, notes.txt is read; what is not there is said to be a missing file."""
    trace(tiny("gpt2"), "abc").save(tmp_path / "some.trace")
    (tmp_path / "notes.txt").write_text("a b", encoding="utf-8")
    seen = json.loads(regard_in("look", "some.trace", "--json").stdout)
    assert seen["rows"] == ["a", "b", "c"]
    assert json.loads(regard_in("look", "notes.txt", *RANDOM, "--json").stdout)["rows"][1:4] == [
        "a",
        "␣",
        "b",
    ]
    for call, words in (
        (["missing.trace"], "there is no file missing.trace"),
        (["missing.txt"], "'missing.txt': No such file"),
        (["some.trace", "--model", "pocket-gpt"], "some.trace is a trace"),
        (["notes.trace.txt"], "No such file"),
    ):
        result = regard_in("look", *call)
        assert result.exit_code == 2
        assert words in result.stderr
    assert "see notes.md" in regard_in("look", "see notes.md", *RANDOM).stdout
