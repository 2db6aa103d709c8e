"""The page on adding a family: its code runs as it stands there, and its family is the published one."""

import re
from pathlib import Path

import pytest

from regard.models.families import FAMILIES, Family

PAGE = (Path(__file__).parents[2] / "docs" / "adding" / "family.md").read_text(encoding="utf-8")


def test_the_family_of_the_page_gives_the_numbers_of_transformers():
    """The class, the comparison and the round trip of the page, one after the other."""
    pytest.importorskip("transformers")
    cells = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    names = {}
    for cell in cells:
        exec(cell, names)
    family = names["family"]
    assert len(cells) == 3
    assert isinstance(family, Family)
    assert family.name not in FAMILIES  # or the page should take another
    assert names["ours"].config.block.window == 5
