"""Messages between the checker and the process that runs an answer: JSON and raw bytes, never pickle.

    8 bytes  length of the header        little-endian, as the next
    8 bytes  length of the tensors' bytes
    header   JSON: the tree, with {"$tensor": [dtype, shape, offset]} where a tensor stood, and
             {"Outcome": [its fields]} for a message
    bytes    the tensors, one after the other

What comes from an answer's process may be anything: a message whose fields are not of their types is refused.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch

from .messages import CLASSES

MOST_BYTES = 1 << 28  # of one message
PREFIX = struct.Struct("<QQ")
NUMBERS = "float64 float32 float16 bfloat16 complex64 complex128 int64 int32 int16 int8 uint8 bool".split()
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in NUMBERS}


class WireError(ValueError):
    """Bytes that are no message of ours: an answer may write what it likes into the pipe."""


def encode(tree: Any) -> bytes:
    """The message of a tree of dicts, lists, tuples, numbers, strings, None and tensors."""
    body = bytearray()
    places: dict[int, Any] = {}  # by the tensor: several runs may make one call

    def walk(node: Any) -> Any:
        if node is None or type(node) in (bool, int, float, str):
            return node
        if isinstance(node, torch.Tensor):
            if id(node) not in places:
                # A clone, because a dimension of size 1 may count as contiguous with any stride.
                dense = node.detach().to("cpu").clone(memory_format=torch.contiguous_format)
                places[id(node)] = [str(dense.dtype).removeprefix("torch."), list(dense.shape), len(body)]
                if dense.numel():
                    body.extend(dense.reshape(-1).view(torch.uint8).numpy().tobytes())
            return {"$tensor": places[id(node)]}
        if isinstance(node, dict):
            return {"$dict": [[walk(key), walk(value)] for key, value in node.items()]}
        if isinstance(node, list | tuple):
            items = [walk(item) for item in node]
            return items if isinstance(node, list) else {"$tuple": items}
        kind = type(node).__name__
        if kind not in CLASSES:
            raise WireError(f"a {kind} cannot be sent.")
        return {kind: [walk(getattr(node, part.name)) for part in fields(CLASSES[kind])]}

    header = json.dumps(walk(tree)).encode()
    return PREFIX.pack(len(header), len(body)) + header + body


def decode(header: bytes, body: bytes) -> Any:
    """The tree of a message; `WireError` for anything else."""

    def walk(node: Any) -> Any:
        if isinstance(node, list):
            return [walk(item) for item in node]
        if not isinstance(node, dict):
            return node
        ((kind, value),) = node.items()
        if kind == "$dict":
            return {walk(key): walk(item) for key, item in value}
        if kind == "$tuple":
            return tuple(walk(item) for item in value)
        if kind != "$tensor":
            return _message(CLASSES[kind], [walk(item) for item in value])
        name, shape, offset = value
        dtype = DTYPES[name]
        n_byte = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or not 0 <= offset <= offset + n_byte <= len(body):
            raise WireError(f"a tensor of shape {shape} outside the message.")
        raw = bytearray(body[offset : offset + n_byte])
        return torch.frombuffer(raw, dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)

    try:
        return walk(json.loads(header))
    except WireError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, RecursionError) as error:
        raise WireError(f"not a message: {error}") from error


_hints = cache(get_type_hints)


def _message(message: type, values: list[Any]) -> Any:
    for (name, hint), value in zip(_hints(message).items(), values, strict=True):
        if not fits(value, hint):
            raise WireError(f"{name} of a {message.__name__} is no {hint}.")
    return message(*values)


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
        self.buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that `data` completes, one by one, as far as the first that is none: `WireError`."""
        self.buffer += data
        while len(self.buffer) >= PREFIX.size:
            n_header, n_body = PREFIX.unpack_from(self.buffer)
            middle, end = PREFIX.size + n_header, PREFIX.size + n_header + n_body
            if end > MOST_BYTES:
                raise WireError(f"a message of {end} bytes: at most {MOST_BYTES} are read.")
            if len(self.buffer) < end:
                return
            header, body = bytes(self.buffer[PREFIX.size : middle]), bytes(self.buffer[middle:end])
            del self.buffer[:end]
            yield decode(header, body)
