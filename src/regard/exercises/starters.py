"""The files that `regard start` and `regard author new` write."""

from __future__ import annotations

import json
import re

from regard.errors import ArgumentError
from regard.exercises.spec import Exercise


def script(exercise: Exercise) -> str:
    """The starter as a script, with the task above it as a comment."""
    task = [
        f"# {exercise.title}",
        "#",
        *(f"# {line}".rstrip() for line in exercise.task.strip().splitlines()),
    ]
    return "\n".join(
        [*task, "#", f"# Check it with: regard check {file_name(exercise)}", "", exercise.starter]
    )


def notebook(exercise: Exercise) -> str:
    """The starter as a notebook: the task, then a cell to fill in."""
    cells = [
        {
            "cell_type": "markdown",
            "id": "task",
            "metadata": {},
            "source": f"# {exercise.title}\n\n{exercise.task.strip()}\n\n"
            f"Check it with: `regard check {file_name(exercise, '.ipynb')}`",
        },
        {
            "cell_type": "code",
            "id": "answer",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": exercise.starter,
        },
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return json.dumps(
        {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}, indent=1
    )


def file_name(exercise: Exercise, suffix: str = ".py") -> str:
    """The file that an answer is written to, unless told otherwise."""
    return exercise.id.replace("-", "_") + suffix


TEMPLATE = '''"""Exercise: double every number. Put your own in its place; `regard author check` proves it."""

from regard.exercises.spec import Case, Exercise, Mistake, Probe, Right, Trial

TASK = """
Return every number of `x` times two.

- `x`: (batch, position), floating.
- Returns (batch, position). `x` is left as it was.
"""

STARTER = \'\'\'import torch


def {name}(x):
    """x (batch, position) -> (batch, position)."""
    raise NotImplementedError
\'\'\'

PRODUCT = """import torch

def {name}(x):
    factor = 2
    return factor * x
"""

SUM = """import torch

def {name}(x):
    return x + x
"""

GOOD = "factor * x"


def reference(case):
    """What the call must return; it may use all of regard."""
    (x,) = case.args
    return 2 * x


def numbers(draw):
    return Case((draw.normal("batch", "position"),))


def neighbour(draw):
    base = numbers(draw)
    x = base.args[0].clone()
    x[0] += 1
    return base, base.with_args(x)


def mistake(name, symptom, place, cause, fix, *edits):
    return Mistake(name, (symptom, place, cause, fix), edits=edits)


EXERCISE = Exercise(
    id="{id}",
    title="Double it",
    names=("{name}",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    right=(Right("a product", PRODUCT), Right("a sum", SUM)),
    words={{"": ("batch", "position")}},
    trials=(
        Trial("several sequences", numbers, {{"batch": 2, "position": 3}}, variants=True),
        Trial("one sequence", numbers, {{"batch": 1, "position": 5}}),
    ),
    probes=(
        Probe(
            "a neighbour has no say",
            neighbour,
            {{"batch": 3, "position": 2}},
            says="sequence 0 was changed: the others may not move.",
        ),
    ),
    hints=(
        "Some number is not twice what it was.",
        "Compare one number by hand.",
        "The factor is another one.",
        "Multiply by 2.",
    ),
    mistakes=(
        mistake("three times", "Half too large.", "The factor.", "It is 3.", "Use 2.", ("= 2", "= 3")),
        mistake("negated", "The sign is wrong.", "The factor.", "It is -2.", "Use 2.", ("= 2", "= -2")),
        mistake("halved", "Too small.", "The operator.", "It divides.", "Multiply.", (GOOD, "x / factor")),
        mistake("squared", "Signs are lost.", "The operator.", "A power.", "Multiply.", (GOOD, "x**factor")),
        mistake("added", "Each is off by 2.", "The operator.", "It adds.", "Multiply.", (GOOD, "factor + x")),
        mistake("no sign", "All are positive.", "The result.", "abs.", "Remove it.", (GOOD, "2 * x.abs()")),
        mistake("rounded", "All are whole.", "The result.", "round.", "Remove it.", (GOOD, "2 * x.round()")),
        mistake("cut off", "No gradient.", "The result.", "detach.", "Remove it.", (GOOD, "2 * x.detach()")),
    ),
)
'''


def new_exercise(id: str) -> str:
    """A small exercise that passes its own proof, to be replaced part by part."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", id):
        raise ArgumentError(f"an id is lower-case words joined by '-', such as scaled-scores. Got {id!r}.")
    return TEMPLATE.format(id=id, name=id.replace("-", "_"))
