"""Recurrent networks over a whole sequence: every state, from one call.

The inputs of all steps are projected by one product; then each step has one product with the state, or two.
Torch's fused operations stand where they give all that is asked for. Everything is computed in the dtype of
the inputs, under autocast too.

Inputs are (time, input_dim) or (time, batch, input_dim). With `lengths`, a sequence ends before `time`:
states past its end are 0, as `pad_packed_sequence` has it, whatever the padding holds, and `last_state` finds
the state it ended with.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention import torch_ops
from regard.attention.scores import no_autocast
from regard.attention.shapes import check_same_kind
from regard.errors import ArgumentError, ShapeError
from regard.recurrent.cells import GRUWeights, LSTMWeights, RNNWeights, State, check_fit, check_reset

Inputs = Float[Tensor, "time *batch input_dim"]
States = Float[Tensor, "time *batch hidden"]
Tensors = tuple[Tensor, ...]
Lengths = Int[Tensor, "*batch"] | None  # None: all of `time`


def rnn_forward(X: Inputs, h0: State, weights: RNNWeights, *, lengths: Lengths = None) -> States:
    """Compute every hidden state of `rnn_step` along X: H[t] is the state after X[t].

    Args:
        X: Inputs, ``(time, input_dim)`` or ``(time, batch, input_dim)``.
        h0: First hidden state, ``(hidden,)`` or ``(batch, hidden)``.
        weights: Matrices and bias.
        lengths: ``(batch,)``, where sequences end; states after that are 0. Default: all of `time`.

    Returns:
        ``(time, ..., hidden)``.

    Raises:
        ShapeError: If inputs, states and weights do not fit together.
        ArgumentError: If a length is out of range.
    """
    check_fit({"X": X, "h0": h0}, weights)

    def step(projected: Tensor, h: Tensor) -> tuple[Tensor]:
        return (torch.addmm(projected, h, weights.W_h).tanh(),)

    return _along(X, lengths, (h0,), weights.W_x, weights.b, step)[0]


def lstm_forward(
    X: Inputs, h0: State, c0: State, weights: LSTMWeights, *, lengths: Lengths = None, cells: bool = True
) -> tuple[States, Float[Tensor, "... hidden"]]:
    """Compute every hidden and every cell state of `lstm_step` along X.

    Args:
        X: Inputs, ``(time, input_dim)`` or ``(time, batch, input_dim)``.
        h0: First hidden state, ``(hidden,)`` or ``(batch, hidden)``.
        c0: First cell state, of the same shape.
        weights: Of the three gates and the candidate.
        lengths: ``(batch,)``, where sequences end; states after that are 0. Default: all of `time`.
        cells: Whether every cell state is returned. With False it is the last alone, which is all that
            torch's fused operation gives; with `lengths` that operation is not used.

    Returns:
        (H, C), both ``(time, ..., hidden)``; without `cells` (H, c), c the last cell state.

    Raises:
        ShapeError: If inputs, states and weights do not fit together.
        ArgumentError: If a length is out of range.
    """
    check_fit({"X": X, "h0": h0, "c0": c0}, weights)
    W, U, b = weights.side_by_side("ifco")
    if not cells and lengths is None and _fusible("LSTM", h0):
        return _fused("LSTM", X, None, (h0, c0), (W, U, b, torch.zeros_like(b)))

    def step(projected: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, candidate, o = torch.addmm(projected, h, U).chunk(4, -1)
        c = torch.addcmul(f.sigmoid() * c, i.sigmoid(), candidate.tanh())
        return o.sigmoid() * c.tanh(), c

    H, C = _along(X, lengths, (h0, c0), W, b, step)
    return H, C if cells else last_state(C, c0, lengths)


def gru_forward(
    X: Inputs, h0: State, weights: GRUWeights, *, lengths: Lengths = None, reset_after: bool = False
) -> States:
    """Compute every hidden state of `gru_step` along X, with its two conventions of the reset.

    Args:
        X: Inputs, ``(time, input_dim)`` or ``(time, batch, input_dim)``.
        h0: First hidden state, ``(hidden,)`` or ``(batch, hidden)``.
        weights: Of the two gates and the candidate.
        lengths: ``(batch,)``, where sequences end; states after that are 0. Default: all of `time`.
        reset_after: Whether the reset comes after the product, as in `nn.GRU`.

    Returns:
        ``(time, ..., hidden)``.

    Raises:
        ShapeError: If inputs, states and weights do not fit together.
        ArgumentError: If a length is out of range.
    """
    check_fit({"X": X, "h0": h0}, weights)
    check_reset(weights, reset_after)
    W, U, b = weights.side_by_side("rzh")
    inner = torch.zeros_like(weights.b_h) if weights.b_u is None else weights.b_u
    if reset_after and _fusible("GRU", h0):
        b_state = torch.cat([inner.new_zeros(2 * len(inner)), inner])
        return _fused("GRU", X, lengths, (h0,), (W, U, b, b_state))[0]
    U_gates = U[:, : 2 * len(inner)]

    def step(projected: Tensor, h: Tensor) -> tuple[Tensor]:
        gates, candidate = projected.split((U_gates.shape[1], h.shape[1]), -1)
        r, z = torch.addmm(gates, h, U_gates).sigmoid().chunk(2, -1)
        if reset_after:
            candidate = candidate + r * torch.addmm(inner, h, weights.U_h)
        else:
            candidate = torch.addmm(candidate, r * h, weights.U_h)
        return (torch.lerp(candidate.tanh(), h, z),)

    return _along(X, lengths, (h0,), W, b, step)[0]


def last_state(states: States, initial: State, lengths: Lengths = None) -> State:
    """Return the state each sequence ended with: that of its last step, or `initial` where it has no step.

    Args:
        states: ``(time, hidden)`` or ``(time, batch, hidden)``.
        initial: The state before the first step, the same without time.
        lengths: ``(batch,)``, where sequences end. Default: all of `time`.

    Returns:
        In the shape of `initial`.

    Raises:
        ShapeError: If inputs, states and weights do not fit together.
        ArgumentError: If a length is out of range.

    Example:
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


def _fusible(mode: str, h: Tensor) -> bool:
    """Whether torch has the operation and it takes these: not an empty batch, nor halves on every CPU."""
    if torch_ops.SEQUENCE[mode] is None:
        return False
    return bool(h.numel()) and (h.device.type != "cpu" or h.dtype in (torch.float32, torch.float64))


def _fused(
    mode: str, X: Tensor, lengths: Lengths, states: Tensors, weights: Tensors
) -> tuple[Tensor, Tensor]:
    """Every hidden state, and the last one or the last cell, by torch's operation on its own layout."""
    x, past_end, rows = _batched(X, lengths, states)
    params = [weight.t().contiguous() for weight in weights]
    initial = tuple(state[None] for state in rows)
    # has_biases, num_layers, dropout, train, bidirectional, batch_first
    options = True, 1, 0.0, torch.is_grad_enabled(), False, False
    with no_autocast(X.device):
        H, *_, last = torch_ops.SEQUENCE[mode](x, initial if mode == "LSTM" else initial[0], params, *options)
    return _as_given(H, X, past_end), last.reshape(states[0].shape)


def _along(
    X: Tensor, lengths: Lengths, states: Tensors, W: Tensor, b: Tensor, step: Callable[..., Tensors]
) -> list[Tensor]:
    """Every state along X; `step` is given x W + b of all gates side by side, made by one product."""
    x, past_end, states = _batched(X, lengths, states)
    made = []
    with no_autocast(X.device):
        rows = torch.addmm(b, x.flatten(0, 1), W)
        for projected in rows.view(*x.shape[:2], rows.shape[1]).unbind():
            states = step(projected, *states)
            made.append(states)
    return [_as_given(torch.stack(parts), X, past_end) for parts in zip(*made, strict=True)]


def _batched(X: Tensor, lengths: Lengths, states: Tensors) -> tuple[Tensor, Tensor | None, Tensors]:
    """X and states with a batch axis; where X is padding, set to 0: NaN times a gradient of 0 is NaN."""
    _check_lengths(lengths, X, "X")
    x = X if X.dim() == 3 else X[:, None]
    rows = tuple(state.reshape(x.shape[1], state.shape[-1]) for state in states)
    if lengths is None:
        return x, None, rows
    past_end = torch.arange(len(x), device=x.device)[:, None, None] >= lengths.reshape(1, -1, 1)
    return x.masked_fill(past_end, 0), past_end, rows


def _as_given(H: Tensor, X: Tensor, past_end: Tensor | None) -> Tensor:
    """States with 0 past the end, and with a batch axis only if X has one."""
    H = H if past_end is None else H.masked_fill(past_end, 0)
    return H if X.dim() == 3 else H[:, 0]


def _check_lengths(lengths: Tensor | None, sequence: Tensor, name: str) -> None:
    """Raise unless there is one whole number from 0 to time for each sequence, or None for all."""
    if lengths is None:
        return
    if not isinstance(lengths, Tensor) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        kind = lengths.dtype if isinstance(lengths, Tensor) else type(lengths).__name__
        raise ShapeError(f"lengths must be a tensor of whole numbers, such as torch.int64. Got {kind}.")
    if lengths.shape != sequence.shape[1:-1]:
        raise ShapeError(
            f"lengths has shape {tuple(lengths.shape)}: it must be {tuple(sequence.shape[1:-1])}, one for "
            f"each sequence. Got {name} of shape {tuple(sequence.shape)}."
        )
    if lengths.device != sequence.device:
        raise ShapeError(f"lengths is on {lengths.device} and {name} on {sequence.device}: move one.")
    if lengths.is_meta or not lengths.numel():
        return
    low, high = (int(end) for end in torch.aminmax(lengths))
    if low < 0 or high > len(sequence):
        raise ArgumentError(
            f"lengths reach from {low} to {high}: each must be between 0 and time {len(sequence)}. "
            f"Got {name} of shape {tuple(sequence.shape)}."
        )
