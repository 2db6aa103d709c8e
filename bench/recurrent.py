"""Whole-sequence RNN, LSTM and GRU against torch.nn's and against a loop of steps.

    python bench/recurrent.py [--quick]

Forward runs without gradients. Forward and backward finds the gradients of the input and of all weights,
from a random gradient of every hidden state (and of every cell state, where there are any).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from timing import Case, Goal, Options, RatioTable, Row, Timing, interleaved, parse_options, report
from torch import Tensor, nn

from regard import recurrent
from regard.recurrent import GRUWeights, LSTMWeights, RNNWeights

Run = Callable[..., Tensor | tuple[Tensor, ...]]
Module = type[nn.RNN] | type[nn.LSTM] | type[nn.GRU]

NOTE = """One layer, float32, weights as leaves in the layout (input_dim, hidden). The step loop calls the
public step for each input and stacks the states.

- `lstm_forward(cells=False)` is torch's own fused operation, which wants the eight matrices stacked and
  transposed. That is done in every call, whatever the batch. At batch 1 it is no longer small beside 256
  steps of one row each, and is what separates the two there.
- The fused operation keeps every cell state to itself. What was tried to get them is in the last table:
  `lstm_forward` (a loop of one product and a few operations for each step), the cells computed again from the
  fused operation's hidden states, and the fused operation called for each step.
- To stack them once, for weights that do not change, would save at most a sixth: not worth a second copy that
  must be kept in step with them.
- `gru_forward` resets before the product, as Cho et al. (2014) have it, which takes a second product in each
  step; `reset_after` is `nn.GRU`'s function, by the same fused operation."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Sizes of one row; the width is both input_dim and hidden."""

    time: int
    batch: int
    width: int

    def __str__(self) -> str:
        return f"T {self.time}, batch {self.batch}, width {self.width}"


def draw(setting: Setting, n_state: int, n_gate: int) -> tuple[Tensor, ...]:
    """Random X, initial states and weights, leaves that want gradients."""
    width = setting.width
    shapes: list[tuple[int, ...]] = [(setting.time, setting.batch, width)] + [
        (setting.batch, width)
    ] * n_state
    shapes += [(width, width), (width, width), (width,)] * n_gate
    scales = [1.0] * (1 + n_state) + [width**-0.5] * 3 * n_gate
    return tuple((torch.randn(s) * scale).requires_grad_() for s, scale in zip(shapes, scales, strict=True))


def step_loop(step: Run, n_state: int) -> Run:
    """The naive form: one step after another."""

    def run(X: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        states, weights = rest[:n_state], rest[n_state:]
        kept = []
        for x_t in X.unbind():
            new = step(x_t, *states, *weights)
            states = new if isinstance(new, tuple) else (new,)
            kept.append(states)
        return tuple(torch.stack(sequence) for sequence in zip(*kept, strict=True))

    return run


def flat(function: Callable[..., Any], weights: Callable[..., Any], n_state: int) -> Callable[..., Any]:
    """The function with its weights one after the other, as leaves that gradients are asked of."""
    return lambda *inputs, **options: function(
        *inputs[: 1 + n_state], weights(*inputs[1 + n_state :]), **options
    )


rnn_step, rnn_forward = (flat(f, RNNWeights, 1) for f in (recurrent.rnn_step, recurrent.rnn_forward))
lstm_step, lstm_forward = (flat(f, LSTMWeights, 2) for f in (recurrent.lstm_step, recurrent.lstm_forward))
gru_step, gru_forward = (flat(f, GRUWeights, 1) for f in (recurrent.gru_step, recurrent.gru_forward))


def lstm_last_cell(*inputs: Tensor) -> tuple[Tensor, ...]:
    H: Tensor = lstm_forward(*inputs, cells=False)[0]
    return (H,)


def gru_reset_after(*inputs: Tensor) -> Tensor:
    H: Tensor = gru_forward(*inputs, reset_after=True)
    return H


def side_by_side(weights: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """The LSTM's twelve as three, gates f, i, o, candidate."""
    return torch.cat(weights[0::3], 1), torch.cat(weights[1::3], 1), torch.cat(weights[2::3])


def torch_layout(weights: Sequence[Tensor]) -> list[Tensor]:
    """The LSTM's twelve as torch.lstm takes them: gates i, f, candidate, o, transposed."""
    f, i, o, c = (weights[k : k + 3] for k in (0, 3, 6, 9))
    W, U, b = (torch.cat([gate[k].t() for gate in (i, f, c, o)]) for k in range(3))
    return [W, U, b, torch.zeros_like(b)]


def cells_from_hidden(X: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    """An attempt: H from the fused operation, all gates again in two products, C by its own recurrence."""
    train = torch.is_grad_enabled()
    H, *_ = torch.lstm(X, (h[None], c[None]), torch_layout(weights), True, 1, 0.0, train, False, False)
    W, U, b = side_by_side((*weights[:6], *weights[9:]))
    before = torch.cat((h[None], H[:-1])).flatten(0, 1)
    gates = torch.addmm(torch.addmm(b, X.flatten(0, 1), W), before, U).view(*X.shape[:2], -1)
    f, i, candidate = gates.chunk(3, -1)
    C = []
    for forget, added in zip(f.sigmoid().unbind(), (i.sigmoid() * candidate.tanh()).unbind(), strict=True):
        c = torch.addcmul(added, forget, c)
        C.append(c)
    return H, torch.stack(C)


def fused_for_each_step(X: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    """An attempt: the fused operation on sequences of one step, whose last cell is every cell."""
    params, train = torch_layout(weights), torch.is_grad_enabled()
    h, c = h[None], c[None]
    H, C = [], []
    for x_t in X.split(1):
        _, h, c = torch.lstm(x_t, (h, c), params, True, 1, 0.0, train, False, False)
        H.append(h)
        C.append(c)
    return torch.cat(H), torch.cat(C)


def as_case(run: Run, inputs: tuple[Tensor, ...], backward: bool) -> Case:
    """A call of `run` alone, or with the gradients of all inputs."""

    def forward() -> None:
        with torch.no_grad():
            run(*inputs)

    if not backward:
        return forward
    with torch.no_grad():
        outputs = run(*inputs)
    directions = [torch.randn_like(o) for o in (outputs if isinstance(outputs, tuple) else (outputs,))]

    def forward_and_backward() -> None:
        outputs = run(*inputs)
        torch.autograd.grad(outputs, inputs, directions)

    return forward_and_backward


def module_case(kind: Module, setting: Setting, backward: bool) -> Case:
    """The same for a module of torch.nn."""
    module = kind(setting.width, setting.width)
    X = torch.randn(setting.time, setting.batch, setting.width).requires_grad_()
    return as_case(lambda *_: module(X)[0], (X, *module.parameters()), backward)


def measured(
    name: str,
    module: Module,
    runs: dict[str, Run],
    counts: tuple[int, int],
    settings: Sequence[Setting],
    options: Options,
    goal: Goal | None,
    note: str = "",
) -> RatioTable:
    """One table: a module of torch.nn, ours and others, forward, then forward and backward."""
    rows = []
    for backward, setting in product((False, True), settings):
        inputs = draw(setting, *counts)
        cases = {f"nn.{module.__name__}": module_case(module, setting, backward)}
        cases |= {title: as_case(run, inputs, backward) for title, run in runs.items()}
        timings: dict[str, Timing] = interleaved(
            cases, options.rounds, round_seconds=0.02 if options.quick else 0.1
        )
        rows.append(Row(f"{setting}, {'forward and backward' if backward else 'forward'}", timings, goal))
    return RatioTable(name, f"nn.{module.__name__}", rows, note)


def main() -> None:
    options = parse_options(__doc__)
    torch.manual_seed(0)
    sizes = [(16, 2, 32)] if options.quick else [(256, b, w) for b, w in product((1, 32), (256, 512))]
    settings = [Setting(*size) for size in sizes]
    rnn: dict[str, Run] = {"rnn_forward": rnn_forward, "step loop": step_loop(rnn_step, 1)}
    lstm: dict[str, Run] = {
        "cells=False": lstm_last_cell,
        "every cell": lstm_forward,
        "step loop": step_loop(lstm_step, 2),
    }
    gru: dict[str, Run] = {
        "reset_after": gru_reset_after,
        "gru_forward": gru_forward,
        "step loop": step_loop(gru_step, 1),
    }
    attempts: dict[str, Run] = {
        "lstm_forward": lstm_forward,
        "cells from H": cells_from_hidden,
        "fused, each step": fused_for_each_step,
    }
    tables = [
        measured("RNN", nn.RNN, rnn, (1, 1), settings, options, Goal("rnn_forward", "nn.RNN", 1.0)),
        measured("LSTM", nn.LSTM, lstm, (2, 4), settings, options, Goal("cells=False", "nn.LSTM", 1.1)),
        measured("GRU", nn.GRU, gru, (1, 3), settings, options, None),
        measured("LSTM with every cell state", nn.LSTM, attempts, (2, 4), settings, options, None),
    ]
    report("Recurrent", tables, options, NOTE)


if __name__ == "__main__":
    main()
