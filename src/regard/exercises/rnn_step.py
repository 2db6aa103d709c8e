"""Exercise: one step of a plain recurrent network."""

from __future__ import annotations

from torch import Tensor

from regard.exercises.spec import Case, Draw, Exercise, Mistake, Probe, Right, Trial
from regard.recurrent.cells import RNNWeights, rnn_step

TASK = """
One step of a recurrent network, for a single sequence (no batch; vectors are rows):

    h_t = tanh(x_t W_x + h_prev W_h + b)

- `x_t`: (input,), `h_prev`: (hidden,), `W_x`: (input, hidden), `W_h`: (hidden, hidden), `b`: (hidden,).
- Returns h_t: (hidden,).
"""

STARTER = '''import torch


def rnn_step(x_t, h_prev, W_x, W_h, b):
    """x_t (input,), h_prev (hidden,), W_x (input, hidden), W_h (hidden, hidden), b (hidden,) -> (hidden,)."""
    raise NotImplementedError
'''

STEPS = """import torch

def rnn_step(x_t, h_prev, W_x, W_h, b):
    from_input = x_t @ W_x
    from_state = h_prev @ W_h
    total = from_input + from_state + b
    return torch.tanh(total)
"""

COLUMNS = """import torch

def rnn_step(x_t, h_prev, W_x, W_h, b):
    W = torch.cat([W_x, W_h], dim=0)
    v = torch.cat([x_t, h_prev], dim=0)
    e = torch.exp(-2 * torch.mv(W.T, v).add(b))
    return (1 - e) / (1 + e)
"""

LOOP = """import torch

def rnn_step(x_t, h_prev, W_x, W_h, b):
    out = []
    for j in range(b.shape[0]):
        s = b[j]
        for i in range(x_t.shape[0]):
            s = s + x_t[i] * W_x[i, j]
        for i in range(h_prev.shape[0]):
            s = s + h_prev[i] * W_h[i, j]
        out.append(s.tanh())
    return torch.stack(out)
"""

LINEAR = """import torch.nn.functional as F

def rnn_step(x_t, h_prev, W_x, W_h, b):
    return F.tanh(F.linear(x_t, W_x.t(), b) + F.linear(h_prev, W_h.t()))
"""


def reference(case: Case) -> Tensor:
    """Our own step."""
    x, h, *weights = case.args
    return rnn_step(x, h, RNNWeights(*weights))


def step(draw: Draw) -> Case:
    return Case(
        (
            draw.normal("input"),
            draw.uniform("hidden", low=-1.0, high=1.0),
            draw.normal("input", "hidden", scale=0.6 / draw["input"] ** 0.5),
            draw.normal("hidden", "hidden", scale=0.9 / draw["hidden"] ** 0.5),
            draw.normal("hidden", scale=0.4),
        )
    )


def no_history(draw: Draw) -> Case:
    case = step(draw)
    x_t, h_prev, *weights = case.args
    return case.with_args(x_t, h_prev * 0, *weights)


def state_changed(draw: Draw) -> tuple[Case, ...]:
    base = step(draw)
    x_t, h_prev, W_x, W_h, b = base.args
    only_first = W_h.clone()
    only_first[:, 1:] = 0  # the state reaches the first unit only
    base = base.with_args(x_t, h_prev, W_x, only_first, b)
    return base, base.with_args(x_t, h_prev.flip(0) * 1.5, W_x, only_first, b)


def _mistake(name: str, symptom: str, place: str, cause: str, fix: str, *edits: tuple[str, str]) -> Mistake:
    return Mistake(name, (symptom, place, cause, fix), edits=edits)


EXERCISE = Exercise(
    id="rnn-step",
    title="One step of a recurrent network",
    names=("rnn_step",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    right=(
        Right("term by term", STEPS),
        Right("one matrix, tanh by exponentials", COLUMNS),
        Right("loops over units", LOOP),
        Right("linear layers", LINEAR),
    ),
    words={"": ("hidden",)},
    trials=(
        Trial("a step", step, {"input": 3, "hidden": 5}, variants=True),
        Trial("more inputs than units", step, {"input": 7, "hidden": 2}),
        Trial("as many inputs as units", step, {"input": 3, "hidden": 3}),
        Trial("one unit", step, {"input": 2, "hidden": 1}),
        Trial("a state of zeros", no_history, {"input": 3, "hidden": 5}),
    ),
    probes=(
        Probe(
            "the state acts through W_h",
            state_changed,
            {"input": 3, "hidden": 5},
            says="W_h leads from the state to unit 0 only: the other units may not move with it.",
        ),
    ),
    hints=(
        "Some unit of the new state is wrong.",
        "Work out one unit by hand, with an input and a state of two numbers.",
        "A term is missing, doubled, or meets the wrong matrix.",
        "Return tanh of the input's term, the state's term and b, added.",
    ),
    mistakes=(
        _mistake(
            "the tanh left out",
            "Numbers beyond -1 and 1 come out.",
            "Look at the last line.",
            "The sum is returned as it is.",
            "Apply tanh to the sum.",
            ("torch.tanh(total)", "total"),
        ),
        _mistake(
            "sigmoid instead of tanh",
            "Every unit is positive.",
            "Look at the function around the sum.",
            "The sigmoid ends at 0, tanh at -1.",
            "Use tanh.",
            ("torch.tanh(total)", "torch.sigmoid(total)"),
        ),
        _mistake(
            "relu instead of tanh",
            "Negative units are 0.",
            "Look at the function around the sum.",
            "relu cuts off what is negative.",
            "Use tanh.",
            ("torch.tanh(total)", "torch.relu(total)"),
        ),
        _mistake(
            "the state left out",
            "The previous state has no say.",
            "Look at the sum.",
            "It has no term for h_prev.",
            "Add h_prev @ W_h.",
            ("from_input + from_state + b", "from_input + b"),
        ),
        _mistake(
            "the input left out",
            "The input has no say.",
            "Look at the sum.",
            "It has no term for x_t.",
            "Add x_t @ W_x.",
            ("from_input + from_state + b", "from_state + b"),
        ),
        _mistake(
            "the bias left out",
            "Every unit is off by its bias, before the tanh.",
            "Look at the sum.",
            "It has no b.",
            "Add b.",
            ("from_input + from_state + b", "from_input + from_state"),
        ),
        _mistake(
            "the bias outside the tanh",
            "Numbers beyond -1 and 1 may come out.",
            "Look at where b is added.",
            "It is added after the tanh.",
            "Add b before the tanh.",
            ("from_input + from_state + b", "from_input + from_state"),
            ("torch.tanh(total)", "torch.tanh(total) + b"),
        ),
        _mistake(
            "W_h transposed",
            "Each unit reads the state through a row of W_h instead of a column.",
            "Look at the product of state and matrix.",
            "Row vectors meet the matrix from the left: h W, not W h.",
            "Write h_prev @ W_h.",
            ("h_prev @ W_h", "W_h @ h_prev"),
        ),
        _mistake(
            "the bias subtracted",
            "Every unit is off by twice its bias, before the tanh.",
            "Look at the signs of the sum.",
            "b is subtracted.",
            "Add b.",
            ("from_state + b", "from_state - b"),
        ),
        _mistake(
            "the state subtracted",
            "The state pushes the wrong way.",
            "Look at the signs of the sum.",
            "The state's term is subtracted.",
            "Add h_prev @ W_h.",
            ("from_input + from_state", "from_input - from_state"),
        ),
        _mistake(
            "tanh of each term",
            "The units are too large or too small, and beyond -1 and 1 together.",
            "Look at what is inside the tanh.",
            "The terms are squashed one by one, then added.",
            "Add first, then take one tanh.",
            ("from_input = x_t @ W_x", "from_input = torch.tanh(x_t @ W_x)"),
            ("torch.tanh(total)", "total"),
            ("from_state = h_prev @ W_h", "from_state = torch.tanh(h_prev @ W_h)"),
        ),
        _mistake(
            "the old state added to the new",
            "The state grows beyond -1 and 1.",
            "Look at what is returned.",
            "h_prev is added once more, without its matrix.",
            "Return the tanh alone.",
            ("torch.tanh(total)", "h_prev + torch.tanh(total)"),
        ),
        _mistake(
            "the gradient of the state cut off",
            "Right forwards, but nothing can be learnt through time.",
            "Look for detach, .data or no_grad.",
            "The previous state is detached.",
            "Use h_prev itself.",
            ("h_prev @ W_h", "h_prev.detach() @ W_h"),
        ),
        _mistake(
            "float32 forced on everything",
            "Right in float32, wrong or an error in every other dtype.",
            "Look for .float() or dtype=.",
            "The dtype of the inputs is not kept.",
            "Leave the dtype to the inputs.",
            ("torch.tanh(total)", "torch.tanh(total.float())"),
        ),
    ),
)
