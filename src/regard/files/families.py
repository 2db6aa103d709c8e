"""The table of families that `regard families` prints, read without torch.

The table is derived from the families themselves (`regard.models.families.differences`), which need torch, a
second's import. It is therefore kept as JSON, and a test compares the two.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("families.json")


@cache
def family_table() -> Mapping[str, Mapping[str, str]]:
    """Return each field in which the families differ, as field -> family -> value.

    >>> family_table()["stacks"]["t5"]
    'encoder-decoder'
    """
    table: dict[str, dict[str, str]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def families_with(*stacks: str) -> list[str]:
    """Return the names of the families with one of these stacks: decoder, encoder, encoder-decoder.

    >>> families_with("encoder-decoder")
    ['t5']
    """
    return [name for name, stack in family_table()["stacks"].items() if stack in stacks]
