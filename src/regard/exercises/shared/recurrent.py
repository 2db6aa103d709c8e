"""Recurrent steps and loops: their formulas, of which mistakes replace some, and their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, formula, parted, worked

RNN = {
    "from_input": "x @ w_x",
    "from_state": "h @ w_h",
    "bias": "b",
    "activation": "torch.tanh",
    "new": "activation(from_input + from_state + bias)",
    "outside": "new",
    "plus": "outside",
}

# What stands before the activation of a gate `name` that sees a state.
SUM = {
    "matrices": "W, U",
    "W": "matrices[0]",
    "U": "matrices[1]",
    "recurrent": "seen @ U",
    "bias": "b",
    "forget_bias": "bias",
    "terms": "x @ W, recurrent, forget_bias",
}

LSTM = {
    "gates": "torch.sigmoid",
    "forget_by": "of_f",
    "forget_sees": "h",
    "forget_gate": "gates",
    "f": "forget_gate(total(forget_by, forget_sees))",
    "input_by": "of_i",
    "input_sees": "h",
    "input_gate": "gates",
    "i": "input_gate(total(input_by, input_sees))",
    "candidate_by": "of_c",
    "candidate_sees": "h",
    "candidate": "torch.tanh",
    "new": "candidate(total(candidate_by, candidate_sees))",
    "kept": "f * c",
    "added": "i * new",
    "cell": "kept + added",
    "output_by": "of_o",
    "output_sees": "h",
    "output_gate": "gates",
    "o": "output_gate(total(output_by, output_sees))",
    "stored": "cell",
    "leaves": "stored",
    "on_the_way_out": "torch.tanh",
    "let_out": "o * on_the_way_out(leaves)",
    "returned": "let_out, stored",
}

LOOP = {
    "first": "start",
    "inputs": "x",
    "states": "run(inputs, first)",
    "rows": "states",
    "tables": "stacked(rows)",
    "result": "tables",
}
IN_LOOP = {"carried": "state", "unpacked": "new", "short": "table"}

Choices = Mapping[str, str]
State = tuple[Tensor, ...]


def rnn_step(choices: Choices, x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor) -> Tensor:
    """The new state of a plain recurrent step."""
    new: Tensor = worked(RNN, choices, x=x, h=h, w_x=w_x, w_h=w_h, b=b)
    return new


def gated(
    formulas: Choices, names: str, choices: Choices, x: Tensor, h: Tensor, *weights: Tensor, **more: Any
) -> Any:
    """The result of a step whose gates have W, U and b each; in the formulas, those of a gate z are `of_z`.

    `terms(of_z, seen)` are the products with input and state and the bias, and `total(of_z, seen)` is their
    sum. The choice copied = "U r z" lets the gate r use the U of z.
    """
    of_sum, copied, of_step = parted(choices, SUM, {"copied": ""})
    by = {name: [name, *weights[3 * at : 3 * at + 3]] for at, name in enumerate(names)}
    if copied:
        part, to, source = copied["copied"].split()
        by[to]["_WUb".index(part)] = by[source]["_WUb".index(part)]

    def terms(gate: Sequence[Any], seen: Tensor) -> Any:
        name, w, u, b = gate
        return worked(SUM, of_sum, x=x, h=h, seen=seen, name=name, W=w, U=u, b=b)

    more["total"] = lambda gate, seen: sum(terms(gate, seen))
    gates = {f"of_{name}": gate for name, gate in by.items()}
    return worked(formulas, of_step, x=x, h=h, terms=terms, **gates, **more)


def lstm_step(choices: Choices, x: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> State:
    """The new hidden state and cell of an LSTM."""
    new: State = gated(LSTM, "fioc", choices, x, h, *weights, c=c)
    return new


def looped(step: Callable[..., State], x: Tensor, start: State, choices: Choices, **more: Any) -> Any:
    """What a loop of `step(row, *state)` over the rows of x gives."""
    in_loop, of_loop = parted(choices, IN_LOOP)
    how = {**IN_LOOP, **in_loop}

    def run(inputs: Iterable[Tensor], first: State) -> list[State]:
        state, states = first, []
        for row in inputs:
            new = step(row, *formula(how["carried"], state=state, first=first))
            state = formula(how["unpacked"], new=new)
            states.append(state)
        return states

    def stacked(rows: Sequence[State]) -> State:
        """Each part of the states as one tensor; what is missing are the rows that the inputs have more."""
        parts = zip(*rows, strict=True) if rows else [()] * len(start)
        tables = [torch.stack(part) if part else x.new_zeros(0, *start[0].shape) for part in parts]
        missing = x.new_zeros(max(0, len(x) - len(rows)), *start[0].shape)
        return tuple(formula(how["short"], table=table, missing=missing) for table in tables)

    zeros = tuple(torch.zeros_like(part) for part in start)
    return worked(LOOP, of_loop, x=x, start=start, zeros=zeros, run=run, stacked=stacked, **more)


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

    def from_zeros(self, draw: Draw, dims: tuple[str, ...] = ()) -> Case:
        case = self.step(draw, *dims)
        for state in case.args[1 : 1 + self.n_state]:
            state.zero_()
        return case

    def step_trials(self) -> tuple[Trial, ...]:
        return (
            Trial("one step", self.step, {"input": 3, "hidden": 5}, variants=True),
            Trial("more inputs than hidden units", self.step, {"input": 7, "hidden": 2}, variants=True),
            Trial("as many inputs as hidden units", self.step, {"input": 5, "hidden": 5}),
            Trial("one input, one hidden unit", self.step, {"input": 1, "hidden": 1}),
            Trial("the first step, from zeros", self.from_zeros, {"input": 3, "hidden": 5}),
        )

    def loop_trials(self) -> tuple[Trial, ...]:
        from_zeros = partial(self.from_zeros, dims=("step",))
        return (
            Trial("a sequence", self.loop, {"step": 7, "input": 3, "hidden": 5}, variants=True),
            Trial("one step", self.loop, {"step": 1, "input": 3, "hidden": 5}, variants=True),
            Trial("two steps", self.loop, {"step": 2, "input": 5, "hidden": 3}),
            Trial("all sizes alike", self.loop, {"step": 3, "input": 3, "hidden": 3}),
            Trial("one input, one hidden unit", self.loop, {"step": 5, "input": 1, "hidden": 1}),
            Trial("from zeros", from_zeros, {"step": 5, "input": 2, "hidden": 3}),
        )

    def loop_probes(self) -> tuple[Probe, ...]:
        def negate(index: int) -> Callable[[Case, Draw], object]:
            return lambda case, draw: case.args[index].neg_()

        later = changed(self.loop, lambda case, draw: case.args[0][draw["step"] // 2].add_(1.0))
        first = changed(self.loop, *(negate(1 + state) for state in range(self.n_state)))
        moved = "the input of step 3 was changed: states before it may not move, that of step 3 must."
        felt = "a first state was changed: the states must move."
        return (
            Probe("the future has no say", later, {"step": 7, "input": 3, "hidden": 5}, says=moved),
            Probe("the first state is felt", first, {"step": 3, "input": 2, "hidden": 5}, says=felt),
        )
