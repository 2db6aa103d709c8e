"""What a model says before training: nothing, so that its loss is that of guessing, log(vocab)."""

import math
from dataclasses import replace

import pytest
import torch

from regard.layers.block import BlockConfig
from regard.models.families import FAMILIES, initialise
from regard.models.transformer import Transformer, TransformerConfig

TIED = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
PUBLISHED = [(name, size) for name, family in FAMILIES.items() for size in family.sizes]


def untrained_loss(model, n_sequence=8, length=31):
    """Cross entropy of tokens drawn at random, each after the one before it."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.config.vocab, (n_sequence, length + 1), generator=generator)
    read = tokens[:, :-1]
    with torch.no_grad():
        logits = model(*((read, read) if model.kind == "encoder-decoder" else (read,))).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()


@TIED
@pytest.mark.parametrize("n_layer", [1, 5])
@pytest.mark.parametrize(("dim", "vocab"), [(32, 11), (64, 12), (96, 61), (256, 13), (128, 997)])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_untrained_family_guesses(family, dim, vocab, n_layer, tied):
    """Narrow and wide, shallow and deep: within 5 % of log(vocab)."""
    sizes = {"vocab": vocab, "n_decoder_layer": n_layer, "n_encoder_layer": n_layer, "n_position": 37}
    sizes |= {"block.model_dim": dim, "block.n_head": 4, "block.n_kv_head": 4, "block.ff_dim": 2 * dim}
    config = replace(FAMILIES[family].sized({**sizes, "block.qk_dim": dim // 4}), tied=tied)
    model = initialise(Transformer(config), seed=0).eval()
    assert untrained_loss(model) == pytest.approx(math.log(vocab), rel=0.05)


@TIED
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "relative", "none"])
@pytest.mark.parametrize(("dim", "vocab"), [(64, 12), (256, 12), (64, 997)])
def test_an_untrained_model_of_ones_own_guesses(dim, vocab, positions, tied):
    """Also without a family, and as the constructor leaves it."""
    torch.manual_seed(0)
    block = BlockConfig(model_dim=dim, n_head=4, ff_dim=4 * dim)
    config = TransformerConfig(vocab=vocab, block=block, n_decoder_layer=2, positions=positions, tied=tied)
    assert untrained_loss(Transformer(config).eval()) == pytest.approx(math.log(vocab), rel=0.05)


@pytest.mark.slow
@TIED
@pytest.mark.parametrize(("family", "size"), PUBLISHED, ids=[size for _, size in PUBLISHED])
def test_an_untrained_model_of_a_published_size_guesses(family, size, tied):
    """The sizes that `load(name, random=True)` builds."""
    config = replace(FAMILIES[family].config(FAMILIES[family].sizes[size]), tied=tied)
    if config.lm_head == "none":
        config = replace(config, lm_head="masked", pooler=False)
    model = initialise(Transformer(config), seed=0).eval()
    assert untrained_loss(model, 1, 23) == pytest.approx(math.log(config.vocab), rel=0.05)


def test_the_published_deviations_are_those_of_the_papers():
    """0.02, GPT-2's smaller ones where blocks write, T5's by the number of inputs."""
    sizes = {"vocab": 997, "n_decoder_layer": 3, "n_encoder_layer": 3, "n_position": 37}
    sizes |= {"block.model_dim": 128, "block.n_head": 4, "block.n_kv_head": 4, "block.ff_dim": 256}
    sizes["block.qk_dim"] = 32
    found = {}
    for name in ("gpt2", "bert", "t5"):
        model = initialise(Transformer(FAMILIES[name].sized(sizes)), seed=0)
        block = (model.decoder or model.encoder).blocks[0]
        found[name] = [
            float(part.weight.detach().std())
            for part in (block.attention.query, block.attention.out, block.ff.down)
        ]
    assert found["bert"] == pytest.approx([0.02, 0.02, 0.02], rel=0.03)
    assert found["gpt2"] == pytest.approx([0.02, 0.02 / math.sqrt(6), 0.02 / math.sqrt(6)], rel=0.03)
    assert found["t5"] == pytest.approx([(128 * 32) ** -0.5, 128**-0.5, 256**-0.5], rel=0.03)


def test_an_untrained_model_is_the_same_for_the_same_seed():
    """By `initialise`, and by PyTorch's own generator."""
    config = FAMILIES["gpt2"].sized(
        {"vocab": 61, "n_decoder_layer": 2, "n_position": 17, "block.model_dim": 24, "block.n_head": 3}
    )
    first, second = (initialise(Transformer(config), seed=5) for _ in range(2))
    assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))
    torch.manual_seed(7)
    third = Transformer(config)
    torch.manual_seed(7)
    assert all(map(torch.equal, third.state_dict().values(), Transformer(config).state_dict().values()))
