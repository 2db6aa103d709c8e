"""Checkpoints that are whole or not there: written beside, flushed to disk, then renamed.

    checkpoints/
      step-00000200-5f3a9c01.safetensors    weights and the optimizer's moments; the rest in its header
      step-00000400-c07e11d2.safetensors

A name ends with the checksum of its file, so a file damaged later is noticed and the checkpoint before it is
taken. No pickle. Random numbers need no state: each update seeds its own.
"""

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from regard.errors import TrainError
from regard.files.safetensors import write_safetensors

KEPT = 2  # the newest, and the one before it


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A whole checkpoint."""

    path: Path
    state: Mapping[str, Any]
    damaged: tuple[str, ...] = ()  # newer ones that were passed over

    def tensors(self) -> dict[str, Tensor]:
        """Read the weights and moments."""
        return load_file(self.path)


def write_checked(folder: Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write the file of a step with its checksum in its name, in the place of others of that step."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".part-{step:08d}"
    try:
        write_safetensors(tensors, part, {"state": json.dumps(state)})
        _flush(part)
        path = folder / f"step-{step:08d}-{_crc_of(part):08x}.safetensors"
        part.replace(path)
        _flush(folder)
    finally:
        part.unlink(missing_ok=True)
    for other in folder.glob(f"step-{step:08d}-*"):
        if other != path:
            other.unlink()
    return path


def is_whole(path: Path) -> bool:
    """Return whether a file is what `write_checked` wrote: its checksum is that of its name."""
    try:
        return path.name.endswith(f"-{_crc_of(path):08x}.safetensors")
    except OSError:
        return False


def save_checkpoint(folder: Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write a checkpoint; the ones before it are touched only when it is safely there."""
    path = write_checked(folder, step, tensors, state)
    for old in checkpoints(folder)[:-KEPT]:
        old.unlink(missing_ok=True)
    return path


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints there, oldest first."""
    return sorted(folder.glob("step-*"))


def latest(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint that is not damaged; None if there is none at all."""
    damaged: list[str] = []
    for path in reversed(checkpoints(folder)):
        if is_whole(path):
            with safe_open(path, framework="pt") as file:
                return Checkpoint(path, json.loads(file.metadata()["state"]), tuple(damaged))
        damaged.append(path.name)
    if damaged:
        raise TrainError(
            f"every checkpoint in {folder} is damaged: the checksums of {', '.join(damaged)} differ from "
            "what was written. Start a new run."
        )
    return None


def _crc_of(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(2**22):
            crc = zlib.crc32(piece, crc)
    return crc


def _flush(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk itself."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folder
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
