"""The page as one HTML file: the module inlined, allowed by its hash and nothing else allowed.

    export(trace, "page.html")

The file works from disk, without a server and without the network.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from regard import __version__
from regard.errors import ArgumentError
from regard.tracing.traces import Trace
from regard.view.document import Document, Json, documents_of
from regard.view.embed import embedded, embedded_bytes

MOST_BYTES = 200_000_000  # a file above this opens slowly everywhere: it must be asked for
_STYLE = "html,body{height:100%;margin:0}#regard{height:100%;display:block}"


def bundle() -> str:
    """The module of the page, as it was built."""
    return resources.files("regard.view").joinpath("static", "regard.js").read_text(encoding="utf-8")


def policy(script: str, *, connects: bool) -> str:
    """The content-security policy of a page with this module: its hash may run, and nothing else."""
    parts = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(_STYLE),
        "img-src": "data: blob:",
        "connect-src": "'self'" if connects else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def html(data: Json, *, connects: bool = False) -> str:
    """The page around `data`. No text of it can end its element, whatever it holds."""
    script = bundle()
    written = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # JSON has them only inside strings
        written = written.replace(character, f"\\u{ord(character):04x}")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(script, connects=connects)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>Regard</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        '<div id="regard"></div>\n<noscript>This page draws with JavaScript, which is off here.</noscript>\n'
        f'<script type="application/json" id="regard-data">{written}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def page(
    documents: Sequence[Document],
    start: Json | None = None,
    *,
    path: Sequence[Json] = (),
    force: bool = False,
) -> str:
    """A self-contained page of these documents; refuses one above 200 MB unless `force`.

    `path` is a tour of one's own: views as {title, says, state}.
    """
    if not documents:
        raise ArgumentError("there is nothing to show: a page needs at least one trace.")
    expected = sum(embedded_bytes(document, "float24") for document in documents)
    if expected > MOST_BYTES and not force:
        raise ArgumentError(
            f"the page would have {expected / 1e6:.0f} MB, more than {MOST_BYTES // 10**6}: choose some "
            "layers (--layers), a shorter text, or insist (--force)."
        )
    docs = [embedded(document) for document in documents]
    return html(
        {"version": __version__, "token": None, "start": start or {}, "path": list(path), "docs": docs}
    )


def export(
    trace: Trace | Sequence[Document],
    path: str | Path,
    *,
    start: dict[str, Any] | None = None,
    force: bool = False,
) -> int:
    """Write a self-contained page and give its size in bytes.

    `start` is what the page opens with: layer, head, view ("map", "lines", "text"), theme and so on.
    """
    documents = documents_of(trace) if isinstance(trace, Trace) else list(trace)
    written = page(documents, start, force=force).encode("utf-8")
    try:
        Path(path).write_bytes(written)
    except OSError as error:
        raise ArgumentError(f"cannot write the page {str(path)!r}: {error.strerror}.") from error
    return len(written)
