"""What is printed can be read on any terminal: closed, of ASCII alone, or narrow."""

from __future__ import annotations

import os
import sys
from collections.abc import Container, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDE_ENOUGH = 24  # of a column of sentences: narrower, and they stand one word on a line

# What tables, maps and sentences of ours are drawn with, and what stands for it where there is ASCII alone.
_DRAWN = "─━═│┃║╎░▒▓█…·•“”‘’–—−×≥≤✓✗␣→←●○\N{REPLACEMENT CHARACTER}"
_INSTEAD = "---||||.:*#~..\"\"''---x><+x_><*.?"
_LOOKALIKES = {
    **dict.fromkeys(range(0x2500, 0x2580), "+"),  # corners of boxes
    **dict.fromkeys(range(0x2800, 0x2900), "*"),  # what turns while one waits
    **dict(zip(map(ord, _DRAWN), _INSTEAD, strict=True)),
    ord("²"): "^2",
    ord("³"): "^3",
}


class _Plain:
    """A stream for a terminal of ASCII: drawings become their lookalikes, words stay as they are."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text.translate(_LOOKALIKES))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prepare_streams() -> None:
    """Make standard streams that are closed, or of a locale without UTF-8, ones that can be used."""
    # Those that are closed are opened first: a file opened later must not become standard input or output.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # for good
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
        plain = _ascii_locale() or not str(stream.encoding).lower().startswith("utf")
        if plain and not isinstance(stream, _Plain):
            setattr(sys, name, _Plain(stream))


def quiet_output() -> None:
    """Let what is still to be written to standard output go nowhere: Python would complain at its end."""
    with suppress(OSError, ValueError):  # a stream of a test's is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _ascii_locale() -> bool:
    """Whether the locale is C, by the variables that decide it; Python itself writes UTF-8 there."""
    said = (os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    return next((value for value in said if value), "") in ("C", "POSIX")


def make_table(
    columns: Iterable[str], rows: Iterable[Iterable[str]], *, right: Container[str] = (), **look: Any
) -> Table:
    """A table of these rows; the columns that `right` names hold numbers. `look` is for rich's Table."""
    from rich.table import Table

    table = Table(**look)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*row)
    return table


def print_table(table: Table, console: Console | None = None) -> None:
    """The table; where it is wider than the terminal, each row as lines of `column: value`.

    A sentence may wrap in its cell, other values must not.
    """
    from rich.console import Console
    from rich.measure import Measurement
    from rich.padding import Padding
    from rich.text import Text

    console = console or Console()
    names = [str(column.header) for column in table.columns]
    cells = [list(column.cells) for column in table.columns]

    def width(texts: Iterable[Any]) -> int:
        return max(Measurement.get(console, console.options, text).maximum for text in texts)

    frame = 2 if table.box is None else 3  # spaces beside a cell, and its line
    needed = sum(
        min(width([name, *column]), WIDE_ENOUGH) + frame for name, column in zip(names, cells, strict=True)
    )
    if needed <= console.width:
        console.print(table)
        return
    if table.title:
        console.print(table.title, style="bold")
    for first, *others in zip(*cells, strict=True):
        console.print(f"{names[0]}: {first}".removeprefix(": "), style="bold", markup=False, highlight=False)
        for name, cell in zip(names[1:], others, strict=True):
            if str(cell):
                console.print(Padding(Text(f"{name}: {cell}"), (0, 0, 0, 2), expand=False))
    if table.caption:
        console.print(table.caption, style="dim")
