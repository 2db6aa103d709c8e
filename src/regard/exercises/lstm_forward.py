"""Exercise: a long short-term memory over a whole sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.exercises.lstm_step import lstm_weights
from regard.exercises.spec import Case, Draw, Exercise, Mistake, Probe, Right, Trial
from regard.recurrent.cells import LSTMWeights
from regard.recurrent.loops import lstm_forward

TASK = """
Run the LSTM's step along a sequence and keep every hidden state and every cell. Vectors are rows:

    f, i, o = sigmoid(X[t] W + h_{t-1} U + b), each with its own W, U and b
    c_t = f * c_{t-1} + i * tanh(X[t] W_c + h_{t-1} U_c + b_c)
    h_t = o * tanh(c_t)                            for t = 0, 1, ..., T - 1, from h0 and c0

- `X`: (T, inputs). `h0`, `c0`: (hidden,).
- Each `W_*`: (inputs, hidden), each `U_*`: (hidden, hidden), each `b_*`: (hidden,).
- Returns `(H, C)`, both (T, hidden): the states after each input, so that h0 and c0 are not in them.
- The arguments are left as they were. Gradients flow through time, back to h0 and c0.
"""

WEIGHTS = "W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c"
SIGNATURE = f"X, h0, c0, {WEIGHTS}"

STARTER = f'''import torch


def lstm_forward({SIGNATURE}):
    """X (T, inputs), h0 and c0 (hidden,) -> (H, C), both (T, hidden): the states after each input."""
    raise NotImplementedError
'''

LOOP = f"""import torch

def lstm_forward({SIGNATURE}):
    T = X.shape[0]
    H = []
    C = []
    h = h0
    c = c0
    for t in range(T):
        x = X[t]
        forget = torch.sigmoid(torch.matmul(x, W_f) + torch.matmul(h, U_f) + b_f)
        enter = torch.sigmoid(torch.matmul(x, W_i) + torch.matmul(h, U_i) + b_i)
        leave = torch.sigmoid(torch.matmul(x, W_o) + torch.matmul(h, U_o) + b_o)
        new = torch.tanh(torch.matmul(x, W_c) + torch.matmul(h, U_c) + b_c)
        c = forget * c + enter * new
        h = leave * torch.tanh(c)
        H.append(h)
        C.append(c)
    return torch.stack(H, dim=0), torch.stack(C, dim=0)
"""

FILLED = f"""import torch

def lstm_step(x_t, h_prev, c_prev, {WEIGHTS}):
    f = torch.sigmoid(x_t @ W_f + h_prev @ U_f + b_f)
    i = torch.sigmoid(x_t @ W_i + h_prev @ U_i + b_i)
    o = torch.sigmoid(x_t @ W_o + h_prev @ U_o + b_o)
    g = torch.tanh(x_t @ W_c + h_prev @ U_c + b_c)
    c_t = f * c_prev + i * g
    return o * torch.tanh(c_t), c_t

def lstm_forward({SIGNATURE}):
    H = X.new_zeros(X.size(0), h0.size(0))
    C = X.new_zeros(X.size(0), c0.size(0))
    h_t, c_t = h0, c0
    for t in range(X.size(0)):
        h_t, c_t = lstm_step(X[t], h_t, c_t, {WEIGHTS})
        H[t], C[t] = h_t, c_t
    return H, C
"""

PROJECTED = f"""import torch

def lstm_forward({SIGNATURE}):
    W, U = torch.hstack([W_f, W_i, W_o, W_c]), torch.hstack([U_f, U_i, U_o, U_c])
    ahead = X @ W + torch.cat([b_f, b_i, b_o, b_c])
    h, c, pairs = h0, c0, []
    for row in ahead:
        f, i, o, g = (row + h @ U).view(4, -1)
        c = f.sigmoid().mul(c) + i.sigmoid().mul(g.tanh())
        h = o.sigmoid().mul(c.tanh())
        pairs.append((h, c))
    H, C = zip(*pairs)
    return torch.stack(H), torch.stack(C)
"""

CELL = f"""import torch

def lstm_forward({SIGNATURE}):
    w_ih = torch.cat([W_i.T, W_f.T, W_c.T, W_o.T])
    w_hh = torch.cat([U_i.T, U_f.T, U_c.T, U_o.T])
    bias = torch.cat([b_i, b_f, b_c, b_o])
    state = (h0[None], c0[None])
    hidden, cells = [], []
    for x in X.unbind():
        state = torch.lstm_cell(x[None], state, w_ih, w_hh, bias, torch.zeros_like(bias))
        hidden.append(state[0])
        cells.append(state[1])
    return torch.cat(hidden), torch.cat(cells)
"""


def reference(case: Case) -> tuple[Tensor, Tensor]:
    """Our own loop."""
    x, h, c, *weights = case.args
    return lstm_forward(x, h, c, LSTMWeights(*weights))


def sequence(draw: Draw) -> Case:
    x, h, c = draw.normal("step", "input"), draw.uniform("hidden", low=-0.9, high=0.9), draw.normal("hidden")
    return Case((x, h, c, *lstm_weights(draw)))


def from_zeros(draw: Draw) -> Case:
    x, _, _, *weights = sequence(draw).args
    return Case((x, torch.zeros(draw["hidden"]), torch.zeros(draw["hidden"]), *weights))


def future_changed(draw: Draw) -> tuple[Case, ...]:
    base = sequence(draw)
    x = base.args[0].clone()
    x[draw["step"] // 2] += 1.0
    return base, base.with_args(x, *base.args[1:])


def starts_changed(draw: Draw) -> tuple[Case, ...]:
    base = sequence(draw)
    x, h, c, *weights = base.args
    return base, base.with_args(x, -h, c, *weights), base.with_args(x, h, -c, *weights)


def written_out(signs: str) -> tuple[tuple[str, str], ...]:
    """The edits that put `signs` in the place of each product with U."""
    return tuple((f"torch.matmul(h, U_{gate})", signs.replace("U", f"U_{gate}")) for gate in "fioc")


EXERCISE = Exercise(
    id="lstm-forward",
    title="An LSTM over a sequence",
    names=("lstm_forward",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    needs=("lstm-step",),
    right=(
        Right("a loop and two stacks", LOOP),
        Right("rows of two tensors are filled, with a step function", FILLED),
        Right("all inputs projected first", PROJECTED),
        Right("torch's own cell", CELL),
    ),
    words={"0": ("step", "hidden"), "1": ("step", "hidden")},
    trials=(
        Trial("a sequence", sequence, {"step": 7, "input": 3, "hidden": 5}, variants=True),
        Trial("one step", sequence, {"step": 1, "input": 3, "hidden": 5}, variants=True),
        Trial("two steps", sequence, {"step": 2, "input": 5, "hidden": 3}),
        Trial("as many steps as inputs and hidden units", sequence, {"step": 3, "input": 3, "hidden": 3}),
        Trial("one input, one hidden unit", sequence, {"step": 5, "input": 1, "hidden": 1}),
        Trial("from states of zeros", from_zeros, {"step": 5, "input": 2, "hidden": 3}),
    ),
    probes=(
        Probe(
            "the future has no say",
            future_changed,
            {"step": 7, "input": 3, "hidden": 5},
            says="the input of step 3 was changed: states before it may not move, those of step 3 must.",
        ),
        Probe(
            "both first states are felt",
            starts_changed,
            {"step": 3, "input": 2, "hidden": 5},
            says="h0, then c0 was changed: the states must move.",
        ),
    ),
    hints=(
        "Some row of H or C is not the state after its input.",
        "Compare row by row: the first that differs tells where the loop goes wrong. Row 0 is one step.",
        "Each step needs the h and the c of the step before it; the first needs h0 and c0.",
        "h, c = h0, c0; for each t: h, c = one step; append both; stack both.",
    ),
    mistakes=(
        Mistake(
            "the hidden state is not carried: every step looks at h0",
            (
                "The first row is right; each other forgets the hidden state before it.",
                "Look at which state U is multiplied with.",
                "The new h is kept in H, and not carried to the next step.",
                "Give each step the h and the c that the last one made.",
            ),
            edits=written_out("torch.matmul(h0, U)"),
        ),
        Mistake(
            "the cell is not carried: every step starts from c0",
            (
                "The first row is right; each other forgets the cell before it.",
                "Look at which cell the forget gate is multiplied with.",
                "The new c is kept in C, and not carried to the next step.",
                "Give each step the h and the c that the last one made.",
            ),
            edits=(("c = forget * c + enter", "c = forget * c0 + enter"),),
        ),
        Mistake(
            "h0 is ignored: the first hidden state is zeros",
            (
                "Right from states of zeros only.",
                "Look at the lines before the loop.",
                "The loop does not begin with h0.",
                "Begin with h = h0.",
            ),
            edits=(("h = h0", "h = torch.zeros_like(h0)"),),
        ),
        Mistake(
            "c0 is ignored: the first cell is zeros",
            (
                "Right from states of zeros only.",
                "Look at the lines before the loop.",
                "The loop does not begin with c0.",
                "Begin with c = c0.",
            ),
            edits=(("c = c0", "c = torch.zeros_like(c0)"),),
        ),
        Mistake(
            "h0 and c0 change places",
            (
                "The first step takes the one for the other.",
                "Look at the lines before the loop.",
                "The arguments come in the order X, h0, c0.",
                "h = h0, c = c0.",
            ),
            edits=(("h = h0", "h = c0"), ("c = c0", "c = h0")),
        ),
        Mistake(
            "(C, H) is returned in the place of (H, C)",
            (
                "Both are right, and each stands where the other belongs.",
                "Look at the return.",
                "Hidden states come first.",
                "return H, C.",
            ),
            edits=(
                (
                    "torch.stack(H, dim=0), torch.stack(C, dim=0)",
                    "torch.stack(C, dim=0), torch.stack(H, dim=0)",
                ),
            ),
        ),
        Mistake(
            "only the last cell is returned",
            (
                "C has no axis of steps.",
                "Look at the return.",
                "All cells are asked for.",
                "Keep c in each step as you keep h, and stack both.",
            ),
            edits=(("torch.stack(C, dim=0)", "c"),),
        ),
        Mistake(
            "only the last states are returned",
            (
                "H and C have no axis of steps.",
                "Look at the return.",
                "All states are asked for.",
                "Keep h and c in each step, and stack both.",
            ),
            edits=(("return torch.stack(H, dim=0), torch.stack(C, dim=0)", "return h, c"),),
        ),
        Mistake(
            "each row is the state before its input",
            (
                "H and C are late by one row: they begin with h0 and c0.",
                "Look at the order of step and append.",
                "The states are kept before the step is made.",
                "Make the step first, then keep its states.",
            ),
            edits=(
                ("        x = X[t]\n", "        H.append(h)\n        C.append(c)\n        x = X[t]\n"),
                ("torch.tanh(c)\n        H.append(h)\n        C.append(c)", "torch.tanh(c)"),
            ),
        ),
        Mistake(
            "h0 and c0 are rows of H and C",
            (
                "H and C have T + 1 rows.",
                "Look at what is in the lists before the loop.",
                "They hold the states after the inputs; h0 and c0 come before all of them.",
                "Begin with empty lists.",
            ),
            edits=(("H = []", "H = [h0]"), ("C = []", "C = [c0]")),
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
                "H and C are transposed: their rows are hidden units.",
                "Look at the stacks.",
                "Steps must be the first axis.",
                "Use torch.stack(..., dim=0).",
            ),
            edits=(
                ("torch.stack(H, dim=0)", "torch.stack(H, dim=1)"),
                ("torch.stack(C, dim=0)", "torch.stack(C, dim=1)"),
            ),
        ),
        Mistake(
            "forget and input gate change places",
            (
                "The old cell is scaled by the gate meant for the new content.",
                "Look at the two products that make the new cell.",
                "f multiplies the old cell and i multiplies the candidate; yours are the other way round.",
                "c = f * c + i * candidate.",
            ),
            edits=(("c = forget * c + enter * new", "c = enter * c + forget * new"),),
        ),
        Mistake(
            "the old cell is kept whole, without the forget gate",
            (
                "The cells grow as if nothing were ever forgotten.",
                "Look at the first term of the new cell.",
                "The old cell is not multiplied by f.",
                "c = f * c + i * candidate.",
            ),
            edits=(("c = forget * c + enter", "c = c + enter"),),
        ),
        Mistake(
            "h without the tanh of the cell",
            (
                "The first cell is right and its hidden state too large.",
                "Look at the line that makes h.",
                "The cell goes through a tanh on its way out.",
                "h = o * tanh(c).",
            ),
            edits=(("leave * torch.tanh(c)", "leave * c"),),
        ),
        Mistake(
            "h from the old cell",
            (
                "The first cell is right, and its hidden state does not know of it.",
                "Look at the order of the lines that make c and h.",
                "h is made before c is new.",
                "First the new c, then h = o * tanh(c).",
            ),
            edits=(
                ("        h = leave * torch.tanh(c)\n", ""),
                (
                    "        c = forget * c + enter * new\n",
                    "        h = leave * torch.tanh(c)\n        c = forget * c + enter * new\n",
                ),
            ),
        ),
        Mistake(
            "a sigmoid in the place of the candidate's tanh",
            (
                "What is added to the cell is never negative.",
                "Look at the activation of the candidate.",
                "Gates have a sigmoid, the candidate has a tanh.",
                "The candidate is tanh(x W_c + h U_c + b_c).",
            ),
            edits=(("new = torch.tanh(", "new = torch.sigmoid("),),
        ),
        Mistake(
            "the hidden state is updated before all gates are computed",
            (
                "The numbers are close, but the candidate looks at another hidden state than the gates.",
                "Look for a line that changes what h is in the middle of a step.",
                "All four sums need the h of the step before.",
                "Compute the three gates and the candidate first, then c, then h.",
            ),
            edits=(
                ("        new = torch.tanh(", "        h = leave * torch.tanh(c)\n        new = torch.tanh("),
            ),
        ),
        Mistake(
            "the recurrent weights are transposed",
            (
                "Wrong wherever a hidden state is not zero.",
                "Look at the products with U.",
                "A row times U is h @ U; U @ h is another product of the same shape.",
                "Write h @ U in all four.",
            ),
            edits=written_out("torch.matmul(U, h)"),
        ),
        Mistake(
            "the biases are left out",
            (
                "Every gate is off by its bias.",
                "Look at the ends of the four sums.",
                "The terms b are missing.",
                "Add b_f, b_i, b_o and b_c, each to its own sum.",
            ),
            edits=tuple((f" + b_{gate})", ")") for gate in "fioc"),
        ),
        Mistake(
            "a gradient that does not get through the steps",
            (
                "The numbers are right, and gradients stop after one step, or raise an error.",
                "Look for detach, .data or no_grad, and for states read back out of H.",
                "Writing a row into H changes what autograd kept of the row before; detach cuts it off.",
                "Carry h and c in variables of their own, as they are, and stack lists.",
            ),
            edits=(("        x = X[t]\n", "        h, c = h.detach(), c.detach()\n        x = X[t]\n"),),
        ),
        Mistake(
            "H and C are float32 on the CPU, whatever the inputs are",
            (
                "Right in float32 alone.",
                "Look at where H and C are made.",
                "A new tensor is float32 on the CPU unless it is told otherwise.",
                "Make them with X.new_zeros(...), or stack lists.",
            ),
            edits=(("H = X.new_zeros(", "H = torch.zeros("), ("C = X.new_zeros(", "C = torch.zeros(")),
            of=1,
        ),
    ),
)
