"""The report on the terminal."""

from __future__ import annotations

from collections.abc import Collection

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from torch import Tensor

from regard.checking.author import Proof
from regard.checking.check import Result
from regard.checking.compare import Difference
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
    """The smallest case that fails, as expected and as it is."""
    for check in result.checks:
        if check.difference is not None and check.difference.wrong is not None and not check.hidden:
            sizes = ", ".join(f"{word} {size}" for word, size in check.sizes.items())
            console.print(f"  The smallest case of [b]{escape(check.name)}[/b] that fails ({escape(sizes)}):")
            _print_difference(console, check.difference)
            return


def _print_difference(console: Console, difference: Difference) -> None:
    """Expected, yours and their difference, side by side, where they are small enough to read."""
    expected, got, wrong = difference.expected, difference.got, difference.wrong
    if expected is None or got is None or wrong is None:
        return
    place, rows, words = first_wrong_table(wrong, difference.words)
    want, have, bad = (table(each, place) for each in (expected, got, wrong))
    if want.numel() > MOST_CELLS:
        console.print(f"  ({want.numel()} numbers: see --html for a picture)", style="dim")
        return
    grid = Table(box=None, padding=(0, 2))
    for title in ("expected", "yours", "difference"):
        grid.add_column(title, style="dim" if title == "difference" else "")
    for row in range(want.shape[0]):
        cells = []
        for values in (want, have, torch.where(bad, have.double() - want.double(), 0.0)):
            line = Text()
            for column in range(want.shape[1]):
                style = "red" if bool(bad[row, column]) and values is not want else ""
                line.append(f"{values[row, column].item():8.4g}", style)
            cells.append(line)
        grid.add_row(*cells)
    if place:
        console.print(
            f"  {', '.join(f'{word} {index}' for word, index in zip(words, place, strict=False))}:",
            style="dim",
        )
    console.print(grid)
    if rows:
        console.print(f"  rows are {rows[0]}, columns {rows[1]}", style="dim")


def first_wrong_table(
    wrong: Tensor, words: tuple[str, ...]
) -> tuple[list[int], tuple[str, ...], tuple[str, ...]]:
    """The leading indices of the first wrong number, and what rows and columns of its table are."""
    first = wrong.nonzero()[0].tolist() if wrong.dim() else []
    named = words if len(words) == wrong.dim() else tuple(f"axis {axis}" for axis in range(wrong.dim()))
    return first[:-2], named[-2:] if wrong.dim() >= 2 else (), named


def table(tensor: Tensor, place: list[int]) -> Tensor:
    """The rows and columns at a place, as two dimensions."""
    part = tensor[tuple(place)] if place else tensor
    return part.reshape(1, 1) if part.dim() == 0 else part.reshape(1, -1) if part.dim() == 1 else part


def print_proof(console: Console, proof: Proof) -> None:
    """What `regard author check` found."""
    for line in proof.lines:
        mark = ("  ✓ ", "green") if line.holds else ("  ✗ ", "red")
        detail = "" if line.holds or not line.detail else f": {line.detail}"
        console.print(Text.assemble(mark, line.what + detail))
    for group in ("caught", "named, by value", "named, by pattern"):
        lines = proof.of(group)
        if lines:
            console.print(f"  mistakes {group}: {sum(line.holds for line in lines)} of {len(lines)}")
    verdict = "[green]ready for students[/green]" if proof.holds else "[red]not ready[/red]"
    console.print(f"[b]{escape(proof.exercise)}[/b]: {verdict}")
