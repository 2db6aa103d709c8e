"""What is known of each head on this text, in the form the page reads: measures, chance levels and labels."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from regard.heads.labels import label
from regard.heads.measures import WHAT, measure
from regard.tracing.traces import Trace


def head_facts(trace: Trace, batch: int = 0, special_ids: Collection[int] = ()) -> dict[str, Any]:
    """Measures [layer][head] by name, their chance levels, and the label and rule of each head.

    >>> facts = head_facts(Trace.from_weights([[1.0, 0.0], [0.5, 0.5]]))
    >>> facts["measures"]["same"]["values"]
    [[0.5]]
    """
    found = measure(trace, batch=batch, special_ids=special_ids)
    measures = {
        name: {
            "what": what,
            "values": [
                [_number(value) for value in row[:n_head]]
                for row, n_head in zip(found[name].tolist(), found.n_heads, strict=True)
            ],
            "chance": [_number(value) for value in found.chance[name].tolist()]
            if name in found.chance
            else [None] * len(found.layers),
        }
        for name, what in WHAT.items()
    }
    named = iter(label(found))
    labels = []
    for n_head in found.n_heads:
        row = [next(named) for _ in range(n_head)]
        labels.append([None if h.label == "none" else {"label": h.label, "rule": h.rule} for h in row])
    return {"measures": measures, "labels": labels}


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
