"""Exercise: a recurrent network over a whole sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.exercises.spec import Case, Draw, Exercise, Mistake, Probe, Right, Trial
from regard.recurrent.cells import RNNWeights
from regard.recurrent.loops import rnn_forward

TASK = """
Run the recurrent step along a sequence and keep every state. Vectors are rows, and there is no batch:

    h_t = tanh(X[t] W_x + h_{t-1} W_h + b)        for t = 0, 1, ..., T - 1, where h_{-1} is h0
    H[t] = h_t

- `X`: (T, inputs). `h0`: (hidden,). `W_x`: (inputs, hidden), `W_h`: (hidden, hidden), `b`: (hidden,).
- Returns `H`, (T, hidden): the state after each input, so that h0 itself is not in it.
- The arguments are left as they were. Gradients flow through time, back to h0.
"""

STARTER = '''import torch


def rnn_forward(X, h0, W_x, W_h, b):
    """X (T, inputs), h0 (hidden,) -> H (T, hidden), the state after each input."""
    raise NotImplementedError
'''

LOOP = """import torch

def rnn_forward(X, h0, W_x, W_h, b):
    T = X.shape[0]
    states = []
    h = h0
    for t in range(T):
        x = X[t]
        before = torch.matmul(x, W_x) + torch.matmul(h, W_h) + b
        h = torch.tanh(before)
        states.append(h)
    return torch.stack(states, dim=0)
"""

FILLED = """import torch

def rnn_step(x_t, h_prev, W_x, W_h, b):
    return torch.tanh(x_t @ W_x + h_prev @ W_h + b)

def rnn_forward(X, h0, W_x, W_h, b):
    H = torch.zeros(len(X), len(h0), dtype=X.dtype, device=X.device)
    h = h0
    for t, x_t in enumerate(X):
        h = rnn_step(x_t, h, W_x, W_h, b)
        H[t] = h
    return H
"""

PROJECTED = """import torch

def rnn_forward(X, h0, W_x, W_h, b):
    ahead = torch.addmm(b, X, W_x)
    h, H = h0.unsqueeze(0), []
    for row in ahead.split(1):
        h = (row + h.mm(W_h)).tanh()
        H += [h]
    return torch.cat(H)
"""

RECURSIVE = """import torch

def rnn_forward(X, h0, W_x, W_h, b):
    h = torch.tanh(torch.einsum("d,dn->n", X[0], W_x) + torch.einsum("m,mn->n", h0, W_h) + b)
    if X.shape[0] == 1:
        return h[None, :]
    return torch.vstack([h[None, :], rnn_forward(X[1:], h, W_x, W_h, b)])
"""

TORCH = """import torch
from torch import nn

def rnn_forward(X, h0, W_x, W_h, b):
    rnn = nn.RNN(W_x.shape[0], W_x.shape[1]).to(X.device, X.dtype)
    weights = {
        "weight_ih_l0": W_x.T, "weight_hh_l0": W_h.T, "bias_ih_l0": b, "bias_hh_l0": torch.zeros_like(b)
    }
    H, _ = torch.func.functional_call(rnn, weights, (X, h0[None]))
    return H
"""


def reference(case: Case) -> Tensor:
    """Our own loop."""
    x, h, *weights = case.args
    return rnn_forward(x, h, RNNWeights(*weights))


def sequence(draw: Draw) -> Case:
    x, h = draw.normal("step", "input"), draw.uniform("hidden", low=-0.9, high=0.9)
    weights = draw.normal("input", "hidden", scale=0.5), draw.normal("hidden", "hidden", scale=0.5)
    return Case((x, h, *weights, draw.normal("hidden", scale=0.5)))


def from_zeros(draw: Draw) -> Case:
    x, _, *weights = sequence(draw).args
    return Case((x, torch.zeros(draw["hidden"]), *weights))


def future_changed(draw: Draw) -> tuple[Case, ...]:
    base = sequence(draw)
    x = base.args[0].clone()
    x[draw["step"] // 2] += 1.0
    return base, base.with_args(x, *base.args[1:])


def start_changed(draw: Draw) -> tuple[Case, ...]:
    base = sequence(draw)
    x, h, *weights = base.args
    return base, base.with_args(x, -h, *weights)


EXERCISE = Exercise(
    id="rnn-forward",
    title="A recurrent network over a sequence",
    names=("rnn_forward",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    needs=("rnn-step",),
    right=(
        Right("a loop and a stack", LOOP),
        Right("rows of a tensor are filled, with a step function", FILLED),
        Right("all inputs projected first", PROJECTED),
        Right("recursion", RECURSIVE),
        Right("torch's own layer", TORCH),
    ),
    words={"": ("step", "hidden")},
    trials=(
        Trial("a sequence", sequence, {"step": 7, "input": 3, "hidden": 5}, variants=True),
        Trial("one step", sequence, {"step": 1, "input": 3, "hidden": 5}, variants=True),
        Trial("two steps", sequence, {"step": 2, "input": 5, "hidden": 3}),
        Trial("as many steps as inputs and hidden units", sequence, {"step": 3, "input": 3, "hidden": 3}),
        Trial("one input, one hidden unit", sequence, {"step": 5, "input": 1, "hidden": 1}),
        Trial("from a state of zeros", from_zeros, {"step": 5, "input": 2, "hidden": 3}),
    ),
    probes=(
        Probe(
            "the future has no say",
            future_changed,
            {"step": 7, "input": 3, "hidden": 5},
            says="the input of step 3 was changed: states before it may not move, that of step 3 must.",
        ),
        Probe(
            "the first state is felt",
            start_changed,
            {"step": 3, "input": 2, "hidden": 5},
            says="h0 was changed: the states must move.",
        ),
    ),
    hints=(
        "Some row of H is not the state after its input.",
        "Compare row by row: the first that differs tells where the loop goes wrong.",
        "Each state is made from its own input and from the state just before it; the first from h0.",
        "h = h0; for each t: h = tanh(X[t] W_x + h W_h + b), append h; stack.",
    ),
    mistakes=(
        Mistake(
            "every step starts from h0",
            (
                "The first row is right; each other forgets the step before it.",
                "Look at which state the step is given.",
                "The new state is kept in H, and not carried to the next step.",
                "Give each step the state that the last one made.",
            ),
            edits=(("torch.matmul(h, W_h)", "torch.matmul(h0, W_h)"),),
        ),
        Mistake(
            "h0 is ignored: the first state is zeros",
            (
                "Right from a state of zeros only.",
                "Look at the line before the loop.",
                "The loop does not begin with h0.",
                "Begin with h = h0.",
            ),
            edits=(("h = h0", "h = torch.zeros_like(h0)"),),
        ),
        Mistake(
            "each row is the state before its input",
            (
                "H is late by one row: it begins with h0 and its last state is missing.",
                "Look at the order of step and append.",
                "The state is kept before the step is made.",
                "Make the step first, then keep its state.",
            ),
            edits=(
                ("        x = X[t]\n", "        states.append(h)\n        x = X[t]\n"),
                ("torch.tanh(before)\n        states.append(h)", "torch.tanh(before)"),
            ),
        ),
        Mistake(
            "h0 is a row of H",
            (
                "H has T + 1 rows.",
                "Look at what is in the list before the loop.",
                "H holds the states after the inputs; h0 comes before all of them.",
                "Begin with an empty list.",
            ),
            edits=(("states = []\n    h = h0", "h = h0\n    states = [h]"),),
        ),
        Mistake(
            "only the last state is returned",
            (
                "H has no axis of steps.",
                "Look at the return.",
                "All states are asked for.",
                "Stack the states of all steps.",
            ),
            edits=(("torch.stack(states, dim=0)", "h"),),
        ),
        Mistake(
            "the sequence is read backwards",
            (
                "The first row knows the last input.",
                "Look at the order of the inputs.",
                "The loop begins at the end.",
                "Read X[0] first.",
            ),
            edits=(("x = X[t]", "x = X[T - 1 - t]"),),
        ),
        Mistake(
            "every step reads the first input",
            (
                "The first row is right; changing a later input changes nothing.",
                "Look at the index into X.",
                "It does not move with the loop.",
                "Read X[t] at step t.",
            ),
            edits=(("x = X[t]", "x = X[0]"),),
        ),
        Mistake(
            "states are stacked along the wrong axis",
            (
                "H is transposed: its rows are hidden units.",
                "Look at the stack.",
                "Steps must be the first axis.",
                "Use torch.stack(states, dim=0).",
            ),
            edits=(("dim=0)", "dim=-1)"),),
        ),
        Mistake(
            "the recurrent weights are transposed",
            (
                "Wrong wherever a state is not zero.",
                "Look at the product with W_h.",
                "A row times W_h is h @ W_h; W_h @ h is another product of the same shape.",
                "Write h @ W_h.",
            ),
            edits=(("torch.matmul(h, W_h)", "torch.matmul(W_h, h)"),),
        ),
        Mistake(
            "the bias is left out",
            (
                "Every state is off by the bias.",
                "Look at the end of the sum.",
                "The term b is missing.",
                "Add b before the tanh.",
            ),
            edits=((" + b\n", "\n"),),
        ),
        Mistake(
            "the bias is added after the tanh",
            (
                "States leave the range from -1 to 1.",
                "Look at where b is added.",
                "It belongs inside the tanh.",
                "tanh(x W_x + h W_h + b).",
            ),
            edits=((" + b\n", "\n"), ("torch.tanh(before)", "torch.tanh(before) + b")),
        ),
        Mistake(
            "a sigmoid in the place of the tanh",
            (
                "No state is negative.",
                "Look at the activation.",
                "This network has a tanh.",
                "h = tanh(x W_x + h W_h + b).",
            ),
            edits=(("torch.tanh(before)", "torch.sigmoid(before)"),),
        ),
        Mistake(
            "relu in the place of the tanh",
            (
                "No state is negative, and some are larger than 1.",
                "Look at the activation.",
                "This network has a tanh.",
                "h = tanh(x W_x + h W_h + b).",
            ),
            edits=(("torch.tanh(before)", "torch.relu(before)"),),
        ),
        Mistake(
            "no activation",
            (
                "States leave the range from -1 to 1.",
                "Look at the step.",
                "Its tanh is missing.",
                "h = tanh(x W_x + h W_h + b).",
            ),
            edits=(("torch.tanh(before)", "before"),),
        ),
        Mistake(
            "the sum before the tanh is carried on",
            (
                "The first row is right; the next are made from a state without its tanh.",
                "Look at which tensor the next step is given.",
                "H keeps the activated state, and the loop carries the other one.",
                "Carry h = tanh(...) itself.",
            ),
            edits=(
                (
                    "h = torch.tanh(before)\n        states.append(h)",
                    "h = before\n        states.append(h.tanh())",
                ),
            ),
        ),
        Mistake(
            "the last step is left out",
            (
                "H has one row too few.",
                "Look at the range of the loop.",
                "range(n) already ends before n.",
                "Loop over range(T).",
            ),
            edits=(("range(T)", "range(T - 1)"),),
        ),
        Mistake(
            "the last row of H stays zero",
            (
                "Every row is right but the last.",
                "Look at the range of the loop.",
                "range(n) already ends before n.",
                "Loop over all rows of X.",
            ),
            edits=(("enumerate(X)", "enumerate(X[:-1])"),),
            of=1,
        ),
        Mistake(
            "the first row of H stays zero",
            (
                "The first row is zeros, and the first input is never read.",
                "Look at where the loop begins.",
                "Steps count from 0.",
                "Loop over all rows of X, from 0 on.",
            ),
            edits=(("enumerate(X)", "enumerate(X[1:], 1)"),),
            of=1,
        ),
        Mistake(
            "every row of H is the last state, because one tensor is overwritten",
            (
                "All rows are equal.",
                "Look for copy_, [:] = or a method whose name ends in _.",
                "The list holds the same tensor T times, and each step changes it.",
                "Make a new tensor in each step.",
            ),
            edits=(
                ("h = h0", "h = h0.detach().clone()"),
                ("h = torch.tanh(before)", "h.copy_(torch.tanh(before).detach())"),
            ),
        ),
        Mistake(
            "a gradient that does not get through the steps",
            (
                "The numbers are right, and gradients stop after one step, or raise an error.",
                "Look for detach, .data or no_grad, and for states read back out of H.",
                "Writing a row into H changes what autograd kept of the row before; detach cuts it off.",
                "Carry h in a variable of its own, as it is, and stack a list.",
            ),
            edits=(("torch.matmul(h, W_h)", "torch.matmul(h.detach(), W_h)"),),
        ),
        Mistake(
            "H is float32 on the CPU, whatever the inputs are",
            (
                "Right in float32 alone.",
                "Look at where H is made.",
                "A new tensor is float32 on the CPU unless it is told otherwise.",
                "Make it with dtype=X.dtype and device=X.device, or stack a list.",
            ),
            edits=((", dtype=X.dtype, device=X.device", ""),),
            of=1,
        ),
        Mistake(
            "h0 is changed in place",
            (
                "The numbers are right, but h0 is another after the call.",
                "Look for copy_, [:] = or a method whose name ends in _.",
                "h is h0 itself, so writing into one writes into the other.",
                "Make a new tensor in each step.",
            ),
            edits=(
                (
                    "return torch.stack(states, dim=0)",
                    "with torch.no_grad():\n        h0.copy_(h)\n    return torch.stack(states, dim=0)",
                ),
            ),
        ),
    ),
)
