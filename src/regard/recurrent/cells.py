"""Recurrent networks as formulas: the weights, and one step.

Vectors are rows, so weights are (input_dim, hidden), (hidden, hidden) and (hidden,); the transpose of what
`torch.nn` keeps, which `from_torch` reads. Inputs are (input_dim,) or (batch, input_dim).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.shapes import check_same_kind, named
from regard.errors import ArgumentError, ShapeError

Input = Float[Tensor, "*batch input_dim"]
State = Float[Tensor, "*batch hidden"]


@dataclass(frozen=True, eq=False, repr=False)
class _Weights:
    """For each gate a matrix for the input, one for the state, and a bias, in the order of the fields."""

    def named(self) -> dict[str, Tensor]:
        """Every weight there is, by its name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def side_by_side(self, gates: str) -> list[Tensor]:
        """W, U and b, each of all these gates."""
        return [torch.cat([getattr(self, f"{part}_{gate}") for gate in gates], -1) for part in "WUb"]

    def __repr__(self) -> str:
        matrix = next(iter(self.named().values()))
        return f"{type(self).__name__}{named(('input_dim', 'hidden'), matrix.shape)}"


@dataclass(frozen=True, eq=False, repr=False)
class RNNWeights(_Weights):
    """The weights of Elman's network (1990).

    Attributes:
        W_x: ``(input_dim, hidden)``, of the input.
        W_h: ``(hidden, hidden)``, of the state.
        b: ``(hidden,)``.
    """

    W_x: Float[Tensor, "input_dim hidden"]
    W_h: Float[Tensor, "hidden hidden"]
    b: Float[Tensor, " hidden"]

    @classmethod
    def from_torch(cls, module: nn.RNN) -> RNNWeights:
        """Return the weights of a module of one layer and one direction."""
        ((W, U, b, b_state),) = _gates(module, 1)
        return cls(W, U, b + b_state)


@dataclass(frozen=True, eq=False, repr=False)
class LSTMWeights(_Weights):
    """The weights of a long short-term memory.

    Attributes:
        W_f, U_f, b_f: Of the forget gate: ``(input_dim, hidden)``, ``(hidden, hidden)``, ``(hidden,)``.
        W_i, U_i, b_i: Of the input gate: ``(input_dim, hidden)``, ``(hidden, hidden)``, ``(hidden,)``.
        W_o, U_o, b_o: Of the output gate: ``(input_dim, hidden)``, ``(hidden, hidden)``, ``(hidden,)``.
        W_c, U_c, b_c: Of the candidate: ``(input_dim, hidden)``, ``(hidden, hidden)``, ``(hidden,)``.
    """

    W_f: Float[Tensor, "input_dim hidden"]
    U_f: Float[Tensor, "hidden hidden"]
    b_f: Float[Tensor, " hidden"]
    W_i: Float[Tensor, "input_dim hidden"]
    U_i: Float[Tensor, "hidden hidden"]
    b_i: Float[Tensor, " hidden"]
    W_o: Float[Tensor, "input_dim hidden"]
    U_o: Float[Tensor, "hidden hidden"]
    b_o: Float[Tensor, " hidden"]
    W_c: Float[Tensor, "input_dim hidden"]
    U_c: Float[Tensor, "hidden hidden"]
    b_c: Float[Tensor, " hidden"]

    @classmethod
    def from_torch(cls, module: nn.LSTM) -> LSTMWeights:
        """Return the weights of a module of one layer and one direction."""
        i, f, c, o = ((W, U, b + b_state) for W, U, b, b_state in _gates(module, 4))
        return cls(*f, *i, *o, *c)


@dataclass(frozen=True, eq=False, repr=False)
class GRUWeights(_Weights):
    """The weights of a gated recurrent unit.

    Attributes:
        W_z, U_z, b_z: Of the update gate: ``(input_dim, hidden)``, ``(hidden, hidden)``, ``(hidden,)``.
        W_r, U_r, b_r: Of the reset gate: ``(input_dim, hidden)``, ``(hidden, hidden)``, ``(hidden,)``.
        W_h, U_h, b_h: Of the candidate: ``(input_dim, hidden)``, ``(hidden, hidden)``, ``(hidden,)``.
        b_u: ``(hidden,)``, the bias inside the reset, which only `reset_after` has; None: there is none.
    """

    W_z: Float[Tensor, "input_dim hidden"]
    U_z: Float[Tensor, "hidden hidden"]
    b_z: Float[Tensor, " hidden"]
    W_r: Float[Tensor, "input_dim hidden"]
    U_r: Float[Tensor, "hidden hidden"]
    b_r: Float[Tensor, " hidden"]
    W_h: Float[Tensor, "input_dim hidden"]
    U_h: Float[Tensor, "hidden hidden"]
    b_h: Float[Tensor, " hidden"]
    b_u: Float[Tensor, " hidden"] | None = None  # the bias inside the reset, which only `reset_after` has

    @classmethod
    def from_torch(cls, module: nn.GRU) -> GRUWeights:
        """Return the weights of a module of one layer and one direction, for `reset_after=True`."""
        (W_r, U_r, b_r, c_r), (W_z, U_z, b_z, c_z), (W_h, U_h, b_h, b_u) = _gates(module, 3)
        return cls(W_z, U_z, b_z + c_z, W_r, U_r, b_r + c_r, W_h, U_h, b_h, b_u)


def _gates(module: nn.RNNBase, n_gate: int) -> list[tuple[Tensor, ...]]:
    """(W, U, bias of the input, bias of the state) of each gate, in torch's order, vectors as rows."""
    if module.num_layers != 1 or module.bidirectional or module.proj_size:
        raise ArgumentError(f"the module must have one layer, one direction and no projection. Got {module}.")
    if isinstance(module, nn.RNN) and module.nonlinearity != "tanh":
        raise ArgumentError(f"the module's nonlinearity must be tanh. Got {module.nonlinearity}.")
    parameters: list[Tensor] = list(module.parameters())
    W, U, *biases = parameters
    biases = biases or [W.new_zeros(len(W))] * 2
    return list(
        zip(W.mT.chunk(n_gate, 1), U.mT.chunk(n_gate, 1), *(b.chunk(n_gate) for b in biases), strict=True)
    )


def rnn_step(x_t: Input, h_prev: State, weights: RNNWeights) -> State:
    """Compute the next state of Elman's network (1990), tanh(x_t W_x + h_prev W_h + b).

    Args:
        x_t: Input, ``(input_dim,)`` or ``(batch, input_dim)``.
        h_prev: State before, ``(hidden,)`` or ``(batch, hidden)``.
        weights: Matrices and bias.

    Returns:
        The state, in the shape of `h_prev`.

    Raises:
        ShapeError: If input, state and weights do not fit together.
    """
    check_fit({"x_t": x_t, "h_prev": h_prev}, weights)
    return torch.tanh(x_t @ weights.W_x + h_prev @ weights.W_h + weights.b)


def lstm_step(x_t: Input, h_prev: State, c_prev: State, weights: LSTMWeights) -> tuple[State, State]:
    """Compute the next hidden and cell state, (h, c), of a long short-term memory with a forget gate.

        f, i, o = sigmoid(x_t W + h_prev U + b), each with its own W, U and b
        c = f * c_prev + i * tanh(x_t W_c + h_prev U_c + b_c)
        h = o * tanh(c)

    Gers, Schmidhuber and Cummins (2000), without peepholes.

    Args:
        x_t: Input, ``(input_dim,)`` or ``(batch, input_dim)``.
        h_prev: Hidden state before, ``(hidden,)`` or ``(batch, hidden)``.
        c_prev: Cell state before, of the same shape.
        weights: Of the three gates and the candidate.

    Returns:
        Hidden and cell state.

    Raises:
        ShapeError: If input, states and weights do not fit together.
    """
    check_fit({"x_t": x_t, "h_prev": h_prev, "c_prev": c_prev}, weights)
    w = weights
    f = torch.sigmoid(x_t @ w.W_f + h_prev @ w.U_f + w.b_f)
    i = torch.sigmoid(x_t @ w.W_i + h_prev @ w.U_i + w.b_i)
    o = torch.sigmoid(x_t @ w.W_o + h_prev @ w.U_o + w.b_o)
    c = f * c_prev + i * torch.tanh(x_t @ w.W_c + h_prev @ w.U_c + w.b_c)
    return o * torch.tanh(c), c


def gru_step(x_t: Input, h_prev: State, weights: GRUWeights, *, reset_after: bool = False) -> State:
    """Compute the next state of a gated recurrent unit; z keeps the old state, 1 - z takes the candidate.

        z, r = sigmoid(x_t W + h_prev U + b), each with its own W, U and b
        candidate = tanh(x_t W_h + (r * h_prev) U_h + b_h)
        h = z * h_prev + (1 - z) * candidate

    This is Cho et al. (2014), where the reset comes before the product. `nn.GRU` resets after it, which is
    another function of the same weights: `reset_after=True` gives that one, candidate = tanh(x_t W_h + b_h +
    r * (h_prev U_h + b_u)), and takes its second bias, `b_u`.

    Args:
        x_t: Input, ``(input_dim,)`` or ``(batch, input_dim)``.
        h_prev: State before, ``(hidden,)`` or ``(batch, hidden)``.
        weights: Of the two gates and the candidate.
        reset_after: Whether the reset comes after the product, as in `nn.GRU`.

    Returns:
        The state, in the shape of `h_prev`.

    Raises:
        ShapeError: If input, state and weights do not fit together.
        ArgumentError: If there is a `b_u` that would be left out.
    """
    check_fit({"x_t": x_t, "h_prev": h_prev}, weights)
    check_reset(weights, reset_after)
    w = weights
    z = torch.sigmoid(x_t @ w.W_z + h_prev @ w.U_z + w.b_z)
    r = torch.sigmoid(x_t @ w.W_r + h_prev @ w.U_r + w.b_r)
    if reset_after:
        inner = h_prev @ w.U_h if w.b_u is None else h_prev @ w.U_h + w.b_u
        candidate = torch.tanh(x_t @ w.W_h + w.b_h + r * inner)
    else:
        candidate = torch.tanh(x_t @ w.W_h + (r * h_prev) @ w.U_h + w.b_h)
    return z * h_prev + (1 - z) * candidate


def check_fit(given: dict[str, Tensor], weights: _Weights) -> None:
    """Raise unless the states follow from x, and every weight from x and the first state."""
    (x_name, x), (h_name, h), *_ = given.items()
    time = ("time",) if x_name == "X" else ()
    forms = {len(time) + len(more): (*time, *more) for more in (("input_dim",), ("batch", "input_dim"))}
    if x.dim() not in forms:
        either = " or ".join(str(form).replace("'", "") for form in forms.values())
        raise ShapeError(
            f"{x_name} has {x.dim()} dimensions: it must be {either}. Got shape {tuple(x.shape)}."
        )
    words = forms[x.dim()]
    if time and len(x) == 0:
        raise ShapeError(f"X has no steps: time must be at least 1. Got X {named(words, x.shape)}.")
    check_same_kind(**given, **weights.named())
    state_words = (*words[len(time) : -1], "hidden")
    got = f"Got {x_name} {named(words, x.shape)}, {h_name} {named(state_words, h.shape)}."
    if h.dim() == 0 or x.shape[-1] == 0 or h.shape[-1] == 0:
        raise ShapeError(f"input_dim and hidden must be at least 1. {got}")
    sizes = {"batch": x.shape[-2] if "batch" in words else 0, "input_dim": x.shape[-1], "hidden": h.shape[-1]}
    kinds = (("input_dim", "hidden"), ("hidden", "hidden"), ("hidden",))
    wanted = dict.fromkeys(list(given)[1:], state_words)
    wanted |= {name: kinds[2 if name == "b_u" else index % 3] for index, name in enumerate(weights.named())}
    for name, names in wanted.items():
        tensor, shape = {**given, **weights.named()}[name], tuple(sizes[word] for word in names)
        if tuple(tensor.shape) != shape:
            raise ShapeError(
                f"{name} is {named(names, tensor.shape)}: it must be {named(names, shape)}. {got}"
            )


def check_reset(weights: GRUWeights, reset_after: bool) -> None:
    """Raise where a bias inside the reset would be left out."""
    if weights.b_u is not None and not reset_after:
        raise ArgumentError(
            "b_u is the bias inside the reset, which only reset_after=True has: add it to b_h, or pass "
            "reset_after=True. Got b_u and reset_after=False."
        )
