"""What the experiments teach: one loop of training, one count of right answers, one look-up task."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from regard.lab.spec import Measurement
from regard.layers.attention import MultiHeadAttention


def train(
    parameters: Iterable[Tensor],
    loss: Callable[[], Tensor],
    n_step: int,
    *,
    rate: float = 0.01,
    clip: bool = False,
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


def share_right(name: str, scores: Tensor, right: Tensor) -> Measurement:
    """The share of examples of which every answer, the one that scores highest, is right."""
    is_right = (scores.argmax(-1) == right).reshape(len(right), -1).all(-1)
    return Measurement.share(name, int(is_right.sum()), len(right))


class Lookup(nn.Module):
    """Says the values beside the names it is asked for, by one attention layer of these `options`."""

    def __init__(
        self,
        dim: int,
        *,
        n_name: int,
        n_pair: int,
        n_value: int,
        n_asked: int = 1,
        n_head: int = 1,
        **options: Any,
    ) -> None:
        super().__init__()
        self.n_name, self.n_pair, self.n_value, self.n_asked = n_name, n_pair, n_value, n_asked
        self.name = nn.Embedding(n_name, dim)
        self.asked = nn.ModuleList(nn.Embedding(n_name, dim) for _ in range(n_asked))
        self.value = nn.Embedding(n_value, dim)
        self.attention = MultiHeadAttention(dim, n_head, **options)
        self.answer = nn.Linear(dim, n_asked * n_value)

    def forward(self, names: Tensor, values: Tensor, asked: Tensor) -> Tensor:
        """Scores (batch, asked, value), of `names` (batch, pair), their `values`, and what is `asked`."""
        memory = self.name(names) + self.value(values)
        query = sum(embed(asked[:, index : index + 1]) for index, embed in enumerate(self.asked))
        answers: Tensor = self.answer(self.attention(query, memory)[:, 0])
        scores: Tensor = answers.unflatten(-1, (self.n_asked, self.n_value))
        return scores

    def examples(self, n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Names, values, what is asked, and the right answers."""
        names = torch.rand(n, self.n_name).argsort(-1)[:, : self.n_pair]
        values = torch.randint(self.n_value, (n, self.n_pair))
        places = torch.rand(n, self.n_pair).argsort(-1)[:, : self.n_asked]
        return names, values, names.gather(1, places), values.gather(1, places)

    def taught(self, n_step: int, *, rate: float = 0.01, clip: bool = False) -> list[float]:
        """The losses of its training."""

        def loss() -> Tensor:
            *given, right = self.examples(64)
            return nn.functional.cross_entropy(self(*given).flatten(0, 1), right.flatten())

        return train(self.parameters(), loss, n_step, rate=rate, clip=clip)

    @torch.no_grad()
    def share_right(self, name: str) -> Measurement:
        """The share of a thousand new examples that it answers."""
        *given, right = self.examples(1000)
        return share_right(name, self(*given), right)
