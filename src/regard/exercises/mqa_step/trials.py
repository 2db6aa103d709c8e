"""Reference, calls and probes of `mqa-step`."""

from __future__ import annotations

from functools import partial

from regard.exercises.shared.steps import checks, stepped

reference = partial(stepped, shared=True)
TRIALS, PROBES = checks(shared=True)
