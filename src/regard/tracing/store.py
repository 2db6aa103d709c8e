"""Traces in files: one safetensors file whose metadata describe the trace.

A file is written beside its place and moved there when complete. Reading maps it into memory, so that
a trace of hundreds of megabytes opens at once, and trusts nothing: whatever does not fit is a TraceError.
"""

import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.utils._pytree import tree_map_with_path

from regard.errors import RegardError, TraceError
from regard.files.safetensors import write_safetensors

KEY = "regard-trace"
VERSION = 3
_TENSOR = "regard-tensor"  # in a description, the only key of what stands for a tensor

Made = TypeVar("Made")


def write(path: Path, described: Mapping[str, Any]) -> None:
    """Write a description, and the tensors in it: all or nothing."""
    tensors: dict[str, Tensor] = {}
    names: dict[Any, str] = {}  # of the tensors: each is written once, however often it is used

    def shelved(place: tuple[Any, ...], part: Any) -> Any:
        if not isinstance(part, Tensor):
            return part
        key = (part.data_ptr(), part.shape, part.stride(), part.dtype)
        if key not in names:
            names[key] = ".".join(str(getattr(step, "key", getattr(step, "idx", ""))) for step in place)
            # The format refuses what is not in order, as a kernel's lse, and two views of one memory.
            ours = part.detach().cpu().contiguous()
            alone = ours.untyped_storage().nbytes() == ours.numel() * ours.element_size()
            tensors[names[key]] = ours if alone else ours.clone()
        return {_TENSOR: names[key]}

    # One entry: the order of several is left to chance, and the same trace should be the same bytes.
    metadata = {KEY: json.dumps({"version": VERSION, **tree_map_with_path(shelved, dict(described))})}
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        write_safetensors(tensors, draft, metadata)
        os.replace(draft, path)
    except (OSError, SafetensorError) as error:
        draft.unlink(missing_ok=True)
        raise TraceError(f"the trace cannot be written to {path}: {error}.") from error


def read(path: Path, make: Callable[[Mapping[str, Any]], Made]) -> Made:
    """What `make` makes of the description; its tensors stay in the file until they are looked at."""

    def shelf(part: dict[str, Any]) -> Any:
        if "alike" in part:  # what files of earlier releases call it
            part["uniform_rows"] = part.pop("alike")
        return tensors[part[_TENSOR]] if part.keys() == {_TENSOR} else part

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
        described = json.loads(metadata[KEY], object_hook=shelf)
        version = described.pop("version")
        if version != VERSION:
            older = isinstance(version, int) and version < VERSION
            raise TraceError(
                f"{path} was made by {'an older' if older else 'another'} Regard: it is a trace of version "
                f"{version!r}, and this program reads version {VERSION}. Trace the text again."
            )
        return make(described)
    except TraceError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, RegardError) as error:
        raise TraceError(f"{path} is damaged: its description does not fit its tensors ({error}).") from error
