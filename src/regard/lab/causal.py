"""What leaks without the causal rule, and the picture that a second softmax draws.

exp(0) is 1: a weight of 0 that goes through softmax again is no longer 0. A picture of weights must not apply
softmax to them.
"""

import warnings

import torch
from torch import Tensor, nn

from regard.attention import ScoreRule, Visibility, masked_softmax, weights
from regard.lab.learning import train
from regard.lab.spec import Lab
from regard.layers import BlockConfig
from regard.models import Transformer, TransformerConfig

CLAIM = """Without the causal rule a next-token model reads the answer; and softmax applied to weights a
second time draws attention to the future that is not there."""
PREDICTION = """With the rule a later token changes nothing earlier and the loss stays at the data's entropy;
without it the loss falls below. Softmax of weights gives each hidden key 1 / sum of exp(weight), not 0."""

VOCAB, LENGTH = 6, 12


class Chain:
    """Tokens of which each depends on the last alone, so that the least possible loss is known."""

    def __init__(self) -> None:
        self.step = torch.softmax(1.5 * torch.randn(VOCAB, VOCAB, dtype=torch.float64), -1)
        self.steady = torch.linalg.matrix_power(self.step, 200)[0]
        # The mean of -log p of the next token for one who knows the chain.
        self.entropy = float(-(self.steady[:, None] * self.step * self.step.log()).sum())

    def draw(self, n: int) -> Tensor:
        tokens = [torch.multinomial(self.steady, n, replacement=True)]
        for _ in range(LENGTH):
            tokens.append(torch.multinomial(self.step[tokens[-1]], 1)[:, 0])
        return torch.stack(tokens, 1)


def _losses(model: Transformer, tokens: Tensor) -> Tensor:
    """The mean loss of every sequence."""
    logits = model(tokens[:, :-1]).logits
    return nn.functional.cross_entropy(logits.mT, tokens[:, 1:], reduction="none").mean(1)


@torch.no_grad()
def _seen_from_before(model: Transformer) -> float:
    """The largest change of earlier outputs when the last token changes."""
    tokens = torch.randint(VOCAB, (8, LENGTH))
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % VOCAB
    return float((model(tokens).hidden - model(changed).hidden)[:, :-1].abs().max())


def run(lab: Lab) -> None:
    chain = Chain()
    test = chain.draw(300)
    loss, leaks, losses = {}, {}, {}
    block = BlockConfig(model_dim=24, n_head=2, ff_dim=48)
    # Layers of the encoder, which sees all, and of the decoder.
    for name, layers in {"causal": (0, 1), "not causal": (1, 0)}.items():
        model = Transformer(TransformerConfig(VOCAB, block, *layers, positions="relative", n_position=None))

        def mean_loss(model: Transformer = model) -> Tensor:
            return _losses(model, chain.draw(32)).mean()

        losses[name] = train(model.parameters(), mean_loss, 160 if lab.quick else 800, clip=False)
        loss[name] = lab.mean(f"loss, {name}", _losses(model.eval(), test).tolist(), "nats")
        leaks[name] = lab.exact(f"change of earlier outputs, {name}", _seen_from_before(model))
    lab.draw.losses("Loss of the next token", losses, "nats")
    lab.draw.level(chain.entropy, "entropy of the data")
    q, k = torch.randn(1, 1, 6, 8, dtype=torch.float64), torch.randn(1, 1, 6, 8, dtype=torch.float64)
    once = weights(q, k, ScoreRule(visible=Visibility(causal=True)))[0, 0]
    twice = masked_softmax(once[None])[0]
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    lab.draw.heat_map("Weights: softmax once", once, list("012345"), largest=1.0, visible=~future)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it is a softmax of probabilities is the point
        lab.draw.heat_map("Softmax twice: false weights", twice, list("012345"), largest=1.0)
    honest, _ = (
        lab.exact(f"weight on the future, {name}", float(table[future].sum() / 6))
        for name, table in (("once", once), ("twice", twice))
    )
    hidden = 1 / once.exp().sum(-1, keepdim=True).expand(6, 6)[future]
    differs = float((twice[future] - hidden).abs().max())
    lab.equal("after one softmax the future has weight 0", honest, 0.0)
    lab.equal("after a second, each future key has 1 / sum of exp(weight)", differs, 0.0, rounding=1e-12)
    lab.equal("with the rule, the last token changes no earlier output", leaks["causal"], 0.0)
    lab.above("without it, it does", leaks["not causal"], 1e-3)
    lowest = 0.9 * chain.entropy
    lab.above("with it, the loss is no lower than the data's entropy allows", loss["causal"], lowest)
    lab.below("without it, the loss is lower than any honest model's", loss["not causal"], chain.entropy)
