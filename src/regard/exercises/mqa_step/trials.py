"""Reference, calls and probes of `mqa-step`."""

from regard.exercises.shared.steps import checks, reference

__all__ = ["PROBES", "TRIALS", "reference"]

TRIALS, PROBES = checks(shared=True)
