"""Exercise: sinusoidal positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.exercises.spec import Case, Convention, Draw, Exercise, Impossible, Mistake, Probe, Right, Trial
from regard.layers.positions import sinusoidal

TASK = """
The positions of the original Transformer (Vaswani et al. 2017, 3.5), which are added to the embeddings:

    P[p, 2i]     = sin(p / 10000^(2i / model_dim))
    P[p, 2i + 1] = cos(p / 10000^(2i / model_dim))          i = 0 .. model_dim / 2 - 1

`sinusoidal_positions(n_position, model_dim)` returns the table (n_position, model_dim), floating, for
p = 0 .. n_position - 1. `model_dim` is even. Sine and cosine of one i share their frequency and stand
side by side.
"""

STARTER = '''import torch


def sinusoidal_positions(n_position, model_dim):
    """The table (n_position, model_dim) of sines and cosines; model_dim is even."""
    raise NotImplementedError
'''

STEPS = """import torch

def sinusoidal_positions(n_position, model_dim):
    position = torch.arange(n_position, dtype=torch.float32).unsqueeze(1)
    exponent = torch.arange(0, model_dim, 2, dtype=torch.float32) / model_dim
    rate = 1.0 / 10000.0 ** exponent
    angle = position * rate
    P = torch.zeros(n_position, model_dim)
    P[:, 0::2] = torch.sin(angle)
    P[:, 1::2] = torch.cos(angle)
    return P
"""

EXP_LOG = """import math
import torch

def sinusoidal_positions(n_position, model_dim):
    position = torch.arange(0, n_position).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, model_dim, 2) * -(math.log(10000.0) / model_dim))
    both = torch.stack([torch.sin(position * div_term), torch.cos(position * div_term)], dim=2)
    return both.reshape(n_position, model_dim)
"""

LOOP = """import math
import torch

def sinusoidal_positions(n_position, model_dim):
    rows = []
    for p in range(n_position):
        row = []
        for c in range(model_dim):
            angle = p / math.pow(10000, 2 * (c // 2) / model_dim)
            row.append(math.sin(angle) if c % 2 == 0 else math.cos(angle))
        rows.append(row)
    return torch.tensor(rows)
"""

NUMPY = """import numpy as np

def sinusoidal_positions(n_position, model_dim):
    pair = np.arange(model_dim) // 2
    angles = np.arange(n_position)[:, None] / np.power(10000, 2 * pair / model_dim)[None]
    angles[:, 0::2] = np.sin(angles[:, 0::2])
    angles[:, 1::2] = np.cos(angles[:, 1::2])
    return angles
"""

HALVES = """import torch

def sinusoidal_positions(n_position, model_dim):
    half = torch.arange(model_dim // 2)
    angle = torch.outer(torch.arange(n_position).float(), 10000 ** (-2 * half / model_dim))
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
"""

# A table with an axis for the batch in front, as it is added to embeddings, is as good.
DRIVE = """
def drive(answer, *args, **kwargs):
    table = answer(*args, **kwargs)
    return table[0] if getattr(table, "ndim", 0) == 3 and table.shape[0] == 1 else table
"""


def reference(case: Case, *, layout: str = "side by side") -> Tensor:
    """Our own positions, in the order that the convention says."""
    table = sinusoidal(*case.args)
    return table if layout == "side by side" else torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)


def table(draw: Draw) -> Case:
    if draw["model_dim"] % 2:
        raise Impossible
    return Case((draw["n_position"], draw["model_dim"]))


def longer(draw: Draw) -> tuple[Case, ...]:
    """A shorter and a longer table."""
    return Case((draw["n_position"], draw["model_dim"])), Case((2 * draw["n_position"], draw["model_dim"]))


def same_start(results: list[Any]) -> str | None:
    short, long = (torch.as_tensor(result).double() for result in results)
    if torch.allclose(short, long[: len(short)], atol=1e-5):
        return None
    return "the first rows must be the same, however many positions are asked for."


PLACE = "Look at the exponent of 10000."
ANGLE = "angle = position * rate"
EXPONENT = "exponent = torch.arange(0, model_dim, 2, dtype=torch.float32) / model_dim"
SIN, COS = "P[:, 0::2] = torch.sin(angle)", "P[:, 1::2] = torch.cos(angle)"

EXERCISE = Exercise(
    id="positions",
    title="Sinusoidal positions",
    names=("sinusoidal_positions",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    drive=DRIVE,
    right=(
        Right("small steps", STEPS),
        Right("exp of a logarithm", EXP_LOG),
        Right("loops", LOOP),
        Right("numpy", NUMPY),
        Right("sines first, cosines after", HALVES),
    ),
    conventions=(
        Convention(
            "layout",
            {
                "side by side": "sine and cosine of a frequency stand side by side.",
                "halves": "all sines come first, then all cosines; the paper, and we, put them side by side.",
            },
        ),
    ),
    words={"": ("position", "model_dim")},
    trials=(
        Trial("a table", table, {"n_position": 7, "model_dim": 10}, grad=False),
        Trial("a wider one", table, {"n_position": 5, "model_dim": 22}, grad=False),
        Trial("many positions", table, {"n_position": 53, "model_dim": 6}, grad=False),
        Trial("as many positions as dimensions", table, {"n_position": 8, "model_dim": 8}, grad=False),
        Trial("one pair", table, {"n_position": 11, "model_dim": 2}, grad=False),
        Trial("two pairs", table, {"n_position": 3, "model_dim": 4}, grad=False),
    ),
    probes=(
        Probe(
            "a longer table starts alike",
            longer,
            {"n_position": 5, "model_dim": 6},
            same_start,
        ),
    ),
    hints=(
        "Some entry is not the sine or cosine that the formula gives.",
        "Row 0 must be 0, 1, 0, 1, ...; row 1 must start with sin(1) = 0.841 and cos(1) = 0.540.",
        "Columns 2i and 2i + 1 share the angle p / 10000^(2i / model_dim).",
        "angle = p * 10000^(-arange(0, model_dim, 2) / model_dim); sines into 0::2, cosines into 1::2.",
    ),
    mistakes=(
        Mistake(
            "sine and cosine swapped",
            (
                "Row 0 starts with 1, not 0.",
                "Look at which columns get the sine.",
                "Even columns hold the sine, odd ones the cosine.",
                "Swap them.",
            ),
            edits=((SIN, "P[:, 0::2] = torch.cos(angle)"), (COS, "P[:, 1::2] = torch.sin(angle)")),
        ),
        Mistake(
            "each column has a frequency of its own",
            (
                "Sine and cosine of a pair have different angles.",
                PLACE,
                "The exponent follows the column, where it should follow the pair: columns 2i and 2i "
                "+ 1 share 2i.",
                "Use 2 * (column // 2) / model_dim.",
            ),
            edits=(
                (
                    COS,
                    "P[:, 1::2] = torch.cos(position / 10000.0 ** (torch.arange(1, model_dim, 2) / "
                    "model_dim))",
                ),
            ),
        ),
        Mistake(
            "the exponent is i / model_dim",
            (
                "The frequencies fall half as fast as they should.",
                PLACE,
                "i counts pairs; the exponent is 2i / model_dim.",
                "Use arange(0, model_dim, 2) / model_dim.",
            ),
            edits=((EXPONENT, "exponent = torch.arange(model_dim // 2, dtype=torch.float32) / model_dim"),),
        ),
        Mistake(
            "the exponent is twice too large",
            (
                "The frequencies fall twice as fast as they should.",
                PLACE,
                "arange(0, model_dim, 2) is 2i already, and is doubled again.",
                "Use arange(0, model_dim, 2) / model_dim.",
            ),
            edits=((EXPONENT, EXPONENT + " * 2"),),
        ),
        Mistake(
            "the last frequency is exactly 1 / 10000",
            (
                "All frequencies but the first are too low.",
                PLACE,
                "2i is divided by model_dim - 2, so that the last exponent is 1.",
                "Divide by model_dim.",
            ),
            edits=((EXPONENT, EXPONENT.replace("/ model_dim", "/ max(1, model_dim - 2)")),),
        ),
        Mistake(
            "multiplied by 10000^... instead of divided",
            (
                "The angles grow from pair to pair.",
                PLACE,
                "The power is below the fraction line.",
                "p / 10000^(2i / model_dim).",
            ),
            edits=(("rate = 1.0 / 10000.0 ** exponent", "rate = 10000.0 ** exponent"),),
        ),
        Mistake(
            "the base is 1000",
            (
                "All frequencies but the first are too high.",
                "Look at the base.",
                "There is a zero too few.",
                "The base is 10000.",
            ),
            edits=(("10000.0 **", "1000.0 **"),),
        ),
        Mistake(
            "the base is 100000",
            (
                "All frequencies but the first are too low.",
                "Look at the base.",
                "There is a zero too many.",
                "The base is 10000.",
            ),
            edits=(("10000.0 **", "100000.0 **"),),
        ),
        Mistake(
            "positions counted from 1",
            (
                "Row 0 is not 0, 1, 0, 1, ...",
                "Look at the positions.",
                "The first position is 0.",
                "arange(n_position).",
            ),
            edits=((ANGLE, "angle = (position + 1) * rate"),),
        ),
        Mistake(
            "positions as a share of the length",
            (
                "The first rows change with the number of positions.",
                "Look at the positions.",
                "They are divided by n_position.",
                "Use whole numbers.",
            ),
            edits=((ANGLE, "angle = position / n_position * rate"),),
        ),
        Mistake(
            "sines everywhere",
            (
                "Row 0 is all zeros.",
                "Look at the odd columns.",
                "They hold the sine too.",
                "Odd columns hold the cosine.",
            ),
            edits=((COS, "P[:, 1::2] = torch.sin(angle)"),),
        ),
        Mistake(
            "sine and cosine alternate over positions",
            (
                "Even rows are all sines, odd rows all cosines.",
                "Look at the slices.",
                "The step of 2 is on the rows; it belongs on the columns.",
                "Fill [:, 0::2] and [:, 1::2].",
            ),
            edits=(
                ("angle = position * rate", "angle = (position * rate).repeat_interleave(2, dim=1)"),
                (SIN, "P[0::2] = torch.sin(angle[0::2])"),
                (COS, "P[1::2] = torch.cos(angle[1::2])"),
            ),
        ),
        Mistake(
            "the table lies on its side",
            (
                "The shape is (model_dim, n_position).",
                "Look at the shape.",
                "Positions are the rows.",
                "Transpose.",
            ),
            edits=(("return P", "return P.T"),),
        ),
        Mistake(
            "scaled by the root of the width",
            (
                "The entries do not reach 1.",
                "Look for a factor.",
                "The embeddings are scaled in some models, the positions never.",
                "Leave the factor out.",
            ),
            edits=(("return P", "return P / model_dim ** 0.5"),),
        ),
        Mistake(
            "angles in turns",
            (
                "Every entry of a whole position in column 0 is 0.",
                "Look for 2 pi.",
                "The angle is p / 10000^..., in radians.",
                "Leave 2 pi out.",
            ),
            edits=((ANGLE, "angle = position * rate * 2 * torch.pi"),),
        ),
        Mistake(
            "position 0 is left out",
            (
                "Row 0 is all zeros.",
                "Look at the loop or slice over the positions.",
                "It starts at 1, and row 0 keeps what the table was made with.",
                "Position 0 has a row too: 0, 1, 0, 1, ...",
            ),
            edits=(("return P", "P[0] = 0\n    return P"),),
        ),
    ),
)
