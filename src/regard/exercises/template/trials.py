"""Reference, calls and probes: the only file of the folder that may import regard."""

from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial


def reference(case: Case) -> Tensor:
    """What the call must return. Each convention of exercise.toml is a keyword of it."""
    (x,) = case.args
    doubled: Tensor = 2 * x
    return doubled


def numbers(draw: Draw) -> Case:
    return Case((draw.normal("batch", "position"),))


def neighbour(draw: Draw) -> tuple[Case, ...]:
    base = numbers(draw)
    x = base.args[0].clone()
    x[0] += 1
    return base, base.with_args(x)


TRIALS = (
    Trial("several sequences", numbers, {"batch": 2, "position": 3}, variants=True),
    Trial("one sequence", numbers, {"batch": 1, "position": 5}),
)

PROBES = (
    Probe(
        "a neighbour has no say",
        neighbour,
        {"batch": 3, "position": 2},
        says="sequence 0 was changed: the others may not move.",
    ),
)
