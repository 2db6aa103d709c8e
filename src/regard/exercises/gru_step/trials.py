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
    copied: str = "",  # "U r z": the r gate uses the U of z
    update_sees: str = "h",
    reset_sees: str = "h",
    resets: str = "the state",
    gates: str = "sigmoid",
    candidate: str = "tanh",
    recurrent: str = "h U",
    bias: str = "used",
    mix: str = "z h + (1 - z) new",
) -> Tensor:
    """The new state."""
    x, h, *weights = case.args
    by: dict[str, list[Tensor]] = {name: weights[3 * at : 3 * at + 3] for at, name in enumerate("zrh")}
    if copied:
        part, to, source = copied.split()
        by[to]["WUb".index(part)] = by[source]["WUb".index(part)]
    if recurrent == "h W + x U":  # joint vectors have the state first, joint matrices W
        for matrices in by.values():
            matrices[1], matrices[0] = torch.cat(matrices[:2]).split([len(h), len(x)])

    def shift(name: str) -> Tensor:
        left_out = bias == "left out" or name in bias.removeprefix("not of ").split()
        return by[name][2] * (0 if left_out else {"twice": 2}.get(bias, 1))

    def product(state: Tensor, name: str) -> Tensor:
        matrix = by[name][1]
        return matrix @ state if recurrent in ("U h", f"U h of {name}") else state @ matrix

    def gate(name: str, sees: str) -> Tensor:
        seen = made({"h": lambda: h, "nothing": lambda: 0 * h, "r * h": lambda: r * h}, sees)
        return ACTIVATIONS[gates](x @ by[name][0] + product(seen, name) + shift(name))

    r = gate(reset_by, reset_sees)
    z = gate(update_by, update_sees)
    if update == "takes":
        z = 1 - z
    of_x, whole, b = x @ by["h"][0], product(h, "h"), shift("h")
    of_state = r * whole if reset == "after" else product(r * h, "h")
    act = ACTIVATIONS[candidate]
    new = made(
        {
            "the state": lambda: act(of_x + of_state + b),
            "nothing": lambda: act(of_x + whole + b),
            "1 - r": lambda: act(
                of_x + ((1 - r) * whole if reset == "after" else product((1 - r) * h, "h")) + b
            ),
            "all of the state": lambda: act(of_x + b),
            "product and bias": lambda: act(of_x + r * (whole + b)),
            "the candidate": lambda: r * act(of_x + whole + b),
            "the input": lambda: act(r * of_x + whole + b),
            "input and state": lambda: act(r * of_x + of_state + b),
            "the state, without U": lambda: act(of_x + r * h + b),
            "the whole sum": lambda: act(r * (of_x + whole + b)),
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
            "r h + (1 - z) new": lambda: r * h + (1 - z) * new,
            "z h + (1 - r) new": lambda: z * h + (1 - r) * new,
            "z h + r new": lambda: z * h + r * new,
            "tanh": lambda: torch.tanh(z * h + (1 - z) * new),
            "h more": lambda: h + z * h + (1 - z) * new,
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
