"""How far back a gradient reaches, and how far back a model can be taught to remember."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard import attention, recurrent
from regard.lab.drawing import draw, finish, panels
from regard.lab.spec import Check, Experiment, Measurement, Result, above, below, near

HIDDEN, VOCAB = 24, 6
INPUT = VOCAB + 1  # one number more marks the token to be remembered
CUE = 3.0
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}


class Reader(nn.Module):
    """Reads a sequence and gives one vector at its end: a recurrence, or one attention over all of it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        bound = 1 / math.sqrt(HIDDEN)  # as torch.nn starts them
        shapes = [(INPUT, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN,)] * GATES.get(kind, 0)
        if kind == "attention":
            shapes = [(HIDDEN, HIDDEN), (INPUT, HIDDEN), (INPUT, HIDDEN)]
        self.weights = nn.ParameterList(torch.empty(shape).uniform_(-bound, bound) for shape in shapes)
        self.asked = nn.Parameter(torch.randn(1, HIDDEN))
        self.answer = nn.Linear(HIDDEN, VOCAB)

    def read(self, x: Tensor) -> Tensor:
        """(time, batch, INPUT) to (batch, HIDDEN)."""
        batch, weights = x.shape[1], tuple(self.weights)
        start = x.new_zeros(batch, HIDDEN)
        if self.kind == "attention":
            w_q, w_k, w_v = weights
            q = (self.asked @ w_q).expand(batch, 1, 1, HIDDEN)
            k, v = ((x @ each).transpose(0, 1)[:, None] for each in (w_k, w_v))
            return attention.attend(q, k, v).out[:, 0, 0]
        if self.kind == "RNN":
            return recurrent.rnn_forward(x, start, *weights)[-1]
        if self.kind == "LSTM":
            return recurrent.lstm_forward(x, start, start, *weights)[0][-1]
        return recurrent.gru_forward(x, start, *weights)[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Scores of what is to be remembered."""
        scores: Tensor = self.answer(self.read(x))
        return scores


def _reach(kind: str, distance: int, n_model: int) -> list[float]:
    """log10 of the gradient norm that reaches the first input, one for each of several random models."""
    found = []
    for _ in range(n_model):
        x = torch.randn(distance + 1, 8, INPUT, requires_grad=True)
        Reader(kind).read(x).norm(dim=-1).sum().backward()
        assert x.grad is not None
        found.append(float(x.grad[0].norm().log10()))
    return found


def _examples(n: int, distance: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(VOCAB, (distance + 1, n))
    x = torch.zeros(distance + 1, n, INPUT)
    x[..., :VOCAB] = nn.functional.one_hot(tokens, VOCAB)
    x[0, :, VOCAB] = CUE
    return x, tokens[0]


def _recall(kind: str, distance: int, n_step: int) -> Measurement:
    model = Reader(kind)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(n_step):
        x, right = _examples(32, distance)
        loss = nn.functional.cross_entropy(model(x), right)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    with torch.no_grad():
        x, right = _examples(500, distance)
        n_right = int((model(x).argmax(-1) == right).sum())
    return Measurement.share(f"recall, {kind}, distance {distance}", n_right, 500)


def _slope(x: list[float], y: list[float]) -> float:
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above_ = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return above_ / sum((a - mean_x) ** 2 for a in x)


def _slopes(kind: str, reach: dict[int, list[float]], of: Callable[[int], float]) -> list[float]:
    """One slope for each model drawn, of log10 gradient against a function of distance."""
    distances = list(reach)
    n_model = len(reach[distances[0]])
    return [
        _slope([of(d) for d in distances], [reach[d][index] for d in distances]) for index in range(n_model)
    ]


def run(quick: bool, seed: int) -> Result:
    distances = (2, 6, 15) if quick else (2, 4, 8, 16, 32, 64)
    taught = (3, 25) if quick else (2, 5, 10, 20, 40, 80)
    n_model, n_step = (6, 130) if quick else (12, 400)
    figure, (reach_ax, recall_ax) = panels("Gradient at the first token", "Recall of the first token")
    checks: list[Check] = []
    measured: list[Measurement] = []
    recalls: dict[str, list[Measurement]] = {}
    for index, kind in enumerate(("RNN", "LSTM", "GRU", "attention")):
        reach = {distance: _reach(kind, distance, n_model) for distance in distances}
        points = [Measurement.mean(f"log10 gradient, {kind}, distance {d}", reach[d]) for d in distances]
        draw(reach_ax, distances, points, kind, index)
        if kind == "attention":
            slope = Measurement.mean(
                "attention: power of distance", _slopes(kind, reach, lambda d: math.log10(d + 1))
            )
            checks.append(
                near("attention's gradient falls as 1 / length, no faster", slope, -1.0, slack=0.15)
            )
        else:
            slope = Measurement.mean(f"{kind}: decades lost a step", _slopes(kind, reach, float))
            checks.append(below(f"{kind}'s gradient falls exponentially", slope, -0.05))
        recalls[kind] = [_recall(kind, distance, n_step) for distance in taught]
        draw(recall_ax, taught, recalls[kind], kind, index)
        measured += [*points, slope, *recalls[kind]]
    finish(reach_ax, "distance", "log10 of the gradient's norm")
    recall_ax.axhline(1 / VOCAB, color="#8c8c8c", linestyle=":", linewidth=1)
    recall_ax.annotate("chance", (taught[0], 1 / VOCAB), fontsize=7, va="bottom")
    finish(recall_ax, "distance", "share recalled")
    checks += [
        above("attention recalls at the largest distance", recalls["attention"][-1], 0.9),
        above("attention recalls more than an RNN there", recalls["attention"][-1], recalls["RNN"][-1]),
    ]
    return Result(
        tuple(measured),
        tuple(checks),
        figure,
        f"over {taught[-1]} tokens attention recalls {recalls['attention'][-1].value:.0%}, an RNN "
        f"{recalls['RNN'][-1].value:.0%}, an LSTM {recalls['LSTM'][-1].value:.0%} and a GRU "
        f"{recalls['GRU'][-1].value:.0%} after the same training",
        notes=(
            f"Gradients of untrained models; recall after {n_step} steps of training, one model for each "
            "distance: its interval is over questions.",
        ),
    )


EXPERIMENT = Experiment(
    "memory",
    "A recurrence's gradient to the first token falls exponentially with distance, attention's only as one "
    "over the length; so attention learns to recall over distances where an RNN does not.",
    "log gradient against distance has a slope surely below -0.05 decades a step for RNN, LSTM and GRU; "
    "for attention it is a power of -1; at the largest distance attention recalls above 90 % and more than "
    "an RNN.",
    run,
)
