"""The allocator is asked to keep freed memory, unless somebody else has decided."""

import json
import os
import platform
import subprocess
import sys

import pytest

from regard.allocation import SETTINGS, keep_freed_memory

COUNT = """
import json, resource, torch
import regard.attention
def layer():
    parts = [torch.zeros(5_000_000) for _ in range(3)]
    del parts
layer()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    layer()
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before))
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked")


def faults(**settings):
    """Pages that had to be fetched anew while the same tensors were made five times, in a fresh process."""
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    command = [sys.executable, "-c", COUNT]
    done = subprocess.run(command, env=environment | settings, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@glibc
def test_the_same_memory_is_used_again():
    """Making what was freed before fetches next to no page; with the C library's own ways, all of them."""
    assert faults() < 1_000
    assert faults(REGARD_KEEP_ALLOCATOR="1") > 10_000


@glibc
@pytest.mark.parametrize("name", SETTINGS)
def test_whoever_chose_before_decides(name, monkeypatch):
    """A setting of the user's is left alone."""
    for each in SETTINGS:
        monkeypatch.delenv(each, raising=False)
    assert keep_freed_memory()
    monkeypatch.setenv(name, "1")
    assert not keep_freed_memory()


def test_without_glibc_nothing_happens(monkeypatch):
    """Where the C library has no such setting, nothing is asked and nothing fails."""
    monkeypatch.setattr("regard.allocation.ctypes.CDLL", lambda _: object())
    for each in SETTINGS:
        monkeypatch.delenv(each, raising=False)
    assert not keep_freed_memory()
