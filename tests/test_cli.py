"""The command line as a whole: what it refuses, and what it completes. `look` has tests of its own."""

import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from regard.cli import main


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
        ("$REGARD exercises | head -1", "exercise"),
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
