"""What leaks without the causal rule, and the picture that a second softmax draws."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.attention.scores import ScoreRule
from regard.attention.softmax import masked_softmax, weights
from regard.attention.visibility import Visibility
from regard.drawing.figures import heat_map
from regard.lab.drawing import INK, draw_losses, finish, panels
from regard.lab.learning import train
from regard.lab.spec import Experiment, Measurement, Result, above, below, equal
from regard.layers.block import BlockConfig
from regard.models.transformer import Transformer, TransformerConfig

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


def _losses(model: Transformer, tokens: Tensor) -> Tensor:
    """The mean loss of every sequence."""
    logits = model(tokens[:, :-1]).logits
    return nn.functional.cross_entropy(logits.mT, tokens[:, 1:], reduction="none").mean(1)


def _trained(causal: bool, chain: Chain, n_step: int) -> tuple[Transformer, list[float]]:
    config = TransformerConfig(
        vocab=VOCAB,
        block=BlockConfig(model_dim=24, n_head=2, ff_dim=48),
        positions="relative",
        n_position=None,
        n_decoder_layer=int(causal),
        n_encoder_layer=int(not causal),
    )
    model = Transformer(config)
    losses = train(model.parameters(), lambda: _losses(model, chain.draw(32)).mean(), n_step)
    return model.eval(), losses


def _seen_from_before(model: Transformer) -> float:
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
    loss, leaks = {}, {}
    for index, name in enumerate(("causal", "not causal")):
        model, losses = _trained(name == "causal", chain, n_step)
        with torch.no_grad():
            loss[name] = Measurement.mean(f"loss, {name}", _losses(model, test).tolist(), "nats")
        leaks[name] = Measurement.exact(f"change of earlier outputs, {name}", _seen_from_before(model))
        draw_losses(loss_ax, losses, name, index)
    loss_ax.axhline(chain.entropy, color=INK, linestyle=":", linewidth=1, label="entropy of the data")
    finish(loss_ax, "step", "nats")
    q, k = torch.randn(1, 1, 6, 8, dtype=torch.float64), torch.randn(1, 1, 6, 8, dtype=torch.float64)
    once = weights(q, k, ScoreRule(visible=Visibility(causal=True)))[0, 0]
    twice = masked_softmax(once[None])[0]
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    labels = [str(place) for place in range(6)]
    for ax, table, visible in ((once_ax, once, ~future), (twice_ax, twice, None)):
        ax.grid(False)
        heat_map(table, labels, labels, ax=ax, largest=1.0, visible=visible)
    mass = [
        Measurement.exact(f"weight on the future, {name}", float(table[future].sum() / 6))
        for name, table in (("once", once), ("twice", twice))
    ]
    hidden = 1 / once.exp().sum(-1, keepdim=True).expand(6, 6)[future]
    checks = (
        equal("with the rule, the last token changes no earlier output", leaks["causal"].value, 0.0),
        above("without it, it does", leaks["not causal"], 1e-3),
        above("with it, the loss is no lower than the data's entropy allows",
              loss["causal"], 0.9 * chain.entropy),
        below("without it, the loss is lower than any honest model's", loss["not causal"], chain.entropy),
        equal("after one softmax the future has weight 0", mass[0].value, 0.0),
        equal("after a second, each future key has 1 / sum of exp(weight)",
              float((twice[future] - hidden).abs().max()), 0.0, rounding=1e-12),
    )  # fmt: skip
    return Result(
        (*loss.values(), *leaks.values(), *mass),
        checks,
        figure,
        f"the loss is {loss['causal'].value:.2f} nats with the rule and {loss['not causal'].value:.2f} "
        f"without, where {chain.entropy:.2f} is the least an honest model can have; a second softmax moves "
        f"{mass[1].value:.0%} of the weight to the future",
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
