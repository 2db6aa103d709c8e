"""Reports: the terminal, the page, JUnit and Gradescope say the same and escape what they show."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from click import unstyle

from regard.checking.check import Result
from regard.checking.compare import Difference
from regard.checking.judge import Check
from regard.checking.reports import ci, html
from regard.checking.reports.terminal import report

WRONG = "import torch\ndef masked_softmax(X, valid_lens=None):\n    return torch.softmax(X, -1)\n"
EVIL = "<script>alert(1)</script>&\"'\x00\ud800"


class Tags(HTMLParser):
    """Every tag of a page, and whether they are closed in order."""

    VOID = ("meta", "!doctype")

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def wrong(check):
    return check(WRONG, "masked-softmax")


@pytest.fixture
def evil():
    return Result(
        EVIL, EVIL, (Check(EVIL, False, EVIL), Check("secret", False, EVIL, hidden=True)), notes=(EVIL,)
    )


def test_the_page_draws_expected_yours_and_difference(wrong):
    """Three pictures with rows named, wrong cells outlined, and nothing loaded from elsewhere."""
    page = html.page([wrong])
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.seen.count("figure") >= 3
    assert "rows are query, columns key" in page
    assert "solid #e53935" in page
    assert "http://" not in page
    assert "https://" not in page


def test_nothing_a_student_wrote_becomes_markup(evil):
    """Names, messages and paths are text on every page and in every file."""
    page = html.page([evil])
    assert "<script" not in page
    assert "alert(1)" in page
    root = ElementTree.fromstring(ci.junit([evil]))
    assert root.find("testsuite/testcase/failure") is not None


def test_junit_counts_checks_and_failures(wrong):
    """One case for each check, one failure for each that failed."""
    suite = ElementTree.fromstring(ci.junit([wrong])).find("testsuite")
    assert int(suite.get("tests")) == len(wrong.checks) == len(suite.findall("testcase"))
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure")) > 0


def test_a_hidden_check_tells_its_name_alone_in_every_report(evil):
    """Also in the list for scripts, and on the page."""
    assert "alert" not in json.dumps(evil.as_json()["checks"][1])
    assert (
        html.page([replace(evil, checks=evil.checks[1:], file="", exercise="", notes=())]).count("alert") == 0
    )


def lines(result):
    return unstyle(report(result, width=100)).splitlines()


def test_a_pass_is_one_line_and_a_failure_has_one_for_each_thing_it_says(wrong):
    """Checks with wrong numbers are one line; of the others each message is told."""
    passed = Result("a.py", "some", (Check("plain", True), Check("device", True)))
    assert len(lines(passed)) == 1
    apart = Difference("apart")
    checks = [Check(f"c{n}", False, f"wrong {n}.", difference=apart) for n in range(7)]
    checks += [Check("gradients", False, "cut."), Check("called twice", False, "kept.", "fragile")]
    checks += [Check("dropout", False, "kept.", "train mode")]
    failing = lines(Result("a.py", "some", tuple(checks)))
    assert failing[1:] == [
        "  ✗ c0; c1; c2 and 4 more: wrong 0.",
        "  ✗ gradients: cut.",
        "  ✗ called twice; dropout: kept.",
    ]


def test_the_terminal_shows_the_numbers_of_the_smallest_case(wrong):
    """Expected, yours and difference stand side by side, and a hidden check says nothing."""
    text = report(wrong, width=100)
    assert "expected" in text
    assert "difference" in text
    assert "rows are query, columns key" in text


def test_what_comes_nearest_stands_in_every_report(wrong):
    """Where no known mistake fits, a page and a build server say the same as the terminal."""
    result = replace(wrong, mistakes=(), nearest="Nearest: rows and columns <exchanged>.")
    cases = ElementTree.fromstring(ci.junit([result])).findall(".//failure")
    assert all(case.text.endswith(result.nearest) for case in cases)
    assert "Nearest: rows and columns &lt;exchanged&gt;." in html.page([result])
