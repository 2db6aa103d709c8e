"""The report as a page: what failed, and pictures of expected, yours and the difference."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from regard.checking.check import Result
from regard.checking.judge import Check
from regard.checking.reports.terminal import by_kind, first_wrong_table, table
from regard.drawing import html
from regard.drawing.html import Markup, escaped, joined, tag

CELL = 26
MARGIN = 34
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
    shown = [check for check in result.checks if check.difference is not None and not check.hidden][
        :n_picture
    ]
    parts += [_pictures(check) for check in shown]
    parts += [tag("p", note, class_="dim") for note in result.notes]
    return tag("section", *parts)


def _pictures(check: Check) -> Markup:
    """Expected, yours and the difference at the first place that is wrong."""
    difference = check.difference
    if (
        difference is None
        or difference.wrong is None
        or difference.expected is None
        or difference.got is None
    ):
        return Markup("")
    place, axes, words = first_wrong_table(difference.wrong, difference.words)
    want, have, wrong = (
        table(each, place) for each in (difference.expected, difference.got, difference.wrong)
    )
    if max(want.shape) > MOST_CELLS:
        return tag("p", f"{check.name}: a table of {want.shape[0]} by {want.shape[1]} is too large to draw.")
    at = ", ".join(f"{word} {index}" for word, index in zip(words, place, strict=False))
    sizes = ", ".join(f"{word} {size}" for word, size in check.sizes.items())
    title = f"{check.name}, the smallest case that fails ({sizes})" + (f", at {at}" if at else "")
    leaked = wrong & (want.double() == 0)
    figures = [
        _figure("expected", want, axes, None),
        _figure("yours (wrong cells outlined, leaked ones thick)", have, axes, (wrong, leaked)),
        _figure("yours minus expected", have.double() - want.double(), axes, None),
    ]
    return tag("h3", title) + joined(figures)


def _figure(title: str, values: Tensor, axes: tuple[str, ...], marks: tuple[Tensor, Tensor] | None) -> Markup:
    """A grid of shaded cells with their numbers, rows and columns named."""
    n_row, n_column = values.shape
    width = CELL if n_column > NUMBERS_UP_TO else 2 * CELL
    finite = [abs(float(value)) for value in values.double().reshape(-1) if math.isfinite(float(value))]
    largest = max([*finite, 1e-12])
    parts: list[Markup] = []
    for row in range(n_row):
        parts.append(tag("text", row, x=MARGIN - 8, y=MARGIN + row * CELL + 17, text_anchor="end"))
        for column in range(n_column):
            value = float(values[row, column])
            x, y = MARGIN + column * width, MARGIN + row * CELL
            parts.append(tag("rect", x=x, y=y, width=width - 1, height=CELL - 1, fill=_shade(value, largest)))
            if n_column <= NUMBERS_UP_TO:
                text = f"{value:.2g}" if math.isfinite(value) else str(value)
                parts.append(tag("text", text, x=x + width / 2, y=y + 17, text_anchor="middle"))
            if marks is not None and bool(marks[0][row, column]):
                thick = 3 if bool(marks[1][row, column]) else 1.5
                parts.append(
                    tag(
                        "rect",
                        x=x + 1,
                        y=y + 1,
                        width=width - 3,
                        height=CELL - 3,
                        fill="none",
                        stroke="#e53935",
                        stroke_width=thick,
                    )
                )
    for column in range(n_column):
        middle = MARGIN + column * width + width / 2
        parts.append(tag("text", column, x=middle, y=MARGIN - 6, text_anchor="middle"))
    if len(axes) == 2:
        parts.append(tag("text", f"rows: {axes[0]}, columns: {axes[1]}", x=2, y=12))
    size = (MARGIN + max(n_column * width, 170), MARGIN + n_row * CELL + 4)
    picture = tag(
        "svg",
        *parts,
        width=size[0],
        height=size[1],
        viewBox=f"0 0 {size[0]} {size[1]}",
        role="img",
        aria_label=title,
    )
    return tag("figure", picture, tag("figcaption", escaped(title)))


def _shade(value: float, largest: float) -> str:
    """Blue for positive, orange for negative, grey for what is no number."""
    if not math.isfinite(value):
        return "#9e9e9e"
    strength = round(0.75 * min(1.0, abs(value) / largest), 3)
    return f"rgba(30, 136, 229, {strength})" if value >= 0 else f"rgba(251, 140, 0, {strength})"
