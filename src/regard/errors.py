"""Every error Regard raises on purpose.

    RegardError
    ├── ShapeError        (also a ValueError)  tensors do not fit together
    ├── ArgumentError     (also a ValueError)  a value that is not allowed
    ├── UnsupportedError  (also a ValueError)  asked for something that cannot be done, with the reason
    ├── LoadError         (also a ValueError)  a file of weights, a tokenizer or a model that cannot be read
    ├── TraceError        (also a ValueError)  a trace that cannot be taken, or its file not read
    └── TrainError                             training that cannot continue; the message says what was saved

Each message says what is wrong, then the rule, then what was given.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class RegardError(Exception):
    """The root: `except RegardError` catches everything we raise on purpose."""


class ShapeError(RegardError, ValueError):
    """Tensors whose shapes, dtypes or devices do not fit together."""


class ArgumentError(RegardError, ValueError):
    """A value that is not allowed."""


class UnsupportedError(RegardError, ValueError):
    """A thing asked for that this path, model or machine cannot do; the message says why."""


class LoadError(RegardError, ValueError):
    """A model, tokenizer or weight file that cannot be read; the message lists what is wrong with it."""


class TraceError(RegardError, ValueError):
    """A trace that cannot be taken, or a file of one that cannot be written or read."""


class TrainError(RegardError):
    """Training that cannot continue; the message says what is saved and how to resume."""


def no_such(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name: the nearest known one, and all of them.

    >>> no_such("exercise", "baem", ["attention", "beam"])
    "there is no exercise 'baem'. Did you mean 'beam'? There are: attention, beam."
    """
    known = list(known)
    near = get_close_matches(name[:80], known, n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    return f"there is no {what} {name[:80]!r}.{meant} There are: {', '.join(known)}."


def plural(count: int, noun: str, several: str | None = None) -> str:
    """Return a count with its noun, in the singular for 1.

    >>> plural(1, "head"), plural(1200, "head"), plural(0, "query", "queries")
    ('1 head', '1,200 heads', '0 queries')
    """
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"
