"""Written questions and the formulas they are marked with."""

import json

import pytest
from click.testing import CliRunner

from regard.checking.expressions import equal, parse, same_order
from regard.checking.quiz import mark, question, questions
from regard.cli import main
from regard.errors import ArgumentError


@pytest.fixture
def blanks(runner, monkeypatch):
    """Blanks are filled in by the worker of all tests."""
    monkeypatch.setattr("regard.checking.quiz.warm_runner", lambda: runner)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("2d", "d+d", True),
        ("bnd", "d*b n", True),
        ("(a+b)^2", "a^2 + 2ab + b²", True),
        ("(a+b)^2", "a^2 + b^2", False),
        ("sqrt(d)", "d^0.5", True),
        ("d/(2n)", "d/2n", False),
        ("a - -b", "a + b", True),
        ("√d", "d^(1/2)", True),
        ("d n", "d + n", False),
        ("nlog(d)", "n * log(d)", True),
    ],
)
def test_equal_formulas_are_equal_however_they_are_written(first, second, same):
    """Products without a sign, powers, brackets and roots are read as people mean them."""
    assert equal(first, second, ["a", "b", "d", "n"]) is same


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("O(3 n^2 d + n d + 7)", "n^2 d", True),
        ("bd(n+d)", "b n d + b d^2", True),
        ("n^2 d", "n d^2", False),
        ("max(n, d)", "n + d", True),
        ("n log(n)", "n", False),
        ("d n / h", "n k", True),
        ("n sqrt(d)", "n d", False),
    ],
)
def test_orders_keep_only_the_terms_that_matter(first, second, same):
    """Constants and outgrown terms do not count; d = h k is known."""
    assert same_order(first, second, ["b", "n", "d", "h", "k"], {"d": "h*k"}) is same


@pytest.mark.parametrize(
    "text",
    [
        "",
        "d +",
        "x",
        "__import__('os')",
        "d^d",
        "d^999",
        "(" * 400,
        "d; d",
        "lambda: d",
        "d.real",
        "1/0 +",
        "((d+1)^12)^12",
        "2^d",
        "d2",
        "d, d",
    ],
)
def test_what_is_no_formula_is_refused_in_words(text):
    """Nothing but arithmetic of the given symbols is read, let alone run."""
    with pytest.raises(ArgumentError):
        parse(text, ["d"])


def test_every_question_accepts_its_own_answer_and_no_empty_one(blanks):
    """The answers on file are marked right, blanks by running them; another one is marked wrong."""
    for asked in questions().values():
        marked = mark(asked, asked.answer)
        assert marked.right is (None if asked.kind == "open" else True), asked.id
        if asked.kind == "open":
            assert asked.lab in marked.message
        elif asked.kind == "blank":
            assert mark(asked, "0.123").right is False
        elif asked.kind == "shape":
            assert mark(asked, "(b, b, b)").right is False
        else:
            assert mark(asked, asked.answer + f" * {asked.symbols[0]}").right is False


def test_a_blank_may_be_filled_in_another_way(blanks):
    """What counts is what comes out."""
    assert mark(question("blank-scores"), "k.mT").right
    assert mark(question("blank-scale"), "k.shape[2] ** 0.5").right
    assert not mark(question("blank-split"), "X").right
    assert "no Python" in mark(question("blank-split"), "X..").message
    assert "fails" in mark(question("blank-scores"), "k").message


def test_shapes_may_be_written_with_any_brackets():
    """[b h, n, d/h] is (b*h, n, d/h)."""
    assert mark(question("split"), "[h b, n, d / h]").right
    assert "3 dimensions, and yours 2" in mark(question("split"), "(b h, n)").message


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("d (σ^4 + μ^2 σ^2)", "has another factor at the term in d mu^2 sigma^2"),
        ("d σ⁴", "lacks a term in d mu^2 sigma^2"),
        ("d^2 (sigma^4 + 2 mu^2 sigma^2)", "has a factor too many: d. At d = 2, mu = 3, sigma = 5"),
        ("d (sigma^4 + 2 mu^2 sigma^2) + 1", "should not have a constant term"),
    ],
)
def test_a_wrong_formula_is_told_what_is_wrong(given, words):
    marked = mark(question("variance"), given)
    assert not marked.right
    assert words in marked.message
    assert "where it should be 2150" in marked.message  # 2 (5^4 + 2 * 3^2 * 5^2), worked by hand


def test_greek_letters_are_read():
    assert mark(question("variance"), "d (σ⁴ + 2μ²σ²)").right


def test_both_forms_of_heads_count_and_their_difference_is_told():
    folded, apart = (mark(question("scores"), text) for text in ("(b*h, n, m)", "(b, h, n, m)"))
    assert folded.right
    assert apart.right
    assert "Folded into the batch" in apart.message
    assert not mark(question("scores"), "(b, n, h, m)").right


def test_an_open_question_shows_what_a_good_answer_says():
    marked = mark(question("argmax"), "it is not smooth")
    assert marked.right is None
    assert "- q and k get no gradient" in marked.message


@pytest.mark.parametrize("given", ["d/0", "0/0", "sqrt(0-1)", "log(0)", "1/(d-d)"])
def test_a_formula_without_a_value_is_said_to_have_none(given):
    assert "has no value" in mark(question("variance"), given).message


def test_a_formula_is_compared_where_it_has_a_value():
    """At d = 2 this one has none, which is no reason to say that it never has."""
    assert "At d = 3, mu = 5, sigma = 7 yours is" in mark(question("variance"), "mu/(d - 2)").message


def test_what_was_answered_is_kept():
    for answer in ("sqrt(d)", "d"):
        CliRunner().invoke(main, ["quiz", "scale", "--answer", answer])
    listed = json.loads(CliRunner().invoke(main, ["quiz", "--json"]).stdout)
    assert [row["question"] for row in listed if row["right"]] == ["scale"]
