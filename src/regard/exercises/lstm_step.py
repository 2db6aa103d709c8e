"""Exercise: one step of a long short-term memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.exercises.spec import Case, Draw, Exercise, Mistake, Right, Trial
from regard.recurrent.cells import LSTMWeights, lstm_step

TASK = """
One step of a long short-term memory with a forget gate. Vectors are rows, and there is no batch:

    f = sigmoid(x_t W_f + h_prev U_f + b_f)        what is kept of the old cell
    i = sigmoid(x_t W_i + h_prev U_i + b_i)        what is let in
    o = sigmoid(x_t W_o + h_prev U_o + b_o)        what is let out
    c = f * c_prev + i * tanh(x_t W_c + h_prev U_c + b_c)
    h = o * tanh(c)

- `x_t`: (inputs,). `h_prev`, `c_prev`: (hidden,).
- Each `W_*`: (inputs, hidden), each `U_*`: (hidden, hidden), each `b_*`: (hidden,).
- Returns `(h, c)`, both (hidden,). The arguments are left as they were, and gradients flow to all of them.
"""

SIGNATURE = "x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c"

STARTER = f'''import torch


def lstm_step({SIGNATURE}):
    """x_t (inputs,), h_prev and c_prev (hidden,) -> the next (h, c), both (hidden,)."""
    raise NotImplementedError
'''

GATES = f"""import torch

def lstm_step({SIGNATURE}):
    before_f = torch.matmul(x_t, W_f) + torch.matmul(h_prev, U_f) + b_f
    before_i = torch.matmul(x_t, W_i) + torch.matmul(h_prev, U_i) + b_i
    before_o = torch.matmul(x_t, W_o) + torch.matmul(h_prev, U_o) + b_o
    before_c = torch.matmul(x_t, W_c) + torch.matmul(h_prev, U_c) + b_c
    forget = torch.sigmoid(before_f)
    enter = torch.sigmoid(before_i)
    leave = torch.sigmoid(before_o)
    new = torch.tanh(before_c)
    kept = forget * c_prev
    added = enter * new
    c = kept + added
    h = leave * torch.tanh(c)
    return h, c
"""

STACKED = f"""import torch

def lstm_step({SIGNATURE}):
    W = torch.cat([torch.cat([W_f, W_i, W_o, W_c], dim=1), torch.cat([U_f, U_i, U_o, U_c], dim=1)], dim=0)
    z = torch.cat([x_t, h_prev]) @ W + torch.cat([b_f, b_i, b_o, b_c])
    f, i, o, g = z.chunk(4)
    c_t = f.sigmoid() * c_prev + i.sigmoid() * g.tanh()
    return o.sigmoid() * c_t.tanh(), c_t
"""

CELL = f"""import torch

def lstm_step({SIGNATURE}):
    w_ih = torch.stack([W_i.t(), W_f.t(), W_c.t(), W_o.t()]).flatten(0, 1)
    w_hh = torch.stack([U_i.t(), U_f.t(), U_c.t(), U_o.t()]).flatten(0, 1)
    bias = torch.cat([b_i, b_f, b_c, b_o])
    nothing = torch.zeros_like(bias)
    h, c = torch.lstm_cell(x_t[None], [h_prev[None], c_prev[None]], w_ih, w_hh, bias, nothing)
    return h[0], c[0]
"""

COLUMNS = f"""import torch

def sigmoid(a):
    return 1 / (1 + torch.exp(-a))

def lstm_step({SIGNATURE}):
    def unit(W, U, b, j):
        return (x_t * W[:, j]).sum() + (h_prev * U[:, j]).sum() + b[j]

    h, c = [], []
    for j in range(h_prev.shape[0]):
        candidate = 2 * sigmoid(2 * unit(W_c, U_c, b_c, j)) - 1
        c_j = sigmoid(unit(W_f, U_f, b_f, j)) * c_prev[j] + sigmoid(unit(W_i, U_i, b_i, j)) * candidate
        c.append(c_j)
        h.append(sigmoid(unit(W_o, U_o, b_o, j)) * torch.tanh(c_j))
    return torch.stack(h), torch.stack(c)
"""

TRANSPOSED = f"""import torch
import torch.nn.functional as F

def lstm_step({SIGNATURE}):
    def gate(W, U, b, activation):
        return activation(F.linear(x_t, W.T) + F.linear(h_prev, U.T, b))

    f, i, o = (gate(*p, torch.sigmoid) for p in [(W_f, U_f, b_f), (W_i, U_i, b_i), (W_o, U_o, b_o)])
    c = torch.addcmul(f * c_prev, i, gate(W_c, U_c, b_c, torch.tanh))
    return (o * c.tanh(), c)
"""


def reference(case: Case) -> tuple[Tensor, Tensor]:
    """Our own step."""
    x, h, c, *weights = case.args
    return lstm_step(x, h, c, LSTMWeights(*weights))


def lstm_weights(draw: Draw) -> list[Tensor]:
    """The twelve weights in the order of the signature, large enough for the gates to be felt."""
    shapes: dict[str, tuple[Any, ...]] = {
        "W": ("input", "hidden"),
        "U": ("hidden", "hidden"),
        "b": ("hidden",),
    }
    return [draw.normal(*shapes[name[0]], scale=0.7) for name in SIGNATURE.split(", ")[3:]]


def step(draw: Draw) -> Case:
    x, h, c = draw.normal("input"), draw.uniform("hidden", low=-0.9, high=0.9), draw.normal("hidden")
    return Case((x, h, c, *lstm_weights(draw)))


def at_rest(draw: Draw) -> Case:
    case = step(draw)
    nothing = torch.zeros(draw["hidden"])
    return case.with_args(case.args[0], nothing, nothing.clone(), *case.args[3:])


def remembering(draw: Draw) -> Case:
    """The forget gate is open and the input gate shut: the cell stays."""
    x, h, c, *weights = step(draw).args
    for index, value in ((2, 9.0), (5, -9.0)):  # b_f and b_i
        weights[index] = torch.full_like(weights[index], value)
    return Case((x, h, c, *weights))


EXERCISE = Exercise(
    id="lstm-step",
    title="One step of an LSTM",
    names=("lstm_step",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    right=(
        Right("gate by gate", GATES),
        Right("all weights side by side, one product", STACKED),
        Right("torch's own cell", CELL),
        Right("a loop over the hidden units", COLUMNS),
        Right("linear layers with transposed weights", TRANSPOSED),
    ),
    words={"0": ("hidden",), "1": ("hidden",)},
    trials=(
        Trial("one step", step, {"input": 3, "hidden": 5}, variants=True),
        Trial("more inputs than hidden units", step, {"input": 7, "hidden": 2}, variants=True),
        Trial("as many inputs as hidden units", step, {"input": 5, "hidden": 5}),
        Trial("one input, one hidden unit", step, {"input": 1, "hidden": 1}),
        Trial("the first step, from zeros", at_rest, {"input": 3, "hidden": 5}),
        Trial("forget gate open, input gate shut", remembering, {"input": 3, "hidden": 5}),
    ),
    hints=(
        "The new state differs from what the five formulas give.",
        "Compare line by line: f, i, o, the candidate, c, h. The first that differs is the one to look at.",
        "Each gate has its own W, U and b; gates have a sigmoid, candidate and cell a tanh.",
        "Write the five formulas as five lines, in their order, and return (h, c).",
    ),
    mistakes=(
        Mistake(
            "forget and input gate change places",
            (
                "The old cell is scaled by the gate meant for the new content.",
                "Look at the two products that make the new cell, and at which weights each gate has.",
                "f multiplies c_prev and i multiplies the candidate; yours are the other way round.",
                "c = f * c_prev + i * candidate, with f from W_f, U_f, b_f.",
            ),
            edits=(("forget * c_prev", "enter * c_prev"), ("enter * new", "forget * new")),
        ),
        Mistake(
            "a sigmoid in the place of the candidate's tanh",
            (
                "What is added to the cell is never negative.",
                "Look at the activation of the candidate.",
                "A gate is between 0 and 1; new content may have either sign.",
                "The candidate is tanh(x_t W_c + h_prev U_c + b_c).",
            ),
            edits=(("new = torch.tanh(before_c)", "new = torch.sigmoid(before_c)"),),
        ),
        Mistake(
            "no activation of the candidate",
            (
                "What is added to the cell may be larger than 1.",
                "Look at the candidate.",
                "Its tanh is missing.",
                "The candidate is tanh(x_t W_c + h_prev U_c + b_c).",
            ),
            edits=(("new = torch.tanh(before_c)", "new = before_c"),),
        ),
        Mistake(
            "relu in the place of the candidate's tanh",
            (
                "What is added to the cell is never negative, and may be larger than 1.",
                "Look at the activation of the candidate.",
                "An LSTM's candidate has a tanh.",
                "The candidate is tanh(x_t W_c + h_prev U_c + b_c).",
            ),
            edits=(("new = torch.tanh(before_c)", "new = torch.relu(before_c)"),),
        ),
        Mistake(
            "h without the tanh of the cell",
            (
                "c is right and h is too large.",
                "Look at the last line.",
                "The cell goes through a tanh on its way out.",
                "h = o * tanh(c).",
            ),
            edits=(("leave * torch.tanh(c)", "leave * c"),),
        ),
        Mistake(
            "a sigmoid in the place of the tanh on the way out",
            (
                "c is right and h is never negative.",
                "Look at the last line.",
                "The cell goes through a tanh, the gate through a sigmoid.",
                "h = o * tanh(c).",
            ),
            edits=(("leave * torch.tanh(c)", "leave * torch.sigmoid(c)"),),
        ),
        Mistake(
            "the cell itself goes through the tanh",
            (
                "c never leaves the range from -1 to 1.",
                "Look at what is returned as c.",
                "The tanh belongs to h alone: the cell carries its sum on as it is.",
                "Keep c = f * c_prev + i * candidate, and take tanh(c) for h only.",
            ),
            edits=(
                ("c = kept + added", "c = torch.tanh(kept + added)"),
                ("leave * torch.tanh(c)", "leave * c"),
            ),
        ),
        Mistake(
            "h from the old cell",
            (
                "c is right, and h does not know of it.",
                "Look at which cell h is made from.",
                "The output gate lets out the new cell, and yours is the one before.",
                "h = o * tanh(c), with the c of this step.",
            ),
            edits=(("torch.tanh(c)", "torch.tanh(c_prev)"),),
        ),
        Mistake(
            "the old cell is kept whole, without the forget gate",
            (
                "The cell grows as if nothing were ever forgotten.",
                "Look at the first term of the new cell.",
                "c_prev is not multiplied by f.",
                "c = f * c_prev + i * candidate.",
            ),
            edits=(("kept = forget * c_prev", "kept = c_prev"),),
        ),
        Mistake(
            "the candidate is added whole, without the input gate",
            (
                "More is added to the cell than the input gate lets in.",
                "Look at the second term of the new cell.",
                "The candidate is not multiplied by i.",
                "c = f * c_prev + i * candidate.",
            ),
            edits=(("added = enter * new", "added = new"),),
        ),
        Mistake(
            "one gate for both, with 1 - f in the place of i",
            (
                "The input gate opens exactly as far as the forget gate shuts.",
                "Look at the input gate.",
                "An LSTM's input gate has weights of its own; 1 - f is another network.",
                "i = sigmoid(x_t W_i + h_prev U_i + b_i).",
            ),
            edits=(("enter = torch.sigmoid(before_i)", "enter = 1 - forget"),),
        ),
        Mistake(
            "h without the output gate",
            (
                "c is right and all of it is let out.",
                "Look at the last line.",
                "tanh(c) is not multiplied by o.",
                "h = o * tanh(c).",
            ),
            edits=(("leave * torch.tanh(c)", "torch.tanh(c)"),),
        ),
        Mistake(
            "(c, h) is returned in the place of (h, c)",
            (
                "Both states are right, and each stands where the other belongs.",
                "Look at the return.",
                "The hidden state comes first.",
                "return h, c.",
            ),
            edits=(("return h, c", "return c, h"),),
        ),
        Mistake(
            "the recurrent weights are transposed",
            (
                "Right only from a state of zeros.",
                "Look at the products with U.",
                "A row times U is h_prev @ U; U @ h_prev is another product of the same shape.",
                "Write h_prev @ U in all four.",
            ),
            edits=tuple(
                (f"torch.matmul(h_prev, U_{gate})", f"torch.matmul(U_{gate}, h_prev)") for gate in "fioc"
            ),
        ),
        Mistake(
            "the previous hidden state is left out",
            (
                "The step does not depend on h_prev.",
                "Look at the sums before the activations.",
                "Each has three terms: from x_t, from h_prev, and a bias.",
                "Add h_prev U to each of the four.",
            ),
            edits=tuple((f" + torch.matmul(h_prev, U_{gate})", "") for gate in "fioc"),
        ),
        Mistake(
            "the candidate forgets the previous hidden state",
            (
                "The gates are right, and the new content does not depend on h_prev.",
                "Look at the candidate.",
                "Its term h_prev U_c is missing.",
                "The candidate is tanh(x_t W_c + h_prev U_c + b_c).",
            ),
            edits=((" + torch.matmul(h_prev, U_c)", ""),),
        ),
        Mistake(
            "the biases are left out",
            (
                "Every gate is off by its bias.",
                "Look at the ends of the four sums.",
                "The terms b are missing.",
                "Add b_f, b_i, b_o and b_c, each to its own sum.",
            ),
            edits=tuple((f"U_{gate}) + b_{gate}", f"U_{gate})") for gate in "fioc"),
        ),
        Mistake(
            "1 is added to the forget gate's bias",
            (
                "More of the old cell is kept than it should be.",
                "Look at the forget gate.",
                "Adding 1 to its bias is a way to begin training, and no part of the step.",
                "Use b_f as it is given.",
            ),
            edits=(("U_f) + b_f", "U_f) + b_f + 1"),),
        ),
        Mistake(
            "output gate and candidate have each other's weights",
            (
                "The candidate is made of what belongs to the output gate.",
                "Look at which weights each of the four sums has.",
                "The arguments come in the order f, i, o, c; other libraries have f, i, c, o.",
                "W_o, U_o, b_o belong to the gate, W_c, U_c, b_c to the candidate.",
            ),
            edits=(
                ("torch.sigmoid(before_o)", "torch.sigmoid(before_c)"),
                ("tanh(before_c)", "tanh(before_o)"),
            ),
        ),
        Mistake(
            "a tanh in the place of the output gate's sigmoid",
            (
                "c is right, and the output gate may be negative.",
                "Look at the activation of o.",
                "A gate lies between 0 and 1.",
                "o = sigmoid(x_t W_o + h_prev U_o + b_o).",
            ),
            edits=(("leave = torch.sigmoid(before_o)", "leave = torch.tanh(before_o)"),),
        ),
        Mistake(
            "the gates look at the cell in the place of the hidden state",
            (
                "The gates depend on c_prev, and not on h_prev.",
                "Look at what U is multiplied with.",
                "The recurrent input is the hidden state; the cell is only kept and added to.",
                "Write h_prev U, not c_prev U.",
            ),
            edits=tuple(
                (f"torch.matmul(h_prev, U_{gate})", f"torch.matmul(c_prev, U_{gate})") for gate in "fioc"
            ),
        ),
        Mistake(
            "the old cell is changed in place",
            (
                "The numbers are right, but c_prev is another after the call.",
                "Look for *=, +=, or a method whose name ends in _.",
                "The caller's cell is overwritten.",
                "Make a new tensor: c = f * c_prev + ...",
            ),
            edits=(
                (
                    "c = kept + added",
                    "with torch.no_grad():\n        c_prev.copy_(kept)\n    c = kept + added",
                ),
            ),
        ),
        Mistake(
            "the old state is cut off from the gradient",
            (
                "The numbers are right, and no gradient reaches the step before.",
                "Look for detach, .data or no_grad.",
                "A recurrent network learns through its old states.",
                "Use h_prev and c_prev as they are given.",
            ),
            edits=(("before_f = ", "h_prev, c_prev = h_prev.detach(), c_prev.detach()\n    before_f = "),),
        ),
    ),
)
