"""Reference, calls and probes of `multi-head-mask`."""

from regard.exercises.shared.masked_heads import checks, reference

__all__ = ["PROBES", "TRIALS", "reference"]

TRIALS, PROBES = checks(wide=1)
