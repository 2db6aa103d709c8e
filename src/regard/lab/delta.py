"""What a memory recalls that corrects itself, and one that adds for ever (Schlag et al. 2021, section 4).

Linear attention adds k v^T of every token to its state. A sum does not know the order of its terms: where a
name came twice with two values, it cannot say which came last, and is right half of the time at best, or a
little more where both are equal. The delta rule reads what the state says of a key and writes the difference,
so that the last value replaces it. States have 16 x 16 numbers.
"""

import torch
from torch import Tensor, nn

from regard.attention import attend_delta, delta_step, delta_weights
from regard.lab.learning import answered, teach
from regard.lab.spec import Lab, Measurement
from regard.layers import DeltaAttention, MultiHeadAttention

CLAIM = """Linear attention adds up what it is given and cannot say which of two values of a name came last;
the delta rule replaces the old one, in a state of the same size."""
PREDICTION = """Of keys written twice a sum recalls the last value surely less than two times in three, and
the delta rule surely more, while keys are at most half as many as dimensions; so do a linear and a delta
layer that were trained; chunks, single steps and the weights that are never formed agree to rounding."""

DIM = 16
N_NAME, N_TWICE, N_VALUE = 24, 6, 8
KINDS = ("linear", "delta")
HALF = (1 + 1 / N_VALUE) / 2  # who guesses which of two values came last; sometimes they are equal
GUESS = 2 / 3  # nobody who guesses is right more often


def _recalled(lab: Lab, kind: str, n_key: int, n_time: int) -> Measurement:
    """The share of keys whose last value is nearest to what a state of 16 x 16 numbers answers.

    `n_key` random keys are written `n_time` times in random order, every time with another value.
    """
    n = 1000
    keys = nn.functional.normalize(torch.randn(n, n_key, DIM), dim=-1).repeat(1, n_time, 1)
    values = torch.randn(n, n_key * n_time, DIM)
    order = torch.rand(n, n_key * n_time).argsort(-1)
    last = (order % n_key == 0).int() * torch.arange(1, n_key * n_time + 1)  # where key 0 was written
    k, v = (torch.take_along_dim(x, order[..., None], 1)[:, None] for x in (keys, values))
    state = k.mT @ v
    if kind == "delta":
        state = attend_delta(k, k, v, torch.zeros(k.shape[:3]), torch.ones(k.shape[:3])).state
    near = -torch.cdist(keys[:, :1] @ state[:, 0], v[:, 0])[:, 0]
    what = f"recalled, {n_key} keys {'once' if n_time == 1 else 'twice'}, {kind}"
    return lab.share_right(what, near, last.argmax(-1))


class DeltaReader(nn.Module):
    """Reads pairs of name and value and then a name; says its value."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.name, self.value, self.asked = (nn.Embedding(n, DIM) for n in (N_NAME, N_VALUE, N_NAME))
        self.linear = (
            MultiHeadAttention(DIM, 1, causal=True, feature_map="elu1") if kind == "linear" else None
        )
        self.delta = DeltaAttention(DIM, 1) if kind == "delta" else None
        self.answer = nn.Linear(DIM, N_VALUE)

    def forward(self, names: Tensor, values: Tensor, asked: Tensor) -> Tensor:
        x = torch.cat([self.name(names) + self.value(values), self.asked(asked)], 1)
        read = self.delta(x)[0] if self.delta is not None else self.linear(x)  # type: ignore[misc]
        scores: Tensor = self.answer(read[:, -1])
        return scores


def _examples(n: int = 64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Names that all come twice, their values, one that is asked for, and its last value."""
    chosen = torch.rand(n, N_NAME).argsort(-1)[:, :N_TWICE].repeat(1, 2)
    order = torch.rand(n, 2 * N_TWICE).argsort(-1)
    names, values = chosen.gather(1, order), torch.randint(N_VALUE, (n, 2 * N_TWICE))
    asked = chosen[:, :1]
    last = ((names == asked).int() * torch.arange(1, 2 * N_TWICE + 1)).argmax(-1, keepdim=True)
    return names, values, asked, values.gather(1, last)[:, 0]


@torch.no_grad()
def _apart() -> float:
    """The largest difference between chunks, steps, and weights that are never formed."""
    q, k, v = torch.randn(3, 2, 3, 37, 5, dtype=torch.float64)
    k = nn.functional.normalize(k, dim=-1)
    decay, beta = -torch.rand(2, 3, 37, dtype=torch.float64), torch.rand(2, 3, 37, dtype=torch.float64)
    chunks = attend_delta(q, k, v, decay, beta, chunk=8).out
    formed = delta_weights(q, k, decay, beta) @ v
    state, steps = torch.zeros(2, 3, 5, 5, dtype=torch.float64), []
    for token in zip(*(x.split(1, 2) for x in (q, k, v, decay, beta)), strict=True):
        out, state = delta_step(*token, state=state)  # type: ignore[misc]
        steps.append(out)
    return max(float((chunks - other).abs().max()) for other in (torch.cat(steps, 2), formed))


def run(lab: Lab) -> None:
    counts = (2, 4, 8, 16) if lab.quick else (1, 2, 4, 8, 16, 32, 64)
    once, twice = (
        {kind: [_recalled(lab, kind, n, n_time) for n in counts] for kind in KINDS} for n_time in (1, 2)
    )
    x_label = f"keys of {DIM} numbers"
    lab.draw.lines("Every key once", counts, once, x_label, "share recalled", log="x")
    lab.draw.lines("Every key twice: its last value", counts, twice, x_label, "share recalled", log="x")
    lab.draw.chance(0.5, "which of two is a guess")
    trained = {}
    for kind in KINDS:
        model = DeltaReader(kind)
        teach(model, _examples, 250 if lab.quick else 1500)
        trained[kind] = answered(lab, f"answered after training, {kind}", model, _examples(1000))
    lab.draw.bars("Trained, every name twice", trained, "share answered")
    lab.draw.chance(HALF, "which of two is a guess")
    apart = lab.exact("largest difference of the three forms", _apart())
    lab.below("chunks, steps and implicit weights agree", apart, 1e-10)
    for n, linear, delta in zip(counts, twice["linear"], twice["delta"], strict=True):
        lab.below(f"{n} keys twice: a sum guesses which came last", linear, GUESS)
        if 1 < n <= DIM // 2:
            lab.above(f"{n} keys twice: the delta rule knows", delta, GUESS)
    lab.below("trained, linear attention guesses which came last", trained["linear"], GUESS)
    lab.above("trained, the delta rule knows", trained["delta"], GUESS)
