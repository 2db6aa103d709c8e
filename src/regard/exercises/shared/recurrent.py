"""Recurrent steps and loops with their decisions as choices whose defaults are right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, made

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "none": lambda x: x,
    "softmax": lambda x: x.softmax(-1),
    "2 sigmoid - 1": lambda x: 2 * torch.sigmoid(x) - 1,
}


@dataclass(frozen=True)
class RNN:
    """The decisions of a plain recurrent step."""

    activation: str = "tanh"
    tanh_of: str = "the sum"
    from_input: str = "x W_x"
    from_state: str = "h W_h"
    bias: str = "inside"
    plus: str = "nothing"

    def __call__(self, x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor) -> Tensor:
        """The new state."""
        by_input = made(
            {
                "x W_x": lambda: x @ w_x,
                "W_x x": lambda: w_x @ x,
                "x W_h": lambda: x @ w_h,
                "number by number": lambda: (x * w_x).sum(0),
                "left out": lambda: torch.zeros_like(b),
            },
            self.from_input,
        )
        by_state = made(
            {
                "h W_h": lambda: h @ w_h,
                "W_h h": lambda: w_h @ h,
                "h W_x": lambda: h @ w_x,
                "number by number": lambda: (h * w_h).sum(0),
                "number by row": lambda: h * w_h.sum(1),
                "subtracted": lambda: -(h @ w_h),
                "left out": lambda: torch.zeros_like(b),
                "added as it is": lambda: h,
            },
            self.from_state,
        )
        shift = b * {"inside": 1, "subtracted": -1, "twice": 2}.get(self.bias, 0)
        act = ACTIVATIONS[self.activation]
        new = made(
            {
                "the sum": lambda: act(by_input + by_state + shift),
                "each term": lambda: act(by_input) + act(by_state) + shift,
                "each term, x with b": lambda: act(by_input + shift) + act(by_state),
                "each term, h with b": lambda: act(by_input) + act(by_state + shift),
                "x and b": lambda: act(by_input + shift) + by_state,
                "h and b": lambda: by_input + act(by_state + shift),
            },
            self.tanh_of,
        )
        if self.bias == "outside":
            new = new + b
        return made(
            {"nothing": lambda: new, "the old state": lambda: h + new, "the mean": lambda: (h + new) / 2},
            self.plus,
        )


@dataclass(frozen=True)
class LSTM:
    """The decisions of an LSTM's step."""

    forget_by: str = "f"
    input_by: str = "i"
    output_by: str = "o"
    candidate_by: str = "c"
    forget_sees: str = "h"
    input_sees: str = "h"
    output_sees: str = "h"
    candidate_sees: str = "h"
    recurrent: str = "h U"
    copied: str = ""  # "U i f": the i gate uses the U of f
    bias: str = "used"
    forget_bias: str = "as it is"
    gates: str = "sigmoid"
    forget_gate: str = "sigmoid"
    input_gate: str = "sigmoid"
    output_gate: str = "sigmoid"
    candidate: str = "tanh"
    on_the_way_out: str = "tanh"
    kept: str = "f * c"
    added: str = "i * new"
    cell: str = "as it is"
    leaves: str = "the new cell"
    let_out: str = "o"

    def __call__(self, x: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        """The new hidden state and cell."""
        by = dict(zip("fioc", zip(weights[0::3], weights[1::3], weights[2::3], strict=True), strict=True))

        def before(name: str, sees: str) -> Tensor:
            w, u, b = by[name]
            part, to, source = self.copied.split() or ("", "", "")
            if to == name:
                w, u, b = (by[source][at] if part == "WUb"[at] else own for at, own in enumerate((w, u, b)))
            seen = made(
                {
                    "h": lambda: h,
                    "c": lambda: c,
                    "nothing": lambda: 0 * h,
                    "f * h": lambda: f * h,
                    "the new cell": lambda: new_c,
                },
                sees,
            )
            if self.recurrent == "h W + x U":
                return torch.cat([seen, x]) @ torch.cat([w, u]) + b
            product = u @ seen if self.recurrent in ("U h", f"U h of {name}") else seen @ u
            left_out = self.bias == "left out" or name in self.bias.removeprefix("not of ").split()
            shift = 0 * b if left_out else b * {"twice": 2}.get(self.bias, 1)
            one_more = self.forget_bias == "1 more" and name == "f"
            return x @ w + product + shift + (1 if one_more else 0)

        def gate(activation: str, name: str, sees: str) -> Tensor:
            return ACTIVATIONS[self.gates if activation == "sigmoid" else activation](before(name, sees))

        f = gate(self.forget_gate, self.forget_by, self.forget_sees)
        i = gate(self.input_gate, self.input_by, self.input_sees)
        new = ACTIVATIONS[self.candidate](before(self.candidate_by, self.candidate_sees))
        kept = made(
            {
                "f * c": lambda: f * c,
                "whole": lambda: c,
                "nothing": lambda: 0 * c,
                "(1 - i) * c": lambda: (1 - i) * c,
                "(1 - f) * c": lambda: (1 - f) * c,
                "f @ c": lambda: f @ c,
                "f * h": lambda: f * h,
                "i * f * c": lambda: i * f * c,
            },
            self.kept,
        )
        added = made(
            {
                "i * new": lambda: i * new,
                "whole": lambda: new,
                "(1 - f) * new": lambda: (1 - f) * new,
                "i + new": lambda: i + new,
                "i @ new": lambda: i @ new,
                "f * i * new": lambda: f * i * new,
            },
            self.added,
        )
        cell = kept + added
        if self.cell == "through tanh":
            cell = torch.tanh(cell)
        new_c = cell
        o = gate(self.output_gate, self.output_by, self.output_sees)
        if self.cell == "let out":
            cell = o * cell
        leaving = {"the new cell": cell, "the old cell": c, "the candidate": new}[self.leaves]
        out = ACTIVATIONS[self.on_the_way_out](leaving)
        if self.let_out == "before the tanh":
            return torch.tanh(o * leaving), cell
        hidden = {"whole": out, "o + tanh": o + out, "h + o tanh": h + o * out}.get(self.let_out, o * out)
        return hidden, hidden if self.cell == "the hidden state" else cell


State = Any


@dataclass(frozen=True)
class Loop:
    """The decisions of a loop over a sequence."""

    start: str = "as given"
    carried: str = "the last state"
    inputs: str = "in order"
    rows: str = "after each input"
    short: str = "as they are"

    @classmethod
    def of(cls, choices: dict[str, str]) -> tuple[Loop, dict[str, str]]:
        """The loop that some of the choices make, and the choices that are left for the step."""
        names = {field.name for field in fields(cls)} & set(choices)
        left = {name: choice for name, choice in choices.items() if name not in names}
        return cls(**{name: choices[name] for name in names}), left

    def __call__(self, step: Callable[[Tensor, State], State], x: Tensor, start: State) -> list[State]:
        """The states that make the rows."""
        made_of = {
            "backwards": x.flip(0),
            "one late": x.roll(1, 0),
            "without the first": x[1:],
            "without the last": x[:-1],
        }
        inputs = [x[0]] * len(x) if self.inputs == "the first one" else list(made_of.get(self.inputs, x))
        state, states = start, [start] if self.rows == "h0 too" else []
        for row in inputs:
            if self.rows == "before each input":
                states.append(state)
            state = step(row, start if self.carried == "the first state" else state)
            if self.rows != "before each input":
                states.append(state)
        if self.rows == "h0 in the place of the first":
            states = [start, *states[:-1]] if len(states) == len(x) else [start, *states]
        if self.rows == "all the last":
            states = [states[-1]] * len(states)
        if self.rows == "the first alone":
            states = states[:1]
        if self.rows == "turned round":
            states.reverse()
        return states

    def table(self, rows: Sequence[Tensor], n_step: int, like: Tensor) -> Tensor:
        """The rows as one tensor; of missing ones, zeros in their place when the table was made before."""
        table = torch.stack(list(rows)) if rows else like.new_zeros(0, *like.shape)
        missing = n_step - len(table)
        if self.short == "as they are" or missing <= 0:
            return table
        zeros = table.new_zeros(missing, *table.shape[1:])
        return torch.cat([table, zeros] if self.short == "zeros behind" else [zeros, table])


class Given:
    """Inputs, states and the weights W, U, b of each gate, in the order of the signatures."""

    def __init__(self, n_state: int, n_gate: int) -> None:
        self.n_state, self.n_gate = n_state, n_gate

    def step(self, draw: Draw, *dims: str) -> Case:
        """The call of one step, or of as many as `dims` say."""
        states = [draw.uniform("hidden", low=-0.9, high=0.9) for _ in range(self.n_state)]
        shapes = {"W": ("input", "hidden"), "U": ("hidden", "hidden"), "b": ("hidden",)}
        # Large enough for the gates to be felt.
        weights = [draw.normal(*shapes[kind], scale=0.7) for kind in "WUb" * self.n_gate]
        return Case((draw.normal(*dims, "input"), *states, *weights))

    def loop(self, draw: Draw) -> Case:
        return self.step(draw, "step")

    def from_zeros(self, make: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
        def zeros(draw: Draw) -> Case:
            case = make(draw)
            for state in case.args[1 : 1 + self.n_state]:
                state.zero_()
            return case

        return zeros

    def step_trials(self) -> tuple[Trial, ...]:
        return (
            Trial("one step", self.step, {"input": 3, "hidden": 5}, variants=True),
            Trial("more inputs than hidden units", self.step, {"input": 7, "hidden": 2}, variants=True),
            Trial("as many inputs as hidden units", self.step, {"input": 5, "hidden": 5}),
            Trial("one input, one hidden unit", self.step, {"input": 1, "hidden": 1}),
            Trial("the first step, from zeros", self.from_zeros(self.step), {"input": 3, "hidden": 5}),
        )

    def loop_trials(self) -> tuple[Trial, ...]:
        return (
            Trial("a sequence", self.loop, {"step": 7, "input": 3, "hidden": 5}, variants=True),
            Trial("one step", self.loop, {"step": 1, "input": 3, "hidden": 5}, variants=True),
            Trial("two steps", self.loop, {"step": 2, "input": 5, "hidden": 3}),
            Trial("all sizes alike", self.loop, {"step": 3, "input": 3, "hidden": 3}),
            Trial("one input, one hidden unit", self.loop, {"step": 5, "input": 1, "hidden": 1}),
            Trial("from zeros", self.from_zeros(self.loop), {"step": 5, "input": 2, "hidden": 3}),
        )

    def loop_probes(self) -> tuple[Probe, ...]:
        def negate(index: int) -> Callable[[Case, Draw], object]:
            return lambda case, draw: case.args[index].neg_()

        return (
            Probe(
                "the future has no say",
                changed(self.loop, lambda case, draw: case.args[0][draw["step"] // 2].add_(1.0)),
                {"step": 7, "input": 3, "hidden": 5},
                says="the input of step 3 was changed: states before it may not move, that of step 3 must.",
            ),
            Probe(
                "the first state is felt",
                changed(self.loop, *(negate(1 + state) for state in range(self.n_state))),
                {"step": 3, "input": 2, "hidden": 5},
                says="a first state was changed: the states must move.",
            ),
        )
