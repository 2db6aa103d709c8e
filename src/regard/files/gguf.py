"""GGUF files: the header, with every count and length checked against the file's own size, and the tensors.

A GGUF file is: magic, version, two counts, key-value metadata, one description per tensor, padding,
then the tensors' bytes. Every length in it is a number that a damaged or hostile file may set to
anything, so nothing is read or allocated before it is known to fit in what is left of the file.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from regard.errors import LoadError
from regard.files.safetensors import LazyTensor

CHUNK_ELEMENTS = 2**20  # dequantised at once
MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

# Far above any published model, far below what would hurt: the largest vocabularies have some
# 260 thousand tokens and half a million merges.
MAX_HEADER_BYTES = 2**28
MAX_STRINGS = 2**22
MAX_KEY_BYTES = 2**16
MAX_TENSORS = 2**20
MAX_DIMENSIONS = 4  # ggml's own limit
MAX_NESTING = 3

_STRING, _ARRAY, _BOOL, _FLOAT32 = 8, 9, 7, 6
_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("u1"),  # a bool is one byte
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies in the file, and how it is stored."""

    name: str
    shape: tuple[int, ...]  # as PyTorch writes it: the file has the dimensions the other way round
    kind: int  # ggml's number for the storage type
    kind_name: str  # such as "Q4_1"
    start: int  # byte offset from the start of the file
    n_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Everything a GGUF file says before its weights."""

    path: Path
    version: int
    metadata: Mapping[str, Any] = field(repr=False)  # number, bool, str, list of str, or array of numbers
    tensors: Mapping[str, TensorInfo] = field(repr=False)
    n_bytes: int  # size of the file

    @property
    def architecture(self) -> str:
        """The kind of model, as GGUF names it."""
        return str(self.metadata.get("general.architecture"))[:40]

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number below the architecture's name."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if type(value) is not int or value < 1:
            raise LoadError(f"it has {key} {str(value)[:40]}: it must be a positive whole number.")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A positive number below the architecture's name."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if type(value) is not float or not 0 < value < math.inf:
            raise LoadError(f"it has {key} {str(value)[:40]}: it must be a positive number.")
        return value

    def text(self, key: str, default: str) -> str:
        """A string below the architecture's name."""
        return str(self.metadata.get(f"{self.architecture}.{key}", default))[:40]

    def flag(self, key: str, default: bool) -> bool:
        """A truth below the architecture's name."""
        return self.metadata.get(f"{self.architecture}.{key}", default) is True

    def has(self, tensor: str) -> bool:
        """Whether there is a tensor of that name."""
        return tensor in self.tensors


class _Cursor:
    """Reads forward through a file and refuses to go past its end, or past the limit on headers."""

    def __init__(self, file: BinaryIO, size: int, path: Path) -> None:
        self.file, self.size, self.path = file, size, path
        self.limit = min(size, MAX_HEADER_BYTES)
        self.at = 0

    def fail(self, what: str) -> LoadError:
        return LoadError(
            f"{self.path} is not a readable GGUF file: {what} (at byte {self.at} of {self.size})."
        )

    def need(self, n_bytes: int, what: str) -> None:
        if n_bytes > self.limit - self.at:
            left = self.limit - self.at
            why = "is left of the file" if self.limit == self.size else "may be used by a header"
            raise self.fail(f"{what} would take {n_bytes} bytes and {left} {why}")

    def take(self, n_bytes: int, what: str) -> bytes:
        self.need(n_bytes, what)
        data = self.file.read(n_bytes)
        if len(data) != n_bytes:
            raise self.fail(f"the file ended inside {what}")
        self.at += n_bytes
        return data

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def text(self, what: str, most: int | None = None) -> str:
        length = self.u64(f"the length of {what}")
        if most is not None and length > most:
            raise self.fail(f"{what} claims {length} bytes; it may have {most}")
        data = self.take(length, what)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8") from error

    def number(self, kind: int, what: str) -> int | float | bool:
        dtype = _NUMBERS[kind]
        value = np.frombuffer(self.take(dtype.itemsize, what), dtype)[0]
        if kind == _BOOL:
            return bool(value)
        if kind == _FLOAT32:
            # The shortest decimal that gives this float32: 1e-05, not 9.999999747378752e-06.
            return float(str(value))
        return value.item()  # type: ignore[no-any-return]

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.text(what)
        if kind in _NUMBERS:
            return self.number(kind, what)
        if kind != _ARRAY:
            raise self.fail(f"{what} has value type {kind}, which GGUF does not define")
        if depth == MAX_NESTING:
            raise self.fail(f"{what} nests arrays more than {MAX_NESTING} deep")
        item_kind, count = self.u32(f"the item type of {what}"), self.u64(f"the item count of {what}")
        if item_kind in _NUMBERS:
            dtype = _NUMBERS[item_kind]
            # Kept as an array of numbers: a Python list would take some ten times the file's bytes.
            return np.frombuffer(self.take(count * dtype.itemsize, what), dtype)
        if count > MAX_STRINGS:
            raise self.fail(f"{what} claims {count} items; it may have {MAX_STRINGS}")
        self.need(count * 8, what)
        return [self.value(item_kind, f"item {index} of {what}", depth + 1) for index in range(count)]


def read_header(path: Path) -> GGUFHeader:
    """The checked header of the GGUF file at `path`; `LoadError` if anything in it cannot be."""
    try:
        with path.open("rb") as file:
            return _walk(_Cursor(file, os.fstat(file.fileno()).st_size, path))
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror or error}.") from error


def _walk(cursor: _Cursor) -> GGUFHeader:
    if cursor.size < 24:
        raise cursor.fail(f"it has {cursor.size} bytes and the smallest GGUF file has 24")
    magic = cursor.take(4, "the magic")
    if magic != MAGIC:
        raise cursor.fail(f"it starts with {magic!r} and must start with {MAGIC!r}")
    version = cursor.u32("the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        hint = "; it is a big-endian file" if swapped in VERSIONS else ""
        raise cursor.fail(f"it has version {version}{hint}, and versions {VERSIONS} can be read")
    n_tensor, n_entry = cursor.u64("the tensor count"), cursor.u64("the metadata count")
    if n_tensor > MAX_TENSORS:
        raise cursor.fail(f"it claims {n_tensor} tensors; it may have {MAX_TENSORS}")
    # The shortest entry has 8 + 1 + 4 + 1 bytes and the shortest tensor description 8 + 1 + 4 + 8 + 4 + 8.
    cursor.need(n_entry * 14 + n_tensor * 33, f"{n_entry} metadata entries and {n_tensor} tensors")

    metadata: dict[str, Any] = {}
    for index in range(n_entry):
        key = cursor.text(f"the key of metadata entry {index}", MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.fail(f"metadata key {key[:80]!r} occurs twice")
        metadata[key] = cursor.value(cursor.u32(f"the type of {key[:80]!r}"), f"metadata {key[:80]!r}")

    descriptions = [_describe(cursor, index) for index in range(n_tensor)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise cursor.fail(f"general.alignment is {alignment!r} and must be a power of two")
    data_start = -(-cursor.at // alignment) * alignment
    tensors = _place(cursor, descriptions, data_start, alignment)
    return GGUFHeader(cursor.path, version, metadata, tensors, cursor.size)


def _describe(cursor: _Cursor, index: int) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, storage type and offset of tensor number `index`, as the file states them."""
    name = cursor.text(f"the name of tensor {index}", MAX_KEY_BYTES)
    what = f"tensor {name[:80]!r}"
    n_dim = cursor.u32(f"the number of dimensions of {what}")
    if not 1 <= n_dim <= MAX_DIMENSIONS:
        raise cursor.fail(f"{what} has {n_dim} dimensions; it may have 1 to {MAX_DIMENSIONS}")
    shape = tuple(cursor.u64(f"a dimension of {what}") for _ in range(n_dim))[::-1]
    if min(shape) == 0:
        raise cursor.fail(f"{what} has shape {shape}, which holds nothing")
    return name, shape, cursor.u32(f"the type of {what}"), cursor.u64(f"the offset of {what}")


def _place(
    cursor: _Cursor,
    descriptions: list[tuple[str, tuple[int, ...], int, int]],
    data_start: int,
    alignment: int,
) -> dict[str, TensorInfo]:
    """The tensors with their bytes located: inside the file, aligned, and no two on one place."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    tensors: dict[str, TensorInfo] = {}
    for name, shape, kind, offset in descriptions:
        what = f"tensor {name[:80]!r}"
        if name in tensors:
            raise cursor.fail(f"{what} occurs twice")
        try:
            storage = GGMLQuantizationType(kind)
            block_length, block_bytes = GGML_QUANT_SIZES[storage]
        except (ValueError, KeyError) as error:
            raise cursor.fail(f"{what} has storage type {kind}, which is not known") from error
        if shape[-1] % block_length:
            raise cursor.fail(
                f"{what} has rows of {shape[-1]} and {storage.name} stores blocks of {block_length}"
            )
        n_bytes = block_bytes
        for size in (*shape[:-1], shape[-1] // block_length):
            n_bytes *= size  # Python integers do not overflow: an absurd shape gives an absurd size
        if offset % alignment:
            raise cursor.fail(f"{what} starts at {offset}, which is no multiple of {alignment}")
        start = data_start + offset
        if start + n_bytes > cursor.size:
            raise cursor.fail(
                f"{what} {shape} as {storage.name} ends at byte {start + n_bytes}: the file is cut short"
            )
        tensors[name] = TensorInfo(name, shape, kind, storage.name, start, n_bytes)
    in_order = sorted(tensors.values(), key=lambda info: info.start)
    for before, after in itertools.pairwise(in_order):
        if before.start + before.n_bytes > after.start:
            raise cursor.fail(f"tensors {before.name[:80]!r} and {after.name[:80]!r} overlap")
    return tensors


def gguf_tensor(path: Path, info: TensorInfo) -> LazyTensor:
    """One tensor of a GGUF file, as float32 when read, in the layout of the file."""
    return LazyTensor(info.name, info.shape, info.kind_name, lambda: _dequantised(path, info))


def can_dequantise(kind: int) -> bool:
    """Whether the `gguf` package has a formula for storage type `kind`."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    storage = GGMLQuantizationType(kind)
    try:
        with np.errstate(all="ignore"):
            dequantize(np.zeros((1, GGML_QUANT_SIZES[storage][1]), dtype=np.uint8), storage)
    except NotImplementedError:  # how the package says that it has no formula
        return False
    return True


def _dequantised(path: Path, info: TensorInfo) -> Tensor:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    n_row = math.prod(info.shape[:-1])
    row_bytes = info.n_bytes // n_row
    out = torch.empty((n_row, info.shape[-1]), dtype=torch.float32)
    # A few rows at a time: the formulas make several float32 copies of what they are given.
    step = max(1, CHUNK_ELEMENTS // info.shape[-1])
    for first in range(0, n_row, step):
        n_bytes = min(step, n_row - first) * row_bytes
        try:
            stored = np.fromfile(path, np.uint8, n_bytes, offset=info.start + first * row_bytes)
        except OSError as error:
            raise LoadError(f"{path} cannot be read: {error.strerror or error}.") from error
        if len(stored) < n_bytes:
            raise LoadError(f"{path} ends inside {info.name}: it has changed since it was opened.")
        with np.errstate(all="ignore"):  # damaged scales overflow: for the reader to see, not a warning
            values = dequantize(stored.reshape(-1, row_bytes), GGMLQuantizationType(info.kind))
        out[first : first + step] = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
    return out.view(info.shape)
