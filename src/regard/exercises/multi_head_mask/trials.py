"""Reference, calls and probes of `multi-head-mask`."""

from __future__ import annotations

from regard.exercises.shared.masked_heads import Cases, probes, reference, trials

__all__ = ["PROBES", "TRIALS", "reference"]

TRIALS = trials(Cases(1))
PROBES = probes(Cases(1))
