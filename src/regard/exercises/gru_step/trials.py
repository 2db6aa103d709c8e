"""Reference, calls and probes of `gru-step`."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Trial, made
from regard.exercises.shared.recurrent import ACTIVATIONS, Given


def reference(
    case: Case,
    *,
    update: str = "keeps",
    reset: str = "before",
    update_by: str = "z",
    reset_by: str = "r",
    update_u: str = "",
    reset_u: str = "",
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

    def gate(name: str, by_state: str) -> Tensor:
        seen = h if gates_see == "h" else torch.zeros_like(h)
        shift = 0 if bias == "not of the gates" else times
        return ACTIVATIONS[gates](x @ by[name][0] + product(seen, by_state or name) + shift * by[name][2])

    z, r = gate(update_by, update_u), gate(reset_by, reset_u)
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


GIVEN = Given(n_state=1, n_gate=3)


def large_state(draw: Draw) -> Case:
    """A state that no tanh gives, which shows what the gates do to it."""
    case = GIVEN.step(draw)
    case.args[1].mul_(4)
    return case


TRIALS = (*GIVEN.step_trials(), Trial("a large state", large_state, {"input": 3, "hidden": 7}))
