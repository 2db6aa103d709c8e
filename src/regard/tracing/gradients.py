"""How a prediction would change with every attention score, by tile; nothing of query x key is kept.

With weights P = softmax(S), output O = P V and the output's gradient dO (Dao et al. 2022, B.2):

    dS_ij = P_ij (dO_i . v_j - dO_i . O_i)

so dO, its row sum with O, the values and the trace give any tile of dS.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.data import Data
from regard.attention.shapes import whole_index
from regard.errors import ArgumentError, TraceError
from regard.files.loading import Loaded
from regard.tracing.layers import LayerTrace, Tile
from regard.tracing.take import observe
from regard.tracing.traces import Trace

Objective = Callable[[Any], Tensor]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LayerGradient(Data):
    """One layer's weights, and the gradient of its output.

    Attributes:
        layer: The layer, with its values.
        grad_out: The gradient of the prediction with respect to the output of each head.
        row_sum: The dot product of that gradient and the output, one number for each query.
    """

    layer: LayerTrace
    grad_out: Float[Tensor, "batch head query v_dim"]
    row_sum: Float[Tensor, "batch head query"]  # dO_i . O_i

    def tile(self, head: int, rows: slice, cols: slice, batch: int = 0) -> Tile:
        """Compute the gradient with respect to the scores of `rows` x `cols`: costs its own area only."""
        layer = self.layer
        assert layer.v is not None  # kept for this
        weights = layer.tile(head, rows, cols, batch)
        v = layer.of_head(layer.v, head, batch)[0, 0, cols].to(self.grad_out.dtype)
        to_weights = self.grad_out[batch, head, rows] @ v.mT
        return weights * (to_weights - self.row_sum[batch, head, rows, None])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ScoreGradients(Data):
    """The gradient of one prediction with respect to every attention score of a forward pass.

    Attributes:
        trace: The trace of that pass.
        layers: The gradients, layer by layer.
        value: What was predicted: a log-probability, or what the objective returned.
    """

    trace: Trace
    layers: tuple[LayerGradient, ...]
    value: float

    def __repr__(self) -> str:
        return f"ScoreGradients(value={self.value:.4g}, trace={self.trace})"

    def tile(self, layer: int | str, head: int, rows: slice, cols: slice, batch: int = 0) -> Tile:
        """Compute the gradient with respect to the scores of `rows` x `cols`; 0 where masked."""
        return self.layer(layer).tile(head, rows, cols, batch)

    def layer(self, index_or_name: int | str) -> LayerGradient:
        """Return the layer of that index or name."""
        wanted = self.trace.layer(index_or_name)
        return next(gradient for gradient in self.layers if gradient.layer is wanted)


def score_gradients(
    model: Loaded | nn.Module,
    text_or_tokens: Any,
    *,
    position: int = -1,
    token: int | None = None,
    objective: Objective | None = None,
    target: Any = None,
    layers: Sequence[int | str] | None = None,
    tokenizer: Any = None,
) -> ScoreGradients:
    """Run `model` forward and backward: how much does each score matter for one prediction?

    Args:
        model: A loaded model, or any PyTorch model.
        text_or_tokens: As `trace` takes it.
        position: Where the prediction is made; -1: at the last token.
        token: The token whose log-probability is the prediction, summed over the batch; None: the likeliest.
        objective: Turns the model's output into one number, in place of a log-probability.
        target: What an encoder-decoder answers.
        layers: Only these layers, by index or name; None: all.
        tokenizer: As `trace` takes it.

    Returns:
        The gradient of every score, by tile.

    Raises:
        ArgumentError: If the objective does not return one number.
        TraceError: If the prediction does not depend on a traced layer, or a layer has no scores.
    """
    with torch.enable_grad():
        trace, recorder, output = observe(
            model, text_or_tokens, target, tokenizer, layers, keep_v=True, keep_graph=True
        )
        value = _log_probability(output, position, token) if objective is None else objective(output)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise ArgumentError("the objective must give one number, as a tensor.")
        if not value.requires_grad:
            raise TraceError("the prediction does not depend on any attention layer that was traced.")
        outs = [out for steps in recorder.graph.values() for out, _ in steps]
        gradients = iter(torch.autograd.grad(value.sum(), outs, materialize_grads=True))
    done = []
    for layer in trace.layers:
        if not isinstance(layer, LayerTrace):
            raise TraceError(
                f"{layer.name} has no scores to give a gradient: it is linear attention, or only its weights "
                "are known."
            )
        steps = recorder.graph[layer.name]
        grad = torch.cat([to_heads(next(gradients)) for _, to_heads in steps], 2)
        out = torch.cat([to_heads(part.detach()) for part, to_heads in steps], 2)
        done.append(LayerGradient(layer, grad, (grad * out).sum(-1)))
    return ScoreGradients(trace, tuple(done), float(value.detach()))


def _log_probability(output: Any, position: int, token: int | None) -> Tensor:
    """The log-probability of a token at a position, summed over the batch."""
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.dim() not in (2, 3):
        raise ArgumentError(
            "this model gives no logits (batch, position, vocab): say with `objective` what of its output "
            "is the prediction, such as lambda output: output.pooled.norm()."
        )
    if logits.dim() == 3:
        logits = logits[:, whole_index("position", position, logits.shape[1])]
    chances = logits.float().log_softmax(-1)
    if token is None:
        return chances.amax(-1).sum()
    return chances[:, whole_index("token", token, chances.shape[-1])].sum()
