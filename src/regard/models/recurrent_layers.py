"""Torch's recurrent layers where they cannot be run as they are: padding to skip, inputs not yet known.

`read` runs them over padded sequences. `step` goes one step, for a decoder that looks back before each and
knows its input only when its turn comes. The weights are those of `nn.GRU`, `nn.LSTM` and `nn.RNN`, and so
are the numbers.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.attention.scores import no_autocast

# What the layers carry from step to step: (hidden,), and for an LSTM (hidden, cell).
State = tuple[Float[Tensor, "layer batch hidden_dim"], ...]
LayerState = tuple[Float[Tensor, "batch hidden_dim"], ...]  # of one of them

_CELLS: dict[type[nn.RNNBase], Any] = {
    nn.GRU: torch.gru_cell,
    nn.LSTM: torch.lstm_cell,
    nn.RNN: torch.rnn_tanh_cell,
}


def run(recurrent: nn.RNNBase, x: Any, state: State | None = None) -> tuple[Any, State]:
    """The layers' outputs and last state, the state always a tuple, whatever the cell."""
    weight = next(recurrent.parameters())
    if state is not None:
        state = tuple(part.to(weight.dtype) for part in state)  # autocast makes projections half
    given = state if state is None or len(state) > 1 else state[0]
    with no_autocast(weight.device):  # oneDNN has half-precision recurrences for few processors
        outputs, last = recurrent(x, given)
    return outputs, last if isinstance(last, tuple) else (last,)


def read(
    recurrent: nn.RNNBase, x: Float[Tensor, "batch position dim"], lengths: Int[Tensor, "batch"]
) -> tuple[Float[Tensor, "batch position out_dim"], State]:
    """Outputs and last state of sequences that end before `position`; outputs past an end are 0."""
    packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    outputs, state = run(recurrent, packed)
    return pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])[0], state


def step(
    recurrent: nn.RNNBase, x: Float[Tensor, "batch dim"], layers: Sequence[LayerState]
) -> list[LayerState]:
    """The state of every layer after one step, from those before it."""
    new: list[LayerState] = []
    for weights, old in zip(recurrent.all_weights, layers, strict=True):
        if new:
            x = F.dropout(new[-1][0], recurrent.dropout, recurrent.training)
        dtype = weights[0].dtype  # autocast makes products half: that would add up
        state = tuple(part.to(dtype) for part in old)
        with no_autocast(x.device):
            after = _CELLS[type(recurrent)](x.to(dtype), state if len(state) > 1 else state[0], *weights)
        new.append(after if isinstance(after, tuple) else (after,))
    return new
