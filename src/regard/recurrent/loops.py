"""Whole sequences in one call: loops with their gradients by hand, and torch's fused operations.

Each loop works in place, in buffers of the whole sequence that are cut into steps once: a step is then one
product, or two, and a few cheap calls. Autograd could not follow that, so each has its own backward pass,
where what does not depend on later steps is computed for all steps at once beforehand, and the gradients of
the weights are one product at the end. A gradient of a gradient is rare and goes through plain steps again;
so does `torch.compile`, which fuses those itself.

Everything here takes (time, batch, input_dim) and gates side by side in one matrix, and checks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from regard.attention import torch_ops
from regard.attention.scores import no_autocast

ROWS_AT_ONCE = 512


def rnn_loop(X: Tensor, h0: Tensor, W_x: Tensor, W_h: Tensor, b: Tensor) -> Tensor:
    """Every hidden state of an Elman network."""
    if torch.compiler.is_compiling():
        return _rnn_by_steps(X, h0, W_x, W_h, b)[0]
    H: Tensor = RNN.apply(X, h0, W_x, W_h, b)  # type: ignore[no-untyped-call]
    return H


def lstm_loop(X: Tensor, h0: Tensor, c0: Tensor, W: Tensor, U: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Every hidden and every cell state of an LSTM, its gates in the order o, f, i, candidate."""
    if torch.compiler.is_compiling():
        return _lstm_by_steps(X, h0, c0, W, U, b)
    inputs = (X, h0, c0, W, U, b)
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    states: tuple[Tensor, ...] = LSTM.apply(*inputs, keep)  # type: ignore[no-untyped-call]
    return states[0], states[1]


def gru_loop(X: Tensor, h0: Tensor, W: Tensor, U_gates: Tensor, U_h: Tensor, b: Tensor) -> Tensor:
    """Every hidden state of a GRU that resets before the product: W, b in the order candidate, z, r."""
    if torch.compiler.is_compiling():
        return _gru_by_steps(X, h0, W, U_gates, U_h, b)[0]
    states: tuple[Tensor, ...] = GRU.apply(X, h0, W, U_gates, U_h, b)  # type: ignore[no-untyped-call]
    return states[0]


class RNN(Function):
    """H from (X, h0, W_x, W_h, b)."""

    @staticmethod
    def forward(X: Tensor, h0: Tensor, W_x: Tensor, W_h: Tensor, b: Tensor) -> Tensor:
        H, h = _projected(X, W_x, b), h0
        for h_t in H.unbind():
            h = h_t.addmm_(h, W_h).tanh_()
        return H

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, grad_H: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, H = ctx.saved_tensors
        X, h0, W_x, W_h, _ = inputs
        if torch.is_grad_enabled():
            return _grads_by_steps(_rnn_by_steps, inputs, (grad_H,))
        into_tanh = _copied(grad_H)
        slope = torch.addcmul(_one(H), H, H, value=-1)
        back, later = W_h.t(), torch.zeros_like(h0)
        for into_t, slope_t in _reversed(into_tanh, slope):
            later = into_t.addmm_(later, back).mul_(slope_t)
        grad_X, grad_W, grad_b = _projection_grads(ctx, X, W_x, into_tanh)
        return grad_X, later @ back, grad_W, _flat(_before(h0, H)).t() @ _flat(into_tanh), grad_b


class LSTM(Function):
    """H, C, and the gates if the backward pass will want them, from (X, h0, c0, W, U, b, keep).

    The gates stand in the order o, f, i, candidate: the first three are sigmoids, and the last three are
    those that the gradient of the cell reaches.
    """

    @staticmethod
    def forward(
        X: Tensor, h0: Tensor, c0: Tensor, W: Tensor, U: Tensor, b: Tensor, keep: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        (time, batch, _), size, h, c = X.shape, h0.shape[-1], h0, c0
        H, C = X.new_empty(time, batch, size), X.new_empty(time, batch, size)
        # Gates that are not kept pass through a small buffer, which stays in the cache: fresh memory for
        # all steps would have to be paged in first.
        part = time if keep else min(time, max(1, ROWS_AT_ONCE // max(1, batch)))
        gates = X.new_empty(part, batch, 4 * size)
        # One step's gates are worked on in one place, so that they are cut into their four parts once.
        now, tanh_c = X.new_empty(batch, 4 * size), X.new_empty(batch, size)
        (o, f, i, candidate), sigmoids = now.chunk(4, -1), now[:, : 3 * size]
        for X_part, H_part, C_part in zip(X.split(part), H.split(part), C.split(part), strict=True):
            projected = _projected(X_part, W, b, out=gates[: len(X_part)])
            for projected_t, h_t, c_t in _steps(projected, H_part, C_part):
                torch.addmm(projected_t, h, U, out=now)
                sigmoids.sigmoid_()
                candidate.tanh_()
                c = torch.mul(f, c, out=c_t).addcmul_(i, candidate)
                h = torch.mul(o, torch.tanh(c, out=tanh_c), out=h_t)
                if keep:
                    projected_t.copy_(now)
        return H, C, gates

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:-1], *output)

    @staticmethod
    def backward(
        ctx: Any, grad_H: Tensor | None, grad_C: Tensor | None, _: None
    ) -> tuple[Tensor | None, ...]:
        X, h0, c0, W, U, b, H, C, gates = ctx.saved_tensors
        into_h = torch.zeros_like(H) if grad_H is None else _copied(grad_H)
        into_c = torch.zeros_like(C) if grad_C is None else _copied(grad_C)
        if torch.is_grad_enabled():
            return *_grads_by_steps(_lstm_by_steps, (X, h0, c0, W, U, b), (into_h, into_c)), None
        o, f, i, candidate = gates.chunk(4, -1)
        tanh_C = C.tanh()
        h_to_c = torch.addcmul(o, o * tanh_C, tanh_C, value=-1)
        into_gates = torch.empty_like(gates)  # first their slopes, then, step by step, their gradients
        to_o, to_f, to_i, to_candidate = into_gates.chunk(4, -1)
        torch.mul(tanh_C, o - o * o, out=to_o)
        torch.mul(_before(c0, C), f - f * f, out=to_f)
        torch.mul(candidate, i - i * i, out=to_i)
        torch.addcmul(i, i * candidate, candidate, value=-1, out=to_candidate)
        from_c = into_gates.unflatten(-1, (4, -1))[:, :, 1:]
        back = U.t()
        gates_later, c_later, f_later = (torch.zeros_like(like) for like in (into_gates[0], c0, c0))
        for gates_t, o_t, from_c_t, h_t, c_t, h_to_c_t, f_t in _reversed(
            into_gates, to_o, from_c, into_h, into_c, h_to_c, f
        ):
            h_t.addmm_(gates_later, back)
            c_t.addcmul_(c_later, f_later).addcmul_(h_t, h_to_c_t)
            o_t.mul_(h_t)
            from_c_t.mul_(c_t[:, None])
            gates_later, c_later, f_later = gates_t, c_t, f_t
        grad_X, grad_W, grad_b = _projection_grads(ctx, X, W, into_gates)
        grad_U = _flat(_before(h0, H)).t() @ _flat(into_gates)
        return grad_X, gates_later @ back, c_later * f_later, grad_W, grad_U, grad_b, None


class GRU(Function):
    """H, and for the backward pass the gates, from (X, h0, W, U_gates, U_h, b).

    The gates stand in the order candidate, z, r: z and r share a product with the old state, and
    candidate and z are those that the gradient of the new state reaches at once.
    """

    @staticmethod
    def forward(
        X: Tensor, h0: Tensor, W: Tensor, U_gates: Tensor, U_h: Tensor, b: Tensor
    ) -> tuple[Tensor, Tensor]:
        gates, h, size = _projected(X, W, b), h0, h0.shape[-1]
        H, kept = X.new_empty(*X.shape[:2], size), X.new_empty(h0.shape)
        for candidate, z, r, z_and_r, h_t in _steps(*gates.chunk(3, -1), gates[..., size:], H):
            z_and_r.addmm_(h, U_gates).sigmoid_()
            candidate.addmm_(torch.mul(r, h, out=kept), U_h).tanh_()
            h = torch.lerp(candidate, h, z, out=h_t)
        return H, gates

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, grad_H: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        X, h0, W, U_gates, U_h, b, H, gates = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _grads_by_steps(_gru_by_steps, (X, h0, W, U_gates, U_h, b), (grad_H,))
        before = _before(h0, H)
        candidate, z, r = gates.chunk(3, -1)
        into_gates = torch.empty_like(gates)  # first their slopes, then, step by step, their gradients
        to_candidate, to_z, to_r = into_gates.chunk(3, -1)
        torch.mul(1 - z, torch.addcmul(_one(z), candidate, candidate, value=-1), out=to_candidate)
        torch.mul(before - candidate, z - z * z, out=to_z)
        torch.mul(before, r - r * r, out=to_r)
        from_h = into_gates.unflatten(-1, (3, -1))[:, :, :2]
        z_and_r, into_kept = into_gates[..., h0.shape[-1] :], torch.empty_like(h0)
        into_states = torch.cat((torch.zeros_like(h0)[None], grad_H))  # of h0, then of H
        back_gates, back_h = U_gates.t(), U_h.t()
        for into_t, earlier, from_h_t, candidate_t, to_r_t, z_and_r_t, z_t, r_t in _reversed(
            into_states[1:], into_states[:-1], from_h, to_candidate, to_r, z_and_r, z, r
        ):
            from_h_t.mul_(into_t[:, None])
            to_r_t.mul_(torch.mm(candidate_t, back_h, out=into_kept))
            earlier.addmm_(z_and_r_t, back_gates).addcmul_(into_t, z_t).addcmul_(into_kept, r_t)
        grad_X, grad_W, grad_b = _projection_grads(ctx, X, W, into_gates)
        grad_U_gates = _flat(before).t() @ _flat(z_and_r)
        return (
            grad_X,
            into_states[0],
            grad_W,
            grad_U_gates,
            _flat(r * before).t() @ _flat(to_candidate),
            grad_b,
        )


def _rnn_by_steps(X: Tensor, h: Tensor, W_x: Tensor, W_h: Tensor, b: Tensor) -> tuple[Tensor]:
    H = []
    for x_t in X.unbind():
        h = torch.tanh(x_t @ W_x + h @ W_h + b)
        H.append(h)
    return (torch.stack(H),)


def _lstm_by_steps(X: Tensor, h: Tensor, c: Tensor, W: Tensor, U: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    H, C = [], []
    for x_t in X.unbind():
        o, f, i, candidate = (x_t @ W + h @ U + b).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * candidate.tanh()
        h = o.sigmoid() * c.tanh()
        H.append(h)
        C.append(c)
    return torch.stack(H), torch.stack(C)


def _gru_by_steps(X: Tensor, h: Tensor, W: Tensor, U_gates: Tensor, U_h: Tensor, b: Tensor) -> tuple[Tensor]:
    H = []
    for x_t in X.unbind():
        candidate, gates = (x_t @ W + b).tensor_split((h.shape[-1],), -1)
        z, r = (gates + h @ U_gates).sigmoid().chunk(2, -1)
        h = torch.lerp((candidate + (r * h) @ U_h).tanh(), h, z)
        H.append(h)
    return (torch.stack(H),)


def _grads_by_steps(
    by_steps: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor], grads: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients with a graph behind them, so that they can be differentiated again."""
    with torch.enable_grad():
        # Views stand for the inputs: where one input was computed from another, a gradient stops at it.
        stand_ins = [tensor.view_as(tensor) for tensor in inputs]
        outputs = by_steps(*stand_ins)
    wanted = [tensor for tensor in stand_ins if tensor.requires_grad]
    found = iter(torch.autograd.grad(outputs, wanted, grads, create_graph=True))
    return tuple(next(found) if tensor.requires_grad else None for tensor in stand_ins)


def _projected(X: Tensor, W: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """X W + b for all steps, in one product."""
    if out is None:
        out = X.new_empty(*X.shape[:2], W.shape[1])
    torch.addmm(b, _flat(X), W, out=_flat(out))  # `out` also keeps autocast away
    return out


def _projection_grads(
    ctx: Any, X: Tensor, W: Tensor, into_gates: Tensor
) -> tuple[Tensor | None, Tensor, Tensor]:
    into = _flat(into_gates)
    grad_X = (into @ W.t()).view_as(X) if ctx.needs_input_grad[0] else None
    return grad_X, _flat(X).t() @ into, into.sum(0)


def _flat(steps: Tensor) -> Tensor:
    return steps.flatten(0, 1)


def _copied(steps: Tensor) -> Tensor:
    return steps.clone(memory_format=torch.contiguous_format)


def _one(like: Tensor) -> Tensor:
    return torch.ones((), dtype=like.dtype, device=like.device)


def _before(initial: Tensor, states: Tensor) -> Tensor:
    return torch.cat((initial[None], states[:-1]))


def _steps(*sequences: Tensor) -> zip[tuple[Tensor, ...]]:
    """All sequences cut into steps, once: indexing one step at a time costs more than what is done to it."""
    return zip(*(sequence.unbind() for sequence in sequences), strict=True)


def _reversed(*sequences: Tensor) -> zip[tuple[Tensor, ...]]:
    return zip(*(reversed(sequence.unbind()) for sequence in sequences), strict=True)


def fused(
    mode: str,
    x: Tensor,
    state: Tensor | tuple[Tensor, Tensor],
    W: list[Tensor],
    U: list[Tensor],
    b: list[Tensor],
    b_inner: list[Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """`whole_sequence` of these weights: gates stacked in torch's order, (gate, input_dim)."""
    bias = torch.cat(b)
    inner = torch.zeros_like(bias) if b_inner is None else torch.cat(b_inner)
    params = [torch.cat([w.t() for w in W]), torch.cat([u.t() for u in U]), bias, inner]
    return whole_sequence(mode, x, state, params, torch.is_grad_enabled())


def whole_sequence(
    mode: str, x: Tensor, state: Tensor | tuple[Tensor, Tensor], params: list[Tensor], train: bool
) -> tuple[Tensor, ...]:
    """Every output and the last state, by torch's operation of this `mode`; where it has none, in steps."""
    op = torch_ops.SEQUENCE[mode]
    with full_precision(x.device):
        if op is not None:
            # has_biases, num_layers, dropout, train, bidirectional, batch_first
            outputs: tuple[Tensor, ...] = op(x, state, params, True, 1, 0.0, train, False, False)
            return outputs
        W_x, W_h, b_x, b_h = params
        now = tuple(part[0] for part in (state if isinstance(state, tuple) else (state,)))
        H = []
        for given in F.linear(x, W_x, b_x).unbind():
            now = CELLS[mode](given, F.linear(now[0], W_h, b_h), *now)
            H.append(now[0])
        return torch.stack(H), *(part[None] for part in now)


def _gru_cell(given: Tensor, kept: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    gates, candidate = given.split((2 * h.shape[-1], h.shape[-1]), -1)
    gates_kept, candidate_kept = kept.split((2 * h.shape[-1], h.shape[-1]), -1)
    r, z = (gates + gates_kept).sigmoid().chunk(2, -1)
    return (torch.lerp(torch.addcmul(candidate, r, candidate_kept).tanh(), h, z),)


def _lstm_cell(given: Tensor, kept: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    i, f, candidate, o = (given + kept).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * candidate.tanh()
    return o.sigmoid() * c.tanh(), c


def _rnn_cell(given: Tensor, kept: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    return ((given + kept).tanh(),)


# The new state from what the input gives to torch's gates, what the old state gives to them, and that state.
CELLS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "GRU": _gru_cell,
    "LSTM": _lstm_cell,
    "RNN_TANH": _rnn_cell,
}


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """A block without autocast on the CPU, where oneDNN has half-precision recurrences for few processors."""
    return no_autocast(device) if device.type == "cpu" else nullcontext()
