"""Tests that meet regard as its users do, without the shape-checking import hook."""

import sys

import pytest

hooked = [finder for finder in sys.meta_path if type(finder).__module__.startswith("jaxtyping")]
if hooked:
    raise pytest.UsageError(
        "tests/unhooked needs the shape checks off: run REGARD_SHAPE_CHECKS=0 pytest tests/unhooked"
    )
