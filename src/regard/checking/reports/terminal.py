"""The report on the terminal, and what every other report says of a result too."""

import textwrap
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import torch
from click import style
from torch import Tensor

from regard.checking.author import Proof
from regard.checking.check import Result
from regard.checking.judge import Check
from regard.checking.marks import few, sentences
from regard.errors import plural

MOST_CELLS = 64
GROUPS = ("caught", "named, by value", "named, by pattern")  # of the lines of a proof


def report(result: Result, width: int, known: Collection[str] = ()) -> str:
    """One exercise of one file, in one line if it passed: else its mistake, its smallest case, what failed.

    `known` are notes on the file that another of its exercises has told already.
    """
    n_passed = sum(check.passed for check in result.checks)
    n_check = len(result.checks)
    count = plural(n_check, "check") if result.passed else f"{n_passed} of {plural(n_check, 'check')}"
    title = style(result.exercise or "no exercise", bold=True)
    lines = [f"{_mark(result.passed)} {title}  {count}  {style(result.file, dim=True)}"]

    def say(text: str, **look: Any) -> None:
        wrapped = textwrap.fill(text, width, initial_indent="  ", subsequent_indent="    ")
        lines.append(style(wrapped, **look) if look else wrapped.replace("✗", _mark(False), 1))

    for sentence in sentences(result):
        say(sentence, fg="yellow")
    lines += _smallest(result)
    for checks in failures(result):
        about = " (in train mode)" if checks[0].kind == "train mode" else ""
        say(f"✗ {few(checks)}{about}: {checks[0].told}")
    if untried := [check for check in result.checks if not check.tried]:
        say(f"{plural(len(untried), 'check was', 'checks were')} {untried[0].message}", dim=True)
    for note in result.conventions:
        say(f"Another convention: {note}", fg="cyan")
    if repeat := seed_of(result):
        say(repeat, dim=True)
    for note in result.notes:
        if note not in known:
            say(f"Note: {note}", dim=True)
    return "\n".join(lines)


def seed_of(result: Result) -> str:
    """Say how to repeat a failing check; nothing of one that passed, or that drew no inputs."""
    return "" if result.passed or not result.seed else f"Seed {result.seed} draws these inputs again."


def _mark(passed: bool) -> str:
    return style("✓", fg="green") if passed else style("✗", fg="red")


def failures(result: Result) -> list[list[Check]]:
    """Group the checks that failed: those with wrong numbers together, others by what they say."""
    groups: dict[str, list[Check]] = {}
    for check in result.checks:
        if not check.passed and check.tried:
            wrong_numbers = check.difference is not None and not check.hidden
            groups.setdefault("wrong numbers" if wrong_numbers else check.told, []).append(check)
    return list(groups.values())


def _smallest(result: Result) -> Iterator[str]:
    """The smallest case that fails: expected, yours and their difference, side by side if they are small."""
    case = next(wrong_cases(result), None)
    if case is None:
        return
    yield f"  {case.title}:"
    if case.want.numel() > MOST_CELLS:
        yield style(f"  ({plural(case.want.numel(), 'number')}: see --html for a picture)", dim=True)
        return
    tables = {"expected": case.want, "yours": case.have}
    tables["difference"] = torch.where(case.wrong, case.have.double() - case.want.double(), 0.0)
    n_column = case.want.shape[-1]
    texts = {
        title: [[f"{number:.4g}" for number in row] for row in tables[title].tolist()] for title in tables
    }
    longest = max(len(text) for rows in texts.values() for row in rows for text in row)
    size = max(8 if n_column > 1 else 10, longest + 2)  # so that a title fits above its numbers
    yield "  " + "    ".join(f"{title:{size * n_column}}" for title in tables).rstrip()
    for row, wrong in enumerate(case.wrong.tolist()):
        parts = []
        for title in tables:
            cells = [f"{text:>{size}}" for text in texts[title][row]]
            marked = [style(cell, fg="red") if bad else cell for cell, bad in zip(cells, wrong, strict=True)]
            parts.append("".join(cells if title == "expected" else marked))
        yield "  " + "    ".join(parts)
    if case.axes:
        yield style(f"  {case.axes}", dim=True)


class WrongCase(NamedTuple):
    """A call with wrong numbers, as the table around the first of them."""

    title: str
    axes: str  # what rows and columns are
    want: Tensor
    have: Tensor
    wrong: Tensor  # True where they differ


def wrong_cases(result: Result) -> Iterator[WrongCase]:
    """Each check with wrong numbers that a student may see."""
    for check in result.checks:
        difference = check.difference
        if difference is None or difference.numbers is None or check.hidden:
            continue
        wrong, words = difference.numbers[2], difference.words
        if len(words) != wrong.dim():
            words = tuple(f"axis {axis}" for axis in range(wrong.dim()))
        place = wrong.nonzero()[0].tolist()[:-2] if wrong.dim() else []
        sizes = ", ".join(f"{word} {size}" for word, size in check.sizes.items())
        at = "".join(f", at {word} {index}" for word, index in zip(words, place, strict=False))
        axes = f"rows are {words[-2]}, columns {words[-1]}" if wrong.dim() >= 2 else ""
        tables = (torch.atleast_2d(tensor[tuple(place)]) for tensor in difference.numbers)
        yield WrongCase(f"{check.name}, the smallest case that fails ({sizes}){at}", axes, *tables)


def proved(proof: Proof) -> str:
    """What `regard author check` found."""
    lines = []
    for line in proof.lines:
        detail = "" if line.holds or not line.detail else f": {line.detail}"
        lines.append(f"  {_mark(line.holds)} {line.what}{detail}")
    groups = {group: [line.holds for line in proof.lines if line.group == group] for group in GROUPS}
    lines += [f"  mistakes {group}: {sum(holds)} of {len(holds)}" for group, holds in groups.items() if holds]
    verdict = style("ready for students", fg="green") if proof.holds else style("not ready", fg="red")
    return "\n".join([*lines, f"{style(proof.exercise, bold=True)}: {verdict}"])
