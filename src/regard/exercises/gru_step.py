"""Exercise: one step of a gated recurrent unit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.exercises.spec import Case, Convention, Draw, Exercise, Mistake, Right, Trial
from regard.recurrent.cells import GRUWeights, gru_step

TASK = """
One step of a gated recurrent unit. Vectors are rows, and there is no batch:

    z = sigmoid(x_t W_z + h_prev U_z + b_z)        how much of the old state stays
    r = sigmoid(x_t W_r + h_prev U_r + b_r)        how much of it the candidate sees
    candidate = tanh(x_t W_h + (r * h_prev) U_h + b_h)
    h = z * h_prev + (1 - z) * candidate

- `x_t`: (inputs,). `h_prev`: (hidden,).
- Each `W_*`: (inputs, hidden), each `U_*`: (hidden, hidden), each `b_*`: (hidden,).
- Returns `h`, (hidden,). The arguments are left as they were, and gradients flow to all of them.

Papers differ in two points: some let z take the candidate and 1 - z keep the old state, and some apply r
after the product with U_h, as `nn.GRU` does. Both are accepted, with a note.
"""

SIGNATURE = "x_t, h_prev, W_z, U_z, b_z, W_r, U_r, b_r, W_h, U_h, b_h"

STARTER = f'''import torch


def gru_step({SIGNATURE}):
    """x_t (inputs,), h_prev (hidden,) -> the next state (hidden,)."""
    raise NotImplementedError
'''

GATES = f"""import torch

def gru_step({SIGNATURE}):
    before_z = torch.matmul(x_t, W_z) + torch.matmul(h_prev, U_z) + b_z
    before_r = torch.matmul(x_t, W_r) + torch.matmul(h_prev, U_r) + b_r
    update = torch.sigmoid(before_z)
    reset = torch.sigmoid(before_r)
    seen = reset * h_prev
    before_h = torch.matmul(x_t, W_h) + torch.matmul(seen, U_h) + b_h
    new = torch.tanh(before_h)
    kept = update * h_prev
    taken = (1 - update) * new
    return kept + taken
"""

STACKED = f"""import torch

def gru_step({SIGNATURE}):
    both = torch.cat([x_t, h_prev], dim=-1)
    W = torch.cat([torch.cat([W_z, W_r], 1), torch.cat([U_z, U_r], 1)], 0)
    z, r = torch.chunk(torch.sigmoid(both @ W + torch.cat([b_z, b_r])), 2)
    n = torch.tanh(torch.cat([x_t, r * h_prev]) @ torch.cat([W_h, U_h], 0) + b_h)
    return torch.lerp(n, h_prev, z)
"""

COLUMNS = f"""import torch

def gru_step({SIGNATURE}):
    n = h_prev.shape[0]

    def row(v, M):
        return torch.stack([sum(v[k] * M[k, j] for k in range(v.shape[0])) for j in range(n)])

    z = 1 / (1 + torch.exp(-(row(x_t, W_z) + row(h_prev, U_z) + b_z)))
    r = 1 / (1 + torch.exp(-(row(x_t, W_r) + row(h_prev, U_r) + b_r)))
    c = torch.tanh(row(x_t, W_h) + row(r * h_prev, U_h) + b_h)
    return c + z * (h_prev - c)
"""

CELL = f"""import torch

def gru_step({SIGNATURE}):
    w_ih = torch.cat([W_r.T, W_z.T, W_h.T])
    w_hh = torch.cat([U_r.T, U_z.T, U_h.T])
    bias = torch.cat([b_r, b_z, b_h])
    h = torch.gru_cell(x_t.unsqueeze(0), h_prev.unsqueeze(0), w_ih, w_hh, bias, torch.zeros_like(bias))
    return h.squeeze(0)
"""

TAKES = f"""import torch
import torch.nn.functional as F

def gru_step({SIGNATURE}):
    z = (F.linear(x_t, W_z.t(), b_z) + F.linear(h_prev, U_z.t())).sigmoid()
    r = (F.linear(x_t, W_r.t(), b_r) + F.linear(h_prev, U_r.t())).sigmoid()
    h_tilde = (F.linear(x_t, W_h.t(), b_h) + F.linear(r * h_prev, U_h.t())).tanh()
    return (1 - z) * h_prev + z * h_tilde
"""


def reference(case: Case, *, update: str = "keeps", reset: str = "before") -> Tensor:
    """Our own step; with the update gate negated it takes where it kept."""
    x, h, *weights = case.args
    if update == "takes":  # sigmoid(-a) = 1 - sigmoid(a)
        weights = [-weight for weight in weights[:3]] + weights[3:]
    return gru_step(x, h, GRUWeights(*weights), reset_after=reset == "after")


def step(draw: Draw) -> Case:
    shapes: dict[str, tuple[Any, ...]] = {
        "W": ("input", "hidden"),
        "U": ("hidden", "hidden"),
        "b": ("hidden",),
    }
    weights = [draw.normal(*shapes[name[0]], scale=0.8) for name in SIGNATURE.split(", ")[2:]]
    return Case((draw.normal("input"), draw.uniform("hidden", low=-0.9, high=0.9), *weights))


def at_rest(draw: Draw) -> Case:
    case = step(draw)
    return case.with_args(case.args[0], torch.zeros(draw["hidden"]), *case.args[2:])


def large_state(draw: Draw) -> Case:
    """A state that no tanh gives, which shows what the gates do to it."""
    case = step(draw)
    return case.with_args(case.args[0], draw.normal("hidden", scale=2.0), *case.args[2:])


EXERCISE = Exercise(
    id="gru-step",
    title="One step of a GRU",
    names=("gru_step",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    right=(
        Right("gate by gate", GATES),
        Right("weights side by side, and lerp", STACKED),
        Right("products written out", COLUMNS),
        Right("torch's own cell, which resets after the product", CELL),
        Right("z takes the candidate", TAKES),
    ),
    conventions=(
        Convention(
            "update",
            {
                "keeps": "z keeps the old state and 1 - z takes the candidate.",
                "takes": "your z takes the candidate and 1 - z keeps the old state, as Chung et al. (2014) "
                "have it; our z keeps.",
            },
        ),
        Convention(
            "reset",
            {
                "before": "r is applied before the product with U_h.",
                "after": "your r is applied after the product with U_h, as nn.GRU does; ours before it, as "
                "in Cho et al. (2014).",
            },
        ),
    ),
    words={"": ("hidden",)},
    trials=(
        Trial("one step", step, {"input": 3, "hidden": 5}, variants=True),
        Trial("more inputs than hidden units", step, {"input": 7, "hidden": 2}, variants=True),
        Trial("as many inputs as hidden units", step, {"input": 5, "hidden": 5}),
        Trial("one input, one hidden unit", step, {"input": 1, "hidden": 1}),
        Trial("the first step, from zeros", at_rest, {"input": 3, "hidden": 5}),
        Trial("a large state", large_state, {"input": 3, "hidden": 7}),
    ),
    hints=(
        "The new state differs from what the four formulas give.",
        "Compare line by line: z, r, the candidate, h. The first that differs is the one to look at.",
        "z and r have a sigmoid, the candidate a tanh; r acts inside the candidate and nowhere else.",
        "Write the four formulas as four lines, in their order.",
    ),
    mistakes=(
        Mistake(
            "update and reset gate change places",
            (
                "The gate that should hide the old state from the candidate decides how much of it stays.",
                "Look at which gate stands in which formula.",
                "r belongs into the candidate and z into the last line; yours are the other way round.",
                "z = sigmoid(x_t W_z + ...) mixes, r = sigmoid(x_t W_r + ...) resets.",
            ),
            edits=(
                ("update = torch.sigmoid(before_z)", "update = torch.sigmoid(before_r)"),
                ("reset = torch.sigmoid(before_r)", "reset = torch.sigmoid(before_z)"),
            ),
        ),
        Mistake(
            "the reset gate is not used",
            (
                "The candidate sees all of the old state.",
                "Look at the candidate.",
                "h_prev is not multiplied by r.",
                "The candidate is tanh(x_t W_h + (r * h_prev) U_h + b_h).",
            ),
            edits=(("seen = reset * h_prev", "seen = h_prev"),),
        ),
        Mistake(
            "1 - r in the place of r",
            (
                "The candidate sees what it should not, and not what it should.",
                "Look at the candidate.",
                "r near 1 lets the old state in; yours shuts it out.",
                "Multiply h_prev by r.",
            ),
            edits=(("seen = reset * h_prev", "seen = (1 - reset) * h_prev"),),
        ),
        Mistake(
            "the update gate is not used: the candidate is the new state",
            (
                "Nothing of the old state stays.",
                "Look at the last line.",
                "The candidate alone is returned.",
                "h = z * h_prev + (1 - z) * candidate.",
            ),
            edits=(("return kept + taken", "return new"),),
        ),
        Mistake(
            "the candidate is added whole",
            (
                "The new state may leave the range from -1 to 1.",
                "Look at the last line.",
                "The two shares must sum to 1: z and 1 - z.",
                "h = z * h_prev + (1 - z) * candidate.",
            ),
            edits=(("taken = (1 - update) * new", "taken = new"),),
        ),
        Mistake(
            "the old state is kept whole",
            (
                "The new state grows with every step.",
                "Look at the last line.",
                "The two shares must sum to 1: z and 1 - z.",
                "h = z * h_prev + (1 - z) * candidate.",
            ),
            edits=(("kept = update * h_prev", "kept = h_prev"),),
        ),
        Mistake(
            "z for both shares, without 1 - z",
            (
                "Old state and candidate are let through by the same gate.",
                "Look at the last line.",
                "Where one stays the other must not: one share is z, the other 1 - z.",
                "h = z * h_prev + (1 - z) * candidate.",
            ),
            edits=(("(1 - update) * new", "update * new"),),
        ),
        Mistake(
            "the reset state is what stays",
            (
                "What is kept of the old state is reduced twice.",
                "Look at the last line.",
                "r * h_prev belongs into the candidate alone; what stays is z * h_prev.",
                "h = z * h_prev + (1 - z) * candidate.",
            ),
            edits=(("kept = update * h_prev", "kept = update * seen"),),
        ),
        Mistake(
            "a sigmoid in the place of the candidate's tanh",
            (
                "The candidate is never negative.",
                "Look at the activation of the candidate.",
                "Gates have a sigmoid, the candidate has a tanh.",
                "The candidate is tanh(x_t W_h + (r * h_prev) U_h + b_h).",
            ),
            edits=(("torch.tanh(before_h)", "torch.sigmoid(before_h)"),),
        ),
        Mistake(
            "relu in the place of the candidate's tanh",
            (
                "The candidate is never negative, and may be larger than 1.",
                "Look at the activation of the candidate.",
                "The candidate has a tanh.",
                "The candidate is tanh(x_t W_h + (r * h_prev) U_h + b_h).",
            ),
            edits=(("torch.tanh(before_h)", "torch.relu(before_h)"),),
        ),
        Mistake(
            "no activation of the candidate",
            (
                "The candidate may be larger than 1.",
                "Look at the candidate.",
                "Its tanh is missing.",
                "The candidate is tanh(x_t W_h + (r * h_prev) U_h + b_h).",
            ),
            edits=(("torch.tanh(before_h)", "before_h"),),
        ),
        Mistake(
            "a tanh in the place of the gates' sigmoid",
            (
                "The gates may be negative.",
                "Look at the activation of z and r.",
                "A gate lies between 0 and 1.",
                "z and r are sigmoids.",
            ),
            edits=(
                ("torch.sigmoid(before_z)", "torch.tanh(before_z)"),
                ("sigmoid(before_r)", "tanh(before_r)"),
            ),
        ),
        Mistake(
            "the recurrent weights are transposed",
            (
                "Right only from a state of zeros.",
                "Look at the products with U.",
                "A row times U is h_prev @ U; U @ h_prev is another product of the same shape.",
                "Write h_prev @ U in all three.",
            ),
            edits=(
                ("torch.matmul(h_prev, U_z)", "torch.matmul(U_z, h_prev)"),
                ("torch.matmul(h_prev, U_r)", "torch.matmul(U_r, h_prev)"),
                ("torch.matmul(seen, U_h)", "torch.matmul(U_h, seen)"),
            ),
        ),
        Mistake(
            "the biases are left out",
            (
                "Every gate is off by its bias.",
                "Look at the ends of the three sums.",
                "The terms b are missing.",
                "Add b_z, b_r and b_h, each to its own sum.",
            ),
            edits=((" + b_z", ""), (" + b_r", ""), (" + b_h", "")),
        ),
        Mistake(
            "the gates do not look at the old state",
            (
                "z and r depend on the input alone.",
                "Look at the sums before the sigmoids.",
                "Their terms h_prev U_z and h_prev U_r are missing.",
                "Add h_prev U to both.",
            ),
            edits=((" + torch.matmul(h_prev, U_z)", ""), (" + torch.matmul(h_prev, U_r)", "")),
        ),
        Mistake(
            "the candidate does not look at the old state",
            (
                "The candidate depends on the input alone.",
                "Look at the candidate.",
                "Its term (r * h_prev) U_h is missing.",
                "The candidate is tanh(x_t W_h + (r * h_prev) U_h + b_h).",
            ),
            edits=((" + torch.matmul(seen, U_h)", ""),),
        ),
        Mistake(
            "the candidate's bias is reset too",
            (
                "The candidate's bias counts only as far as the reset gate is open.",
                "Look at what r is multiplied with.",
                "r acts on the old state alone.",
                "Keep b_h outside the product with r.",
            ),
            edits=(("torch.matmul(seen, U_h) + b_h", "reset * (torch.matmul(h_prev, U_h) + b_h)"),),
        ),
        Mistake(
            "the whole candidate is reset",
            (
                "The input reaches the candidate only as far as the reset gate is open.",
                "Look at where r stands.",
                "r acts on the old state inside the tanh, and not on its result.",
                "The candidate is tanh(x_t W_h + (r * h_prev) U_h + b_h).",
            ),
            edits=(
                ("seen = reset * h_prev", "seen = h_prev"),
                ("torch.tanh(before_h)", "reset * torch.tanh(before_h)"),
            ),
        ),
        Mistake(
            "the candidate has the reset gate's recurrent weights",
            (
                "Right only from a state of zeros.",
                "Look at which U stands in the candidate.",
                "Each of the three sums has its own W, U and b.",
                "The candidate takes U_h.",
            ),
            edits=(("torch.matmul(seen, U_h)", "torch.matmul(seen, U_r)"),),
        ),
        Mistake(
            "the old state is changed in place",
            (
                "The numbers are right, but h_prev is another after the call.",
                "Look for *=, +=, or a method whose name ends in _.",
                "The caller's state is overwritten.",
                "Make a new tensor: h = z * h_prev + ...",
            ),
            edits=(("taken = ", "with torch.no_grad():\n        h_prev.copy_(kept)\n    taken = "),),
        ),
        Mistake(
            "the old state is cut off from the gradient",
            (
                "The numbers are right, and no gradient reaches the step before.",
                "Look for detach, .data or no_grad.",
                "A recurrent network learns through its old states.",
                "Use h_prev as it is given.",
            ),
            edits=(("before_z = ", "h_prev = h_prev.detach()\n    before_z = "),),
        ),
    ),
)
