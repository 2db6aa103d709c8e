"""Reference, calls and probes of `decoder-block`."""

from torch import Tensor

from regard.checking.trials import Case, Trial
from regard.exercises.shared.attention import future
from regard.exercises.shared.blocks import DROPOUT_PROBES, MODES, SIZES, Choices, Reference, block
from regard.exercises.shared.given import causal_probes
from regard.exercises.shared.lengths import edges


def reference(case: Case, **choices: str) -> Tensor:
    """The block's output."""
    c = Choices(**choices)
    return Reference(case, c, lambda scores: future(scores, True, c))(case.args[0])


TRIALS = (
    Trial("a batch", block, SIZES, variants=True),
    Trial("other sizes", block, {"batch": 5, "position": 3, "head": 2, "head_dim": 5, "ff_dim": 11}),
    *edges(block, SIZES),
    *MODES,
)

PROBES = (*causal_probes(block, SIZES), *DROPOUT_PROBES)
