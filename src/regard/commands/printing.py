"""What is printed can be read on any terminal: closed, of ASCII alone, or narrow."""

import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import zip_longest
from typing import Any, TextIO

import click

NUMBER = re.compile(r"[-+]?\d|-?$")  # how the cells of a column of numbers begin
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


class _Stream:
    """A standard stream: for a terminal of ASCII drawings become their lookalikes, words stay as they are.

    Output that nobody takes is no traceback, but a line and the exit code that other programs have.
    """

    def __init__(self, stream: TextIO, plain: bool) -> None:
        self._stream, self._plain = stream, plain

    def write(self, text: str) -> Any:
        return self._done(self._stream.write, text.translate(_LOOKALIKES) if self._plain else text)

    def flush(self) -> None:
        self._done(self._stream.flush)

    def _done(self, action: Callable[..., Any], *what: str) -> Any:
        try:
            return action(*what)
        except OSError as error:
            with suppress(OSError):  # Python would complain at its end of what is still to be written
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if isinstance(error, BrokenPipeError):
                raise SystemExit(128 + 13) from None  # as of who is ended by SIGPIPE
            click.echo(f"Error: cannot write to standard output: {error.strerror}.", err=True)
            raise SystemExit(2) from None

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
        if not isinstance(stream, _Stream):
            plain = _ascii_locale() or not str(stream.encoding).lower().startswith("utf")
            setattr(sys, name, _Stream(stream, plain))


def _ascii_locale() -> bool:
    """Return whether the locale is C, by the variables that decide it; Python itself writes UTF-8 there."""
    said = (os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    return next((value for value in said if value), "") in ("C", "POSIX")


def print_table(
    columns: Iterable[str], rows: Iterable[Iterable[str]], *, title: str = "", total: bool = False
) -> None:
    """Print rows below the columns' names, numbers to the right; with `total`, the last row is set off.

    Sentences wrap in their column. Where there is no room for that, a row is lines of `column: value`.
    """
    names, lines = list(columns), [list(row) for row in rows]
    table = list(zip(names, *lines, strict=True))
    widths = [max(map(_width, column)) for column in table]
    right = [all(NUMBER.match(click.unstyle(cell)) for cell in column[1:]) for column in table]
    screen = shutil.get_terminal_size().columns
    room = screen - 2 * (len(names) - 1)
    while sum(widths) > room and max(widths) > WIDE_ENOUGH:
        widths[widths.index(max(widths))] -= 1
    if title:
        click.secho(title, bold=True)
    if sum(widths) > room:
        for first, *others in lines:
            click.secho(f"{names[0]}: {first}".removeprefix(": "), bold=True)
            for name, cell in zip(names[1:], others, strict=True):
                if cell:
                    said = f"{name}: {cell}".removeprefix(": ")
                    click.echo(textwrap.fill(said, screen, initial_indent="  ", subsequent_indent="  "))
        return
    rule = ["─" * (sum(widths) + 2 * (len(names) - 1))]
    if total:
        lines.insert(-1, rule)
    for line in [names, rule, *lines] if any(names) else lines:
        wrapped = [
            [cell] if line is rule or _width(cell) <= width else textwrap.wrap(cell, width)
            for cell, width in zip(line, widths, strict=False)
        ]
        for parts in zip_longest(*wrapped, fillvalue=""):
            gaps = [" " * (width - _width(part)) for part, width in zip(parts, widths, strict=False)]
            cells = zip(gaps, parts, right, strict=False)
            padded = [gap + part if is_number else part + gap for gap, part, is_number in cells]
            click.echo("  ".join(padded).rstrip())


def _width(text: str) -> int:
    """Return the columns of a terminal that a text takes: two of a wide character, none of a style."""
    plain = click.unstyle(text)
    return len(plain) + sum(unicodedata.east_asian_width(character) in "WF" for character in plain)
