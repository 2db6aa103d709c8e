"""Tensors still in their file: the shape is known, the numbers are read when asked for.

Safetensors files are read and written by the library of that name, which checks a header against the size of
its file before anything is allocated.
"""

import math
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from regard.errors import LoadError


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
    """Return the tensors of one safetensors file."""
    with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  # no mapping
        return {
            name: LazyTensor(name, tuple(part.get_shape()), part.get_dtype(), partial(_read, path, name))
            for name, part in slices.items()
        }


def write_safetensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Write a file with the user's default permissions, where `save_file` allows its owner alone."""
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    save_file(dict(tensors), path, metadata)
    path.chmod(mode)


def _read(path: Path, name: str) -> Tensor:
    # Opened anew, so that a file cut short meanwhile is noticed; and copied, since a tensor that stays
    # mapped would end the process when its file is cut later.
    with _opened(path) as file:
        tensor: Tensor = file.get_tensor(name).clone()
    # A byte other than 0 and 1 is not a bool, and torch does not look.
    return tensor.view(torch.uint8).ne(0) if tensor.dtype == torch.bool else tensor


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise LoadError(
            f"{path} is not a readable safetensors file: {str(error)[:300]}. "
            "It is cut short, damaged or not one."
        ) from error
