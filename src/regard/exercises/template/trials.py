"""Reference, calls and probes: the only file of the folder that may import regard."""

from torch import Tensor

from regard.checking.trials import Case, Draw, Trial, neighbour_probe, worked

# The decisions of the reference, all of them right; a formula may use those before it. A mistake of
# exercise.toml is another formula.
FORMULAS = {"factor": "2", "of": "x", "by": "of * factor"}


def reference(case: Case, **choices: str) -> Tensor:
    """What the call must return, with the choices of a convention or a mistake."""
    (x,) = case.args
    result: Tensor = worked(FORMULAS, choices, x=x)
    return result


def numbers(draw: Draw) -> Case:
    return Case((draw.normal("batch", "position"),))


TRIALS = (
    Trial("several sequences", numbers, {"batch": 2, "position": 3}, variants=True),
    Trial("one sequence", numbers, {"batch": 1, "position": 5}),
)

PROBES = (neighbour_probe(numbers, {"position": 2}),)
