"""Long texts of the page by a short name, so that an address stays an address."""

import contextlib
import hashlib
import re

from regard.errors import ArgumentError
from regard.files import hub

LONG_TEXT = 300  # characters that an address still holds: as web/src/state.ts has it
_MOST_TEXTS = 64
_KEY = re.compile(r"[0-9a-f]{16}")


def text_key(text: str) -> str:
    """Return the name of a long text, or "" for one that an address can hold.

    >>> text_key("a"), text_key("a" * 301)
    ('', 'eb22b48c636cd5d3')
    """
    if len(text) <= LONG_TEXT:
        return ""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def keep_text(text: str) -> None:
    """Keep a long text on this machine, so that an address that names it opens it again later."""
    key = text_key(text)
    folder = hub.cache_folder() / "page-texts"
    if not key:
        return
    with contextlib.suppress(
        OSError
    ):  # without a place to keep it, the address serves while the page is open
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"{key}.txt"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8", newline="")
        kept = sorted(folder.glob("*.txt"), key=lambda one: one.stat().st_mtime)
        for old in kept[:-_MOST_TEXTS]:
            old.unlink(missing_ok=True)


def kept_text(key: str) -> str:
    """Return the text of that name; raise ArgumentError if it is not kept here any more."""
    path = hub.cache_folder() / "page-texts" / f"{key}.txt"
    if _KEY.fullmatch(key):
        with (
            contextlib.suppress(OSError, UnicodeDecodeError),
            path.open(encoding="utf-8", newline="") as file,
        ):
            return file.read()
    raise ArgumentError("the long text of this address is not kept here any more: type or open it again.")
