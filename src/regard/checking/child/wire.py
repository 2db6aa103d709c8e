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
import struct
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch

from .messages import CLASSES

PREFIX = struct.Struct("<QQ")
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


class WireError(ValueError):
    """Bytes that are no message of ours: an answer may write what it likes into the pipe."""


def encode(tree: Any) -> bytes:
    """The message of a tree of dicts, lists, tuples, numbers, strings, None and tensors."""
    parts: list[bytes] = []
    offset = 0

    def walk(node: Any) -> Any:
        nonlocal offset
        if isinstance(node, torch.Tensor):
            # A clone, because a dimension of size 1 may count as contiguous with any stride.
            dense = node.detach().to("cpu").clone(memory_format=torch.contiguous_format)
            raw = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
            place = [str(dense.dtype).removeprefix("torch."), list(dense.shape), offset]
            parts.append(raw)
            offset += len(raw)
            return {"$tensor": place}
        if isinstance(node, dict):
            return {"$dict": [[walk(key), walk(value)] for key, value in node.items()]}
        if isinstance(node, tuple):
            return {"$tuple": [walk(item) for item in node]}
        if isinstance(node, list):
            return [walk(item) for item in node]
        if node is None or type(node) in (bool, int, float, str):
            return node
        if is_dataclass(node) and type(node).__name__ in CLASSES:
            return {type(node).__name__: [walk(getattr(node, part.name)) for part in fields(node)]}
        raise WireError(f"a {type(node).__name__} cannot be sent.")

    header = json.dumps(walk(tree)).encode()
    body = b"".join(parts)
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
        if kind in CLASSES:
            return _message(CLASSES[kind], [walk(item) for item in value])
        if kind != "$tensor":
            raise WireError(f"unknown kind {kind!r}.")
        name, shape, offset = value
        dtype = DTYPES[name]
        count = 1
        for size in shape:
            if size < 0:
                raise WireError(f"a negative size in {shape}.")
            count *= size
        n_byte = count * dtype.itemsize
        if not 0 <= offset <= offset + n_byte <= len(body):
            raise WireError(f"a tensor of shape {shape} outside the message.")
        if n_byte == 0:
            return torch.empty(shape, dtype=dtype)
        raw = bytearray(body[offset : offset + n_byte])
        return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(shape)

    try:
        return walk(json.loads(header))
    except WireError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, RecursionError) as error:
        raise WireError(f"not a message: {error}") from error


@cache
def _hints(message: type) -> dict[str, Any]:
    return get_type_hints(message)


def _message(message: type, values: list[Any]) -> Any:
    hints = _hints(message)
    if len(values) != len(hints):
        raise WireError(f"a {message.__name__} has {len(hints)} fields, not {len(values)}.")
    for (name, hint), value in zip(hints.items(), values, strict=True):
        if not fits(value, hint):
            raise WireError(f"{name} of a {message.__name__} is no {hint}.")
    return message(*values)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type as it stands in an annotation.

    >>> fits([1, 2], list[int]), fits([1, "2"], list[int]), fits(None, str | None)
    (True, False, True)
    """
    if hint is Any:
        return True
    kind, inner = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return any(fits(value, part) for part in inner)
    if kind is list:
        return isinstance(value, list) and all(fits(item, inner[0]) for item in value)
    if kind is dict:
        return isinstance(value, dict) and all(
            fits(key, inner[0]) and fits(item, inner[1]) for key, item in value.items()
        )
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint


class Reader:
    """Cuts a stream of bytes into messages."""

    def __init__(self, most_bytes: int = 1 << 28) -> None:
        self.buffer = bytearray()
        self.most_bytes = most_bytes
        self.broken: WireError | None = None

    def feed(self, data: bytes) -> list[Any]:
        """The messages that `data` completes; what comes before an error is returned before it is raised."""
        if self.broken is not None:
            raise self.broken
        self.buffer += data
        found: list[Any] = []
        try:
            while (message := self._next()) is not None:
                found.append(message[0])
        except WireError as error:
            self.broken = error
            if not found:
                raise
        return found

    def _next(self) -> tuple[Any] | None:
        if len(self.buffer) < PREFIX.size:
            return None
        n_header, n_body = PREFIX.unpack_from(self.buffer)
        if n_header + n_body > self.most_bytes:
            raise WireError(f"a message of {n_header + n_body} bytes: at most {self.most_bytes} are read.")
        end = PREFIX.size + n_header + n_body
        if len(self.buffer) < end:
            return None
        header = bytes(self.buffer[PREFIX.size : PREFIX.size + n_header])
        body = bytes(self.buffer[PREFIX.size + n_header : end])
        del self.buffer[:end]
        return (decode(header, body),)
