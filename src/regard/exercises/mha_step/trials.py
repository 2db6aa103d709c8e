"""Reference, calls and probes of `mha-step`."""

from __future__ import annotations

from functools import partial

from regard.exercises.shared.steps import checks, stepped

reference = partial(stepped, shared=False)
TRIALS, PROBES = checks(shared=False)
