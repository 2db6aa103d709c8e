"""How far back a gradient reaches, and how far back a model can be taught to remember.

A recurrence multiplies a gradient by the same kind of matrix at every step, so that it falls exponentially
(Bengio et al. 1994). A gate that keeps most of the state makes the factor nearly 1 (Hochreiter and
Schmidhuber 1997). Attention has no steps: the first token is as near as any, and shares with the others.
Gradients are those of untrained models; an open gate begins with a bias of 4 and keeps 98 % of the state at
every step, the others half. Recall is after training, a model for each distance: its interval is over
questions.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.attention import attend
from regard.lab.learning import answered, teach
from regard.lab.spec import Lab, Measurement
from regard.recurrent import GRUWeights, LSTMWeights, RNNWeights, gru_forward, lstm_forward, rnn_forward

CLAIM = """A recurrence's gradient to the first token falls exponentially with distance unless a gate keeps
the state, attention's only as one over the length; so attention learns to recall over distances where an RNN
does not."""
PREDICTION = """An RNN's gradient falls each step by the size of its recurrent matrix's largest eigenvalue, a
half-open LSTM's or GRU's by more than 0.1 decades, one with its gate open by less than 0.05; attention's is a
power of -1 of the length. Trained, an RNN recalls mostly over two tokens and not over the furthest distance,
where attention does."""

HIDDEN, VOCAB = 24, 6
INPUT = VOCAB + 1  # one number more marks the token to be remembered
CUE = 3.0
MOSTLY = 0.5  # recalled, where chance alone gives one in VOCAB
OPEN = 4.0  # bias of a gate that keeps: sigmoid(4) of the state is left after a step
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
KINDS = ("RNN", "LSTM", "GRU", "LSTM, gate open", "GRU, gate open", "attention")


class MemoryReader(nn.Module):
    """Reads a sequence and gives one vector at its end: a recurrence, or one attention over all of it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.kind, _, is_open = name.partition(", ")
        bound = 1 / math.sqrt(HIDDEN)  # as torch.nn starts them
        shapes = [(INPUT, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN,)] * GATES.get(self.kind, 0)
        if self.kind == "attention":
            shapes = [(HIDDEN, HIDDEN), (INPUT, HIDDEN), (INPUT, HIDDEN)]
        self.weights = nn.ParameterList(torch.empty(shape).uniform_(-bound, bound) for shape in shapes)
        if is_open:  # the first gate is the one that keeps: f, and z
            self.weights[2].data.add_(OPEN)
        self.asked = nn.Parameter(torch.randn(1, HIDDEN))
        self.answer = nn.Linear(HIDDEN, VOCAB)

    def read(self, x: Tensor) -> Tensor:
        """(time, batch, INPUT) to (batch, HIDDEN)."""
        batch, weights = x.shape[1], tuple(self.weights)
        start = x.new_zeros(batch, HIDDEN)
        if self.kind == "attention":
            w_q, w_k, w_v = weights
            q = (self.asked @ w_q).expand(batch, 1, 1, HIDDEN)
            k, v = ((x @ weight).transpose(0, 1)[:, None] for weight in (w_k, w_v))
            return attend(q, k, v).out[:, 0, 0]
        if self.kind == "RNN":
            return rnn_forward(x, start, RNNWeights(*weights))[-1]
        if self.kind == "LSTM":
            return lstm_forward(x, start, start, LSTMWeights(*weights), cells=False)[0][-1]
        return gru_forward(x, start, GRUWeights(*weights))[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Scores of what is to be remembered."""
        scores: Tensor = self.answer(self.read(x))
        return scores


def _reach(model: MemoryReader, distances: Sequence[int]) -> list[float]:
    """log10 of the gradient norm that reaches the first input, by distance."""
    direction, reach = torch.randn(HIDDEN), []
    for distance in distances:
        # Inputs are small, so that no unit is saturated: what is left is the recurrence itself.
        x = (0.2 * torch.randn(distance + 1, 8, INPUT)).requires_grad_()
        (gradient,) = torch.autograd.grad((model.read(x) @ direction).sum(), x)
        reach.append(float(gradient[0].norm().log10()))
    return reach


def _examples(distance: int, n: int = 32) -> tuple[Tensor, Tensor]:
    """Tokens of which the first is marked, and what it is."""
    tokens = torch.randint(VOCAB, (distance + 1, n))
    x = torch.zeros(distance + 1, n, INPUT)
    x[..., :VOCAB] = nn.functional.one_hot(tokens, VOCAB)
    x[0, :, VOCAB] = CUE
    return x, tokens[0]


def _recall(lab: Lab, name: str, distance: int, n_step: int) -> Measurement:
    """The share of first tokens recalled, after training on this distance alone."""
    model = MemoryReader(name)
    teach(model, lambda: _examples(distance), n_step)
    return answered(lab, f"recall, {name}, distance {distance}", model, _examples(distance, 500))


def run(lab: Lab) -> None:
    distances = (8, 16, 24) if lab.quick else (4, 8, 16, 24, 32, 48)
    taught = (2, 40) if lab.quick else (2, 5, 10, 20, 40, 80)
    n_model, n_step = (12, 160) if lab.quick else (24, 400)
    gradients, slopes = {}, {}
    radius = []  # log10 of the largest eigenvalue's size of what multiplies an RNN's state
    for name in KINDS:
        reach = []
        for _ in range(n_model):
            model = MemoryReader(name)
            reach.append(_reach(model, distances))
            if name == "RNN":
                radius.append(float(torch.linalg.eigvals(model.weights[1].detach()).abs().max().log10()))
        columns = dict(zip(distances, zip(*reach, strict=True), strict=True))
        gradients[name] = lab.means(f"log10 gradient, {name}, distance", columns)
        x, what = torch.tensor(distances, dtype=torch.float64), f"{name}: decades gained a step"
        if name == "attention":
            x, what = (x + 1).log10(), "attention: power of the length"
        along = (x - x.mean()) / (x - x.mean()).square().sum()
        slopes[name] = lab.mean(what, (torch.tensor(reach, dtype=torch.float64) @ along).tolist())
    title, y_label = "Gradient at the first token", "log10 of the gradient's norm"
    lab.draw.lines(title, distances, gradients, "distance", y_label)
    recalls = {name: [_recall(lab, name, distance, n_step) for distance in taught] for name in KINDS}
    lab.draw.lines("Recall of the first token", taught, recalls, "distance", "share recalled")
    lab.draw.chance(1 / VOCAB)
    for kind in ("LSTM", "GRU"):
        lab.below(f"a half-open {kind}'s gradient falls exponentially", slopes[kind], -0.1)
        lab.above(f"an open gate carries the {kind}'s gradient further", slopes[f"{kind}, gate open"], -0.05)
    lab.near("attention's gradient falls as 1 / length, no faster", slopes["attention"], -1.0, slack=0.15)
    # Over few steps the other eigenvalues count a little too, and tanh shrinks a little more.
    expected = sum(radius) / n_model
    lab.near("an RNN's gradient falls by its matrix's largest eigenvalue", slopes["RNN"], expected, slack=0.1)
    lab.above("an RNN recalls what is near", recalls["RNN"][0], MOSTLY)
    lab.below("an RNN does not recall what is far", recalls["RNN"][-1], MOSTLY)
    lab.above("attention recalls what is far", recalls["attention"][-1], MOSTLY)
