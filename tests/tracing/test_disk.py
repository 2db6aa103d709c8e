"""Traces whose large tensors are in files."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch

from regard import load, trace
from regard.tracing import disk

pytestmark = pytest.mark.skipif(
    not hasattr(os, "posix_fallocate"), reason="here there is no such file: everything stays in memory"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.setattr(disk, "LEAST_BYTES", 1)
    return tmp_path


def test_a_trace_on_disk_is_the_trace(folder: Path):
    model = load("gpt2", random=True)
    inside = trace(model, "the cat sat", keep_v=True)
    outside = trace(model, "the cat sat", keep_v=True, to_disk=True)
    assert len(disk._MAPS) == 3 * len(inside.layers)  # q, k and v
    assert not any(folder.iterdir())  # their files have no names
    outside.save(folder / "outside.trace")
    disk.drop_resident_pages()  # pages are forgotten, numbers are not
    for mine, theirs in zip(inside.layers, outside.layers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine.tensors, theirs.tensors, strict=True))
    inside.save(folder / "inside.trace")
    assert (folder / "outside.trace").read_bytes() == (folder / "inside.trace").read_bytes()
    del outside, theirs
    gc.collect()
    assert not len(disk._MAPS)


def test_without_room_on_the_disk_it_stays_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    tensor = torch.randn(5, 3)
    assert disk.on_disk(tensor) is None
    monkeypatch.undo()
    assert disk.on_disk(tensor) is None  # too small to be worth a file


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="mapped pages are counted in /proc")
def test_pages_that_are_let_go_are_not_counted(folder: Path):
    def mapped_bytes() -> int:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("RssFile")).split()[1])

    tensor = disk.on_disk(torch.ones(16 << 20))
    assert tensor is not None
    assert tensor.sum() == 16 << 20
    full = mapped_bytes()
    disk.drop_resident_pages()
    assert full - mapped_bytes() > 60 << 20
    assert tensor.sum() == 16 << 20
