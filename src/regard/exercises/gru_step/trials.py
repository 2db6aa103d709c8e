"""Reference, calls and probes of `gru-step`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Trial, made
from regard.exercises.shared.recurrent import ACTIVATIONS


def reference(
    case: Case,
    *,
    update: str = "keeps",
    reset: str = "before",
    update_by: str = "z",
    reset_by: str = "r",
    candidate_by: str = "h",
    gates_see: str = "h",
    resets: str = "the state",
    gates: str = "sigmoid",
    candidate: str = "tanh",
    recurrent: str = "h U",
    bias: str = "used",
    mix: str = "z h + (1 - z) new",
) -> Tensor:
    """The new state."""
    x, h, *weights = case.args
    by = dict(zip("zrh", zip(weights[0::3], weights[1::3], weights[2::3], strict=True), strict=True))
    times = {"left out": 0, "twice": 2}.get(bias, 1)

    def product(state: Tensor, name: str) -> Tensor:
        matrix: Tensor = by[name][1]
        return matrix @ state if recurrent == "U h" else state @ matrix

    def gate(name: str) -> Tensor:
        seen = h if gates_see == "h" else torch.zeros_like(h)
        shift = 0 if bias == "not of the gates" else times
        return ACTIVATIONS[gates](x @ by[name][0] + product(seen, name) + shift * by[name][2])

    z, r = gate(update_by), gate(reset_by)
    if update == "takes":
        z = 1 - z
    w, _, b = by["h"]
    whole, shift = product(h, candidate_by), (0 if bias == "not of the candidate" else times) * b
    of_state = r * whole if reset == "after" else product(r * h, candidate_by)
    act = ACTIVATIONS[candidate]
    new = made(
        {
            "the state": lambda: act(x @ w + of_state + shift),
            "nothing": lambda: act(x @ w + whole + shift),
            "1 - r": lambda: act(
                x @ w + ((1 - r) * whole if reset == "after" else product((1 - r) * h, candidate_by)) + shift
            ),
            "all of the state": lambda: act(x @ w + shift),
            "product and bias": lambda: act(x @ w + r * (whole + shift)),
            "the candidate": lambda: r * act(x @ w + whole + shift),
            "the input": lambda: act(r * (x @ w) + whole + shift),
        },
        resets,
    )
    return made(
        {
            "z h + (1 - z) new": lambda: z * h + (1 - z) * new,
            "the candidate": lambda: new,
            "z h + new": lambda: z * h + new,
            "h + (1 - z) new": lambda: h + (1 - z) * new,
            "z h + z new": lambda: z * h + z * new,
            "z r h + (1 - z) new": lambda: z * r * h + (1 - z) * new,
            "(1 - z) new": lambda: (1 - z) * new,
        },
        mix,
    )


def step(draw: Draw) -> Case:
    shapes: dict[str, tuple[Any, ...]] = {
        "W": ("input", "hidden"),
        "U": ("hidden", "hidden"),
        "b": ("hidden",),
    }
    weights = [draw.normal(*shapes[kind], scale=0.8) for kind in "WUb" * 3]
    return Case((draw.normal("input"), draw.uniform("hidden", low=-0.9, high=0.9), *weights))


def at_rest(draw: Draw) -> Case:
    case = step(draw)
    return case.with_args(case.args[0], torch.zeros(draw["hidden"]), *case.args[2:])


def large_state(draw: Draw) -> Case:
    """A state that no tanh gives, which shows what the gates do to it."""
    case = step(draw)
    return case.with_args(case.args[0], draw.normal("hidden", scale=2.0), *case.args[2:])


TRIALS = (
    Trial("one step", step, {"input": 3, "hidden": 5}, variants=True),
    Trial("more inputs than hidden units", step, {"input": 7, "hidden": 2}, variants=True),
    Trial("as many inputs as hidden units", step, {"input": 5, "hidden": 5}),
    Trial("one input, one hidden unit", step, {"input": 1, "hidden": 1}),
    Trial("the first step, from zeros", at_rest, {"input": 3, "hidden": 5}),
    Trial("a large state", large_state, {"input": 3, "hidden": 7}),
)
