"""The same word in two senses: how its attention and its vector differ, layer by layer."""

from __future__ import annotations

from itertools import combinations, product

import torch
from torch import Tensor

from regard.files.loading import Loaded, load
from regard.lab.drawing import draw, finish, panels
from regard.lab.spec import Check, Experiment, Measurement, Result, above, equal
from regard.tracing.take import trace

# The word that decides stands before "bank": a decoder sees nothing after it. One token each, in both models.
SENSES = {"shore": ("river", "water", "lake"), "money": ("money", "cash", "loan")}
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


def _read(loaded: Loaded, sentence: str) -> tuple[Tensor, Tensor, int]:
    """Vectors of "bank" (layer, dim), its attention (layer, head, key), and the number of tokens."""
    traced = trace(loaded, sentence)
    tokens = [token.strip("Ġ▁ ").lower() for token in traced.tokens[0]]
    place = len(tokens) - 1 - tokens[::-1].index("bank")
    assert traced.ids is not None
    with torch.no_grad():
        layers = loaded.model(traced.ids, return_layers=True, logits="none").layers
    vectors = torch.stack([layer[0, place] for layer in layers or ()])
    row, keys = slice(place, place + 1), slice(0, len(tokens))
    rows = [layer.block(row, keys)[0, :, 0] for layer in traced.layers]
    return vectors.double(), torch.stack(rows).double(), len(tokens)


def _compared(loaded: Loaded, templates: tuple[str, ...]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """For each template: cosines within a sense and across senses by layer, and how far attention differs."""
    within, across, moved = [], [], []
    for template in templates:
        read = {word: _read(loaded, template.format(word)) for words in SENSES.values() for word in words}
        lengths = {n_token for _, _, n_token in read.values()}
        assert len(lengths) == 1, f"{template!r} has {lengths} tokens: the words must be one token each"
        vectors = {word: torch.nn.functional.normalize(v, dim=-1) for word, (v, _, _) in read.items()}
        same = [pair for words in SENSES.values() for pair in combinations(words, 2)]
        other = list(product(*SENSES.values()))
        within.append(torch.stack([(vectors[a] * vectors[b]).sum(-1) for a, b in same]).mean(0))
        across.append(torch.stack([(vectors[a] * vectors[b]).sum(-1) for a, b in other]).mean(0))
        # Half the sum of absolute differences: the share of its attention that went elsewhere.
        gone = [(read[a][1] - read[b][1]).abs().sum(-1).mean(-1) / 2 for a, b in other]
        moved.append(torch.stack(gone).mean(0))
    return within, across, moved


def _by_layer(name: str, values: list[Tensor]) -> list[Measurement]:
    columns = torch.stack(values).T.tolist()
    return [Measurement.mean(f"{name}, layer {layer}", column) for layer, column in enumerate(columns)]


def run(quick: bool, seed: int) -> Result:
    templates = TEMPLATES[:4] if quick else TEMPLATES
    figure, axes = panels("MiniLM: vectors of “bank”", "SmolLM2: vectors of “bank”", "Attention of “bank”")
    checks: list[Check] = []
    measured: list[Measurement] = []
    gaps = {}
    for index, name in enumerate(("minilm", "smollm2")):
        within, across, moved = _compared(load(name), templates)
        gap = _by_layer(f"{name}: sense gap", [a - b for a, b in zip(within, across, strict=True)])
        apart = _by_layer(f"{name}: cosine across senses", across)
        elsewhere = _by_layer(f"{name}: attention that differs", moved)
        depth = [layer / (len(apart) - 1) for layer in range(len(apart))]
        draw(axes[index], depth, _by_layer("within", within), "same sense", 0)
        draw(axes[index], depth, apart, "other sense", 1)
        finish(axes[index], "depth (0: embeddings)", "cosine")
        draw(axes[2], depth[1:], elsewhere, name, index)
        gaps[name] = gap[-1].value
        measured += [*gap, *apart, *elsewhere]
        same = float(torch.stack(across)[:, 0].min())
        last, first = (
            Measurement(f"{name}: distance, {which}", 1 - cosine.value, 1 - cosine.high, 1 - cosine.low)
            for which, cosine in (("last", apart[-1]), ("first", apart[1]))
        )
        checks += [
            equal(f"{name}: before any attention the vectors are the same", same, 1.0, rounding=1e-6),
            above(f"{name}: after the last layer, same senses are nearer", gap[-1], 0.0),
            above(f"{name}: attention differs in the last layer", elsewhere[-1], 0.01),
            above(f"{name}: senses lie further apart after the last layer than after the first", last, first),
        ]
    finish(axes[2], "depth", "share that went elsewhere")
    axes[2].set_ylim(bottom=0)
    return Result(
        measured,
        checks,
        figure,
        "the vector of the word is the same before any attention, and after the last layer two of one "
        f"sense have a cosine higher by {gaps['minilm']:.2f} in MiniLM and {gaps['smollm2']:.2f} in SmolLM2 "
        "than two of different senses",
        notes=(
            "Sentences of a template differ in one word, of one token, before “bank”: positions and "
            "lengths are equal. Intervals are over templates.",
        ),
    )


EXPERIMENT = Experiment(
    "context",
    "“bank” by the river and “bank” with money start as the same vector, and attention makes them differ, "
    "more after the last layer than after the first.",
    "Cosine 1 before any attention; after the last layer, pairs of one sense have surely a higher cosine "
    "than pairs of two senses; the word's attention differs too; senses lie further apart at the end than "
    "after one layer.",
    run,
    needs=("minilm", "smollm2"),
)
