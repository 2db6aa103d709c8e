"""How far back a gradient reaches, and how far back a model can be taught to remember.

A recurrence multiplies a gradient by the same kind of matrix at every step, so that it falls exponentially
(Bengio et al. 1994). A gate that keeps most of the state makes the factor nearly 1 (Hochreiter and
Schmidhuber 1997). Attention has no steps: the first token is as near as any, and shares with the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.attention.softmax import attend
from regard.lab.drawing import draw, finish, level, panels, sweep
from regard.lab.learning import share_right, train
from regard.lab.spec import Experiment, Measurement, Result, above, below, near
from regard.recurrent.cells import GRUWeights, LSTMWeights, RNNWeights
from regard.recurrent.loops import gru_forward, lstm_forward, rnn_forward

HIDDEN, VOCAB = 24, 6
INPUT = VOCAB + 1  # one number more marks the token to be remembered
CUE = 3.0
MOSTLY = 0.5  # recalled, where chance alone gives one in VOCAB
OPEN = 4.0  # bias of a gate that keeps: sigmoid(4) of the state is left after a step
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
KINDS = {  # name -> mechanism, bias of the gate that keeps the state
    "RNN": ("RNN", 0.0),
    "LSTM": ("LSTM", 0.0),
    "GRU": ("GRU", 0.0),
    "LSTM, gate open": ("LSTM", OPEN),
    "GRU, gate open": ("GRU", OPEN),
    "attention": ("attention", 0.0),
}


class Reader(nn.Module):
    """Reads a sequence and gives one vector at its end: a recurrence, or one attention over all of it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.kind, keep = KINDS[name]
        bound = 1 / math.sqrt(HIDDEN)  # as torch.nn starts them
        shapes = [(INPUT, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN,)] * GATES.get(self.kind, 0)
        if self.kind == "attention":
            shapes = [(HIDDEN, HIDDEN), (INPUT, HIDDEN), (INPUT, HIDDEN)]
        self.weights = nn.ParameterList(torch.empty(shape).uniform_(-bound, bound) for shape in shapes)
        if self.kind in ("LSTM", "GRU"):  # the first gate is the one that keeps: f, and z
            self.weights[2].data.add_(keep)
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


def _reach(name: str, distances: Sequence[int], n_model: int) -> tuple[dict[int, list[float]], list[float]]:
    """log10 of the gradient norm that reaches the first input, by distance, of several random models.

    And log10 of the largest size of an eigenvalue of what multiplies the state, where that is one matrix.
    """
    reach: dict[int, list[float]] = {distance: [] for distance in distances}
    radius = []
    for _ in range(n_model):
        model, direction = Reader(name), torch.randn(HIDDEN)
        for distance in distances:
            # Inputs are small, so that no unit is saturated: what is left is the recurrence itself.
            x = (0.2 * torch.randn(distance + 1, 8, INPUT)).requires_grad_()
            (model.read(x) @ direction).sum().backward()
            assert x.grad is not None
            reach[distance].append(float(x.grad[0].norm().log10()))
        if model.kind == "RNN":
            radius.append(float(torch.linalg.eigvals(model.weights[1].detach()).abs().max().log10()))
    return reach, radius


def _slopes(reach: dict[int, list[float]], x: Sequence[float | int]) -> list[float]:
    """The slope of log10 gradient against `x` (a number for each distance), one for each model drawn."""
    y = torch.tensor(list(reach.values()), dtype=torch.float64)  # (distance, model)
    centred = torch.tensor(x, dtype=torch.float64) - sum(x) / len(x)
    slopes: list[float] = (centred @ y / centred.square().sum()).tolist()
    return slopes


def _examples(n: int, distance: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(VOCAB, (distance + 1, n))
    x = torch.zeros(distance + 1, n, INPUT)
    x[..., :VOCAB] = nn.functional.one_hot(tokens, VOCAB)
    x[0, :, VOCAB] = CUE
    return x, tokens[0]


def _recall(name: str, distance: int, n_step: int) -> Measurement:
    """The share of first tokens recalled, after training on this distance alone."""
    model = Reader(name)

    def loss() -> Tensor:
        x, right = _examples(32, distance)
        return nn.functional.cross_entropy(model(x), right)

    train(model.parameters(), loss, n_step, clip=True)
    with torch.no_grad():
        x, right = _examples(500, distance)
        return share_right(f"recall, {name}, distance {distance}", model(x), right)


def run(quick: bool, seed: int) -> Result:
    distances = (8, 16, 24) if quick else (4, 8, 16, 24, 32, 48)
    taught = (2, 40) if quick else (2, 5, 10, 20, 40, 80)
    n_model, n_step = (12, 160) if quick else (24, 400)
    figure, (reach_ax, recall_ax) = panels(
        "Gradient at the first token", "Recall of the first token", width=5.0
    )
    measured: list[Measurement] = []
    slopes: dict[str, Measurement] = {}
    for index, name in enumerate(KINDS):
        reach, radius = _reach(name, distances, n_model)
        points = [Measurement.mean(f"log10 gradient, {name}, distance {d}", reach[d]) for d in distances]
        draw(reach_ax, distances, points, name, index)
        if name == "attention":
            lengths = [math.log10(distance + 1) for distance in distances]
            slopes[name] = Measurement.mean("attention: power of the length", _slopes(reach, lengths))
        else:
            slopes[name] = Measurement.mean(f"{name}: decades gained a step", _slopes(reach, distances))
            if name == "RNN":
                expected = sum(radius) / n_model
        measured += [*points, slopes[name]]
    recalls = sweep(recall_ax, taught, KINDS, lambda name, distance: _recall(name, distance, n_step))
    measured += [share for shares in recalls.values() for share in shares]
    finish(reach_ax, "distance", "log10 of the gradient's norm")
    level(recall_ax, 1 / VOCAB, "chance", taught[0])
    recall_ax.set_ylim(0, 1.05)
    finish(recall_ax, "distance", "share recalled", legend=False)
    furthest = {name: shares[-1] for name, shares in recalls.items()}
    checks = [
        # Over few steps the other eigenvalues count a little too, and tanh shrinks a little more.
        near(
            "an RNN's gradient falls by its matrix's largest eigenvalue", slopes["RNN"], expected, slack=0.1
        ),
        below("a half-open LSTM's gradient falls exponentially", slopes["LSTM"], -0.1),
        below("a half-open GRU's gradient falls exponentially", slopes["GRU"], -0.1),
        above("an open gate carries the LSTM's gradient further", slopes["LSTM, gate open"], -0.05),
        above("an open gate carries the GRU's gradient further", slopes["GRU, gate open"], -0.05),
        near("attention's gradient falls as 1 / length, no faster", slopes["attention"], -1.0, slack=0.15),
        above("an RNN recalls what is near", recalls["RNN"][0], MOSTLY),
        below("an RNN does not recall what is far", furthest["RNN"], MOSTLY),
        above("attention recalls what is far", furthest["attention"], MOSTLY),
    ]
    return Result(
        measured,
        checks,
        figure,
        f"a step costs an RNN's gradient {-slopes['RNN'].value:.2f} decades and a GRU's, its gate "
        f"open, {-slopes['GRU, gate open'].value:.3f}; over {taught[-1]} tokens attention recalls "
        f"{furthest['attention'].value:.0%}, an RNN {furthest['RNN'].value:.0%}",
        notes=(
            f"Gradients are those of {n_model} untrained models at each distance. Recall is after {n_step} "
            "steps of training, one model for each distance: its interval is over questions.",
            f"An open gate starts with a bias of {OPEN:g}, so that it keeps {1 / (1 + math.exp(-OPEN)):.0%} "
            "of the state at every step; the others keep half.",
        ),
    )


EXPERIMENT = Experiment(
    "memory",
    "A recurrence's gradient to the first token falls exponentially with distance unless a gate keeps the "
    "state, attention's only as one over the length; so attention learns to recall over distances where an "
    "RNN does not.",
    "An RNN's gradient falls each step by the size of its recurrent matrix's largest eigenvalue, a half-open "
    "LSTM's or GRU's by more than 0.1 decades, one with its gate open by less than 0.05; attention's is a "
    "power of -1 of the length. Trained, an RNN recalls mostly over two tokens and not over the furthest "
    "distance, where attention does.",
    run,
)
