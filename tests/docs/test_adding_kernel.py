"""The page on adding a kernel: its code runs as it stands there."""

import re
from pathlib import Path

from regard.attention import kernels

PAGE = (Path(__file__).parents[2] / "docs" / "adding" / "kernel.md").read_text(encoding="utf-8")


def test_the_kernel_of_the_page_is_asked_and_refused_as_it_says(monkeypatch):
    """The row, the questions and the comparison of the page, one after the other."""
    before = kernels.KERNELS
    monkeypatch.setattr(kernels, "KERNELS", before)  # put back after the page has added to it
    cells = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    names = {}
    for cell in cells:
        exec(cell, names)
    assert len(cells) == 3
    assert (*before, names["XPU"]) == kernels.KERNELS
