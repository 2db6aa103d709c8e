"""What leaks without the causal rule, and the picture that a second softmax draws."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.attention import scores, visibility
from regard.attention import softmax as attention
from regard.drawing.figures import heat_map
from regard.lab.drawing import draw, finish, panels
from regard.lab.spec import Experiment, Measurement, Result, above, below, equal
from regard.layers.block import BlockConfig
from regard.models import transformer

VOCAB, LENGTH = 6, 12


class Chain:
    """Tokens of which each depends on the last alone, so that the least possible loss is known."""

    def __init__(self) -> None:
        self.step = torch.softmax(1.5 * torch.randn(VOCAB, VOCAB, dtype=torch.float64), -1)
        self.steady = torch.linalg.matrix_power(self.step, 200)[0]

    @property
    def entropy(self) -> float:
        """The mean of -log p of the next token for one who knows the chain."""
        return float(-(self.steady[:, None] * self.step * self.step.log()).sum())

    def draw(self, n: int) -> Tensor:
        tokens = [torch.multinomial(self.steady, n, replacement=True)]
        for _ in range(LENGTH):
            tokens.append(torch.multinomial(self.step[tokens[-1]], 1)[:, 0])
        return torch.stack(tokens, 1)


def _model(causal: bool) -> transformer.Transformer:
    block = BlockConfig(model_dim=24, n_head=2, ff_dim=48)
    stack = {"n_decoder_layer": 1} if causal else {"n_encoder_layer": 1}
    config = transformer.TransformerConfig(
        vocab=VOCAB,
        block=block,
        positions="relative",
        n_position=None,
        **stack,  # type: ignore[arg-type]
    )
    return transformer.Transformer(config)


def _loss_of_each(model: transformer.Transformer, tokens: Tensor) -> Tensor:
    """Mean loss of each sequence."""
    logits = model(tokens[:, :-1]).logits
    assert logits is not None
    losses = nn.functional.cross_entropy(logits.mT, tokens[:, 1:], reduction="none")
    return losses.mean(1)


def _trained(causal: bool, chain: Chain, n_step: int) -> tuple[transformer.Transformer, list[float]]:
    model = _model(causal)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(n_step):
        loss = _loss_of_each(model, chain.draw(32)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return model.eval(), losses


def _seen_from_before(model: transformer.Transformer) -> float:
    """The largest change of earlier outputs when the last token changes."""
    tokens = torch.randint(VOCAB, (8, LENGTH))
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % VOCAB
    with torch.no_grad():
        return float((model(tokens).hidden - model(changed).hidden)[:, :-1].abs().max())


def run(quick: bool, seed: int) -> Result:
    n_step = 160 if quick else 800
    chain = Chain()
    test = chain.draw(300)
    figure, (loss_ax, once_ax, twice_ax) = panels(
        "Loss of the next token", "Weights: softmax once", "Softmax twice: false weights"
    )
    found, leaks = {}, {}
    for index, name in enumerate(("causal", "not causal")):
        model, losses = _trained(name == "causal", chain, n_step)
        with torch.no_grad():
            found[name] = Measurement.mean(f"loss, {name}", _loss_of_each(model, test).tolist(), "nats")
        leaks[name] = Measurement.exact(f"change of earlier outputs, {name}", _seen_from_before(model))
        window = n_step // 25
        smooth = [sum(losses[i : i + window]) / window for i in range(0, n_step, window)]
        draw(loss_ax, [i * window for i in range(len(smooth))], smooth, name, index)
    loss_ax.axhline(chain.entropy, color="#222222", linestyle=":", linewidth=1, label="entropy of the data")
    loss_ax.set_ylim(bottom=0)
    finish(loss_ax, "step", "nats")
    q, k = torch.randn(1, 1, 6, 8, dtype=torch.float64), torch.randn(1, 1, 6, 8, dtype=torch.float64)
    rule = scores.ScoreRule(visible=visibility.Visibility(causal=True))
    once = attention.weights(q, k, rule)[0, 0]
    twice = attention.masked_softmax(once[None])[0]
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    masses = [float(each[future].sum() / 6) for each in (once, twice)]
    labels = [str(place) for place in range(6)]
    for ax, each, seen in ((once_ax, once, ~future), (twice_ax, twice, None)):
        ax.grid(False)
        heat_map(each, labels, labels, ax=ax, largest=1.0, visible=seen)
    hidden = 1 / once.exp().sum(-1, keepdim=True).expand(6, 6)[future]
    checks = (
        equal("with the rule, the last token changes no earlier output", leaks["causal"].value, 0.0),
        above("without it, it does", leaks["not causal"], 1e-3),
        above(
            "with it, the loss is no lower than the data's entropy allows",
            found["causal"],
            0.9 * chain.entropy,
        ),
        below("without it, the loss is lower than any honest model's", found["not causal"], chain.entropy),
        equal("after one softmax the future has weight 0", masses[0], 0.0),
        equal(
            "after a second, each future key has 1 / sum of exp(weight)",
            float((twice[future] - hidden).abs().max()),
            0.0,
            rounding=1e-12,
        ),
    )
    mass = [
        Measurement.exact(f"weight on the future, {name}", m)
        for name, m in zip(("once", "twice"), masses, strict=True)
    ]
    return Result(
        (*found.values(), *leaks.values(), *mass),
        checks,
        figure,
        f"the loss is {found['causal'].value:.2f} nats with the rule and {found['not causal'].value:.2f} "
        f"without, where {chain.entropy:.2f} is the least an honest model can have; a second softmax moves "
        f"{masses[1]:.0%} of the weight to the future",
        notes=(
            "exp(0) is 1: a weight of 0 that goes through softmax again is no longer 0. A picture of "
            "weights must not apply softmax to them.",
        ),
    )


EXPERIMENT = Experiment(
    "causal",
    "Without the causal rule a next-token model reads the answer; and softmax applied to weights a second "
    "time draws attention to the future that is not there.",
    "With the rule a later token changes nothing earlier and the loss stays at the data's entropy; without "
    "it the loss falls below. Softmax of weights gives each hidden key 1 / sum of exp(weight), not 0.",
    run,
)
