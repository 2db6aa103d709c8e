"""Messages between the checker and the process that runs an answer: a line of JSON each, never pickle.

A tensor is {"$tensor": [dtype, shape, its bytes in base 64]}, a message {"Outcome": [its fields]}. What comes
from an answer's process may be anything: a message whose fields are not of their types is refused.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch

from .messages import CLASSES

MOST_BYTES = 1 << 28  # of one message
NUMBERS = "float64 float32 float16 bfloat16 complex64 complex128 int64 int32 int16 int8 uint8 bool".split()
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in NUMBERS}


class WireError(ValueError):
    """Bytes that are no message of ours: an answer may write what it likes where its results belong."""


def encode(tree: Any) -> bytes:
    """The message of a tree of dicts, lists, tuples, numbers, strings, None and tensors."""
    return json.dumps(_plain(tree)).encode() + b"\n"


def _plain(node: Any) -> Any:
    if node is None or type(node) in (bool, int, float, str):
        return node
    if isinstance(node, torch.Tensor):
        # A clone, because a dimension of size 1 may count as contiguous with any stride.
        dense = node.detach().to("cpu").clone(memory_format=torch.contiguous_format)
        raw = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
        dtype = str(dense.dtype).removeprefix("torch.")
        return {"$tensor": [dtype, list(dense.shape), b64encode(raw).decode()]}
    if isinstance(node, dict):
        return {"$dict": [[_plain(key), _plain(value)] for key, value in node.items()]}
    if isinstance(node, list | tuple):
        items = [_plain(item) for item in node]
        return items if isinstance(node, list) else {"$tuple": items}
    kind = type(node).__name__
    if kind not in CLASSES:
        raise WireError(f"a {kind} cannot be sent.")
    return {kind: [_plain(getattr(node, part.name)) for part in fields(CLASSES[kind])]}


def decode(line: bytes) -> Any:
    """The tree of a message; `WireError` for anything else."""
    try:
        return _tree(json.loads(line))
    except WireError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, RecursionError) as error:
        raise WireError(f"not a message: {error}") from error


def _tree(node: Any) -> Any:
    if isinstance(node, list):
        return [_tree(item) for item in node]
    if not isinstance(node, dict):
        return node
    ((kind, value),) = node.items()
    if kind == "$dict":
        return {_tree(key): _tree(item) for key, item in value}
    if kind == "$tuple":
        return tuple(_tree(item) for item in value)
    if kind == "$tensor":
        name, shape, text = value
        raw = bytearray(b64decode(text, validate=True))
        flat = torch.frombuffer(raw, dtype=DTYPES[name]) if raw else torch.empty(0, dtype=DTYPES[name])
        return flat.reshape(shape)
    values = [_tree(item) for item in value]
    for (name, hint), part in zip(_hints(CLASSES[kind]).items(), values, strict=True):
        if not fits(part, hint):
            raise WireError(f"{name} of a {kind} is no {hint}.")
    return CLASSES[kind](*values)


_hints = cache(get_type_hints)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type as it stands in an annotation.

    >>> fits([1, 2], list[int]), fits([1, "2"], list[int]), fits(None, str | None)
    (True, False, True)
    """
    kind, inner = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return any(fits(value, part) for part in inner)
    if kind is list:
        return isinstance(value, list) and all(fits(item, inner[0]) for item in value)
    if kind is dict:
        pairs = value.items() if isinstance(value, dict) else [(None, None)]  # which is of no key's type
        return all(fits(key, inner[0]) and fits(item, inner[1]) for key, item in pairs)
    return hint is Any or type(value) is hint or (hint is float and type(value) is int)


class Reader:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that `data` completes, one by one, as far as the first that is none: `WireError`."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        yield from map(decode, lines)
        if len(self.rest) > MOST_BYTES:
            raise WireError(f"a message of more than {MOST_BYTES} bytes.")
