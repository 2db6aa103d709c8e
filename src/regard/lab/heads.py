"""One head against several at equal parameters, and the reshape that only looks like splitting heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.attention import softmax as attention
from regard.lab.drawing import bars, draw, finish, panels
from regard.lab.spec import Experiment, Measurement, Result, above, below, equal
from regard.layers import attention as layers

N_NAME, N_VALUE, N_PAIR, DIM = 6, 6, 5, 24


class TwoLookups(nn.Module):
    """Asked for two names at once, says the value of the first and of the second: one attention layer."""

    def __init__(self, n_head: int) -> None:
        super().__init__()
        self.name, self.first, self.second = (nn.Embedding(N_NAME, DIM) for _ in range(3))
        self.value = nn.Embedding(N_VALUE, DIM)
        self.attention = layers.MultiHeadAttention(DIM, n_head)
        self.answer = nn.Linear(DIM, 2 * N_VALUE)

    def forward(self, names: Tensor, values: Tensor, asked: Tensor) -> Tensor:
        """Scores (batch, 2, value)."""
        memory = self.name(names) + self.value(values)
        x = self.first(asked[:, :1]) + self.second(asked[:, 1:])
        seen: Tensor = self.answer(self.attention(x, memory)[:, 0]).unflatten(-1, (2, N_VALUE))
        return seen


def _examples(n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    names = torch.rand(n, N_NAME).argsort(-1)[:, :N_PAIR]
    values = torch.randint(N_VALUE, (n, N_PAIR))
    places = torch.rand(n, N_PAIR).argsort(-1)[:, :2]
    return names, values, names.gather(1, places), values.gather(1, places)


def _trained(n_head: int, n_step: int) -> tuple[Measurement, list[float], int]:
    """The share of questions of which both answers are right, the losses, and the number of parameters."""
    model = TwoLookups(n_head)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(n_step):
        *given, right = _examples(64)
        loss = nn.functional.cross_entropy(model(*given).flatten(0, 1), right.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    with torch.no_grad():
        *given, right = _examples(1000)
        n_right = int((model(*given).argmax(-1) == right).all(-1).sum())
    n_parameter = sum(each.numel() for each in model.attention.parameters())
    return Measurement.share(f"both right, {n_head} heads", n_right, 1000), losses, n_parameter


def reshaped(x: Tensor, n_head: int) -> Tensor:
    """The mistake: it has the right shape, but a head's rows are other positions' numbers."""
    return x.reshape(x.shape[0], n_head, x.shape[1], x.shape[2] // n_head)


@torch.no_grad()
def _moved_with_the_input(split: str) -> float:
    """How far attention is from giving permuted outputs for permuted inputs, relative to its size."""
    layer = layers.MultiHeadAttention(DIM, 4).double()
    x = torch.randn(3, 7, DIM, dtype=torch.float64)
    order = torch.randperm(7)

    def run(x: Tensor) -> Tensor:
        if split == "transpose":
            whole: Tensor = layer(x)
            return whole
        q, k, v = (reshaped(each(x), 4) for each in (layer.query, layer.key, layer.value))
        out = attention.attend(q, k, v).out
        merged: Tensor = layer.out(out.reshape(*x.shape[:2], -1))
        return merged

    expected = run(x)[:, order]
    return float((run(x[:, order]) - expected).norm() / expected.norm())


def run(quick: bool, seed: int) -> Result:
    n_step = 160 if quick else 1500
    counts = (1, 2) if quick else (1, 2, 4, 8)
    figure, (loss_ax, right_ax, move_ax) = panels(
        "Loss while training", "Both answers right", "Permuted input: error of the output"
    )
    found = {n_head: _trained(n_head, n_step) for n_head in counts}
    for index, n_head in enumerate(counts):
        losses, window = found[n_head][1], n_step // 25
        smooth = [sum(losses[i : i + window]) / window for i in range(0, n_step, window)]
        name = f"{n_head} head{'s' if n_head > 1 else ''}"
        draw(loss_ax, [i * window for i in range(len(smooth))], smooth, name, index)
    loss_ax.set_ylim(bottom=0)
    finish(loss_ax, "step", "loss")
    shares = [found[n_head][0] for n_head in counts]
    bars(right_ax, [str(each) for each in counts], shares)
    finish(right_ax, "heads", "share", legend=False)
    moved = {split: _moved_with_the_input(split) for split in ("transpose", "reshape")}
    bars(move_ax, ["split, then\ntranspose", "reshape\nalone"], list(moved.values()))
    finish(move_ax, "", "relative error", legend=False)
    error = {
        name: Measurement.exact(f"error of permuted outputs, {name}", value) for name, value in moved.items()
    }
    checks = (
        equal("all have the same number of parameters", len({each[2] for each in found.values()}), 1),
        above("two heads answer both more often than one", shares[1], shares[0]),
        above("two heads answer most", shares[1], 0.7),
        below("split heads move with their inputs", error["transpose"], 1e-12),
        above("reshaped heads do not", error["reshape"], 0.1),
    )
    return Result(
        (*shares, *error.values()),
        checks,
        figure,
        f"with {found[1][2]} parameters each, one head answers both questions {shares[0].value:.0%} of the "
        f"time and two heads {shares[1].value:.0%}; a reshape in place of the transpose changes permuted "
        f"outputs by {moved['reshape']:.0%}",
        notes=("One head averages the two values it is asked for, and cannot say which is which.",),
    )


EXPERIMENT = Experiment(
    "heads",
    "Two look-ups at once need two heads: one head gives one average. And splitting heads needs the "
    "transpose: a reshape alone gives each head numbers of other positions.",
    "At equal parameters two heads answer both questions surely more often than one, and above 70 %; "
    "attention moves with its permuted inputs exactly, and with the reshape it does not.",
    run,
)
