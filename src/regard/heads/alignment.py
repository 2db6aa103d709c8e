"""Which cross-attention heads follow the source in order, as alignment heads of speech and translation do.

A head is measured by the best path through its weights that never goes back: the mean weight along it.
Weights whose rows are in a random order have such paths too, so that this is the chance level.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import ArgumentError
from regard.tracing.traces import Trace

N_SHUFFLE = 19  # the largest of 19 random orders is passed by chance once in twenty times


@dataclass(frozen=True, slots=True)
class AlignedHead:
    """How well one cross-attention head follows the source in order.

    Attributes:
        layer: The layer's index in the trace.
        head: The head's index.
        score: The mean weight on the best path that never goes back.
        chance: The same with the rows in random order, the largest of nineteen.
    """

    layer: int
    head: int
    score: float
    chance: float


def monotonic_path(weights: Float[Tensor, "query key"]) -> Int[Tensor, "query"]:
    """Find the key of each query on the path of the largest total weight that never goes back.

    Args:
        weights: ``(query, key)``, 0 where a key is masked.

    Returns:
        ``(query,)``: indices of keys that do not fall.

    Example:
        >>> monotonic_path(torch.tensor([[0.9, 0.1, 0.0], [0.6, 0.4, 0.0], [0.0, 0.3, 0.7]])).tolist()
        [0, 0, 2]
    """
    total, came = weights[0].double(), []
    for row in weights[1:].double():
        best, at = total.cummax(0)
        came.append(at)
        total = best + row
    path = [int(total.argmax())]
    for at in reversed(came):
        path.append(int(at[path[-1]]))
    return torch.tensor(path[::-1])


def aligned_heads(
    trace: Trace, *, first_query: int = 0, n_key: int | None = None, seed: int = 0
) -> list[AlignedHead]:
    """Measure every cross-attention head of a trace, the best first.

    Args:
        trace: Of an encoder-decoder and one sequence.
        first_query: Rows before it are left out, such as a prompt that stands for no word.
        n_key: Keys from there on are left out, such as silence after a sound.
        seed: Of the random orders.

    Returns:
        One `AlignedHead` for each head, by how far its score lies above chance.

    Raises:
        ArgumentError: If the trace has no cross-attention.
    """
    generator = torch.Generator().manual_seed(seed)
    found = []
    for index, layer in enumerate(trace.layers):
        if layer.kind != "cross":
            continue
        for head in range(layer.n_head):
            weights = trace.weights(index, head).float()[first_query:, :n_key]
            orders = [torch.randperm(len(weights), generator=generator) for _ in range(N_SHUFFLE)]
            scores = [_path_mean(weights), *(_path_mean(weights[order]) for order in orders)]
            found.append(AlignedHead(index, head, scores[0], max(scores[1:])))
    if not found:
        raise ArgumentError("the trace has no cross-attention: an alignment is between two sequences.")
    return sorted(found, key=lambda one: one.chance - one.score)


def _path_mean(weights: Float[Tensor, "query key"]) -> float:
    path = monotonic_path(weights)
    return float(weights.gather(1, path[:, None]).mean())
