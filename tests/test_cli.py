"""The command line as a whole: what it refuses, and what it completes. `look` has tests of its own."""

import os
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
