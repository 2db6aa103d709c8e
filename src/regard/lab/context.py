"""The same word in two senses: how its attention and its vector differ, layer by layer.

Sentences of a template differ in one word, of one token, before “bank”: positions and lengths are equal.
Intervals are over templates.
"""

from itertools import combinations, product

import torch
from torch import Tensor

from regard.files.loading import Loaded, load
from regard.lab.spec import Lab
from regard.tracing import trace

CLAIM = """“bank” by the river and “bank” with money start as the same vector, and attention makes them
differ, more after the last layer than after the first."""
PREDICTION = """Cosine 1 before any attention; after the last layer, pairs of one sense have surely a higher
cosine than pairs of two senses; the word's attention differs too; senses lie further apart at the end than
after one layer."""

# The word that decides stands before "bank": a decoder sees nothing after it. One token each, in both models.
SENSES = {"shore": ("river", "water", "lake"), "money": ("money", "cash", "loan")}
SAME = [pair for words in SENSES.values() for pair in combinations(words, 2)]
OTHER = list(product(*SENSES.values()))
COMPARED = ("sense gap", "cosine within a sense", "cosine across senses", "attention that differs")
TEMPLATES = (
    "We talked about the {} and walked to the bank",
    "After the {} we saw the bank",
    "It was all about the {} at the bank",
    "There was a {} near the bank",
    "They asked for the {} and found the bank",
    "Because of the {} she went to the bank",
    "My father spoke of the {} by the bank",
    "The picture shows a {} and a bank",
)


def _read(loaded: Loaded, sentence: str) -> tuple[Tensor, Tensor]:
    """Vectors of "bank" (layer, dim), of length 1, and its attention (layer, head, key)."""
    traced = trace(loaded, sentence)
    tokens = [token.strip("Ġ▁ ").lower() for token in traced.tokens[0]]
    place = len(tokens) - 1 - tokens[::-1].index("bank")
    assert traced.ids is not None
    with torch.no_grad():
        layers = loaded.model(traced.ids, return_layers=True, logits="none").layers
    vectors = torch.stack([layer[0, place] for layer in layers or ()]).double()
    row, keys = slice(place, place + 1), slice(0, len(tokens))
    rows = [layer.block(None, row, keys)[0, :, 0] for layer in traced.layers]
    return torch.nn.functional.normalize(vectors, dim=-1), torch.stack(rows).double()


def _compared(loaded: Loaded, template: str) -> tuple[Tensor, Tensor, Tensor]:
    """By layer: cosines within a sense, and across senses, and how far attention differs."""
    read = {word: _read(loaded, template.format(word)) for words in SENSES.values() for word in words}
    within, across = (
        torch.stack([(read[a][0] * read[b][0]).sum(-1) for a, b in pairs]).mean(0) for pairs in (SAME, OTHER)
    )
    # Half the sum of absolute differences: the share of its attention that went elsewhere.
    gone = [(read[a][1] - read[b][1]).abs().sum(-1).mean(-1) / 2 for a, b in OTHER]
    return within, across, torch.stack(gone).mean(0)


def run(lab: Lab) -> None:
    moved_by_depth = {}
    for name, title in (("minilm", "MiniLM"), ("smollm2", "SmolLM2")):
        loaded = load(name)
        compared = [_compared(loaded, template) for template in TEMPLATES[: 4 if lab.quick else 8]]
        within, across, moved = (torch.stack(tables) for tables in zip(*compared, strict=True))
        gap, together, apart, attention = (
            lab.means(f"{name}: {what}, layer", dict(enumerate(table.T.tolist())))
            for what, table in zip(COMPARED, (within - across, within, across, moved), strict=True)
        )
        depth = [layer / (len(apart) - 1) for layer in range(len(apart))]
        cosines = {"same sense": together, "other sense": apart}
        lab.draw.lines(f"{title}: vectors of “bank”", depth, cosines, "depth (0: embeddings)", "cosine")
        moved_by_depth[name] = depth[1:], attention
        same = float(across[:, 0].min())
        lab.equal(f"{name}: before any attention the vectors are the same", same, 1.0, rounding=1e-6)
        lab.above(f"{name}: attention differs in the last layer", attention[-1], 0.01)
        lab.below(f"{name}: senses lie further apart at the end than after a layer", apart[-1], apart[1])
        lab.above(f"{name}: after the last layer, same senses are nearer", gap[-1], 0.0)
    ax = lab.draw.panel("Attention of “bank”", "depth", "share that went elsewhere")
    for index, (name, (depth, attention)) in enumerate(moved_by_depth.items()):
        lab.draw.line(depth, attention, name, index)
    ax.set_ylim(bottom=0)
