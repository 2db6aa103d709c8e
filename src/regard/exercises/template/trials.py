"""Reference, calls and probes: the only file of the folder that may import regard."""

from torch import Tensor

from regard.checking.trials import Case, Draw, Trial, neighbour_probe


def reference(case: Case, *, factor: str = "2", by: str = "product", of: str = "numbers") -> Tensor:
    """What the call must return. Its keywords are decisions, and their defaults are right.

    Conventions and mistakes of exercise.toml choose other values.
    """
    (x,), number = case.args, float(factor)
    x = {"sizes": x.abs(), "whole numbers": x.round(), "the sum over the batch": x + x.sum(0)}.get(of, x)
    results: dict[str, Tensor] = {
        "product": number * x,
        "division": x / number,
        "power": x**number,
        "addition": x + number,
    }
    return results[by]


def numbers(draw: Draw) -> Case:
    return Case((draw.normal("batch", "position"),))


TRIALS = (
    Trial("several sequences", numbers, {"batch": 2, "position": 3}, variants=True),
    Trial("one sequence", numbers, {"batch": 1, "position": 5}),
)

PROBES = (neighbour_probe(numbers, {"position": 2}),)
