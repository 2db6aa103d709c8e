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
from regard.checking.judge import NOT_TRIED

MOST_CELLS = 64


def print_result(console: Console, result: Result, known: Collection[str] = ()) -> None:
    """One exercise of one file: the mistake first, then the checks, then the numbers.

    `known` are notes on the file that another of its exercises has told already.
    """
    word = "[green]passed[/green]" if result.passed else "[red]not yet[/red]"
    title = result.exercise or "no exercise"
    console.print(f"\n[b]{escape(title)}[/b]  {word}  [dim]{escape(result.file)}[/dim]")
    for each in result.mistakes:
        console.print(Text(f"  {each.sentence}", style="yellow"))
    failed: dict[str, list[str]] = {}  # message -> the checks that say so
    for check in result.checks:
        if not check.passed:
            kind = "" if check.kind == "wrong" or check.message == NOT_TRIED else f" ({check.kind})"
            failed.setdefault("a hidden check" if check.hidden else check.message, []).append(
                check.name + kind
            )
    for text, checks in failed.items():
        console.print(Text.assemble(("  ✗ ", "red"), (", ".join(checks), "bold"), f": {text}"))
    n_passed = sum(check.passed for check in result.checks)
    if n_passed:
        names = ", ".join(check.name for check in result.checks if check.passed)
        console.print(
            Text.assemble(("  ✓ ", "green"), f"{n_passed} of {len(result.checks)}: {names}"), style="dim"
        )
    for note in result.conventions:
        console.print(Text(f"  Another convention: {note}", style="cyan"))
    for note in result.notes:
        if note in known:
            continue
        console.print(Text(f"  Note: {note}", style="dim"))
    shown = next(
        (
            each
            for each in result.checks
            if each.difference and each.difference.wrong is not None and not each.hidden
        ),
        None,
    )
    if shown is not None and shown.difference is not None:
        sizes = ", ".join(f"{word} {size}" for word, size in shown.sizes.items())
        console.print(f"  The smallest case of [b]{escape(shown.name)}[/b] that fails ({escape(sizes)}):")
        _print_difference(console, shown.difference)


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
