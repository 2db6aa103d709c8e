"""Assignments: the file, the points, what students hand in, a class of eight, and what graders get."""

import csv
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tomllib
import zipfile
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import ClassVar

import pytest
from classroom import RIGHT, answers, hand_in, write_class, wrong
from click.testing import CliRunner

from regard.checking import session, starters
from regard.checking.assignment import CHOICES, DEFAULTS, HANDOUTS, KINDS, Part, load
from regard.checking.catalogue import ours
from regard.checking.check import Checker
from regard.checking.grading import checker_of, file_name, grade_class, grade_one
from regard.checking.handin import MOST_BYTES, MOST_FILES, HandIn, hand_ins, student_of
from regard.checking.handout import FORMS, example, write
from regard.checking.marks import Grade, Line, Mark, grade, grade_of, mark, share
from regard.checking.reports import marks as reports
from regard.checking.submission import read
from regard.cli import main
from regard.errors import ArgumentError, LoadError

TWO = ("masked-softmax", "rnn-step")


def assignment_of(folder, text="", ids=TWO):
    """An assignment with these lines above its exercises."""
    path = folder / "homework.toml"
    path.write_text(text + "".join(f"\n[exercise.{id}]" for id in ids))
    return load(path)


class Remembering(Checker):
    """Checks a text once: what it is worth by different rules is another matter."""

    known: ClassVar[dict] = {}

    def check(self, submission, answer):
        key = submission.cells, answer.exercise.id, self.commented
        if key not in self.known:
            self.known[key] = super().check(submission, answer)
        return replace(self.known[key], file=submission.path)


@pytest.fixture
def graded(tmp_path, runner):
    """Grades one answer of one exercise by an assignment with these lines."""

    def grade_text(source, text="", id="masked-softmax", submitted=None):
        assignment = assignment_of(tmp_path, text, [id])
        commented = [id] if assignment.parts[id].comments == "required" else []
        counted = {"comments_count": True, "strict": True, "commented": commented}
        checker = Remembering(assignment.exercises, runner, 23, **counted)
        folder = tmp_path / "answer"
        folder.mkdir(exist_ok=True)
        (folder / f"{id.replace('-', '_')}.py").write_text(source)
        return grade(assignment, checker, HandIn("ada"), folder, submitted)[0]

    return grade_text


# The file.


def test_the_example_has_every_key_with_its_default(tmp_path):
    """What `new` writes sets what holds without it, and the two keys that have no default stand there too."""
    (tmp_path / "long.toml").write_text(example("A \"title\" with 'quotes'", list(TWO)))
    (tmp_path / "short.toml").write_text("".join(f"[exercise.{id}]\n" for id in TWO))
    long, short = load(tmp_path / "long.toml"), load(tmp_path / "short.toml")
    assert long.title == "A \"title\" with 'quotes'"
    assert replace(long, path=short.path, title=short.title) == short
    text = (HANDOUTS / "assignment.toml").read_text()
    assert "# deadline = " in text
    assert "# from = " in text
    assert set(DEFAULTS) - {"title"} <= set(Part.__annotations__) | set(type(long).__annotations__)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("points = 'ten'", "points must be a number from 0 to 1000000. Got 'ten'."),
        ("points = -1", "points must be a number from 0"),
        ("points = nan", "points must be a number"),
        ("points = true", "points must be a number"),
        ("wrong_keeps = 1.5", "wrong_keeps must be a number from 0 to 1. Got 1.5."),
        ("few_lines = 2.5", "few_lines must be a whole number"),
        ("line_length = 3", "line_length must be a whole number from 40"),
        ("all_or_nothing = 1", "all_or_nothing must be true or false. Got 1."),
        ("conventions = 'loose'", 'conventions must be "free" or "fixed". Got \'loose\'.'),
        ("comments = 3", 'comments must be "free" or "checked" or "required". Got 3.'),
        ("hidden = 'values'", "hidden must be a list of texts. Got 'values'."),
        ("forbid = [1]", "forbid must be a list of texts. Got [1]."),
        ("deadline = 2027-01-31", "deadline must be a date and time"),
        ("title = 1", "title must be a text. Got 1."),
        ("late_perday = 0.1", "Did you mean 'late_per_day'?"),
        ("weights = 3", "weights must be a table. Got 3."),
        ("weights = {value = 3}", "weights.value: there is no key 'value'. Did you mean 'values'?"),
        ("weights = {values = 0}", "weights.values must be a number from 1e-06"),
        ("bonus = 1", "exercise.masked-softmax: bonus needs few_lines"),
        ("from = 'nowhere'", "nowhere is no folder"),
        ("exercise = 3", "exercise must be a table"),
        ("[exercise.masked-softmx]", "Did you mean 'masked-softmax'?"),
        ("[exercise]\nmasked-softmax = 3", "exercise.masked-softmax must be a table. Got 3."),
        ("[exercise.rnn-step]\ntitle = 'a'", "exercise.rnn-step.title: there is no key 'title'"),
        ("[exercise.rnn-step.weights]\nvalues = 'a'", "exercise.rnn-step.weights.values must be a number"),
        ("[exercise.rnn-step]\npoints = [", "is not TOML"),
        ("", "sets no exercise"),
    ],
)
def test_a_wrong_key_or_value_is_named(text, said, tmp_path):
    """By its place, with what it must be and what was given, and the name that was probably meant."""
    path = tmp_path / "homework.toml"
    path.write_text(text if "exercise" in text or not text else f"{text}\n[exercise.masked-softmax]\n")
    with pytest.raises(LoadError) as error:
        load(path)
    assert said in str(error.value)
    assert str(path) in str(error.value) or "nowhere" in said


def test_every_choice_and_a_file_that_is_not_there(tmp_path):
    """All words that a key may have are read; a missing file is one clear line."""
    for key, words in CHOICES.items():
        for word in words:
            assignment_of(tmp_path, f"{key} = '{word}'")
    with pytest.raises(LoadError, match="cannot be read: No such file"):
        load(tmp_path / "none.toml")


def test_a_key_below_an_exercise_holds_for_that_one(tmp_path):
    """The exercise's word comes before the assignment's, and weights are joined kind by kind."""
    path = tmp_path / "homework.toml"
    path.write_text(
        "points = 7\nweights = {gradients = 5}\n[exercise.masked-softmax]\n"
        "[exercise.rnn-step]\npoints = 3\nweights = {memory = 9}\n"
    )
    first, second = load(path).parts.values()
    assert (first.points, second.points) == (7, 3)
    assert first.weights == {**DEFAULTS["weights"], "gradients": 5}
    assert second.weights == {**DEFAULTS["weights"], "gradients": 5, "memory": 9}


def test_a_hidden_check_that_there_is_not_is_named_before_any_work(tmp_path, runner):
    """With the check that was probably meant."""
    assignment = assignment_of(tmp_path, "hidden = ['gradient']")
    with pytest.raises(ArgumentError, match=r"masked-softmax: hidden: .* Did you mean 'gradients'"):
        checker_of(assignment, runner)


def test_an_exercise_from_a_folder_is_set_graded_and_handed_on(tmp_path, runner):
    """`from` stands beside the file; its exercises are marked, and go along to a grader."""
    starters.new_exercise("double-it", tmp_path / "course" / "double_it")
    assignment = assignment_of(tmp_path, "from = 'course'", ["double-it"])
    (tmp_path / "answer.py").write_text(ours()["rnn-step"].right[0])
    (tmp_path / "double_it.py").write_text("def double_it(x):\n    return 2 * x\n")
    assert grade_one(assignment, runner, tmp_path / "double_it.py").points == 10
    assert "course/double_it/exercise.toml" in FORMS["gradescope"](assignment)


# Points.


def line(kind, passed, **more):
    return Line(f"{kind} {passed}", kind, passed, **more)


def part_of(tmp_path, text=""):
    return next(iter(assignment_of(tmp_path, text).parts.values()))


def test_points_are_those_of_the_rule_worked_by_hand(tmp_path):
    """Values 3 of 4, gradients 1 of 1, robustness 1 of 2: 3/4 x (6 + 2 + 2/2) / 10 x 0.5 = 0.3375."""
    part = part_of(tmp_path)
    lines = [line("values", True)] * 3 + [line("values", False), line("gradients", True)]
    lines += [line("robustness", True), line("robustness", False)]
    assert share(part, lines, lines) == pytest.approx(0.3375)
    right = [replace(one, passed=True) if one.kind == "values" else one for one in lines]
    assert share(part, right, right) == pytest.approx(0.9)  # (6 + 2 + 1) / 10
    assert share(part_of(tmp_path, "wrong_keeps = 1"), lines, lines) == pytest.approx(0.675)
    assert share(part_of(tmp_path, "wrong_keeps = 0"), lines, lines) == 0
    assert share(part_of(tmp_path, "all_or_nothing = true"), right, right) == 0
    assert share(part_of(tmp_path, "weights = {robustness = 0}"), right, right) == 1


def test_an_answer_without_one_right_value_earns_nothing(tmp_path):
    """However robust it is: as a starter whose inputs stay unchanged."""
    lines = [line("values", False), line("robustness", True), line("gradients", True)]
    assert share(part_of(tmp_path), lines, lines) == 0


@pytest.mark.parametrize("n_right", range(12))
def test_no_wrong_answer_keeps_half(n_right, tmp_path):
    """Whatever else passes, one wrong value of twelve and more leave less than wrong_keeps."""
    lines = [line("values", number < n_right) for number in range(12)]
    lines += [line(kind, True) for kind in KINDS if kind != "values"]
    assert share(part_of(tmp_path), lines, lines) < 0.5


def test_ignoring_causality_keeps_less_than_half(graded):
    """It passes most checks: by their number alone it would keep most of the points."""
    texts = ours()["multi-head-self-attention"].right
    text = next(text for text in texts if "if self.causal:" in text).replace("if self.causal:", "if False:")
    (marked,) = graded(text, id="multi-head-self-attention").marks
    assert sum(one.passed for one in marked.lines) / len(marked.lines) > 0.6
    assert 0 < marked.points < 5
    assert any("future" in one.name and not one.passed for one in marked.lines)


def test_hidden_checks_are_marked_apart(graded, tmp_path):
    """Seen points tell nothing of hidden ones, hidden ones tell their names alone, both add up."""
    text = "hidden = ['robustness', 'one query']\nhidden_share = 0.4\nportability = 'required'"
    (whole,) = graded(RIGHT["masked-softmax"], text).marks
    assert (whole.points, whole.hidden_points, whole.hidden_out_of) == (10, 4, 4)
    fragile = RIGHT["masked-softmax"].replace(", device=X.device", "")
    (marked,) = graded(fragile, text).marks
    assert marked.points - marked.hidden_points == 6
    assert 0 < marked.hidden_points < 4
    assert marked.reasons == ["robustness: device: a hidden check failed."]
    assert "device" in next(iter(marked.mistakes.values()))  # which is for the teacher
    assignment = load(tmp_path / "homework.toml")
    rows = json.loads(reports.gradescope(assignment, Grade("ada", [marked])))["tests"]
    assert [(row["name"], row["max_score"], row["visibility"]) for row in rows] == [
        ("masked-softmax", 6, "visible"),
        ("masked-softmax: hidden checks", 4, "after_due_date"),
    ]
    assert rows[0]["output"].startswith("passed.")
    assert "device" not in rows[0]["output"]
    assert "device" in rows[1]["output"]


def test_where_all_values_are_hidden_so_are_all_points(graded):
    """Otherwise what is seen would tell whether they are right."""
    (marked,) = graded(RIGHT["masked-softmax"], "hidden = ['values']").marks
    assert (marked.points, marked.hidden_points, marked.hidden_out_of) == (10, 10, 10)


def test_a_starter_earns_nothing_and_counts_as_no_answer(graded):
    """Also with another comment in it."""
    given = graded("# mine\n" + ours()["masked-softmax"].starter)
    assert given.points == 0
    assert given.unanswered == ["masked-softmax"]


def test_a_starter_left_above_the_answer_does_not_hide_it(graded):
    """In a notebook the cell that was given out often stays."""
    text = ours()["multi-head-self-attention"].right[0]
    both = ours()["multi-head-self-attention"].starter + "\n\n" + text
    assert graded(both, id="multi-head-self-attention").points == 10


CONVENTION = """import torch


def masked_softmax(X, valid_lens=None):
    if valid_lens is None:
        return torch.softmax(X, -1)
    lengths = valid_lens if valid_lens.dim() == 2 else valid_lens[:, None]
    hidden = torch.arange(X.shape[-1], device=X.device) >= lengths[..., None]  # [b, q, k]
    scores = X.masked_fill(hidden, float("-inf"))
    return torch.softmax(scores, -1)
"""


def test_conventions_are_free_or_fixed(graded):
    """A row of length 0 that is NaN is right by another convention; fixed, it is a wrong value."""
    assert graded(CONVENTION).points == 10
    fixed = graded(CONVENTION, "conventions = 'fixed'")
    assert 0 < fixed.points < 5
    assert "only our choice counts" in " ".join(fixed.marks[0].reasons)


def test_shape_comments_are_free_checked_or_required(graded):
    """Wrong ones cost where they count, and none cost where they are required."""
    wrong_comment = CONVENTION.replace("# [b, q, k]", "# [b, q]")
    none = CONVENTION.replace("  # [b, q, k]", "")
    assert graded(wrong_comment).points == 10
    assert graded(none, "comments = 'checked'").points == 10
    # 10 of 12 parts of the weight: values 6, gradients 2, robustness 2, and comments 2.
    assert graded(wrong_comment, "comments = 'checked'").points == pytest.approx(8.33)


def test_required_shape_comments_stand_at_every_line_that_makes_a_tensor(graded):
    """A right answer with one comment lacks three; sizes and modules need none, a wrong one is wrong."""
    every = CONVENTION.replace("[b, q, k]", "[b, one_or_q, k]")
    every = every.replace("valid_lens[:, None]\n", "valid_lens[:, None]  # [b, one_or_q]\n")
    every = every.replace('float("-inf"))\n', 'float("-inf"))  # [b, q, k]\n')
    every = every.replace("-1)\n", "-1)  # [b, q, k]\n").replace("    if", "    n = X.shape[-1]\n    if")
    assert graded(every, "comments = 'required'").points == 10
    assert (
        graded(
            every.replace("(scores, -1)  # [b, q, k]", "(scores, -1)  # [b, k]"), "comments = 'required'"
        ).points
        < 10
    )
    some = graded(CONVENTION, "comments = 'required'")
    # 10 of 12 parts of the weight, and half of the two of comments: those that are there are right.
    assert some.points == pytest.approx(10 * 11 / 12, abs=0.01)
    assert "no shape comment" in " ".join(some.marks[0].reasons)
    assert "line 6, line 7, line 9, line 10" in " ".join(some.marks[0].reasons)


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        ("forbid = ['torch.nn.functional.softmax']", False),
        ("forbid = ['arange']", False),
        ("forbid = ['einsum']", True),
        ("allow = ['torch.softmax', 'arange']", True),
        ("allow = ['torch.exp']", False),
    ],
)
def test_an_answer_uses_only_what_it_may(rule, allowed, graded):
    """Otherwise it earns nothing, and is told which name it was."""
    (marked,) = graded(CONVENTION, rule).marks
    assert marked.points == (10 if allowed else 0)
    if not allowed:
        assert marked.status == "not allowed"
        assert "does not allow torch." in marked.reasons[0]


def test_ways_around_the_list_are_refused_too(graded):
    """`getattr` and a helper of the same file are no way to reach what is forbidden."""
    hidden_name = CONVENTION.replace(
        "torch.softmax(scores, -1)", 'getattr(torch, "soft" + "max")(scores, -1)'
    )
    assert "getattr" in graded(hidden_name, "forbid = ['einsum']").marks[0].reasons[0]
    helper = CONVENTION.replace("    return torch.softmax(scores, -1)", "    return last(scores)")
    helper += "\ndef last(x):\n    return torch.softmax(x, -1)\n"
    assert graded(helper, "forbid = ['softmax']").points == 0


def test_few_lines_earn_a_bonus_that_semicolons_do_not_buy(graded):
    """Seven lines of code: signature, four statements and an if with its return."""
    rule = "bonus = 2\nfew_lines = {}"
    assert graded(CONVENTION, rule.format(7)).points == 12
    assert graded(CONVENTION, rule.format(6)).points == 10
    joined = CONVENTION.replace("\n    scores = ", "; scores = ").replace("  # [b, q, k]", "")
    assert graded(joined, rule.format(6)).points == 10


def test_style_costs_what_the_assignment_says(graded, monkeypatch):
    """Each finding of ruff, up to a most; without ruff nothing, and the teacher is told."""
    untidy = CONVENTION.replace("X.masked_fill(hidden,", "X.masked_fill( hidden,") + "x=1;y = 2\n"
    (why, lost), *_ = graded(untidy, "style = 0.25").deductions.items()
    assert "PEP 8" in why
    assert lost == pytest.approx(0.25 * int(why.split(", ")[1].split()[0]))
    assert list(graded(untidy, "style = 5\nstyle_most = 1.5").deductions.values()) == [1.5]
    assert graded(CONVENTION, "style = 0.25").deductions == {}
    monkeypatch.setattr("regard.checking.written.shutil.which", lambda name, path=None: None)
    given = graded(untidy, "style = 0.25")
    assert given.deductions == {}
    assert "ruff is not installed" in given.problems[0]


@pytest.mark.parametrize(("hours", "days", "points"), [(-1, 0, 10), (1, 1, 8), (25, 2, 6), (900, 38, 0)])
def test_each_day_begun_after_the_deadline_costs(hours, days, points, graded):
    """A fifth a day, and never more than all."""
    deadline = datetime(2027, 1, 31, 23, 59)
    text = "deadline = 2027-01-31T23:59:00\nlate_per_day = 0.2"
    given = graded(CONVENTION, text, submitted=deadline + timedelta(hours=hours))
    assert (given.days_late, given.points) == (days, points)


def test_a_grade_survives_its_file(graded):
    """What is kept as JSON is read back the same, so that a second run can use it."""
    given = graded(wrong("masked-softmax"), "style = 1")
    assert grade_of(json.loads(json.dumps(given.as_json()))) == given


# What is handed in.


@pytest.mark.parametrize(
    ("name", "student"),
    [
        ("ada", "ada"),
        ("ada_masked_softmax", "ada"),
        ("masked-softmax-ada", "ada"),
        ("ada_masked_softmax (1)", "ada"),
        ("Ada Lovelace_31415_assignsubmission_file", "Ada Lovelace_31415"),
        ("lovelaceada_LATE_123_456_masked_softmax", "lovelaceada_123"),
        ("masked_softmax", "masked_softmax"),
        ("masked_softmax (2)", "masked_softmax (2)"),
    ],
)
def test_the_student_is_read_from_the_name(name, student):
    """As people, Moodle and Canvas name files and folders."""
    assert student_of(name, ["masked_softmax", "homework"]) == student


def test_every_layout_is_one_folder_of_files(tmp_path):
    """A folder, a zip, a zip in a folder and files with names give the same files."""
    files = {"masked_softmax.py": "a = 1\n", "rnn_step.py": "b = 2\n"}
    given = tmp_path / "given"
    given.mkdir()
    for student, layout in (("ada", "folder"), ("bob", "zip"), ("cyn", "files")):
        hand_in(given, student, layout, files)
    (given / "dan").mkdir()
    (given / "bob.zip").rename(given / "dan" / "homework.zip")
    hand_in(given, "bob", "zip", files)
    (given / "ada" / ".git").mkdir()
    (given / "ada" / ".git" / "hook.py").write_text("")
    (given / "readme.txt").write_text("no submission")
    for student in hand_ins(given, ["masked_softmax", "rnn_step"]):
        out = tmp_path / student.student
        student.copy_to(out)
        copied = {path.name.removeprefix("cyn_"): path.read_text() for path in out.rglob("*.*")}
        assert copied == files
        assert student.problems == []
    assert [student.student for student in hand_ins(given, ["masked_softmax", "rnn_step"])] == [
        "ada",
        "bob",
        "cyn",
        "dan",
    ]


def test_the_same_file_in_a_folder_and_in_a_zip_is_kept_twice(tmp_path):
    """Neither replaces the other."""
    hand_in(tmp_path, "ada", "folder", {"a.py": "x = 1"})
    with zipfile.ZipFile(tmp_path / "ada.zip", "w") as archive:
        archive.writestr("a.py", "x = 2")
    (student,) = hand_ins(tmp_path, [])
    student.copy_to(tmp_path / "out")
    assert {path.read_text() for path in (tmp_path / "out").rglob("*.py")} == {"x = 1", "x = 2"}


def test_a_zip_cannot_write_elsewhere(tmp_path):
    """Names that lead out, absolute ones, drives and links are left out, and said."""
    link = zipfile.ZipInfo("link.py")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        for name in ("../out.py", "a/../../out.py", "/tmp/out.py", "..\\out.py", "C:\\out.py", "C:/out.py"):
            archive.writestr(name, "bad")
        archive.writestr(link, "/etc/passwd")
        archive.writestr("good.py", "x = 1")
    student = HandIn("evil", [tmp_path / "evil.zip"])
    student.copy_to(tmp_path / "inside")
    assert [path.name for path in tmp_path.rglob("*.py")] == ["good.py"]
    assert len(student.problems) == 7
    assert "leads out of its folder" in student.problems[0]


def test_links_in_a_folder_are_left_out(tmp_path):
    """A link could lead to another student's answer, or to the solution."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "solution.py").write_text("x = 1")
    (tmp_path / "given" / "eve").mkdir(parents=True)
    (tmp_path / "given" / "eve" / "a.py").symlink_to(tmp_path / "secret" / "solution.py")
    (tmp_path / "given" / "eve" / "b").symlink_to(tmp_path / "secret")
    (tmp_path / "given" / "mal").symlink_to(tmp_path / "secret")
    for student in hand_ins(tmp_path / "given", []):
        student.copy_to(tmp_path / "out")
        assert student.problems
    assert not (tmp_path / "out").exists()


def test_a_bomb_is_bounded_and_the_code_beside_it_is_read(tmp_path):
    """Of what unpacks to more than there is room for nothing is kept, and nothing after it is unpacked."""
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.bin", b"\0" * (MOST_BYTES + 1))
        archive.writestr("data.txt", "after it")
        archive.writestr("zz_answer.py", "x = 1")
    student = HandIn("bomb", [tmp_path / "bomb.zip"])
    student.copy_to(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["zz_answer.py"]
    assert student.problems == ["bomb.bin and what comes after it were left out: more than 64 MB."]


def test_a_thousand_files_are_enough(tmp_path):
    """Code comes first, so that what is left out is no answer."""
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as archive:
        for number in range(MOST_FILES):
            archive.writestr(f"{number}.txt", "")
        archive.writestr("zz_answer.py", "x = 1")
    student = HandIn("many", [tmp_path / "many.zip"])
    student.copy_to(tmp_path / "out")
    assert (tmp_path / "out" / "zz_answer.py").exists()
    assert len(list((tmp_path / "out").iterdir())) == MOST_FILES
    assert student.problems == ["1 files were left out: more than 1000."]


@pytest.mark.parametrize("data", [b"", b"no zip", b"PK\x05\x06" + b"\xff" * 18])
def test_a_damaged_zip_is_a_problem_and_no_error(data, tmp_path):
    """The class is graded on, and the teacher is told."""
    (tmp_path / "ada.zip").write_bytes(data)
    student = HandIn("ada", [tmp_path / "ada.zip"])
    student.copy_to(tmp_path / "out")
    assert "cannot be unpacked" in student.problems[0]


def test_a_damaged_member_is_a_problem_and_the_others_are_read(tmp_path):
    """A byte of the compressed data is changed."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.py", "x = 1\n" * 99)
        archive.writestr("b.py", "y = 2\n")
    data = bytearray(held.getvalue())
    data[40] ^= 255
    (tmp_path / "ada.zip").write_bytes(data)
    student = HandIn("ada", [tmp_path / "ada.zip"])
    student.copy_to(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.py"]
    assert "'a.py' cannot be read" in student.problems[0]


def test_an_empty_folder_of_submissions_is_said(tmp_path):
    """And so is a file in its place."""
    with pytest.raises(LoadError, match="holds no submission"):
        hand_ins(tmp_path, [])
    (tmp_path / "file").write_text("")
    with pytest.raises(LoadError, match="is no folder"):
        hand_ins(tmp_path / "file", [])


# A class.


@pytest.fixture(scope="module")
def eight(tmp_path_factory, runner):
    """Eight students of two exercises, graded."""
    folder = tmp_path_factory.mktemp("class")
    done = write_class(folder / "submissions", 8, TWO)
    (folder / "submissions" / "=evil<b>.zip").write_bytes(b"no zip")
    assignment = assignment_of(folder, "title = 'A <b>class</b>'")
    (folder / "marks").mkdir()
    (folder / "marks" / "seed").write_text("23")
    students = hand_ins(folder / "submissions", ["masked_softmax", "rnn_step"])
    grades = {one.student: one for one, _ in grade_class(assignment, runner, students, folder / "marks")}
    return folder, done, {student.student: grades[student.student] for student in students}


def test_each_answer_of_a_class_earns_what_it_should(eight):
    """Right ones all, wrong ones less than half, and what is no answer nothing; twice counts once."""
    _, done, grades = eight
    assert set(grades) == {*done, "=evil<b>"}
    seen = set()
    for student, kinds_done in done.items():
        for marked in grades[student].marks:
            kind = kinds_done[marked.exercise]
            seen.add(kind)
            if kind in ("right", "twice"):
                assert (marked.points, marked.status) == (10, "passed"), (student, marked)
            elif kind == "wrong":
                assert 0 <= marked.points < 5, (student, marked)
                assert marked.mistakes
            else:
                assert marked.points == 0, (student, marked)
            assert (marked.exercise in grades[student].unanswered) == (
                kind in ("broken", "starter", "empty", "missing")
            )
    assert seen == {"right", "wrong", "broken", "twice", "starter", "empty", "missing"}


def test_a_class_has_a_row_for_each_student(eight):
    """As CSV and JSON with the same points, and no cell that a spreadsheet would compute."""
    folder, _, grades = eight
    rows = list(csv.DictReader((folder / "marks" / "marks.csv").read_text().splitlines()))
    assert [float(row["points"]) for row in rows] == [one.points for one in grades.values()]
    for row in rows:
        exercises = float(row["masked-softmax"]) + float(row["rnn-step"])
        assert float(row["points"]) == pytest.approx(exercises, abs=0.005)
        assert float(row["out of"]) == 20
    assert not any(cell.startswith(("=", "+", "@")) for row in rows for cell in row.values())
    page = json.loads((folder / "marks" / "marks.json").read_text())
    assert [one["points"] for one in page["students"]] == [one.points for one in grades.values()]
    assert {one["mistake"] for one in page["mistakes"]} >= {"the lengths are ignored", "the bias left out"}


def test_the_pages_escape_what_students_wrote(eight):
    """The summary links to a page for each, whatever the student is called."""
    folder, _, grades = eight
    text = (folder / "marks" / "summary.html").read_text()
    assert "<b>class" not in text
    assert "evil<b>" not in text
    assert "Hide the scores of keys at or past each length" in text
    for student in grades:
        page = folder / "marks" / "feedback" / f"{file_name(student)}.html"
        assert "evil<b>" not in page.read_text()
        assert page.name.split("-")[0].removesuffix(".html") in text


def test_a_second_run_grades_what_changed_and_nothing_else(eight, runner, tmp_path):
    """A student who is new, one whose file changed, one whose marks are damaged; then nobody."""
    folder = tmp_path / "again"
    shutil.copytree(eight[0], folder)
    given = folder / "submissions"
    hand_in(given, "late", "folder", {"rnn_step.py": RIGHT["rnn-step"]})
    (given / "student000" / "rnn_step.py").write_text(RIGHT["rnn-step"])
    (folder / "marks" / "students" / "student001.json").write_text("{")

    def again(assignment):
        students = hand_ins(given, ["masked_softmax", "rnn_step"])
        made = grade_class(assignment, runner, students, folder / "marks")
        return {one.student: one.points for one, new in made if new}

    assignment = load(folder / "homework.toml")
    assert again(assignment) == {"late": 10, "student000": 20, "student001": pytest.approx(0, abs=5)}
    assert again(assignment) == {}
    assert len(list(csv.DictReader((folder / "marks" / "marks.csv").read_text().splitlines()))) == 10


def test_what_is_graded_is_kept_when_grading_is_broken_off(tmp_path, runner):
    """Marks and pages of those before are written, and the next run goes on from there."""
    write_class(tmp_path / "given", 3, ["rnn-step"])
    assignment = assignment_of(tmp_path, ids=["rnn-step"])
    students = hand_ins(tmp_path / "given", ["rnn_step"])
    with closing(grade_class(assignment, runner, students, tmp_path / "marks")) as grades:
        next(grades)
    kept = len(list((tmp_path / "marks" / "students").glob("*.json")))
    assert kept >= 1
    assert (tmp_path / "marks" / "marks.csv").exists()
    again = grade_class(assignment, runner, students, tmp_path / "marks")
    assert sum(new for _, new in again) == 3 - kept


def test_an_answer_cannot_read_another_students(tmp_path, runner):
    """Files with names lie in one folder, and are graded each in their own."""
    (tmp_path / "ada_rnn_step.py").write_text(RIGHT["rnn-step"])
    (tmp_path / "eve_rnn_step.py").write_text("from ada_rnn_step import rnn_step\n")
    assignment = assignment_of(tmp_path, ids=["rnn-step"])
    grades = grade_class(assignment, runner, hand_ins(tmp_path, ["rnn_step"])[:2], tmp_path / "marks")
    assert {one.student: one.points for one, _ in grades} == {"ada": 10, "eve": 0}


# What graders get.


@pytest.mark.parametrize("form", FORMS)
def test_what_is_given_out_holds_no_solution(form, tmp_path):
    """Each starter is there; lines of right answers only in the master notebook, which otter takes apart."""
    assignment = assignment_of(tmp_path, "title = 'Two: \"exercises\"'", TWO)
    files = FORMS[form](assignment)
    write(files, tmp_path / ("out.zip" if form == "gradescope" else "out"))
    whole = "\n".join(files.values())
    telling = "rows = X.reshape(-1, X.shape[-1])"
    assert telling in ours()["masked-softmax"].right[0]
    assert (telling in whole) == (form == "otter")
    for name, text in files.items():
        if name.endswith(".ipynb"):
            cells = json.loads(text)["cells"]
            assert sum("raise NotImplementedError" in cell["source"] for cell in cells) == 2
            assert len({cell["id"] for cell in cells}) == len(cells)
    if form in ("gradescope", "github", "nbgrader", "otter"):
        assert tomllib.loads(files["assignment.toml"])["title"] == 'Two: "exercises"'


def test_gradescopes_zip_can_be_run(tmp_path):
    """Both scripts stand at its root and may be executed; a wheel goes along."""
    wheel = tmp_path / "regard-1-py3-none-any.whl"
    wheel.write_bytes(b"PK")
    write(FORMS["gradescope"](assignment_of(tmp_path)), tmp_path / "out.zip", wheel)
    modes = {
        info.filename: info.external_attr >> 16 for info in zipfile.ZipFile(tmp_path / "out.zip").infolist()
    }
    assert modes["setup.sh"] & modes["run_autograder"] & 0o100
    assert wheel.name in modes
    for script in ("setup.sh", "run_autograder"):
        text = zipfile.ZipFile(tmp_path / "out.zip").read(script)
        assert subprocess.run(["bash", "-n"], input=text).returncode == 0


@pytest.fixture
def one_runner(runner, monkeypatch):
    """Commands use the worker of all tests: starting one takes seconds."""
    monkeypatch.setattr("regard.commands.assignment.workers", lambda *given, **options: nullcontext(runner))


@pytest.fixture
def submission(tmp_path):
    """One student's folder: a wrong answer, and one exercise that is not answered."""
    (tmp_path / "submission").mkdir()
    (tmp_path / "submission" / "masked_softmax.py").write_text(wrong("masked-softmax"))
    assignment_of(tmp_path, "style = 0.1\n")
    return tmp_path


def test_gradescope_and_github_hear_the_same_of_one_student(submission, monkeypatch, one_runner):
    """Rows for exercises with reasons inside, annotations, a summary, and exit code 1 for GitHub."""
    monkeypatch.chdir(submission)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(submission / "step.md"))
    (submission / "meta.json").write_text(json.dumps({"created_at": "2026-11-17T12:00:00.123456-08:00"}))
    call = "assignment grade homework.toml submission --gradescope results.json --metadata meta.json --github"
    done = CliRunner().invoke(main, call.split(), catch_exceptions=False)
    assert done.exit_code == 1
    results = json.loads((submission / "results.json").read_text())
    assert [row["name"] for row in results["tests"]][:2] == list(TWO)
    assert results["score"] == pytest.approx(sum(row["score"] for row in results["tests"]), abs=0.01)
    assert 0 < results["tests"][0]["score"] < 5
    assert "the lengths are ignored" in results["tests"][0]["output"]
    assert results["tests"][1]["output"] == "not answered."
    annotations = done.stdout.splitlines()
    assert annotations[0].startswith("::error file=masked_softmax.py,title=masked-softmax%3A ")
    assert annotations[1] == "::error title=rnn-step%3A 0 of 10 points::not answered."
    summary = (submission / "step.md").read_text()
    assert f"## homework: {results['score']:g} of 20 points" in summary
    assert "| rnn-step | 0 of 10 | not answered |" in summary
    (submission / "submission" / "masked_softmax.py").write_text(RIGHT["masked-softmax"])
    (submission / "submission" / "rnn_step.py").write_text(RIGHT["rnn-step"])
    done = CliRunner().invoke(main, "assignment grade homework.toml submission --github".split())
    assert (done.exit_code, done.stdout) == (0, "")


def test_what_an_answer_says_cannot_command_github():
    """A message with a line break stays one command, and Markdown shows marks as they are."""
    said = "evil\n::set-env name=A::b\r<img src=x> [a](b) | `c`"
    marked = Mark("rnn-step", 10.0, "wrong", file="a,b:c.py", lines=[Line("a\nb", "values", False, said)])
    given = Grade("ada", [marked], {"late\n|": 1.0}, [said])
    assert reports.github_annotations(given).count("\n") == 1
    assert "file=a%2Cb%3Ac.py,title" in reports.github_annotations(given)
    assert "\n::" not in reports.github_summary("a\n# b", given)
    assert "<img" not in reports.github_summary("a", given).replace("\\<img", "")


def test_points_and_reasons_from_inside_a_notebook(tmp_path, monkeypatch, capsys):
    """The cells run so far are the answer; one that is no Python is left out; requirements raise."""
    assignment_of(tmp_path, ids=["rnn-step"])
    path = str(tmp_path / "homework.toml")
    cells = ["", "no python at all", RIGHT["rnn-step"]]
    shell = SimpleNamespace(history_manager=SimpleNamespace(input_hist_raw=cells))
    monkeypatch.setattr("regard.checking.session._shell", lambda: shell)
    assert session.points(path, "rnn-step") == 10
    assert capsys.readouterr().out == "rnn-step: 10 of 10 points.\n"
    session.require(path, "rnn-step", "gradients")
    cells.append(wrong("rnn-step"))
    assert session.points(path, "rnn-step") < 5
    assert "the bias left out" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="the bias left out"):
        session.require(path, "rnn-step", "robustness")
    cells[:] = ["x = 1"]
    assert session.points(path, "rnn-step") == 0
    with pytest.raises(AssertionError, match="not answered"):
        session.require(path, "rnn-step", "values")
    with pytest.raises(ArgumentError, match="no exercise 'rnn-stp'"):
        session.points(path, "rnn-stp")
    monkeypatch.setattr("regard.checking.session._shell", lambda: None)
    with pytest.raises(ArgumentError, match="no notebook"):
        session.points(path, "rnn-step")


def test_pytest_has_a_test_for_each_check(submission):
    """Those of a wrong answer fail as its checks do, an exercise without an answer fails, others stay."""
    folder = submission / "submission"
    (folder / "test_mine.py").write_text("def test_mine():\n    pass\n")
    (submission / "homework.toml").rename(folder / "homework.toml")
    options = [
        "-p",
        "no:regard",
        "-p",
        "regard.checking.pytest_plugin",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        "-v",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--regard", "homework.toml"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "masked-softmax: no lengths PASSED" in done.stdout
    assert "masked-softmax: one length for each query FAILED" in done.stdout
    assert "Your output is that of this mistake: the lengths are ignored." in done.stdout
    assert "rnn-step: answered FAILED" in done.stdout
    assert "test_mine PASSED" in done.stdout
    assert "Traceback" not in done.stdout


def test_new_build_grade_and_report_follow_one_another(tmp_path, monkeypatch, one_runner):
    """From an empty folder to marks, by the commands alone; nothing is written over."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        return CliRunner().invoke(main, ["assignment", *words], catch_exceptions=False)

    assert call("new", "hw.toml", "--exercise", "rnn-step", "--title", "One").exit_code == 0
    assert call("new", "hw.toml").exit_code == 2
    assert "Did you mean 'rnn-step'" in call("new", "b.toml", "--exercise", "rnn-stp").stderr
    assert call("build", "hw.toml").exit_code == 0
    assert call("build", "hw.toml").exit_code == 2
    (tmp_path / "given" / "ada").mkdir(parents=True)
    (tmp_path / "given" / "ada" / "hw.ipynb").write_bytes((tmp_path / "hw.ipynb").read_bytes())
    hand_in(tmp_path / "given", "bob", "files", {"rnn_step.py": answers("rnn-step", "right")[0]})
    shown = call("grade", "hw.toml", "given", "--jobs", "1")
    assert shown.exit_code == 0
    assert "One: 2 students, mean 5.0 of 10 points." in shown.stdout
    before = (tmp_path / "marks" / "marks.csv").read_text()
    (tmp_path / "marks" / "marks.csv").unlink()
    page = json.loads(call("report", "marks", "--json").stdout)
    assert [(one["student"], one["points"]) for one in page["students"]] == [("ada", 0), ("bob", 10)]
    assert (tmp_path / "marks" / "marks.csv").read_text() == before
    assert call("report", "given").exit_code == 2


def test_marks_of_an_imported_module_count(tmp_path, runner):
    """A notebook that imports its answers from a file beside it is marked by that file."""
    hand_in(tmp_path, "ada", "module", {"rnn_step.py": RIGHT["rnn-step"]})
    assignment = assignment_of(tmp_path, ids=["rnn-step"])
    (student,) = (one for one in hand_ins(tmp_path, ["rnn_step", "homework"]) if one.student == "ada")
    student.copy_to(tmp_path / "copied")
    (tmp_path / "copied" / "rnn_step.py").rename(tmp_path / "copied" / "solved.py")
    notebook = tmp_path / "copied" / "homework.ipynb"
    notebook.write_text(notebook.read_text().replace("from rnn_step", "from solved"))
    checker = checker_of(assignment, runner, 5)
    (result,) = checker.check_files([str(notebook)])
    marked, _ = mark(assignment.parts["rnn-step"], read(notebook), result)
    assert marked.points == 10
