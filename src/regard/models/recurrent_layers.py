"""Torch's recurrent layers where they cannot be run as they are: padding to skip, inputs not yet known.

`read` runs them over padded sequences. `Steps` goes step by step, for a decoder that looks back at each step
and knows the context only when its turn comes; what can be done for all steps at once still is: the part of
the gates that words give is one product beforehand, and the gradient of each weight, a sum over the steps, is
one product afterwards.

The weights are those of `nn.GRU`, `nn.LSTM` and `nn.RNN`, and so are the numbers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.attention import torch_ops
from regard.recurrent.loops import CELLS, full_precision, whole_sequence

# What the layers carry from step to step: (hidden,), and for an LSTM (hidden, cell).
State = tuple[Float[Tensor, "layer batch hidden_dim"], ...]


def run(recurrent: nn.RNNBase, x: Any, state: State | None = None) -> tuple[Any, State]:
    """The layers' outputs and last state, the state always a tuple, whatever the cell."""
    weight = _directions(recurrent, 0)[0][0]
    if state is not None:
        state = tuple(part.to(weight.dtype) for part in state)  # autocast makes projections half
    given = state if state is None or len(state) > 1 else state[0]
    with full_precision(weight.device):
        outputs, last = recurrent(x, given)
    return outputs, last if isinstance(last, tuple) else (last,)


def read(
    recurrent: nn.RNNBase, x: Float[Tensor, "batch position dim"], lengths: Int[Tensor, "batch"]
) -> tuple[Float[Tensor, "batch position out_dim"], State]:
    """Outputs and last state of sequences that end before `position`. Outputs past an end mean nothing."""
    if isinstance(recurrent, nn.LSTM):  # its last cell is not among its outputs
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        read_out, state = run(recurrent, packed)
        return pad_packed_sequence(read_out, batch_first=True, total_length=x.shape[1])[0], state
    # Packing sorts, and fills a whole sequence with zeros for each step of the backward pass. Without it each
    # direction reads on into the padding, made 0 whatever it held, and the state at the end is looked up.
    places = torch.arange(x.shape[1], device=x.device)[:, None]
    real = places < lengths
    backward = torch.where(real, lengths - 1 - places, places)[..., None]
    ends = (lengths - 1)[None, :, None]
    x, last = torch.where(real[..., None], x.transpose(0, 1), 0.0), []
    for layer in range(recurrent.num_layers):
        outputs: list[Tensor] = []
        for weights in _directions(recurrent, layer):
            turned = bool(outputs)
            out = _one_direction(recurrent, x.gather(0, backward.expand_as(x)) if turned else x, weights)
            last.append(out.gather(0, ends.expand(1, -1, out.shape[2]))[0])
            outputs.append(out.gather(0, backward.expand_as(out)) if turned else out)
        x = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        if layer + 1 < recurrent.num_layers:
            x = F.dropout(x, recurrent.dropout, recurrent.training)
    return x.transpose(0, 1), (torch.stack(last),)


def _directions(recurrent: nn.RNNBase, layer: int) -> list[list[Tensor]]:
    """The weights of a layer, (W_ih, W_hh, b_ih, b_hh), for each direction."""
    return [
        [
            getattr(recurrent, f"{name}_l{layer}{end}")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]
        for end in ("", "_reverse")[: 1 + recurrent.bidirectional]
    ]


def _one_direction(recurrent: nn.RNNBase, x: Tensor, weights: list[Tensor]) -> Tensor:
    """Every state, from 0; time is the first axis."""
    state = x.new_zeros(1, x.shape[1], recurrent.hidden_size)
    return whole_sequence(recurrent.mode, x, state, weights, recurrent.training)[0]


class Steps:
    """Recurrent layers on their way, whose input is [context; word], the words known beforehand."""

    def __init__(
        self, recurrent: nn.RNNBase, words: Float[Tensor, "batch position word_dim"], state: State
    ) -> None:
        self.recurrent = recurrent
        self.cell = CELLS[recurrent.mode]
        n_word = words.shape[-1]
        W_ih, _, b_ih, _ = _directions(recurrent, 0)[0]
        self.dtype = W_ih.dtype  # of the state: autocast makes products half, which would add up over steps
        parts = [part.to(self.dtype) for part in state]
        self.layers = [tuple(part[layer] for part in parts) for layer in range(recurrent.num_layers)]
        self.words = iter(F.linear(words, W_ih[:, -n_word:], b_ih).unbind(1))
        self.products: list[tuple[Product, Product]] = []
        for layer in range(recurrent.num_layers):
            W_in, W_h, b_in, b_h = _directions(recurrent, layer)[0]
            above = Product(W_in, b_in) if layer else Product(W_in[:, :-n_word])
            self.products.append((above, Product(W_h, b_h)))

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
        for layer, (above, before) in enumerate(self.products):
            old = self.layers[layer]
            if layer:
                x = F.dropout(x, self.recurrent.dropout, self.recurrent.training)
            given = above(x) if layer else above(x) + next(self.words)
            self.layers[layer] = self.cell(given.to(self.dtype), before(old[0]).to(self.dtype), *old)
            x = self.layers[layer][0]


class Product:
    """x W^T + b at many steps: where gradients are wanted, those of W and b are taken once, after all steps.

    Good for one forward pass. A gradient of a gradient is refused.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias
        self.gathered = _Gathered()
        self.knot: Tensor | None = None
        unseen = torch.compiler.is_compiling() or torch_ops.GRAPH_TASK is None
        by_hand = not unseen and not torch.is_autocast_enabled(weight.device.type)
        if by_hand and torch.is_grad_enabled() and weight.requires_grad:
            self.knot = _Weights.apply(weight, bias, self.gathered)  # type: ignore[no-untyped-call]

    def __call__(self, x: Tensor) -> Tensor:
        if self.knot is None:
            return F.linear(x, self.weight, self.bias)
        product: Tensor = _Step.apply(x, self.knot, self)  # type: ignore[no-untyped-call]
        return product


class _Gathered:
    """What the steps of one backward pass leave for the weights: inputs, and gradients of outputs."""

    def __init__(self) -> None:
        self.task = -1
        self.steps: list[tuple[Tensor, Tensor]] = []

    def add(self, x: Tensor, grad: Tensor) -> None:
        task = torch_ops.GRAPH_TASK()
        if task != self.task:  # another pass, which may not have asked for the weights, left these
            self.steps.clear()
            self.task = task
        self.steps.append((x, grad))

    def take(self) -> tuple[Tensor, Tensor]:
        x, grad = (torch.cat(parts) for parts in zip(*self.steps, strict=True))
        self.steps.clear()
        return x, grad


class _Weights(Function):
    """Stands between the weights and the steps: autograd comes back to it when all steps are done."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, gathered: _Gathered) -> Tensor:
        ctx.gathered = gathered
        return weight.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, grad = ctx.gathered.take()
        return grad.t() @ x, grad.sum(0) if ctx.needs_input_grad[1] else None, None


class _Step(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, knot: Tensor, product: Product) -> Tensor:
        ctx.gathered = product.gathered
        ctx.save_for_backward(x, product.weight)
        return F.linear(x, product.weight, product.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None]:
        x, weight = ctx.saved_tensors
        ctx.gathered.add(x, grad)
        return grad @ weight if ctx.needs_input_grad[0] else None, grad.new_zeros(()), None
