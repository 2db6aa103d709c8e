"""Tensors still in their file: the shape is known, the numbers are read when asked for.

The header of a safetensors file is checked here against the size of the file, and the bytes are read by us
from the places that were checked; a GGUF file's header comes checked from `gguf_header`.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from regard.errors import LoadError
from regard.files.gguf import TensorInfo

CHUNK_ELEMENTS = 2**20  # dequantised at once
MAX_SAFETENSORS_HEADER = 100_000_000  # the limit of the format's own library

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def write_safetensors(
    tensors: Mapping[str, Tensor], path: str | Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a file that may be read by whom the user's other files may: `save_file` lets its owner alone."""
    path = Path(path)
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    save_file(dict(tensors), path, metadata=None if metadata is None else dict(metadata))
    path.chmod(mode)


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor whose shape is known and whose numbers are still in the file."""

    name: str
    shape: tuple[int, ...]
    stored_as: str  # "F32", "BF16", "Q4_1", ...
    read: Callable[[], Tensor] = field(repr=False)  # floats of a GGUF file come as float32

    @property
    def n_element(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


def open_safetensors(path: Path) -> dict[str, LazyTensor]:
    """The tensors of one safetensors file, from a header that has been checked against the file's size."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 10 or not 2 <= length <= min(size - 8, MAX_SAFETENSORS_HEADER):
                raise _broken(path, f"its header claims {length} bytes and the file has {size}")
            text = file.read(length)
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"its header is not JSON: {str(error)[:200]}") from error
    if not isinstance(header, dict):
        raise _broken(path, "its header is not a JSON object")
    header.pop("__metadata__", None)
    spans = sorted(((*_span(path, name, entry), name) for name, entry in header.items()))
    at = 0
    for begin, end, name in spans:
        if begin != at:
            raise _broken(path, f"tensor {name[:80]!r} starts at {begin} and the one before it ends at {at}")
        at = end
    if at != size - 8 - length:
        raise _broken(path, f"its tensors take {at} bytes and {size - 8 - length} follow the header")
    tensors = {}
    for begin, _, name in spans:
        entry = header[name]
        shape, start = tuple(entry["shape"]), 8 + length + begin
        tensors[name] = LazyTensor(name, shape, entry["dtype"], _reader(path, start, shape, entry["dtype"]))
    return tensors


def _span(path: Path, name: str, entry: Any) -> tuple[int, int]:
    """Begin and end of a tensor's bytes, known to agree with its shape and dtype."""
    what = f"tensor {name[:80]!r}"
    if not isinstance(entry, dict):
        raise _broken(path, f"{what} is not described by an object")
    dtype, shape, offsets = (entry.get(key, "") for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise _broken(path, f"{what} has dtype {str(dtype)[:40]!r}; known are {', '.join(_DTYPES)}")
    if not _sizes(shape) or len(shape) > 8:
        raise _broken(path, f"{what} has shape {str(shape)[:80]}")
    if not _sizes(offsets) or len(offsets) != 2:
        raise _broken(path, f"{what} has data_offsets {str(offsets)[:80]}")
    needed = math.prod(shape) * _DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != needed:
        raise _broken(
            path, f"{what} {tuple(shape)} {dtype} needs {needed} bytes and has {offsets[1] - offsets[0]}"
        )
    return offsets[0], offsets[1]


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _reader(path: Path, start: int, shape: tuple[int, ...], dtype: str) -> Callable[[], Tensor]:
    def read_tensor() -> Tensor:
        tensor = torch.empty(shape, dtype=_DTYPES[dtype])
        if tensor.numel():
            read_into(path, start, tensor.view(-1).view(torch.uint8).numpy().data)
        if dtype == "BOOL":  # a byte other than 0 and 1 is not a bool, and torch does not look
            tensor = tensor.view(torch.uint8).ne(0)
        return tensor

    return read_tensor


def read_into(path: Path, start: int, buffer: memoryview) -> None:
    """Fill `buffer` from the file at `path` from byte `start`; `LoadError` if the file has become shorter."""
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(start, os.SEEK_SET)
            done = 0
            while done < len(buffer):
                count = file.readinto(buffer[done:])
                if not count:
                    raise LoadError(
                        f"{path} ended at byte {start + done}: it has changed since it was opened."
                    )
                done += count
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror or error}.") from error


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _broken(path: Path, what: str) -> LoadError:
    return LoadError(
        f"{path} is not a readable safetensors file: {what}. It is cut short, damaged or not one."
    )


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
    except NotImplementedError:
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
        stored = np.empty((min(step, n_row - first), row_bytes), dtype=np.uint8)
        read_into(path, info.start + first * row_bytes, stored.reshape(-1).data)
        with np.errstate(
            all="ignore"
        ):  # damaged scales overflow: that is for the reader to see, not a warning
            values = dequantize(stored, GGMLQuantizationType(info.kind))
        out[first : first + len(stored)] = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
    return out.view(info.shape)
