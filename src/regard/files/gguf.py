"""GGUF files: the header, with every count and length checked against the file's own size, and the tensors.

A GGUF file is: magic, version, two counts, key-value metadata, one description per tensor, padding,
then the tensors' bytes. Every length in it is a number that a damaged or hostile file may set to
anything, so nothing is read or allocated before it is known to fit in what is left of the file.
"""

import itertools
import math
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from regard.errors import LoadError
from regard.files.safetensors import LazyTensor

CHUNK_ELEMENTS = 2**20  # dequantised at once
VERSIONS = (2, 3)

# Far above any published model, far below what would hurt: the largest vocabularies have some
# 260 thousand tokens and half a million merges.
MAX_HEADER_BYTES = 2**28
MAX_STRINGS = 2**22
MAX_KEY_BYTES = 2**16
MAX_TENSORS = 2**20
MAX_NESTING = 3

_U32, _FLOAT32, _BOOL, _STRING, _ARRAY, _U64 = 4, 6, 7, 8, 9, 10
_NUMBERS = dict(enumerate(map(np.dtype, "u1 i1 <u2 <i2 <u4 <i4 <f4 u1 V V <u8 <i8 <f8".split())))
del _NUMBERS[_STRING], _NUMBERS[_ARRAY]


# What a file says before its weights: number, bool, str, list of str, or array of numbers, by key.
Metadata = Mapping[str, Any]


def read_header(path: Path) -> tuple[Metadata, dict[str, LazyTensor]]:
    """Return what the GGUF file at `path` says, and its tensors; `LoadError` if anything in it cannot be."""
    try:
        with path.open("rb") as file:
            return _Reader(file, path).header()
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror or error}.") from error


class _Reader:
    """Reads forward through a file and refuses to go past its end, or past the limit on headers."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path, self.at = file, path, 0
        self.size = os.fstat(file.fileno()).st_size
        self.limit = min(self.size, MAX_HEADER_BYTES)

    def check(self, right: bool, otherwise: str) -> None:
        if not right:
            place = f"at byte {self.at} of {self.size}"
            raise LoadError(f"{self.path} is not a readable GGUF file: {otherwise} ({place}).")

    def need(self, n_bytes: int, what: str) -> None:
        left = self.limit - self.at
        if n_bytes > left:
            why = "is left of the file" if self.limit == self.size else "may be used by a header"
            self.check(False, f"{what} would take {n_bytes} bytes and {left} {why}")

    def take(self, n_bytes: int, what: str) -> bytes:
        self.need(n_bytes, what)
        data = self.file.read(n_bytes)
        self.check(len(data) == n_bytes, "it ended while it was read")
        self.at += n_bytes
        return data

    def text(self, what: str, most: int = MAX_HEADER_BYTES) -> str:
        length = int.from_bytes(self.take(8, what), "little")
        data = self.take(length, what)
        self.check(length <= most, f"{what} claims {length} bytes; it may have {most}")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            self.check(False, f"{what} is not UTF-8")
            raise

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.text(what)
        if kind in _NUMBERS:
            number = np.frombuffer(self.take(_NUMBERS[kind].itemsize, what), _NUMBERS[kind])[0]
            # The shortest decimal that gives this float32: 1e-05, not 9.999999747378752e-06.
            plain = float(str(number)) if kind == _FLOAT32 else number.item()
            return bool(plain) if kind == _BOOL else plain
        self.check(kind == _ARRAY, f"{what} has value type {kind}, which GGUF does not define")
        self.check(depth < MAX_NESTING, f"{what} nests arrays more than {MAX_NESTING} deep")
        item_kind = self.value(_U32, f"the item type of {what}")
        count = self.value(_U64, f"the item count of {what}")
        if item_kind in _NUMBERS:
            # Kept as an array of numbers: a Python list would take some ten times the file's bytes.
            data = self.take(count * _NUMBERS[item_kind].itemsize, what)
            return np.frombuffer(data, _NUMBERS[item_kind])
        self.check(count <= MAX_STRINGS, f"{what} claims {count} items; it may have {MAX_STRINGS}")
        self.need(count * 8, what)
        return [self.value(item_kind, f"item {index} of {what}", depth + 1) for index in range(count)]

    def header(self) -> tuple[Metadata, dict[str, LazyTensor]]:
        self.check(self.size >= 24, f"it has {self.size} bytes and the smallest GGUF file has 24")
        magic = self.take(4, "the magic")
        self.check(magic == b"GGUF", f"it starts with {magic!r} and must start with b'GGUF'")
        version = self.value(_U32, "the version")
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        hint = "; it is a big-endian file" if swapped in VERSIONS else ""
        self.check(version in VERSIONS, f"it has version {version}{hint}, and versions {VERSIONS} are read")
        n_tensor, n_entry = self.value(_U64, "the tensor count"), self.value(_U64, "the metadata count")
        self.check(n_tensor <= MAX_TENSORS, f"it claims {n_tensor} tensors; it may have {MAX_TENSORS}")
        # The shortest entry has 8 + 1 + 4 + 1 bytes, the shortest tensor description 8 + 1 + 4 + 8 + 4 + 8.
        self.need(n_entry * 14 + n_tensor * 33, f"{n_entry} metadata entries and {n_tensor} tensors")
        metadata: dict[str, Any] = {}
        for index in range(n_entry):
            key = self.text(f"the key of metadata entry {index}", MAX_KEY_BYTES)
            self.check(key not in metadata, f"metadata key {key[:80]!r} occurs twice")
            kind = self.value(_U32, f"the type of {key[:80]!r}")
            metadata[key] = self.value(kind, f"metadata {key[:80]!r}")
        return metadata, self.tensors(n_tensor, metadata)

    def tensors(self, n_tensor: int, metadata: Metadata) -> dict[str, LazyTensor]:
        """Return the tensors with their bytes located: inside the file, aligned, and no two on one place."""
        alignment = metadata.get("general.alignment", 32)
        power = isinstance(alignment, int) and alignment > 0 and alignment & (alignment - 1) == 0
        self.check(power, f"general.alignment is {alignment!r} and must be a power of two")
        described = [self.description(index) for index in range(n_tensor)]
        data_start = -(-self.at // alignment) * alignment
        tensors: dict[str, LazyTensor] = {}
        places = []
        for name, shape, kind, offset in described:
            what = f"tensor {name[:80]!r}"
            self.check(name not in tensors, f"{what} occurs twice")
            self.check(kind in GGML_QUANT_SIZES, f"{what} has storage type {kind}, which is not known")
            stored = GGMLQuantizationType(kind)
            block, block_bytes = GGML_QUANT_SIZES[stored]
            start = data_start + offset
            end = start + math.prod(shape) // block * block_bytes
            said = f"{what} {shape}, stored as {stored.name}"
            self.check(_has_formula(stored), f"{said}, for which the gguf package has no formula")
            self.check(shape[-1] % block == 0, f"{said}, has rows that are no blocks of {block}")
            self.check(offset % alignment == 0, f"{said}, starts at {offset}, no multiple of {alignment}")
            self.check(end <= self.size, f"{said}, ends at byte {end}: the file is cut short")
            tensors[name] = gguf_tensor(self.path, name, shape, stored, start)
            places.append((start, end, name))
        for (_, end, before), (start, _, after) in itertools.pairwise(sorted(places)):
            self.check(end <= start, f"tensors {before[:80]!r} and {after[:80]!r} overlap")
        return tensors

    def description(self, index: int) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, storage type and offset of tensor number `index`, as the file states them."""
        name = self.text(f"the name of tensor {index}", MAX_KEY_BYTES)
        what = f"tensor {name[:80]!r}"
        n_dim = self.value(_U32, f"the number of dimensions of {what}")
        self.check(1 <= n_dim <= 4, f"{what} has {n_dim} dimensions; it may have 1 to 4")  # ggml's own limit
        # As PyTorch writes it: the file has the dimensions the other way round.
        shape = tuple(self.value(_U64, f"a dimension of {what}") for _ in range(n_dim))[::-1]
        self.check(min(shape) > 0, f"{what} has shape {shape}, which holds nothing")
        return name, shape, self.value(_U32, f"the type of {what}"), self.value(_U64, f"the offset of {what}")


@cache
def _has_formula(stored: GGMLQuantizationType) -> bool:
    """Return whether the `gguf` package can turn this way of storing into numbers."""
    try:
        with np.errstate(all="ignore"):
            dequantize(np.zeros((1, GGML_QUANT_SIZES[stored][1]), dtype=np.uint8), stored)
    except NotImplementedError:  # how the package says that it has no formula
        return False
    return True


def gguf_tensor(
    path: Path, name: str, shape: tuple[int, ...], stored: GGMLQuantizationType, start: int
) -> LazyTensor:
    """Return one tensor of a GGUF file, from byte `start` on: float32 when read, in the file's layout."""

    def read() -> Tensor:
        block, block_bytes = GGML_QUANT_SIZES[stored]
        n_row, row_bytes = math.prod(shape[:-1]), shape[-1] // block * block_bytes
        out = torch.empty((n_row, shape[-1]), dtype=torch.float32)
        # A few rows at a time: the formulas make several float32 copies of what they are given.
        step = max(1, CHUNK_ELEMENTS // shape[-1])
        for first in range(0, n_row, step):
            n_bytes = min(step, n_row - first) * row_bytes
            try:
                data = np.fromfile(path, np.uint8, n_bytes, offset=start + first * row_bytes)
            except OSError as error:
                raise LoadError(f"{path} cannot be read: {error.strerror or error}.") from error
            if len(data) < n_bytes:
                raise LoadError(f"{path} ends inside {name}: it has changed since it was opened.")
            with np.errstate(all="ignore"):  # damaged scales overflow: for the reader to see, not a warning
                values = dequantize(data.reshape(-1, row_bytes), stored)
            out[first : first + step] = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
        return out.view(shape)

    return LazyTensor(name, shape, stored.name, read)
