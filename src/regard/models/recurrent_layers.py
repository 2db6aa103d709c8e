"""Torch's recurrent layers where they cannot be run as they are: padding to skip, inputs not yet known.

`read` runs them over padded sequences. `Steps` goes step by step, for a decoder that looks back at each step
and knows the context only when its turn comes; the part of the gates that words give is still one product for
all steps.

The weights are those of `nn.GRU`, `nn.LSTM` and `nn.RNN`, and so are the numbers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.attention.scores import no_autocast

# What the layers carry from step to step: (hidden,), and for an LSTM (hidden, cell).
State = tuple[Float[Tensor, "layer batch hidden_dim"], ...]


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


class Steps:
    """Recurrent layers on their way, whose input is [context; word], the words known beforehand."""

    def __init__(
        self, recurrent: nn.RNNBase, words: Float[Tensor, "batch position word_dim"], state: State
    ) -> None:
        self.recurrent = recurrent
        self.cell = _CELLS[type(recurrent)]
        self.dtype = next(recurrent.parameters()).dtype  # autocast makes products half: that would add up
        parts = [part.to(self.dtype) for part in state]
        self.layers = [tuple(part[layer] for part in parts) for layer in range(recurrent.num_layers)]
        names = "weight_ih", "weight_hh", "bias_ih", "bias_hh"
        self.weights = [
            [getattr(recurrent, f"{name}_l{layer}") for name in names]
            for layer in range(recurrent.num_layers)
        ]
        W_in, _, b_in, _ = self.weights[0]
        self.words = iter(F.linear(words, W_in[:, -words.shape[-1] :], b_in).unbind(1))
        self.weights[0][0], self.weights[0][2] = W_in[:, : -words.shape[-1]], None

    @property
    def output(self) -> Float[Tensor, "batch hidden_dim"]:
        """The last layer's hidden state."""
        return self.layers[-1][0]

    @property
    def state(self) -> State:
        """The state of all layers."""
        return tuple(torch.stack(parts) for parts in zip(*self.layers, strict=True))

    def step(self, context: Float[Tensor, "batch context_dim"]) -> None:
        """Read the next word, with what was seen."""
        x = context
        for layer, (W_in, W_h, b_in, b_h) in enumerate(self.weights):
            old = self.layers[layer]
            if layer:
                x = F.dropout(x, self.recurrent.dropout, self.recurrent.training)
            given = F.linear(x, W_in, b_in)
            if not layer:
                given = given + next(self.words)
            kept = F.linear(old[0], W_h, b_h)
            self.layers[layer] = self.cell(given.to(self.dtype), kept.to(self.dtype), *old)
            x = self.layers[layer][0]


def _gru(given: Tensor, kept: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    gates, candidate = given.split((2 * h.shape[-1], h.shape[-1]), -1)
    gates_kept, candidate_kept = kept.split((2 * h.shape[-1], h.shape[-1]), -1)
    r, z = (gates + gates_kept).sigmoid().chunk(2, -1)
    return (torch.lerp(torch.addcmul(candidate, r, candidate_kept).tanh(), h, z),)


def _lstm(given: Tensor, kept: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    i, f, candidate, o = (given + kept).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * candidate.tanh()
    return o.sigmoid() * c.tanh(), c


def _rnn(given: Tensor, kept: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    return ((given + kept).tanh(),)


_CELLS: dict[type[nn.RNNBase], Any] = {nn.GRU: _gru, nn.LSTM: _lstm, nn.RNN: _rnn}
