"""What the experiments teach: one loop of training, and one look-up task."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.lab.spec import Lab, Measurement
from regard.layers import MultiHeadAttention


def train(
    parameters: Iterable[Tensor],
    loss: Callable[[], Tensor],
    n_step: int,
    *,
    rate: float = 0.01,
    clip: bool = True,
) -> list[float]:
    """The losses of `n_step` steps of Adam; `loss` draws examples and says how wrong the model is on them."""
    parameters = list(parameters)
    optimiser = torch.optim.Adam(parameters, lr=rate)
    losses = []
    for _ in range(n_step):
        value = loss()
        optimiser.zero_grad()
        if value.requires_grad:  # hard attention leaves nothing to follow
            value.backward()
            if clip:
                nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
        losses.append(value.item())
    return losses


def teach(
    model: nn.Module,
    examples: Callable[[], Sequence[Tensor]],
    n_step: int,
    *,
    scores: Callable[..., Tensor] | None = None,
    **options: Any,
) -> list[float]:
    """The losses of a model that learns to say the last tensor of `examples`, read the others.

    `scores` are those of its answers, where they are not what it returns; `options` are those of `train`.
    """

    def loss() -> Tensor:
        *read, right = examples()
        said: Tensor = (scores or model)(*read)
        return nn.functional.cross_entropy(said.flatten(0, -2), right.flatten())

    return train(model.parameters(), loss, n_step, **options)


def answered(lab: Lab, name: str, model: Callable[..., Tensor], examples: Sequence[Tensor]) -> Measurement:
    """The share of `examples` of which a model says the last tensor, read the others."""
    *read, right = examples
    return lab.share_right(name, model(*read), right)


class Lookup(nn.Module):
    """Says the values beside the names it is asked for, by one attention layer of these `options`."""

    def __init__(
        self, dim: int, n_name: int, n_pair: int, n_value: int, n_asked: int = 1, **options: Any
    ) -> None:
        super().__init__()
        self.n_name, self.n_pair, self.n_value, self.n_asked = n_name, n_pair, n_value, n_asked
        self.name = nn.Embedding(n_name, dim)
        self.asked = nn.ModuleList(nn.Embedding(n_name, dim) for _ in range(n_asked))
        self.value = nn.Embedding(n_value, dim)
        self.attention = MultiHeadAttention(dim, **options)
        self.answer = nn.Linear(dim, n_asked * n_value)

    def forward(self, names: Tensor, values: Tensor, asked: Tensor) -> Tensor:
        """Scores (batch, asked, value), of `names` (batch, pair), their `values`, and what is `asked`."""
        memory = self.name(names) + self.value(values)
        query = sum(embed(asked[:, index : index + 1]) for index, embed in enumerate(self.asked))
        scores: Tensor = self.answer(self.attention(query, memory)[:, 0])
        return scores.view(-1, self.n_asked, self.n_value)

    def examples(self, n: int = 64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Names, values, what is asked, and the right answers."""
        names = torch.rand(n, self.n_name).argsort(-1)[:, : self.n_pair]
        values = torch.randint(self.n_value, (n, self.n_pair))
        places = torch.rand(n, self.n_pair).argsort(-1)[:, : self.n_asked]
        return names, values, names.gather(1, places), values.gather(1, places)
