"""The report as a page: what failed, and pictures of expected, yours and the difference."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import torch
from torch import Tensor

from regard.checking.check import Result
from regard.checking.reports.terminal import WrongCase, by_kind, wrong_cases
from regard.drawing import html
from regard.drawing.html import Markup, joined, tag

MOST_CELLS = 32  # rows or columns of a picture
NUMBERS_UP_TO = 12  # columns in which a number still fits


def page(results: list[Result]) -> str:
    """A self-contained page on all results."""
    n_passed = sum(result.passed for result in results)
    rows = [
        tag(
            "tr",
            tag("td", tag("a", result.exercise or "no exercise", href=f"#r{index}")),
            tag("td", result.file),
            tag("td", _word(result.passed)),
            tag("td", ", ".join(mistake.name for each in result.mistakes for mistake in each.mistakes)),
        )
        for index, result in enumerate(results)
    ]
    heads = tag("tr", *(tag("th", each) for each in ("exercise", "file", "", "mistake")))
    summary = tag("p", f"{n_passed} of {len(results)} passed.") + tag("table", heads, *rows)
    sections = (section(index, result) for index, result in enumerate(results))
    return html.page("Exercises", joined([summary, *sections]))


def cell(results: list[Result]) -> str:
    """All results as a notebook's cell shows them: a line for what passed, else what failed."""
    return html.fragment(joined([_short(index, result) for index, result in enumerate(results)]))


def _short(index: int, result: Result) -> Markup:
    if result.passed:
        line = tag("p", _word(True), f" {result.exercise}, {len(result.checks)} checks.")
        return line + joined([_convention(note) for note in result.conventions])
    told = []
    for checks in by_kind(result).values():  # the first of each kind, and how many fail like it
        more = f" and {len(checks) - 1} more" if checks[1:] else ""
        told.append(replace(checks[0], name=checks[0].name + more))
    n_passed = sum(check.passed for check in result.checks)
    hint = f" A hint: !regard hint {result.exercise}" if result.exercise else ""
    count = tag("p", f"{n_passed} of {len(result.checks)} checks passed.{hint}", class_="dim")
    return section(index, replace(result, checks=tuple(told)), n_picture=1) + count


def _word(passed: bool) -> Markup:
    return tag("span", "passed" if passed else "not yet", class_="good" if passed else "bad")


def _convention(note: str) -> Markup:
    return tag("p", f"Another convention: {note}", class_="note")


def section(index: int, result: Result, n_picture: int = 3) -> Markup:
    """What one answer passed and failed, with pictures."""
    parts = [
        tag("h2", result.exercise or "no exercise", " ", _word(result.passed), id=f"r{index}"),
        tag("p", result.file, class_="dim"),
    ]
    said = [*(each.sentence for each in result.mistakes), *([result.nearest] if result.nearest else [])]
    parts += [tag("p", tag("strong", sentence)) for sentence in said]
    parts += [_convention(note) for note in result.conventions]
    rows = [
        tag(
            "tr",
            tag("td", tag("span", "✓" if check.passed else "✗", class_="good" if check.passed else "bad")),
            tag("td", check.name),
            tag("td", "" if check.kind == "wrong" or check.passed else check.kind),
            tag("td", check.told),
        )
        for check in result.checks
    ]
    parts.append(tag("table", *rows))
    parts += [_pictures(case) for case in itertools.islice(wrong_cases(result), n_picture)]
    parts += [tag("p", note, class_="dim") for note in result.notes]
    return tag("section", *parts)


def _pictures(case: WrongCase) -> Markup:
    """Expected, yours and the difference at the first place that is wrong."""
    name, want, have, wrong = case.check.name, case.want, case.have, case.wrong
    if max(want.shape) > MOST_CELLS:
        return tag("p", f"{name}: a table of {want.shape[0]} by {want.shape[1]} is too large to draw.")
    title = f"{name}, the smallest case that fails ({case.sizes})" + (f", at {case.at}" if case.at else "")
    outlines = torch.where(wrong, torch.where(want.double() == 0, 3.0, 1.5), 0.0)
    none = torch.zeros_like(outlines)
    figures = [
        _figure("expected", want, case.axes, none),
        _figure("yours (wrong cells outlined, leaked ones thick)", have, case.axes, outlines),
        _figure("yours minus expected", have.double() - want.double(), case.axes, none),
    ]
    return tag("h3", title) + joined(figures)


def _figure(title: str, values: Tensor, axes: tuple[str, ...], outlines: Tensor) -> Markup:
    """A table of shaded cells with their numbers, rows and columns named."""
    numbers = values.double().tolist()
    largest = max([abs(number) for row in numbers for number in row if math.isfinite(number)] + [1e-12])
    rows = [tag("tr", tag("th"), *(tag("th", column) for column in range(len(numbers[0]))))]
    for index, row in enumerate(numbers):
        cells = []
        for number, outline in zip(row, outlines[index].tolist(), strict=True):
            style = f"background: {_shade(number, largest)}"
            if outline:
                style += f"; outline: {outline}px solid #e53935; outline-offset: -3px"
            cells.append(tag("td", f"{number:.2g}" if len(row) <= NUMBERS_UP_TO else "", style=style))
        rows.append(tag("tr", tag("th", index), *cells))
    named = [tag("div", f"rows: {axes[0]}, columns: {axes[1]}")] if axes else []
    return tag("figure", *named, tag("table", *rows, aria_label=title), tag("figcaption", title))


def _shade(value: float, largest: float) -> str:
    """Blue for positive, orange for negative, grey for what is no number."""
    if not math.isfinite(value):
        return "#9e9e9e"
    strength = round(0.75 * min(1.0, abs(value) / largest), 3)
    return f"rgba(30, 136, 229, {strength})" if value >= 0 else f"rgba(251, 140, 0, {strength})"
