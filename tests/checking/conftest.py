"""One worker with torch loaded for all tests of this folder, and no progress in anybody's home."""

import pytest

from regard.checking.catalogue import ours
from regard.checking.check import Checker
from regard.checking.runner import Runner
from regard.checking.submission import answered, from_source


@pytest.fixture(scope="session")
def runner():
    with Runner(1) as started:
        yield started


@pytest.fixture(scope="session")
def exercises():
    """A few of the catalogue, so that tests of the engine do not wait for all of it."""
    few = ("masked-softmax", "rnn-step", "multi-head", "multi-head-lengths", "multi-head-mask")
    return {id: ours()[id] for id in few}


@pytest.fixture(scope="session")
def checker(exercises, runner):
    return Checker(exercises, runner, seed=23)


@pytest.fixture(scope="session")
def check(checker):
    """Checks the text of a script as an answer to one exercise."""

    def check_text(text, id):
        submission = from_source(text)
        (answer,) = answered(submission, checker.exercises, id)
        return checker.check(submission, answer)

    return check_text


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
