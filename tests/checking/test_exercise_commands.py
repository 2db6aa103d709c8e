"""The commands: what they write, print and exit with."""

import contextlib
import json
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from regard.checking.starters import new_exercise
from regard.cli import main

RIGHT = "def double_it(x):\n    return x + x\n"
WRONG = "def double_it(x):\n    return x * 3\n"


@pytest.fixture
def regard_in(tmp_path, monkeypatch, runner):
    """Runs a command in a folder with one exercise of a teacher's, which loads faster than ours.

    The worker is that of all tests; `test_confinement.py` has commands that fork theirs.
    """
    shared = contextlib.nullcontext(runner)
    monkeypatch.setattr("regard.commands.exercises.workers", lambda *args, **options: shared)
    monkeypatch.chdir(tmp_path)
    new_exercise("double-it", tmp_path / "course" / "double_it")
    monkeypatch.setattr("regard.checking.catalogue.ours", dict)

    def run(*arguments):
        return CliRunner().invoke(main, [*arguments], catch_exceptions=False)

    return run


def test_check_exits_with_what_it_found_and_hints_follow(regard_in, tmp_path):
    """0 passed, 1 failed, 2 could not be done; hints after a named mistake are about it, grade by grade."""
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    passed = regard_in("check", "right.py", "--from", "course", "--json")
    assert passed.exit_code == 0
    (result,) = json.loads(passed.stdout)
    assert result["passed"] is True
    assert result["mistakes"] == []

    failed = regard_in("check", "wrong.py", "--from", "course", "--json", "--seed", "7")
    assert failed.exit_code == 1
    (result,) = json.loads(failed.stdout)
    assert result["mistakes"] == [{"name": "three times", "hint": "Half too large."}]
    assert set(result) == {
        "file",
        "exercise",
        "passed",
        "mistakes",
        "nearest",
        "conventions",
        "checks",
        "seed",
    }
    assert result["seed"] == 7
    assert set(result["checks"][0]) == {"name", "passed", "message"}

    hints = [regard_in("hint", "double-it", "--from", "course").stdout.strip() for _ in range(5)]
    assert hints[0] == "symptom (three times): Half too large."
    assert [hint.split(" ")[0] for hint in hints] == ["symptom", "place", "cause", "fix", "fix"]
    listed = json.loads(regard_in("exercises", "--from", "course", "--json").stdout)
    assert listed[-1]["progress"] == "passed"  # what was reached stays reached

    assert regard_in("check", "none.py", "--from", "course").exit_code == 2
    assert regard_in("check", "right.py", "--from", "course", "--exercise", "none").exit_code == 2


def test_a_folder_is_checked_whole(regard_in, tmp_path):
    """Scripts and notebooks that answer something are checked, helpers beside them are not answers."""
    (tmp_path / "work" / "inner").mkdir(parents=True)
    (tmp_path / "work" / "helper.py").write_text("def other(): pass\n")
    (tmp_path / "work" / "a.py").write_text(RIGHT)
    (tmp_path / "work" / "inner" / "b.py").write_text(WRONG)
    (tmp_path / "work" / ".ipynb_checkpoints").mkdir()
    (tmp_path / "work" / ".ipynb_checkpoints" / "c.py").write_text(WRONG)
    results = json.loads(regard_in("check", "work", "--from", "course", "--json").stdout)
    assert [(result["file"], result["passed"]) for result in results] == [
        ("work/a.py", True),
        ("work/inner/b.py", False),
    ]


def test_an_answer_of_another_file_of_the_folder_does_not_pass(regard_in, tmp_path):
    """Imported or read; a module of one's own that answers nothing may be imported."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "ada.py").write_text("from helper import two\n\n\ndef double_it(x):\n    return two * x\n")
    (work / "helper.py").write_text("two = 2\n")
    (work / "bob.py").write_text("from ada import double_it\n")
    reads = f"scope = {{}}\nexec(open({str(work / 'ada.py')!r}).read(), scope)\n"
    (work / "eve.py").write_text(reads + "\n\ndef double_it(x):\n    return scope['double_it'](x)\n")
    results = json.loads(regard_in("check", "work", "--from", "course", "--json").stdout)
    assert {result["file"]: result["passed"] for result in results} == {
        "work/ada.py": True,
        "work/eve.py": False,
    }


def test_a_broken_cell_fails_a_notebook_whose_other_answers_pass(regard_in, tmp_path):
    """The cell, the line and the text are told, and the exit code is that of a failure."""
    cells = [{"cell_type": "code", "source": text} for text in (RIGHT, "def third(x:\n    return x")]
    (tmp_path / "homework.ipynb").write_text(json.dumps({"cells": cells}))
    done = regard_in("check", "homework.ipynb", "--from", "course")
    assert done.exit_code == 1
    told = " ".join(done.stdout.split())
    assert "cell 2 is no Python: line 1" in told
    assert "1 of 2 passed" in told


def test_a_check_of_ours_that_fails_costs_one_result(regard_in, tmp_path, monkeypatch):
    """An error in judging one answer is said of that one; the reports hold all the others."""
    from regard.checking.check import Checker

    judged = Checker._check

    def breaks(self, submission, answers, offer):
        if "second" in submission.path:
            raise TypeError("a bug")
        return judged(self, submission, answers, offer)

    monkeypatch.setattr(Checker, "_check", breaks)
    for name in ("first", "second", "third"):
        (tmp_path / f"{name}.py").write_text(RIGHT)
    names = ["first.py", "second.py", "third.py"]
    done = regard_in("check", *names, "--from", "course", "--json", "--html", "r.html")
    results = json.loads(done.stdout)
    assert [result["passed"] for result in results] == [True, False, True]
    assert "a mistake of ours: TypeError: a bug" in results[1]["checks"][0]["message"]
    assert "third.py" in (tmp_path / "r.html").read_text()


def test_results_are_written_as_they_come(regard_in, tmp_path, monkeypatch):
    """What breaks the command off leaves the results before it on the page; a kill does too."""
    from regard.checking.check import Checker

    checked, there_before_the_end = Checker.check_files, []

    def breaks(self, *arguments):
        yield next(checked(self, *arguments))
        there_before_the_end.append("first.py" in (tmp_path / "r.html").read_text())
        raise KeyboardInterrupt

    monkeypatch.setattr(Checker, "check_files", breaks)
    (tmp_path / "first.py").write_text(RIGHT)
    (tmp_path / "second.py").write_text(RIGHT)
    regard_in("check", "first.py", "second.py", "--from", "course", "--html", "r.html")
    assert "first.py" in (tmp_path / "r.html").read_text()
    assert there_before_the_end == [True]


def test_hide_solutions_refuses_where_files_cannot_be_withheld(tmp_path, monkeypatch):
    """No answer runs where it could read the right variants."""
    monkeypatch.setattr("regard.checking.child.confine.landlock_version", lambda: 0)
    (tmp_path / "right.py").write_text(RIGHT)
    done = CliRunner().invoke(main, ["check", str(tmp_path / "right.py"), "--hide-solutions"])
    assert done.exit_code == 2
    assert "Landlock" in done.output


def test_check_writes_every_report(regard_in, tmp_path):
    """The page and the JUnit file are where they were asked for."""
    (tmp_path / "wrong.py").write_text(WRONG)
    reports = ["--html", "r.html", "--junit", "r.xml"]
    result = regard_in("check", "wrong.py", "--from", "course", *reports)
    assert result.exit_code == 1
    assert "Your output is that of this mistake: three times" in " ".join(result.stdout.split())
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "r.xml").read_text().startswith("<?xml")


@pytest.mark.parametrize("suffix", [".py", ".ipynb"])
def test_start_writes_a_file_that_check_reads(regard_in, tmp_path, suffix):
    """The starter names its exercise by its signature, fails as not written yet, and is not written over."""
    options = ["--notebook"] if suffix == ".ipynb" else []
    assert regard_in("start", "double-it", "--from", "course", *options).exit_code == 0
    result = regard_in("check", f"double_it{suffix}", "--from", "course", "--json")
    assert result.exit_code == 1
    (told,) = json.loads(result.stdout)
    assert told["exercise"] == "double-it"
    assert "not written yet" in told["checks"][0]["message"]
    again = regard_in("start", "double-it", "--from", "course", *options)
    assert again.exit_code == 2
    assert "--force" in again.output


def test_author_new_and_check_work_together(regard_in, tmp_path):
    """What `new` writes, `check` proves; an unknown id is refused with those that exist."""
    assert regard_in("author", "new", "twice-as-much", "--in", "course").exit_code == 0
    assert regard_in("author", "new", "twice-as-much", "--in", "course").exit_code == 2
    proved = regard_in("author", "check", "twice-as-much", "--from", "course", "--json")
    assert proved.exit_code == 0
    assert json.loads(proved.stdout)["holds"] is True
    unknown = regard_in("author", "check", "none", "--from", "course")
    assert unknown.exit_code == 2
    assert "double-it" in unknown.output


def test_quiz_marks_an_answer_and_asks_in_turn(regard_in):
    """One answer on the command line, or all questions one after the other."""
    assert regard_in("quiz", "split", "--answer", "(h b, n, d/h)").exit_code == 0
    wrong = regard_in("quiz", "split", "--answer", "(b, n, d)", "--json")
    assert wrong.exit_code == 1
    assert json.loads(wrong.stdout)["right"] is False
    assert regard_in("quiz", "--answer", "x").exit_code == 2
    assert regard_in("quiz", "none", "--answer", "x").exit_code == 2
    asked = CliRunner().invoke(main, ["quiz", "variance"], input="d mu\n")
    assert "regard lab variance" in asked.output
    assert "0 of 1 right" in asked.output
    assert any(row["question"] == "split" for row in json.loads(regard_in("quiz", "--list", "--json").stdout))


def test_watch_checks_again_when_the_file_is_saved(regard_in, tmp_path):
    """Saving the file gives a second report, without the command being started again."""
    path = tmp_path / "answer.py"
    path.write_text(WRONG)
    command = [sys.executable, "-m", "regard", "check", "answer.py", "--from", "course", "--watch", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        try:
            assert json.loads(process.stdout.readline())[0]["passed"] is False
            time.sleep(0.5)  # the time of the last change must be another
            path.write_text(RIGHT)
            assert json.loads(process.stdout.readline())[0]["passed"] is True
        finally:
            process.terminate()
            process.communicate()
