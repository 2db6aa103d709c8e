"""The report as a page: what failed, and pictures of expected, yours and the difference."""

import itertools
import math
from dataclasses import replace

import torch
from torch import Tensor

from regard.checking.check import Result
from regard.checking.marks import sentences
from regard.checking.reports.terminal import WrongCase, failures, seed_of, wrong_cases
from regard.drawing import html
from regard.drawing.html import Markup, joined, table, tag
from regard.errors import plural

YOURS = "yours (wrong cells outlined, leaked ones thick)"
MOST_CELLS = 32  # rows or columns of a picture
NUMBERS_UP_TO = 12  # columns in which a number still fits


def page(results: list[Result]) -> str:
    """A self-contained page on all results."""
    rows = []
    for index, result in enumerate(results):
        mistakes = [mistake.name for named in result.mistakes for mistake in named.mistakes]
        link = tag("a", result.exercise or "no exercise", href=f"#r{index}")
        rows.append((link, result.file, word(result.passed), ", ".join(mistakes)))
    summary = tag("p", f"{sum(result.passed for result in results)} of {len(results)} passed.")
    sections = (section(index, result) for index, result in enumerate(results))
    listed = table(("exercise", "file", "", "mistake"), rows)
    return html.page("Exercises", joined([summary, listed, *sections]))


def cell(results: list[Result]) -> str:
    """All results as a notebook's cell shows them: a line for what passed, else what failed."""
    return html.fragment(joined([_short(index, result) for index, result in enumerate(results)]))


def _short(index: int, result: Result) -> Markup:
    if result.passed:
        line = tag("p", word(True), f" {result.exercise}, {plural(len(result.checks), 'check')}.")
        return joined([line, *map(_convention, result.conventions)])
    first = []
    for checks in failures(result):  # the first of each group, and how many fail like it
        more = f" and {len(checks) - 1} more" if checks[1:] else ""
        first.append(replace(checks[0], name=checks[0].name + more))
    n_passed = sum(check.passed for check in result.checks)
    hint = f" A hint: !regard hint {result.exercise}" if result.exercise else ""
    n_check = plural(len(result.checks), "check")
    count = tag("p", f"{n_passed} of {n_check} passed.{hint}", class_="dim")
    return section(index, replace(result, checks=tuple(first)), n_picture=1) + count


def word(passed: bool, text: str = "") -> Markup:
    """What came out, in its colour."""
    return tag("span", text or ("passed" if passed else "not yet"), class_="good" if passed else "bad")


def _convention(note: str) -> Markup:
    return tag("p", f"Another convention: {note}", class_="note")


def section(index: int, result: Result, n_picture: int = 3) -> Markup:
    """What one answer passed and failed, with pictures."""
    rows = []
    for check in result.checks:
        name = f"{check.name} (in train mode)" if check.kind == "train mode" else check.name
        rows.append((word(check.passed, "✓" if check.passed else "✗"), name, check.told))
    parts = [
        tag("h2", result.exercise or "no exercise", " ", word(result.passed), id=f"r{index}"),
        tag("p", result.file, class_="dim"),
        *(tag("p", tag("strong", sentence)) for sentence in sentences(result)),
        *map(_convention, result.conventions),
        table((), rows),
        *(_pictures(case) for case in itertools.islice(wrong_cases(result), n_picture)),
        *(tag("p", note, class_="dim") for note in (*result.notes, seed_of(result)) if note),
    ]
    return tag("section", *parts)


def _pictures(case: WrongCase) -> Markup:
    """Expected, yours and the difference at the first place that is wrong."""
    want, have = case.want.double(), case.have.double()
    if max(want.shape) > MOST_CELLS:
        return tag("p", f"{case.title}: {want.shape[0]} by {want.shape[1]} numbers are too many to draw.")
    outlines = torch.where(case.wrong, torch.where(want == 0, 3.0, 1.5), 0.0)
    tables = {"expected": want, YOURS: have, "yours minus expected": have - want}
    drawn = [_figure(name, table, case.axes, outlines * (name == YOURS)) for name, table in tables.items()]
    return tag("h3", case.title) + joined(drawn)


def _figure(title: str, values: Tensor, axes: str, outlines: Tensor) -> Markup:
    """A table of cells with their numbers: blue for positive, orange for negative, grey for no number."""
    finite = values[values.isfinite()].abs()
    largest = max([1e-12, *finite.tolist()])
    rows = []
    for index, row in enumerate(values.tolist()):
        cells = [tag("th", index)]
        for number, outline in zip(row, outlines[index].tolist(), strict=True):
            strength = round(0.75 * min(1.0, abs(number) / largest), 3) if math.isfinite(number) else 0
            colour = f"30, 136, 229, {strength}" if number >= 0 else f"251, 140, 0, {strength}"
            style = f"background: {f'rgba({colour})' if math.isfinite(number) else '#9e9e9e'}"
            if outline:
                style += f"; outline: {outline}px solid #e53935; outline-offset: -3px"
            cells.append(tag("td", f"{number:.2g}" if len(row) <= NUMBERS_UP_TO else "", style=style))
        rows.append(tag("tr", *cells))
    heads = tag("tr", tag("th"), *(tag("th", column) for column in range(values.shape[1])))
    return tag(
        "figure", tag("div", axes), tag("table", heads, *rows, aria_label=title), tag("figcaption", title)
    )
