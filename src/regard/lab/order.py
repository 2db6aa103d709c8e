"""Whether a model without positions can tell the order of what it reads (Haviv et al. 2022).

Without positions and without a mask, attention sees a set: permuted inputs give permuted outputs. A causal
mask breaks that: what a token sees depends on how many stand before it. Both are seen with random weights,
and by training models without positions to say which of two marked tokens came first.
"""

import torch
from torch import Tensor

from regard.lab.learning import answered, teach
from regard.lab.spec import Lab, Measurement
from regard.layers import BlockConfig
from regard.models import Transformer, TransformerConfig

CLAIM = "Without positions a Transformer cannot tell the order of its words."
PREDICTION = """Permuting all words but the last changes nothing in the last one's output, in an encoder and
in a causal decoder; trained without positions, both guess which of two words came first."""

VOCAB, LENGTH = 7, 9
MARK = VOCAB  # these two tokens are looked for


def _model(*, causal: bool) -> Transformer:
    """Build a small model without positions: an encoder or a causal decoder."""
    block = BlockConfig(model_dim=24, n_head=3, ff_dim=48)
    layers = (0, 2) if causal else (2, 0)
    return Transformer(TransformerConfig(VOCAB + 2, block, *layers, positions="none", n_position=None))


@torch.no_grad()
def _changed(model: Transformer) -> float:
    """Return how much the last output changes, relative to its size, if earlier words are permuted."""
    model = model.double().eval()
    tokens = torch.randint(VOCAB, (16, LENGTH))
    tokens[:, 0] = MARK  # one word that no other equals, so that the permutation moves something
    other = torch.cat([tokens[:, :-1].flip(1), tokens[:, -1:]], 1)
    before, after = (model(ids).hidden[:, -1] for ids in (tokens, other))
    return float((after - before).norm() / before.norm())


def _examples(n: int = 64) -> tuple[Tensor, Tensor]:
    """Return texts with both marked tokens once, and 1 where the second mark came first."""
    tokens = torch.randint(VOCAB, (n, LENGTH))
    places = torch.rand(n, LENGTH - 1).argsort(-1)[:, :2]
    rows = torch.arange(n)
    tokens[rows, places[:, 0]] = MARK
    tokens[rows, places[:, 1]] = MARK + 1
    return tokens, (places[:, 1] < places[:, 0]).long()


def _taught(lab: Lab, name: str, *, causal: bool) -> Measurement:
    """Train a model to say which mark came first, and measure how often it does."""
    model = _model(causal=causal)

    def scores(tokens: Tensor) -> Tensor:
        logits: Tensor = model(tokens).logits[:, -1, :2]
        return logits

    teach(model, _examples, 200 if lab.quick else 800, scores=scores, rate=0.006)
    return answered(lab, f"order told, {name}", scores, _examples(1000))


def run(lab: Lab) -> None:
    kinds = {"encoder": False, "causal decoder": True}
    changes = {
        name: lab.exact(f"change of the last output, {name}", _changed(_model(causal=causal)))
        for name, causal in kinds.items()
    }
    told = {name: _taught(lab, name, causal=causal) for name, causal in kinds.items()}
    lab.draw.bars("Words permuted: change of the last output", changes, "relative change")
    lab.draw.bars("Trained: which came first", told, "share right")
    lab.draw.chance(0.5)
    for name in kinds:
        lab.below(f"{name}: permuted words leave the last output as it is", changes[name], 1e-9)
    for name in kinds:
        lab.near(f"{name}: trained without positions, it guesses", told[name], 0.5)
