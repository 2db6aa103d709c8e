"""The gated delta rule: a memory of fixed size that corrects what it holds (DeltaNet, Yang et al. 2025).

Linear attention adds k_t v_t^T to its state for ever. Here the state S (qk_dim, v_dim) first fades by a_t,
and then a key's old answer is replaced by its value, to the degree b_t:

    u_t = b_t (v_t - a_t S_{t-1}^T k_t)          what the memory has wrong
    S_t = a_t S_{t-1} + k_t u_t^T
    out_t = S_t^T q_t * scale

With D_ij = a_{j+1} ... a_i and T_ij = b_i D_ij (k_i . k_j) for j < i, all u of a chunk follow from the state
S_0 before it in one triangular system, (I + T) U = b (V - D_i0 K S_0), so that whole chunks are products.
`delta_step` is one token, `attend_delta` a sequence in chunks, and `delta_weights` the weights that were
never formed: out = W V with W = tril(scale Q K^T * D) (I + T)^-1 b. They may be negative, and sum to
anything.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.data import Data
from regard.attention.scores import no_autocast
from regard.attention.shapes import check_attention
from regard.errors import ArgumentError, ShapeError

Rows = Float[Tensor, "batch head position qk_dim"]
Values = Float[Tensor, "batch head position v_dim"]
Gates = Float[Tensor, "batch head position"]
State = Float[Tensor, "batch head qk_dim v_dim"]


@dataclass(frozen=True, eq=False, repr=False)
class DeltaState(Data):
    """All that a layer with the delta rule keeps of the past, as a `LayerCache` holds it.

    Attributes:
        S: ``(batch, head, qk_dim, v_dim)``, the state after the last token.
    """

    S: State

    def select(self, batch: Int[Tensor, " chosen"]) -> "DeltaState":
        """Return the states of these batch entries, in this order, as beam search asks for them."""
        return DeltaState(self.S[batch])


class DeltaAttended(NamedTuple):
    """What the delta rule returns.

    Attributes:
        out: ``(batch, head, position, v_dim)``.
        state: ``(batch, head, qk_dim, v_dim)``, after the last token.
    """

    out: Values
    state: State


def attend_delta(
    q: Rows,
    k: Rows,
    v: Values,
    log_decay: Gates,
    beta: Gates,
    *,
    scale: float | None = None,
    state: State | None = None,
    chunk: int = 64,
) -> DeltaAttended:
    """Compute the gated delta rule over a whole sequence, chunk by chunk.

    Keys are usually of length 1: then b_t = 1 makes the memory answer k_t with v_t exactly.

    Args:
        q: Queries, ``(batch, head, position, qk_dim)``.
        k: Keys, of the same shape.
        v: Values, ``(batch, head, position, v_dim)``.
        log_decay: ``(batch, head, position)``, ln a_t, at most 0.
        beta: ``(batch, head, position)``, b_t, usually from 0 to 1.
        scale: Factor of the output. Default: 1 / sqrt(qk_dim).
        state: ``(batch, head, qk_dim, v_dim)``, before the first token. Default: 0.
        chunk: Tokens that one triangular system solves; any number gives the same.

    Returns:
        Outputs, and the state after the last token.

    Raises:
        ShapeError: If the inputs do not fit together.
        ArgumentError: If `chunk` is below 1.

    Example:
        >>> k = torch.eye(2)[None, None]
        >>> v = torch.tensor([[[[3.0], [5.0]]]])
        >>> attend_delta(k, k, v, torch.zeros(1, 1, 2), torch.ones(1, 1, 2), scale=1.0).out.flatten()
        tensor([3., 5.])
    """
    if chunk < 1:
        raise ArgumentError(f"chunk must be at least 1. Got {chunk}.")
    given = v.dtype
    q, k, v, log_decay, beta = _prepared(q, k, v, log_decay, beta, scale, state)
    memory = k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]) if state is None else state.to(k.dtype)
    outs = []
    with no_autocast(q.device):
        parts = zip(*(x.split(chunk, 2) for x in (q, k, v, log_decay, beta)), strict=True)
        for part_q, part_k, part_v, part_decay, part_beta in parts:
            since, between = _decays(part_decay)
            wrong = part_v - since * (part_k @ memory)
            system = _system(part_k, between, part_beta)
            update = torch.linalg.solve_triangular(system, part_beta[..., None] * wrong, upper=False)
            looked = (part_q @ part_k.mT * between) @ update
            outs.append(since * (part_q @ memory) + looked)
            left = between[..., -1:, :].mT  # of each token's update at the chunk's end
            memory = since[..., -1:, :] * memory + (part_k * left).mT @ update
    return DeltaAttended(torch.cat(outs, 2).to(given) if outs else v.to(given), memory)


def delta_step(
    q: Rows, k: Rows, v: Values, log_decay: Gates, beta: Gates, state: State, *, scale: float | None = None
) -> DeltaAttended:
    """Decode one token by the formulas above; it costs the same at every position.

    Args:
        q: Query, ``(batch, head, 1, qk_dim)``.
        k: Key, of the same shape.
        v: Value, ``(batch, head, 1, v_dim)``.
        log_decay: ``(batch, head, 1)``, ln a_t, at most 0.
        beta: ``(batch, head, 1)``, b_t, usually from 0 to 1.
        state: ``(batch, head, qk_dim, v_dim)``, after the tokens before.
        scale: Factor of the output. Default: 1 / sqrt(qk_dim).

    Returns:
        The output, and the state after this token.

    Raises:
        ShapeError: If the inputs do not fit together, or are of more than one token.
    """
    given = v.dtype
    q, k, v, log_decay, beta = _prepared(q, k, v, log_decay, beta, scale, state)
    if q.shape[2] != 1:
        raise ShapeError(f"a step takes one token. Got {q.shape[2]}: attend_delta takes many.")
    with no_autocast(q.device):
        faded = state.to(q.dtype) * log_decay.exp()[..., None]
        wrong = beta[..., None] * (v - k @ faded)
        memory = faded + k.mT @ wrong
        return DeltaAttended((q @ memory).to(given), memory)


def delta_weights(
    q: Rows, k: Rows, log_decay: Gates, beta: Gates, *, scale: float | None = None
) -> Float[Tensor, "batch head position position"]:
    """Compute how much of each value every output holds: `attend_delta` is these weights times v.

    Args:
        q: Queries, ``(batch, head, position, qk_dim)``.
        k: Keys, of the same shape.
        log_decay: ``(batch, head, position)``, ln a_t, at most 0.
        beta: ``(batch, head, position)``, b_t, usually from 0 to 1.
        scale: Factor of the output. Default: 1 / sqrt(qk_dim).

    Returns:
        ``(batch, head, position, position)``, from an empty state; weights may be negative, and rows need not
        sum to 1.

    Raises:
        ShapeError: If the inputs do not fit together.
    """
    q, k, _, log_decay, beta = _prepared(q, k, k, log_decay, beta, scale, None)
    with no_autocast(q.device):
        _, between = _decays(log_decay)
        looked = q @ k.mT * between
        system = _system(k, between, beta)
        weights: Tensor = torch.linalg.solve_triangular(system, looked, upper=False, left=False)
        return weights * beta[..., None, :]


def _decays(log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """What is left of the state before at each token, (..., position, 1), and D, 0 for the future."""
    total = log_decay.cumsum(-1)
    apart = total[..., :, None] - total[..., None, :]
    future = torch.ones_like(apart, dtype=torch.bool).triu(1)
    return total.exp()[..., None], apart.masked_fill(future, -math.inf).exp()


def _system(k: Tensor, between: Tensor, beta: Tensor) -> Tensor:
    """I + T."""
    products = (beta[..., None] * (k @ k.mT) * between).tril(-1)
    return products + torch.eye(k.shape[2], dtype=k.dtype, device=k.device)


def _prepared(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, scale: float | None, state: State | None
) -> list[Tensor]:
    """q scaled, and the next four, in the dtype of sums; raises unless all fits together."""
    check_attention(q, k, v)
    if q.shape != k.shape:
        raise ShapeError(
            "the delta rule has one query and one key for each token and head. "
            f"Got q {tuple(q.shape)}, k {tuple(k.shape)} as (batch, head, position, qk_dim)."
        )
    for name, tensor in (("log_decay", log_decay), ("beta", beta)):
        if tensor.shape != q.shape[:3]:
            raise ShapeError(
                f"{name} must be (batch, head, position) = {tuple(q.shape[:3])}, a number for each token and "
                f"head. Got {tuple(tensor.shape)}."
            )
    wanted = (*k.shape[:2], k.shape[3], v.shape[3])
    if state is not None and tuple(state.shape) != wanted:
        raise ShapeError(
            f"the state must be (batch, head, qk_dim, v_dim) = {wanted}. Got {tuple(state.shape)}."
        )
    q, *others = (x.to(torch.promote_types(q.dtype, torch.float32)) for x in (q, k, v, log_decay, beta))
    return [q * (1 / math.sqrt(q.shape[3]) if scale is None else scale), *others]
