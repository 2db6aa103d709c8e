"""Traces in files: one safetensors file whose metadata describe the trace.

A file is written beside its place and moved there when complete. Reading maps it into memory, so that
a trace of hundreds of megabytes opens at once, and trusts nothing: whatever does not fit is a TraceError.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.errors import RegardError, TraceError
from regard.files.safetensors import write_safetensors

KEY = "regard-trace"
VERSION = 3
_TENSOR = "regard-tensor"  # in a description, the only key of what stands for a tensor

Made = TypeVar("Made")


def write(path: Path, described: Mapping[str, Any]) -> None:
    """Write a description, and the tensors in it: all or nothing."""
    tensors: dict[str, Tensor] = {}
    # One entry: the order of several is left to chance, and the same trace should be the same bytes.
    metadata = {KEY: json.dumps({"version": VERSION, **_shelved("", described, tensors, {})})}
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        write_safetensors(tensors, draft, metadata)
        os.replace(draft, path)
    except (OSError, SafetensorError) as error:
        draft.unlink(missing_ok=True)
        raise TraceError(f"the trace cannot be written to {path}: {error}.") from error


def read(path: Path, make: Callable[[Mapping[str, Any]], Made]) -> Made:
    """What `make` makes of the description; its tensors stay in the file until they are looked at."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if KEY not in metadata:
                raise TraceError(
                    f"{path} is a safetensors file but no trace: its metadata must have {KEY!r}. "
                    f"Got {sorted(metadata)}."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no dict
    except FileNotFoundError as error:
        raise TraceError(f"there is no file {path}.") from error
    except (OSError, SafetensorError) as error:
        raise TraceError(
            f"{path} cannot be read as a trace: it is cut short, damaged or no safetensors file ({error})."
        ) from error
    try:
        described = json.loads(metadata[KEY])
        version = described.pop("version")
        if version != VERSION:
            older = isinstance(version, int) and version < VERSION
            raise TraceError(
                f"{path} was made by {'an older' if older else 'another'} Regard: it is a trace of version "
                f"{version!r}, and this program reads version {VERSION}. Trace the text again."
            )
        return make(_with_tensors(described, tensors))
    except TraceError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, RegardError) as error:
        raise TraceError(f"{path} is damaged: its description does not fit its tensors ({error}).") from error


def _shelved(name: str, described: Any, tensors: dict[str, Tensor], names: dict[Any, str]) -> Any:
    """The description with names in the places of tensors, each tensor once however often it is used."""
    if isinstance(described, Mapping):
        parts = described.items()
        return {key: _shelved(f"{name}.{key}", part, tensors, names) for key, part in parts}
    if isinstance(described, list):
        return [_shelved(f"{name}.{i}", part, tensors, names) for i, part in enumerate(described)]
    if not isinstance(described, Tensor):
        return described
    key = (described.data_ptr(), described.shape, described.stride(), described.dtype)
    if key not in names:
        names[key] = name.removeprefix(".")
        # The format refuses what is not in order, as a kernel's lse, and two views of one memory.
        ours = described.detach().cpu().contiguous()
        alone = ours.untyped_storage().nbytes() == ours.numel() * ours.element_size()
        tensors[names[key]] = ours if alone else ours.clone()
    return {_TENSOR: names[key]}


def _with_tensors(described: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(described, list):
        return [_with_tensors(part, tensors) for part in described]
    if not isinstance(described, dict):
        return described
    if described.keys() == {_TENSOR}:
        return tensors[described[_TENSOR]]
    return {key: _with_tensors(part, tensors) for key, part in described.items()}
