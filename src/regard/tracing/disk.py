"""Large tensors of a trace in files without a name: memory that the machine can take back.

A file is mapped and never read as a whole: looking at a head costs the pages of that head. What is not
looked at is the machine's to keep or to write out, and the space is free again when the tensor is.
"""

import mmap
import os
import tempfile
from weakref import WeakSet

import torch
from torch import Tensor

from regard.files.hub import cache_folder

LEAST_BYTES = 1 << 20  # smaller ones stay where they are
_MAPS: WeakSet[mmap.mmap] = WeakSet()


def on_disk(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor | None:
    """A copy that is mapped from a file; None where it would be small, or there is no room."""
    dtype = dtype or tensor.dtype
    n_byte = tensor.numel() * dtype.itemsize
    if n_byte < LEAST_BYTES or tensor.device.type != "cpu" or not hasattr(os, "posix_fallocate"):
        return None
    folder = cache_folder()  # often of the disk, where /tmp is of memory
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, n_byte)  # a full disk is known now, not by a signal
            mapped = mmap.mmap(file.fileno(), n_byte)
    except OSError:
        return None
    _MAPS.add(mapped)
    kept = torch.frombuffer(mapped, dtype=dtype).view(tensor.shape).copy_(tensor.detach())
    mapped.madvise(mmap.MADV_DONTNEED)
    return kept


def drop_resident_pages() -> None:
    """Count no page of such tensors as ours until it is looked at again."""
    for mapped in list(_MAPS):
        mapped.madvise(mmap.MADV_DONTNEED)
