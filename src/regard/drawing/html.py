"""Pages that need nothing but themselves: HTML in which every text is escaped."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DOCUMENT_STYLE = """
:root { color-scheme: light dark; --good: #2e7d32; --bad: #c62828; --note: #1565c0 }
@media (prefers-color-scheme: dark) { :root { --good: #81c784; --bad: #ef9a9a; --note: #90caf9 } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { border-top: 1px solid var(--line); padding-top: 1rem }
"""
# In a notebook, whose theme need not be that of the system: JupyterLab's own colours, or such as suit both.
CELL_COLOURS = """
--good: var(--jp-success-color1, #388e3c); --bad: var(--jp-error-color1, #d84343);
--note: var(--jp-info-color1, #1e88e5)
"""
STYLE = """
--line: #8886; --soft: #8882;
h2 { font-size: 1.2rem } h3 { font-size: 1rem }
table { border-collapse: collapse; margin: .5rem 0 }
td, th { padding: .2rem .6rem; text-align: left; vertical-align: top }
tr:nth-child(even) td { background: var(--soft) }
code, pre { font-family: ui-monospace, monospace; font-size: .9em }
.good { color: var(--good) } .bad { color: var(--bad) } .note { color: var(--note) } .dim { opacity: .75 }
figure { display: inline-block; margin: .5rem 1.5rem .5rem 0 } figcaption { font-size: .85em }
img { max-width: 100%; height: auto; background: white }
svg text { font: 11px ui-monospace, monospace; fill: currentColor }
"""


@dataclass(frozen=True, slots=True)
class Markup:
    """HTML that is safe to put into a page. Made by the functions below, which escape what they are given."""

    text: str

    def __add__(self, other: Markup) -> Markup:
        return Markup(self.text + other.text)


def escaped(value: object) -> Markup:
    """Return any value as text.

    >>> escaped("<b> & c").text
    '&lt;b&gt; &amp; c'
    """
    return value if isinstance(value, Markup) else Markup(html.escape(str(value)))


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """Return one element. An attribute's underscore becomes a hyphen, and a last one is dropped (`class_`).

    >>> tag("p", "a < b", class_="note").text
    '<p class="note">a &lt; b</p>'
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
    )
    return Markup(f"<{name}{given}>{joined(children).text}</{name}>")


def joined(parts: Sequence[object]) -> Markup:
    """Return several pieces, one after the other."""
    return Markup("".join(escaped(part).text for part in parts))


def table(words: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """Return rows of cells below a row of words."""
    lines = [tag("tr", *(tag("td", cell) for cell in row)) for row in rows]
    return tag("table", tag("tr", *(tag("th", word) for word in words)), *lines)


def picture(png: bytes, alt: str) -> Markup:
    """Return a PNG inside the page itself.

    >>> picture(b"", "a < b").text
    '<img alt="a &lt; b" src="data:image/png;base64,">'
    """
    coded = base64.b64encode(png).decode("ascii")
    return Markup(f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{coded}">')


def page(title: str, body: Markup) -> str:
    """Return a whole document that loads nothing from elsewhere and runs no script."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n"
        f"<style>{DOCUMENT_STYLE}body {{{STYLE}}}</style>\n</head>\n"
        f"<body>\n<main>\n{tag('h1', title).text}\n{body.text}\n</main>\n</body>\n</html>\n"
    )


def fragment(body: Markup) -> str:
    """Return a part of somebody else's page, such as a notebook's cell, whose looks stay its own."""
    return f'<div class="regard"><style>.regard {{{CELL_COLOURS}; {STYLE}}}</style>{body.text}</div>'
