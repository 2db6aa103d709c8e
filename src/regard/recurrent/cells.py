"""Recurrent networks as formulas: one step, and a whole sequence at the speed of a fused kernel.

A step is the textbook's line. A whole-sequence form gives the same numbers and the same gradients, with the
projections of all inputs as one product, one product and a few in-place operations for each step, and the
gradients of the weights as one product again. Vectors are rows, so weights are (input_dim, hidden),
(hidden, hidden) and (hidden,); the transpose of what `torch.nn` keeps.

Inputs are (input_dim,) or (batch, input_dim) for a step, (time, input_dim) or (time, batch, input_dim) for
a sequence. With `lengths`, a sequence ends before `time`: states past its end are 0, as
`pad_packed_sequence` has it, whatever the padding holds, and `last_state` finds the state it ended with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.shapes import check_same_kind, named
from regard.errors import ArgumentError, ShapeError
from regard.recurrent.loops import fused, gru_loop, lstm_loop, rnn_loop

RNN_WEIGHTS = ("W_x", "W_h", "b")
LSTM_WEIGHTS = ("W_f", "U_f", "b_f", "W_i", "U_i", "b_i", "W_o", "U_o", "b_o", "W_c", "U_c", "b_c")
GRU_WEIGHTS = ("W_z", "U_z", "b_z", "W_r", "U_r", "b_r", "W_h", "U_h", "b_h")


def rnn_step(
    x_t: Float[Tensor, "*batch input_dim"],
    h_prev: Float[Tensor, "*batch hidden"],
    W_x: Float[Tensor, "input_dim hidden"],
    W_h: Float[Tensor, "hidden hidden"],
    b: Float[Tensor, " hidden"],
) -> Float[Tensor, "*batch hidden"]:
    """tanh(x_t W_x + h_prev W_h + b): the next state of Elman's network (1990)."""
    _check_step({"x_t": x_t, "h_prev": h_prev}, RNN_WEIGHTS, (W_x, W_h, b))
    return torch.tanh(x_t @ W_x + h_prev @ W_h + b)


def lstm_step(
    x_t: Float[Tensor, "*batch input_dim"],
    h_prev: Float[Tensor, "*batch hidden"],
    c_prev: Float[Tensor, "*batch hidden"],
    W_f: Float[Tensor, "input_dim hidden"],
    U_f: Float[Tensor, "hidden hidden"],
    b_f: Float[Tensor, " hidden"],
    W_i: Float[Tensor, "input_dim hidden"],
    U_i: Float[Tensor, "hidden hidden"],
    b_i: Float[Tensor, " hidden"],
    W_o: Float[Tensor, "input_dim hidden"],
    U_o: Float[Tensor, "hidden hidden"],
    b_o: Float[Tensor, " hidden"],
    W_c: Float[Tensor, "input_dim hidden"],
    U_c: Float[Tensor, "hidden hidden"],
    b_c: Float[Tensor, " hidden"],
) -> tuple[Float[Tensor, "*batch hidden"], Float[Tensor, "*batch hidden"]]:
    """The next hidden and cell state, (h, c), of a long short-term memory with a forget gate.

        f, i, o = sigmoid(x_t W + h_prev U + b), each with its own W, U and b
        c = f * c_prev + i * tanh(x_t W_c + h_prev U_c + b_c)
        h = o * tanh(c)

    Gers, Schmidhuber and Cummins (2000), without peepholes.
    """
    weights = (W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c)
    _check_step({"x_t": x_t, "h_prev": h_prev, "c_prev": c_prev}, LSTM_WEIGHTS, weights)
    f = torch.sigmoid(x_t @ W_f + h_prev @ U_f + b_f)
    i = torch.sigmoid(x_t @ W_i + h_prev @ U_i + b_i)
    o = torch.sigmoid(x_t @ W_o + h_prev @ U_o + b_o)
    c = f * c_prev + i * torch.tanh(x_t @ W_c + h_prev @ U_c + b_c)
    return o * torch.tanh(c), c


def gru_step(
    x_t: Float[Tensor, "*batch input_dim"],
    h_prev: Float[Tensor, "*batch hidden"],
    W_z: Float[Tensor, "input_dim hidden"],
    U_z: Float[Tensor, "hidden hidden"],
    b_z: Float[Tensor, " hidden"],
    W_r: Float[Tensor, "input_dim hidden"],
    U_r: Float[Tensor, "hidden hidden"],
    b_r: Float[Tensor, " hidden"],
    W_h: Float[Tensor, "input_dim hidden"],
    U_h: Float[Tensor, "hidden hidden"],
    b_h: Float[Tensor, " hidden"],
    *,
    reset_after: bool = False,
    b_u: Float[Tensor, " hidden"] | None = None,
) -> Float[Tensor, "*batch hidden"]:
    """The next state of a gated recurrent unit; z keeps the old state, 1 - z takes the candidate.

        z, r = sigmoid(x_t W + h_prev U + b), each with its own W, U and b
        candidate = tanh(x_t W_h + (r * h_prev) U_h + b_h)
        h = z * h_prev + (1 - z) * candidate

    This is Cho et al. (2014), where the reset comes before the product. `nn.GRU` resets after it, which
    is another function of the same weights: `reset_after=True` gives that one,
    candidate = tanh(x_t W_h + b_h + r * (h_prev U_h + b_u)), and takes its second bias, `b_u`.
    """
    weights = (W_z, U_z, b_z, W_r, U_r, b_r, W_h, U_h, b_h)
    _check_step({"x_t": x_t, "h_prev": h_prev}, GRU_WEIGHTS, weights)
    _check_inner_bias(reset_after, b_u, h_prev)
    z = torch.sigmoid(x_t @ W_z + h_prev @ U_z + b_z)
    r = torch.sigmoid(x_t @ W_r + h_prev @ U_r + b_r)
    if reset_after:
        inner = h_prev @ U_h if b_u is None else h_prev @ U_h + b_u
        candidate = torch.tanh(x_t @ W_h + b_h + r * inner)
    else:
        candidate = torch.tanh(x_t @ W_h + (r * h_prev) @ U_h + b_h)
    return z * h_prev + (1 - z) * candidate


def rnn_forward(
    X: Float[Tensor, "time *batch input_dim"],
    h0: Float[Tensor, "*batch hidden"],
    W_x: Float[Tensor, "input_dim hidden"],
    W_h: Float[Tensor, "hidden hidden"],
    b: Float[Tensor, " hidden"],
    *,
    lengths: Int[Tensor, "*batch"] | None = None,
) -> Float[Tensor, "time *batch hidden"]:
    """Every hidden state of `rnn_step` along X: H[t] is the state after X[t]."""
    _check_sequence({"X": X, "h0": h0}, RNN_WEIGHTS, (W_x, W_h, b), lengths)
    x, past_end = _batched(X, lengths)
    h = h0.reshape(x.shape[1], h0.shape[-1])
    # cuDNN has the whole loop in one kernel; on a CPU the loop here is faster than torch's
    H = fused("RNN_TANH", x, h[None], [W_x], [W_h], [b])[0] if X.is_cuda else rnn_loop(x, h, W_x, W_h, b)
    return _as_given(H, X, past_end)


def lstm_forward(
    X: Float[Tensor, "time *batch input_dim"],
    h0: Float[Tensor, "*batch hidden"],
    c0: Float[Tensor, "*batch hidden"],
    W_f: Float[Tensor, "input_dim hidden"],
    U_f: Float[Tensor, "hidden hidden"],
    b_f: Float[Tensor, " hidden"],
    W_i: Float[Tensor, "input_dim hidden"],
    U_i: Float[Tensor, "hidden hidden"],
    b_i: Float[Tensor, " hidden"],
    W_o: Float[Tensor, "input_dim hidden"],
    U_o: Float[Tensor, "hidden hidden"],
    b_o: Float[Tensor, " hidden"],
    W_c: Float[Tensor, "input_dim hidden"],
    U_c: Float[Tensor, "hidden hidden"],
    b_c: Float[Tensor, " hidden"],
    *,
    lengths: Int[Tensor, "*batch"] | None = None,
    cells: bool = True,
) -> tuple[Float[Tensor, "time *batch hidden"], Float[Tensor, "... hidden"]]:
    """Every hidden and every cell state of `lstm_step` along X, (H, C), both (time, ..., hidden).

    With `cells=False` it is (H, c): c is the last cell state only, (..., hidden), which is all that torch's
    fused operation gives. Sequences of different `lengths` end with cells that operation does not return,
    so that they cost the same with `cells=False` as without.
    """
    weights = (W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c)
    _check_sequence({"X": X, "h0": h0, "c0": c0}, LSTM_WEIGHTS, weights, lengths)
    x, past_end = _batched(X, lengths)
    h, c = h0.reshape(x.shape[1], h0.shape[-1]), c0.reshape(x.shape[1], c0.shape[-1])
    if not cells and lengths is None and h.numel():
        W, U, b = [W_i, W_f, W_c, W_o], [U_i, U_f, U_c, U_o], [b_i, b_f, b_c, b_o]
        H, _, c_last = fused("LSTM", x, (h[None], c[None]), W, U, b)
        return _as_given(H, X, None), c_last.reshape(c0.shape)
    W_all, U_all = torch.cat((W_o, W_f, W_i, W_c), 1), torch.cat((U_o, U_f, U_i, U_c), 1)
    H, C = lstm_loop(x, h, c, W_all, U_all, torch.cat((b_o, b_f, b_i, b_c)))
    H, C = _as_given(H, X, past_end), _as_given(C, X, past_end)
    return H, C if cells else last_state(C, c0, lengths)


def gru_forward(
    X: Float[Tensor, "time *batch input_dim"],
    h0: Float[Tensor, "*batch hidden"],
    W_z: Float[Tensor, "input_dim hidden"],
    U_z: Float[Tensor, "hidden hidden"],
    b_z: Float[Tensor, " hidden"],
    W_r: Float[Tensor, "input_dim hidden"],
    U_r: Float[Tensor, "hidden hidden"],
    b_r: Float[Tensor, " hidden"],
    W_h: Float[Tensor, "input_dim hidden"],
    U_h: Float[Tensor, "hidden hidden"],
    b_h: Float[Tensor, " hidden"],
    *,
    lengths: Int[Tensor, "*batch"] | None = None,
    reset_after: bool = False,
    b_u: Float[Tensor, " hidden"] | None = None,
) -> Float[Tensor, "time *batch hidden"]:
    """Every hidden state of `gru_step` along X, with its two conventions of the reset."""
    weights = (W_z, U_z, b_z, W_r, U_r, b_r, W_h, U_h, b_h)
    _check_sequence({"X": X, "h0": h0}, GRU_WEIGHTS, weights, lengths)
    _check_inner_bias(reset_after, b_u, h0)
    x, past_end = _batched(X, lengths)
    h = h0.reshape(x.shape[1], h0.shape[-1])
    if reset_after and h.numel():
        inner = torch.zeros_like(b_h) if b_u is None else b_u
        zero = torch.zeros_like(inner)
        W, U, b = [W_r, W_z, W_h], [U_r, U_z, U_h], [b_r, b_z, b_h]
        H = fused("GRU", x, h[None], W, U, b, [zero, zero, inner])[0]
    else:
        W_all, U_gates = torch.cat((W_h, W_z, W_r), 1), torch.cat((U_z, U_r), 1)
        H = gru_loop(x, h, W_all, U_gates, U_h, torch.cat((b_h, b_z, b_r)))
    return _as_given(H, X, past_end)


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


def _batched(X: Tensor, lengths: Tensor | None) -> tuple[Tensor, Bool[Tensor, "time batch 1"] | None]:
    """X with a batch axis, its padding set to 0, and where that is: NaN times a gradient of 0 is NaN."""
    x = X if X.dim() == 3 else X[:, None]
    if lengths is None:
        return x, None
    past_end = torch.arange(len(x), device=x.device)[:, None, None] >= lengths.reshape(1, -1, 1)
    return x.masked_fill(past_end, 0), past_end


def _as_given(states: Tensor, X: Tensor, past_end: Tensor | None) -> Tensor:
    """States with 0 past the end, and with a batch axis only if X has one."""
    if past_end is not None:
        states = states.masked_fill(past_end, 0)
    return states if X.dim() == 3 else states[:, 0]


def _check_step(given: dict[str, Tensor], names: Sequence[str], weights: Sequence[Tensor]) -> None:
    (x_name, x), *_ = given.items()
    if x.dim() not in (1, 2):
        raise ShapeError(
            f"{x_name} has {x.dim()} dimensions: it must be (input_dim,) or (batch, input_dim). "
            f"Got shape {tuple(x.shape)}."
        )
    _check_fit(given, ("batch", "input_dim")[-x.dim() :], ("batch", "hidden")[-x.dim() :], names, weights)


def _check_sequence(
    given: dict[str, Tensor], names: Sequence[str], weights: Sequence[Tensor], lengths: Tensor | None
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
    _check_fit(given, words, (*words[1:-1], "hidden"), names, weights)
    if lengths is not None:
        _check_lengths(lengths, X, "X")


def _check_fit(
    given: dict[str, Tensor],
    x_words: Sequence[str],
    state_words: Sequence[str],
    names: Sequence[str],
    weights: Sequence[Tensor],
) -> None:
    """Raise unless the states follow from x, and every weight from x and the first state."""
    check_same_kind(**given, **dict(zip(names, weights, strict=True)))
    (x_name, x), (h_name, h), *_ = given.items()
    got = f"Got {x_name} {named(x_words, x.shape)}, {h_name} {named(state_words, h.shape)}."
    if h.dim() == 0 or x.shape[-1] == 0 or h.shape[-1] == 0:
        raise ShapeError(f"input_dim and hidden must be at least 1. {got}")
    batch, input_dim, hidden = tuple(x.shape[len(x_words) - len(state_words) : -1]), x.shape[-1], h.shape[-1]
    for name, state in list(given.items())[1:]:
        if tuple(state.shape) != (*batch, hidden):
            raise ShapeError(
                f"{name} is {named(state_words, state.shape)}: "
                f"it must be {named(state_words, (*batch, hidden))}. {got}"
            )
    wanted = ((("input_dim", "hidden"), (input_dim, hidden)), (("hidden", "hidden"), (hidden, hidden)))
    for index, (name, weight) in enumerate(zip(names, weights, strict=True)):
        words, shape = (*wanted, (("hidden",), (hidden,)))[index % 3]
        if tuple(weight.shape) != shape:
            raise ShapeError(
                f"{name} is {named(words, weight.shape)}: it must be {named(words, shape)}. {got}"
            )


def _check_inner_bias(reset_after: bool, b_u: Tensor | None, h: Tensor) -> None:
    if b_u is None:
        return
    if not reset_after:
        raise ArgumentError(
            "b_u is the bias inside the reset, which only reset_after=True has: add it to b_h, or pass "
            "reset_after=True. Got b_u and reset_after=False."
        )
    check_same_kind(h=h, b_u=b_u)
    if tuple(b_u.shape) != tuple(h.shape[-1:]):
        raise ShapeError(f"b_u is {named(('hidden',), b_u.shape)}: it must be (hidden {h.shape[-1]}).")


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
