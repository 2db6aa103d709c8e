"""Rows of numbers for other programs: as a pandas table, or as CSV."""

import csv
from collections.abc import Mapping, Sequence
from importlib import import_module
from io import StringIO
from typing import Any

from regard.errors import UnsupportedError


def dataframe(columns: Mapping[str, Sequence[Any]]) -> Any:
    """Return a pandas DataFrame of these columns; pandas is not a dependency and must be installed."""
    try:
        pandas = import_module("pandas")
    except ImportError as error:
        raise UnsupportedError("a DataFrame needs pandas, which is not here: pip install pandas.") from error
    return pandas.DataFrame(dict(columns))


def csv_text(columns: Mapping[str, Sequence[Any]]) -> str:
    """Return these columns as lines of CSV, the names first.

    >>> print(csv_text({"head": [0, 1], "label": ["sink", "none"]}), end="")
    head,label
    0,sink
    1,none
    """
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()
