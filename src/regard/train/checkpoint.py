"""Checkpoints that are whole or not there: written beside, flushed to disk, then renamed.

    checkpoints/
      step-00000200/      tensors.safetensors: weights and the optimizer's moments; state.json: the rest
      step-00000400/

`state.json` holds the size and the checksum of the tensors and a checksum of itself, so a file damaged later
is noticed and the checkpoint before it is taken. No pickle. Random numbers need no state: each update seeds
its own.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from regard.errors import TrainError
from regard.files.safetensors import write_safetensors

TENSORS, STATE = "tensors.safetensors", "state.json"
KEPT = 2  # the newest, and the one before it


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A whole checkpoint."""

    path: Path
    state: Mapping[str, Any]
    damaged: tuple[str, ...] = ()  # newer ones that were passed over, and why

    def tensors(self) -> dict[str, Tensor]:
        """Read the weights and moments."""
        return load_file(self.path / TENSORS)


def save_checkpoint(
    folder: str | Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]
) -> Path:
    """Write a checkpoint; the ones before it are touched only when it is safely there."""
    folder = Path(folder)
    path = folder / f"step-{step:08d}"
    part = folder / f".part-{step:08d}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        write_safetensors(tensors, part / TENSORS)
        facts = {"bytes": (part / TENSORS).stat().st_size, "crc": crc_of(part / TENSORS)}
        state = {**state, "tensors": facts}
        text = json.dumps({**state, "checksum": _checksum(state)})
        (part / STATE).write_text(text, encoding="utf-8")
        for name in (TENSORS, STATE):
            _flush(part / name)
        _flush(part)
        if path.exists():  # a run taken up again from an older one comes by here a second time
            shutil.rmtree(path)
        part.rename(path)
        _flush(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)
        before = names(folder)
        kept = f"The checkpoint before it, {before[-1]}, is whole" if before else "There is none before it"
        raise TrainError(
            f"the checkpoint of step {step} could not be written to {folder}: {error}. {kept}. "
            "Free some space and resume the run."
        ) from error
    for old in names(folder)[:-KEPT]:
        shutil.rmtree(folder / old, ignore_errors=True)
    return path


def names(folder: Path) -> list[str]:
    """The checkpoints there, oldest first."""
    return sorted(path.name for path in folder.glob("step-*") if path.is_dir())


def latest(folder: str | Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None where there is none at all."""
    folder = Path(folder)
    damaged: list[str] = []
    for name in reversed(names(folder)):
        path = folder / name
        try:
            state = read_state(path)
            facts = {"bytes": (path / TENSORS).stat().st_size, "crc": crc_of(path / TENSORS)}
            if facts != state["tensors"]:
                raise ValueError(f"{TENSORS} is not what was written: its size or checksum differs")
        except (OSError, ValueError) as error:
            damaged.append(f"{name}: {error}")
        else:
            return Checkpoint(path, state, tuple(damaged))
    if damaged:
        raise TrainError(f"no checkpoint in {folder} is whole: {'; '.join(damaged)}. Start the run anew.")
    return None


def read_state(path: Path) -> dict[str, Any]:
    """What a checkpoint says beside its tensors; `OSError` or `ValueError` where it is damaged."""
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{STATE} cannot be read ({error})") from error
    if not isinstance(state, dict) or state.pop("checksum", None) != _checksum(state):
        raise ValueError(f"{STATE} is not what was written: its checksum differs")
    return state


def _checksum(state: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(state, sort_keys=True).encode())


def crc_of(path: Path) -> int:
    """The checksum of a file."""
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
