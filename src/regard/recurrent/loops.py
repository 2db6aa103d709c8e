"""Recurrent networks over a whole sequence: every state, from one call.

The inputs of all steps are projected by one product; then each step has one product with the state, or two.
Torch's fused operations stand where they give all that is asked for. Everything is computed in the dtype of
the inputs, under autocast too.

Inputs are (time, input_dim) or (time, batch, input_dim). With `lengths`, a sequence ends before `time`:
states past its end are 0, as `pad_packed_sequence` has it, whatever the padding holds, and `last_state` finds
the state it ended with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention import torch_ops
from regard.attention.scores import no_autocast
from regard.attention.shapes import check_same_kind, named
from regard.errors import ArgumentError, ShapeError
from regard.recurrent.cells import GRUWeights, LSTMWeights, RNNWeights, check_fit, check_reset


def rnn_forward(
    X: Float[Tensor, "time *batch input_dim"],
    h0: Float[Tensor, "*batch hidden"],
    weights: RNNWeights,
    *,
    lengths: Int[Tensor, "*batch"] | None = None,
) -> Float[Tensor, "time *batch hidden"]:
    """Every hidden state of `rnn_step` along X: H[t] is the state after X[t]."""
    _check_sequence({"X": X, "h0": h0}, weights, lengths)
    x, past_end, (h,) = _batched(X, lengths, h0)
    states = []
    with no_autocast(X.device):
        for projected in _projected(x, [weights.W_x], [weights.b]):
            h = torch.addmm(projected, h, weights.W_h).tanh()
            states.append(h)
    return _as_given(states, X, past_end)


def lstm_forward(
    X: Float[Tensor, "time *batch input_dim"],
    h0: Float[Tensor, "*batch hidden"],
    c0: Float[Tensor, "*batch hidden"],
    weights: LSTMWeights,
    *,
    lengths: Int[Tensor, "*batch"] | None = None,
    cells: bool = True,
) -> tuple[Float[Tensor, "time *batch hidden"], Float[Tensor, "... hidden"]]:
    """Every hidden and every cell state of `lstm_step` along X, (H, C), both (time, ..., hidden).

    With `cells=False` it is (H, c): c is the last cell state only, (..., hidden), which is all that torch's
    fused operation gives. Sequences of different `lengths` end with cells that operation does not return,
    so that they cost the same with `cells=False` as without.
    """
    _check_sequence({"X": X, "h0": h0, "c0": c0}, weights, lengths)
    x, past_end, (h, c) = _batched(X, lengths, h0, c0)
    w = weights
    W, U, b = (w.W_i, w.W_f, w.W_c, w.W_o), (w.U_i, w.U_f, w.U_c, w.U_o), (w.b_i, w.b_f, w.b_c, w.b_o)
    with no_autocast(X.device):
        if not cells and lengths is None and _fusible("LSTM", h):
            H, _, c_last = fused("LSTM", x, (h[None], c[None]), W, U, b)
            return _as_given(H, X, None), c_last.reshape(c0.shape)
        states, cell_states, U_all = [], [], torch.cat(U, 1)
        for projected in _projected(x, W, b):
            i, f, candidate, o = torch.addmm(projected, h, U_all).chunk(4, -1)
            c = torch.addcmul(f.sigmoid() * c, i.sigmoid(), candidate.tanh())
            h = o.sigmoid() * c.tanh()
            states.append(h)
            cell_states.append(c)
    H, C = _as_given(states, X, past_end), _as_given(cell_states, X, past_end)
    return H, C if cells else last_state(C, c0, lengths)


def gru_forward(
    X: Float[Tensor, "time *batch input_dim"],
    h0: Float[Tensor, "*batch hidden"],
    weights: GRUWeights,
    *,
    lengths: Int[Tensor, "*batch"] | None = None,
    reset_after: bool = False,
) -> Float[Tensor, "time *batch hidden"]:
    """Every hidden state of `gru_step` along X, with its two conventions of the reset."""
    _check_sequence({"X": X, "h0": h0}, weights, lengths)
    check_reset(weights, reset_after)
    x, past_end, (h,) = _batched(X, lengths, h0)
    w = weights
    W, b = (w.W_r, w.W_z, w.W_h), (w.b_r, w.b_z, w.b_h)
    with no_autocast(X.device):
        inner = torch.zeros_like(w.b_h) if w.b_u is None else w.b_u
        if reset_after and _fusible("GRU", h):
            zero = torch.zeros_like(inner)
            H = fused("GRU", x, h[None], W, (w.U_r, w.U_z, w.U_h), b, (zero, zero, inner))[0]
            return _as_given(H, X, past_end)
        states, U_gates, size = [], torch.cat((w.U_r, w.U_z), 1), h.shape[-1]
        for projected in _projected(x, W, b):
            gates, candidate = projected.split((2 * size, size), -1)
            r, z = torch.addmm(gates, h, U_gates).sigmoid().chunk(2, -1)
            if reset_after:
                candidate = candidate + r * torch.addmm(inner, h, w.U_h)
            else:
                candidate = torch.addmm(candidate, r * h, w.U_h)
            h = torch.lerp(candidate.tanh(), h, z)
            states.append(h)
    return _as_given(states, X, past_end)


def last_state(
    states: Float[Tensor, "time *batch hidden"],
    initial: Float[Tensor, "*batch hidden"],
    lengths: Int[Tensor, "*batch"] | None = None,
) -> Float[Tensor, "*batch hidden"]:
    """The state each sequence ended with: the one of its last step, or `initial` where it has no step.

    >>> H = torch.tensor([[[1.0], [5.0]], [[2.0], [0.0]]])  # (time 2, batch 2, hidden 1)
    >>> last_state(H, torch.zeros(2, 1), torch.tensor([2, 1])).squeeze(1)
    tensor([2., 5.])
    """
    if states.dim() not in (2, 3) or not len(states) or states.shape[1:] != initial.shape:
        raise ShapeError(
            "states and initial do not fit: states must be (time, hidden) or (time, batch, hidden), with at "
            "least one step, and initial the same without time. "
            f"Got states {tuple(states.shape)}, initial {tuple(initial.shape)}."
        )
    if lengths is None:
        return states[-1]
    check_same_kind(states=states, initial=initial)
    _check_lengths(lengths, states, "states")
    index = (lengths.long() - 1).clamp(min=0)[..., None].expand_as(initial)[None]
    return torch.where(lengths[..., None] == 0, initial, states.gather(0, index)[0])


def fused(
    mode: str,
    x: Tensor,
    state: Tensor | tuple[Tensor, Tensor],
    W: Sequence[Tensor],
    U: Sequence[Tensor],
    b: Sequence[Tensor],
    b_inner: Sequence[Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Torch's whole-sequence operation, on its layout: gates stacked in its order, (gate, input_dim)."""
    bias = torch.cat(list(b))
    inner = torch.zeros_like(bias) if b_inner is None else torch.cat(list(b_inner))
    params = [torch.cat([w.t() for w in W]), torch.cat([u.t() for u in U]), bias, inner]
    # has_biases, num_layers, dropout, train, bidirectional, batch_first
    outputs: tuple[Tensor, ...] = torch_ops.SEQUENCE[mode](
        x, state, params, True, 1, 0.0, torch.is_grad_enabled(), False, False
    )
    return outputs


def _fusible(mode: str, h: Tensor) -> bool:
    """Whether torch has the operation and it takes these: not an empty batch, nor halves on every CPU."""
    if torch_ops.SEQUENCE[mode] is None:
        return False
    return bool(h.numel()) and (h.device.type != "cpu" or h.dtype in (torch.float32, torch.float64))


def _projected(x: Tensor, W: Sequence[Tensor], b: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """x W + b of all gates side by side, one entry for each step, in one product."""
    rows = torch.addmm(torch.cat(list(b)), x.flatten(0, 1), torch.cat(list(W), 1))
    return rows.view(*x.shape[:2], rows.shape[1]).unbind()


def _batched(
    X: Tensor, lengths: Tensor | None, *states: Tensor
) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
    """X and states with a batch axis; where X is padding, set to 0: NaN times a gradient of 0 is NaN."""
    x = X if X.dim() == 3 else X[:, None]
    rows = tuple(state.reshape(x.shape[1], state.shape[-1]) for state in states)
    if lengths is None:
        return x, None, rows
    past_end = torch.arange(len(x), device=x.device)[:, None, None] >= lengths.reshape(1, -1, 1)
    return x.masked_fill(past_end, 0), past_end, rows


def _as_given(states: Tensor | list[Tensor], X: Tensor, past_end: Tensor | None) -> Tensor:
    """States with 0 past the end, and with a batch axis only if X has one."""
    H = torch.stack(states) if isinstance(states, list) else states
    if past_end is not None:
        H = H.masked_fill(past_end, 0)
    return H if X.dim() == 3 else H[:, 0]


def _check_sequence(
    given: dict[str, Tensor], weights: RNNWeights | LSTMWeights | GRUWeights, lengths: Tensor | None
) -> None:
    X = given["X"]
    if X.dim() not in (2, 3):
        raise ShapeError(
            f"X has {X.dim()} dimensions: it must be (time, input_dim) or (time, batch, input_dim). "
            f"Got shape {tuple(X.shape)}."
        )
    words = ("time", "batch", "input_dim") if X.dim() == 3 else ("time", "input_dim")
    if len(X) == 0:
        raise ShapeError(f"X has no steps: time must be at least 1. Got X {named(words, X.shape)}.")
    check_fit(given, words, (*words[1:-1], "hidden"), weights)
    if lengths is not None:
        _check_lengths(lengths, X, "X")


def _check_lengths(lengths: Tensor, sequence: Tensor, name: str) -> None:
    """Raise unless there is one whole number from 0 to time for each sequence."""
    if not isinstance(lengths, Tensor) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        kind = lengths.dtype if isinstance(lengths, Tensor) else type(lengths).__name__
        raise ShapeError(f"lengths must be a tensor of whole numbers, such as torch.int64. Got {kind}.")
    if lengths.shape != sequence.shape[1:-1]:
        raise ShapeError(
            f"lengths has shape {tuple(lengths.shape)}: it must be {tuple(sequence.shape[1:-1])}, one for "
            f"each sequence. Got {name} of shape {tuple(sequence.shape)}."
        )
    if lengths.device != sequence.device:
        raise ShapeError(
            f"lengths is on {lengths.device} and {name} on {sequence.device}: they must be on one device."
        )
    if lengths.is_meta or not lengths.numel():
        return
    low, high = (int(end) for end in torch.aminmax(lengths))
    if low < 0 or high > len(sequence):
        raise ArgumentError(
            f"lengths reach from {low} to {high}: each must be between 0 and time {len(sequence)}. "
            f"Got {name} of shape {tuple(sequence.shape)}."
        )
