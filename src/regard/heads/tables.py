"""What was measured of heads as a table with one row a head: for pandas, or a CSV file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from regard.errors import ArgumentError
from regard.heads.labels import HeadLabel
from regard.heads.measures import Measures
from regard.heads.surveys import Survey
from regard.tables import dataframe

Table = Measures | Survey | Sequence[HeadLabel]


def columns_of(table: Table) -> dict[str, list[Any]]:
    """Columns by name, a row for each head: labels and why, or every measure, or of a survey both.

    >>> from regard.heads import measure
    >>> from regard.tracing.traces import Trace
    >>> columns_of(measure(Trace.from_weights([[1.0, 0.0], [0.5, 0.5]])))["previous"]
    [0.5]
    """
    if isinstance(table, Survey):
        measured = columns_of(table.measures)
        return {
            **columns_of(table.labels()),
            **{k: v for k, v in measured.items() if k not in ("layer", "head")},
        }
    if isinstance(table, Measures):
        heads = [(index, head) for index, n_head in enumerate(table.n_heads) for head in range(n_head)]
        names = [*(name for name in table.values if not name.startswith("argmax")), "positional"]
        return {
            "layer": [table.layers[layer] for layer, _ in heads],
            "head": [head for _, head in heads],
            **{name: [float(table[name][at]) for at in heads] for name in names},
            "offset": [int(table.offset[at]) for at in heads],
        }
    if isinstance(table, Sequence) and all(isinstance(row, HeadLabel) for row in table):
        rows = [{**asdict(row), "also": " ".join(row.also)} for row in table]
        return {field.name: [row[field.name] for row in rows] for field in fields(HeadLabel)}
    raise ArgumentError(f"a table is made of Measures, a Survey or labels. Got {type(table).__name__}.")


def to_dataframe(table: Table) -> Any:
    """`columns_of` as a pandas DataFrame, where pandas is installed."""
    return dataframe(columns_of(table))
