"""bench/answers.tsv, from which bench/answers.py counts, says of every answer of ours what it is."""

import csv
import re
from pathlib import Path

import pytest

from regard.checking.catalogue import ours

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def rows():
    with (BENCH / "answers.tsv").open(newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_every_answer_of_ours_is_judged_once(rows):
    """No file of bench/answers is left out of the counts, and no name stands for two files."""
    files = [row["file"] for row in rows]
    assert len(files) == len(set(files))
    assert {path.name for path in (BENCH / "answers").iterdir()} <= set(files)


def test_rows_are_about_exercises_that_exist(rows):
    """A renamed exercise does not silently lose its answers."""
    assert {row["exercise"] for row in rows} == set(ours())


def test_a_wrong_answer_has_a_mistake_and_what_it_may_be_called(rows):
    """Only a wrong answer can be named, and its name is a regular expression."""
    for row in rows:
        assert row["verdict"] in ("right", "wrong", "free", "note", "odd"), row["file"]
        assert (row["verdict"] == "right") == (not row["mistake"]), row["file"]
        if row["verdict"] == "wrong":
            assert re.fullmatch("yes|no: .+", row["values"]), row["file"]
            assert row["name"], row["file"]
            for pattern in row["name"].split(" & "):
                re.compile(pattern)
