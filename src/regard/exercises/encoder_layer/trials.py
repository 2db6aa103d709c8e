"""Reference, calls and probes of `encoder-layer`."""

import torch
from torch import Tensor

from regard.checking.trials import Case, Draw, Trial, neighbour_probe
from regard.exercises.shared.attention import past_lengths
from regard.exercises.shared.blocks import DROPOUT_PROBES, MODES, SIZES, Choices, Reference, block
from regard.exercises.shared.lengths import edges, lengths_of, padding_probe


def reference(
    case: Case,
    *,
    norm: str = "norm(residual(part(seen)))",
    activation: str = "x.relu()",
    padding: str = "like all others",
    **choices: str,
) -> Tensor:
    """The layer's output."""
    c, lengths = Choices(norm=norm, activation=activation, **choices), case.kwargs.get("valid_lens")
    out = Reference(case, c, lambda scores: past_lengths(lengths, scores, c))(case.args[0])
    if padding == "zeroed" and lengths is not None:
        out = out * (torch.arange(out.shape[1]) < lengths[:, None])[..., None]
    return out


def padded(draw: Draw) -> Case:
    return block(draw, lengths_of(draw, "position"))


def change_padding(case: Case, draw: Draw) -> None:
    case.args[0][torch.arange(draw["position"]) >= case.kwargs["valid_lens"][:, None]] *= -1.5


TRIALS = (
    Trial("no padding", block, SIZES, variants=True),
    Trial("padding", padded, SIZES, variants=True),
    *edges(padded, SIZES),
    Trial("as wide inside as outside", block, {**SIZES, "head": 2, "head_dim": 3, "ff_dim": 6}),
    *MODES,
)

PROBES = (padding_probe(padded, SIZES, change_padding), neighbour_probe(padded, SIZES), *DROPOUT_PROBES)
