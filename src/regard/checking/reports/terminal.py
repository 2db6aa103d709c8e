"""The report on the terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from torch import Tensor

from regard.checking.author import Proof
from regard.checking.check import Result
from regard.checking.judge import Check

MOST_CELLS = 64
MOST_NAMES = 3  # of checks that fail in the same way


def print_result(console: Console, result: Result, known: Collection[str] = ()) -> None:
    """One exercise of one file, in one line if it passed: else its mistake, its smallest case, what failed.

    `known` are notes on the file that another of its exercises has told already.
    """
    n_passed = sum(check.passed for check in result.checks)
    mark = ("✓ ", "green") if result.passed else ("✗ ", "red")
    count = f"{n_passed} checks" if result.passed else f"{n_passed} of {len(result.checks)} checks"
    title = (result.exercise or "no exercise", "bold")
    console.print(Text.assemble(mark, title, f"  {count}  ", (result.file, "dim")))
    for named in result.mistakes:
        console.print(Text(f"  {named.sentence}", style="yellow"))
    if result.nearest:
        console.print(Text(f"  {result.nearest}", style="yellow"))
    _print_smallest(console, result)
    for kind, checks in by_kind(result).items():
        names = ", ".join(check.name for check in checks[:MOST_NAMES])
        more = f" and {len(checks) - MOST_NAMES} more" if len(checks) > MOST_NAMES else ""
        about = f" ({kind})" if kind in ("fragile", "train mode", "wasteful") else ""
        console.print(Text.assemble(("  ✗ ", "red"), (names, "bold"), f"{more}{about}: {checks[0].told}"))
    untried = [check for check in result.checks if not check.tried]
    if untried:
        console.print(Text(f"  {len(untried)} checks were {untried[0].message}", style="dim"))
    for note in result.conventions:
        console.print(Text(f"  Another convention: {note}", style="cyan"))
    for note in result.notes:
        if note not in known:
            console.print(Text(f"  Note: {note}", style="dim"))


def by_kind(result: Result) -> dict[str, list[Check]]:
    """The checks that failed, by what that means: one line for each tells more than one for each check."""
    kinds: dict[str, list[Check]] = {}
    for check in result.checks:
        if not check.passed and check.tried:
            kind = "hidden" if check.hidden else "without a result" if check.whole else check.kind
            kinds.setdefault(kind, []).append(check)
    return kinds


def _print_smallest(console: Console, result: Result) -> None:
    """The smallest case that fails: expected, yours and their difference, side by side if they are small."""
    case = next(wrong_cases(result), None)
    if case is None:
        return
    name, sizes = escape(case.check.name), escape(case.sizes)
    console.print(f"  The smallest case of [b]{name}[/b] that fails ({sizes}):")
    if case.want.numel() > MOST_CELLS:
        console.print(f"  ({case.want.numel()} numbers: see --html for a picture)", style="dim")
        return
    grid = Table(box=None, padding=(0, 2))
    for title in ("expected", "yours", "difference"):
        grid.add_column(title, style="dim" if title == "difference" else "")
    apart = torch.where(case.wrong, case.have.double() - case.want.double(), 0.0)
    for row, wrong in enumerate(case.wrong.tolist()):
        cells = []
        for values in (case.want, case.have, apart):
            styles = ["red" if bad and values is not case.want else "" for bad in wrong]
            texts = [f"{number:8.4g}" for number in values[row].tolist()]
            cells.append(Text.assemble(*zip(texts, styles, strict=True)))
        grid.add_row(*cells)
    if case.at:
        console.print(f"  {case.at}:", style="dim")
    console.print(grid)
    if case.axes:
        console.print(f"  rows are {case.axes[0]}, columns {case.axes[1]}", style="dim")


class WrongCase(NamedTuple):
    """A call with wrong numbers, as the table around the first of them."""

    check: Check
    sizes: str
    at: str
    axes: tuple[str, ...]  # what rows and columns are
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
        at = ", ".join(f"{word} {index}" for word, index in zip(words, place, strict=False))
        sizes = ", ".join(f"{word} {size}" for word, size in check.sizes.items())
        axes = words[-2:] if wrong.dim() >= 2 else ()
        tables = (torch.atleast_2d(tensor[tuple(place)]) for tensor in difference.numbers)
        yield WrongCase(check, sizes, at, axes, *tables)


def print_proof(console: Console, proof: Proof) -> None:
    """What `regard author check` found."""
    for line in proof.lines:
        mark = ("  ✓ ", "green") if line.holds else ("  ✗ ", "red")
        detail = "" if line.holds or not line.detail else f": {line.detail}"
        console.print(Text.assemble(mark, line.what + detail))
    for group in ("caught", "named, by value", "named, by pattern"):
        lines = [line for line in proof.lines if line.group == group]
        if lines:
            console.print(f"  mistakes {group}: {sum(line.holds for line in lines)} of {len(lines)}")
    verdict = "[green]ready for students[/green]" if proof.holds else "[red]not ready[/red]"
    console.print(f"[b]{escape(proof.exercise)}[/b]: {verdict}")
