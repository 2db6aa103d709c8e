"""Beam search: the best of several continuations that are kept at every step."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from regard.decoding.sampling import Choice, Step
from regard.decoding.start import Start


class Beams:
    """`n_beam` texts for each prompt; the best by log probability / length^penalty is the result."""

    def __init__(self, start: Start, choice: Choice, n_beam: int, length_penalty: float) -> None:
        self.start, self.choice, self.n_beam, self.penalty = start, choice, n_beam, length_penalty
        n_prompt = start.prompt.shape[0]
        # All beams of a prompt start alike: only the first may branch, or all would stay alike.
        self.totals = torch.full((n_prompt, n_beam), -torch.inf, device=start.prompt.device)
        self.totals[:, 0] = 0.0
        self.texts: list[list[list[int]]] = [[[] for _ in range(n_beam)] for _ in range(n_prompt)]
        # For each prompt (value / length^penalty, value, text), best first.
        self.ended: list[list[tuple[float, float, list[int]]]] = [[] for _ in range(n_prompt)]
        self.open = [True] * n_prompt
        self.seen: Tensor | None = None

    def choose(self, scores: Float[Tensor, "batch vocab"], length: int) -> Step:
        """Go on with the best beams of each prompt; at first there is one row for each prompt."""
        n_prompt, n_beam, vocab = len(self.texts), self.n_beam, scores.shape[-1]
        first = length == 1
        chances = scores.float().log_softmax(-1)
        if self.choice.repetition_penalty != 1:
            self.seen = self.start.seen(vocab) if self.seen is None else self.seen
            chances = self.choice.penalised(chances, self.seen)
        each_beam = chances.view(n_prompt, 1 if first else n_beam, vocab)
        n_candidate = min((1 + max(1, len(self.start.stop))) * n_beam, n_beam * vocab)
        best, flat = (self.totals[:, :, None] + each_beam).flatten(1).topk(n_candidate, dim=-1)
        values, parents, tokens = best.tolist(), (flat // vocab).tolist(), (flat % vocab).tolist()
        feed, order, kept = [], [], []
        for prompt in range(n_prompt):
            candidates = zip(values[prompt], parents[prompt], tokens[prompt], strict=True)
            going = self._sorted_out(prompt, list(candidates), length)
            kept.append([value for value, _, _ in going])
            order += [prompt if first else prompt * n_beam + parent for _, parent, _ in going]
            feed += [text[-1] for _, _, text in going]
        device = scores.device
        self.totals = torch.tensor(kept, device=device)
        step = Step(torch.tensor(feed, device=device), torch.tensor(order, device=device), not any(self.open))
        if self.seen is not None and step.order is not None:
            self.seen = self.seen.index_select(0, step.order).scatter(1, step.tokens[:, None], True)
        return step

    def _sorted_out(
        self, prompt: int, candidates: list[tuple[float, int, int]], length: int
    ) -> list[tuple[float, int, list[int]]]:
        """The beams of one prompt that go on, as (value, parent, text); those that end are noted."""
        going: list[tuple[float, int, list[int]]] = []
        ended, last = self.ended[prompt], length == self.start.max_new
        for rank, (value, parent, token) in enumerate(candidates):
            text = self.texts[prompt][parent]
            stops = token in self.start.stop
            if not stops:
                if len(going) == self.n_beam:
                    continue
                text = [*text, token]
                going.append((value, parent, text))
            # An end counts only among the best n_beam, as transformers has it.
            if (stops or last) and self.open[prompt] and rank < self.n_beam:
                ended.append((value / length**self.penalty, value, text))
        self.ended[prompt] = ended = sorted(ended, key=lambda done: -done[0])[: self.n_beam]
        while len(going) < self.n_beam:  # a vocabulary with hardly more than stop tokens
            going.append((-torch.inf, 0, [*self.texts[prompt][0], 0]))
        self.texts[prompt] = [text for _, _, text in going]
        if len(ended) == self.n_beam:
            self.open[prompt] = ended[-1][0] < going[0][0] / length**self.penalty
        return going

    def best(self) -> tuple[list[list[int]], list[float]]:
        """The best text of each prompt, and its log probability."""
        return [ended[0][2] for ended in self.ended], [ended[0][1] for ended in self.ended]
