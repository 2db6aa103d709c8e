"""The allocator is asked to keep freed memory, unless somebody else has decided."""

import os
import platform
import subprocess
import sys

import pytest

from regard.allocation import SETTINGS, keep_freed_memory

HELD = """
import re, torch
from pathlib import Path
import regard.attention.softmax
from regard import keep_freed_memory

def resident():
    return int(re.search(r"VmRSS:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

{call}
torch.zeros(3)
before = resident()
parts = [torch.ones(5_000_000) for _ in range(3)]
del parts
print(resident() - before)
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked")


def held(call="keep_freed_memory()", **settings):
    """Bytes that a fresh process still holds of 60 MB it has freed, after that call."""
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    command = [sys.executable, "-c", HELD.replace("{call}", call)]
    done = subprocess.run(command, env=environment | settings, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


@glibc
def test_what_is_freed_stays_for_the_next_tensor():
    """Nearly all of it stays where that is asked for; by importing alone, nearly nothing."""
    assert held() > 50_000_000
    assert held(call="") < 10_000_000
    assert held(REGARD_KEEP_ALLOCATOR="1") < 10_000_000


@glibc
def test_what_was_kept_can_be_given_back():
    """After a long text; not where the user decides about memory."""
    later = "keep_freed_memory(); from regard.allocation import give_back_memory; import atexit"
    later += "; atexit.register(lambda: (give_back_memory(), print(resident() - before)))"
    assert held(later) < 10_000_000


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
