"""The page on adding an exercise is the exercise: its files are written as they stand there, and proved."""

import re
from pathlib import Path

import pytest

from regard.checking.author import prove
from regard.checking.catalogue import from_folder
from regard.checking.check import Checker
from regard.checking.runner import Runner
from regard.checking.submission import answered, from_source

PAGE = (Path(__file__).parents[2] / "docs" / "adding" / "exercise.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`(temperature_softmax/[\w./]+)`\n\n```\w+\n(.*?)^```$", PAGE, re.M | re.S))


@pytest.fixture(scope="module")
def exercises(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exercises")
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return from_folder(folder)


@pytest.fixture(scope="module")
def runner():
    with Runner(1) as started:
        yield started


def test_the_page_shows_every_file_of_an_exercise():
    """Task, starter, two right answers and the table."""
    kinds = [name.removeprefix("temperature_softmax/") for name in FILES]
    assert kinds == ["task.md", "starter.py", "right/plain.py", "right/divides.py", "exercise.toml"]


def test_the_exercise_of_the_page_passes_its_own_proof(exercises, runner):
    """What the page says of `regard author check` holds for its files."""
    proof = prove(exercises["temperature-softmax"], runner)
    assert [line.what for line in proof.lines if not line.holds] == []


def test_a_convention_is_told_in_the_task_and_to_the_answer_that_chose_otherwise(exercises, runner):
    """The page quotes the end of the task; an answer that is NaN at temperature 0 passes with a note."""
    exercise = exercises["temperature-softmax"]
    quoted = " ".join(re.findall(r"^> ?(.*)$", PAGE, re.M))
    assert " ".join(exercise.task.split()).endswith(" ".join(quoted.split()))
    submission = from_source(FILES["temperature_softmax/right/divides.py"])
    for strict in (False, True):
        checker = Checker(exercises, runner, seed=3, strict=strict)
        (answer,) = answered(submission, exercises)
        result = checker.check(submission, answer)
        assert result.passed is not strict
        assert strict or any("NaN, as a division by 0 gives" in note for note in result.conventions)


def test_a_wrong_answer_is_told_by_the_name_on_the_page(exercises, runner):
    """The mistake is found by its numbers."""
    wrong = FILES["temperature_softmax/right/plain.py"].replace(
        "scores / temperature", "scores * temperature"
    )
    submission = from_source(wrong)
    (answer,) = answered(submission, exercises)
    result = Checker(exercises, runner, seed=3).check(submission, answer)
    names = [mistake.name for named in result.mistakes for mistake in named.mistakes]
    assert names == ["multiplied by the temperature"]
