"""Answers checked where they are written: `regard.check` and `%%check`, in a real IPython."""

import pytest
from IPython.core.interactiveshell import InteractiveShell

import regard
from regard.checking.child.messages import Cell
from regard.checking.progress import Progress
from regard.checking.quiz import questions
from regard.checking.session import needed
from regard.errors import ArgumentError

HELPER = "import torch\n\ndef helper(x):\n    return x.softmax(-1)"
RIGHT = """def masked_softmax(X, valid_lens=None):
    if valid_lens is None:
        return helper(X)
    lens = valid_lens if valid_lens.dim() == 2 else valid_lens[:, None]
    hidden = torch.arange(X.shape[-1], device=X.device) >= lens[..., None]
    return helper(X.masked_fill(hidden, -torch.inf)).nan_to_num(0)
"""
INVERTED = RIGHT.replace(">=", "<")


@pytest.fixture(scope="module")
def shell():
    """An IPython with a session behind it: a cell that takes long, one that is broken, one that is needed."""
    shell = InteractiveShell.instance()
    for source in ("%load_ext regard", "ran = []", "ran.append(open('missing').read())", "this is", HELPER):
        shell.run_cell(source, store_history=True)
    yield shell
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()


def run(shell, source):
    """What a cell shows, and what it raised."""
    shown = []
    formatter = shell.display_formatter
    real, formatter.format = formatter.format, lambda value, *_, **__: (shown.append(value), ({}, {}))[1]
    try:
        done = shell.run_cell(source, store_history=True)
    finally:
        formatter.format = real
    return shown[-1] if shown else None, done.error_in_exec


def test_a_cell_is_run_and_its_mistake_is_named(shell):
    report, error = run(shell, f"%%check masked-softmax --seed 1\n{INVERTED}")
    assert error is None
    assert not report.passed
    assert "the mask is upside down" in repr(report)
    html = report._repr_html_()
    assert "the mask is upside down" in html
    assert "<figure" in html
    assert "!regard hint masked-softmax" in html
    assert "masked_softmax" in shell.user_ns  # the cell was run


def test_a_right_answer_is_one_line(shell):
    report, _ = run(shell, f"%%check\n{RIGHT}")
    assert report.passed, report
    assert "<figure" not in report._repr_html_()
    assert [result.exercise for result in report.results] == ["masked-softmax"]


def test_an_object_is_checked_with_what_it_needs_of_the_session(shell):
    shell.run_cell(RIGHT, store_history=True)
    report, error = run(shell, "import regard\nregard.check(masked_softmax)")
    assert error is None
    assert report.passed, report


def test_a_cell_that_fails_is_not_checked(shell):
    report, error = run(shell, "%%check\n1 / 0")
    assert report is None
    assert error is None or isinstance(error, ZeroDivisionError)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("masked-sotfmax", "did you mean 'masked-softmax'"),
        ("--seed x", "not a valid integer"),
        ("a b", "unexpected extra argument"),
        ("--wrong", "no such option"),
    ],
)
def test_what_stands_behind_the_magic_is_checked_before_anything_runs(shell, line, words):
    report, error = run(shell, f"%%check {line}\nnever_run = 1")
    assert report is None
    assert words in str(error).lower().replace("“", "'")
    assert "never_run" not in shell.user_ns


def test_a_file_is_checked_by_its_path(tmp_path):
    file = tmp_path / "answer.py"
    file.write_text(f"{HELPER}\n\n{INVERTED}")
    report = regard.check(file, seed=1)
    assert "the mask is upside down" in repr(report)


def test_what_is_no_answer_is_refused():
    with pytest.raises(ArgumentError, match="Got an object of type int"):
        regard.check(3)
    made = eval("lambda X, valid_lens=None: X")
    with pytest.raises(ArgumentError, match="source"):
        regard.check(made)


def test_only_what_is_needed_is_kept():
    cells = [
        Cell("cell 1, ", "import torch, os\nslow = train()"),
        Cell(
            "cell 2, ",
            "from math import *\n@decorated\ndef f(x):\n    return g(torch.ones(x))\n\nprint(f(2))",
        ),
        Cell("cell 3, ", "def g(x):\n    return x\n\ndecorated = lambda f: f\nother = 1"),
    ]
    sources = [cell.source for cell in needed(cells, ["f"])]
    assert sources == [
        "import torch, os",
        "from math import *\n@decorated\ndef f(x):\n    return g(torch.ones(x))",
        "def g(x):\n    return x\n\ndecorated = lambda f: f",
    ]
    assert needed([], ["f"]) == ()


def test_a_function_does_not_need_what_only_shares_a_name_with_its_variables():
    cells = [
        Cell("cell 1, ", "x = y = weights = slow()\nscale = 2\nclass Half:\n    nonlocal q"),
        Cell("cell 2, ", "def f(x, *, y=scale):\n    weights = [y for y in x]\n    return weights, len(x)"),
    ]
    assert [cell.source for cell in needed(cells, ["f", "Half"])] == [
        "\nscale = 2\nclass Half:\n    nonlocal q",
        cells[1].source,
    ]


def test_a_question_is_shown_and_an_answer_marked(shell):
    shown, _ = run(shell, "%quiz scores")
    assert "The shape of the scores?" in repr(shown)
    assert "<details>" in shown._repr_html_()
    assert repr(run(shell, "%quiz scores (b*h, n, m)")[0]) == "right."
    assert "dimension 3" in repr(run(shell, "%quiz scores (b*h, n, n)")[0])
    assert "did you mean" in str(run(shell, "%quiz scroes")[1]).lower()
    assert Progress().status("question scores") == "passed"
    assert repr(run(shell, "%quiz argmax it doesn't train")[0])  # an apostrophe opens no quotation


def test_a_blank_is_marked_as_it_was_written(shell):
    """Quotation marks are a part of it."""
    blank = next(asked for asked in questions().values() if asked.kind == "blank" and '"' in asked.answer)
    assert repr(run(shell, f"%quiz {blank.id} {blank.answer}")[0]) == "right."


def test_a_cell_that_awaits_is_refused_in_words(shell):
    _, error = run(shell, "%%check\nimport asyncio\nawait asyncio.sleep(0)")
    assert "awaits cannot be checked" in str(error)


def test_an_experiment_is_run_in_a_line(shell):
    shown, error = run(shell, "%lab wide values --quick")
    assert error is None
    assert repr(shown).startswith("Confirmed")
    assert "data:image/png" in shown._repr_html_()
