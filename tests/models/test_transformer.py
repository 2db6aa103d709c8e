"""Fields of a config that no family of ours has, or in combinations that none has."""

import pytest
import torch
from torch import nn

from regard.decoding.loop import generate
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.layers.block import Block, BlockConfig
from regard.layers.eviction import Evict
from regard.layers.positions import RotaryScaling
from regard.models.families import initialise
from regard.models.transformer import Transformer, TransformerConfig

VOCAB = 53
CONFIGS = {
    "alibi": ({"alibi": True}, {"positions": "none"}),
    "sinks, gate": ({"sinks": True, "output_gate": True, "n_kv_head": 2}, {"positions": "rotary"}),
    "windows with positions, the rest without": (
        {"window": 3, "qk_norm": True, "norm": "rms"},
        {"positions": "rotary", "local": (True, False, True), "full_positions": False},
    ),
    "two bases, part of a head, parallel": (
        {"window": 4, "parallel": True, "softcap": 2.0},
        {"positions": "rotary", "local": (False, True, False), "local_rotary_base": 20.0, "rotary_dim": 4},
    ),
    "yarn, norms after": (
        {"norm_after": True, "norm": "rms"},
        {"positions": "rotary", "rotary_scaling": RotaryScaling("yarn", 4.0, original_positions=8)},
    ),
}


def build(name):
    block, outer = CONFIGS[name]
    config = TransformerConfig(
        vocab=VOCAB, block=BlockConfig(24, 4, 31, **block), n_decoder_layer=3, n_position=64, **outer
    )
    model = initialise(Transformer(config), 7).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_steps_and_padding_change_nothing(name):
    """Step by step, and beside a longer text with padding on the left, the logits are those of the text."""
    model = build(name)
    ids = torch.randint(VOCAB, (1, 13), generator=torch.Generator().manual_seed(2))
    whole = model(ids).logits
    cache = model.new_cache()
    steps = [model(part, cache=cache).logits for part in ids.split([4, 1, 1, 5, 2], 1)]
    torch.testing.assert_close(torch.cat(steps, 1), whole)
    padded = torch.cat([torch.zeros(1, 5, dtype=torch.long), ids], 1)
    key_mask = torch.arange(18)[None] >= 5
    torch.testing.assert_close(model(padded, key_mask=key_mask).logits[:, 5:], whole)
    model.float()
    written = generate(model, [ids[0, :6].tolist()], max_new=4).tokens[0]
    text = ids[:, :6]
    for token in written:
        assert int(model(text).logits[0, -1].argmax()) == token
        text = torch.cat([text, torch.tensor([[token]])], 1)


@torch.no_grad()
def test_layers_without_positions_do_not_know_the_order():
    """All layers see everything and none has positions: earlier words may change places."""
    config = TransformerConfig(
        vocab=VOCAB, block=BlockConfig(24, 4, 31), n_decoder_layer=1, n_position=64, positions="none"
    )
    model = initialise(Transformer(config), 7).double()
    one, other = torch.tensor([[5, 9, 2, 7]]), torch.tensor([[2, 5, 9, 7]])
    torch.testing.assert_close(model(one).logits[:, -1], model(other).logits[:, -1])
    turned = Transformer(
        TransformerConfig(VOCAB, config.block, n_decoder_layer=1, positions="rotary")
    ).double()
    assert not torch.allclose(turned(one).logits[:, -1], turned(other).logits[:, -1])


@torch.no_grad()
def test_a_parallel_block_adds_both_to_what_both_read():
    """x + attention(norm(x)) + feed-forward(norm(x)), each with a norm of its own."""
    block = Block(BlockConfig(12, 3, 19, parallel=True), causal=True).double()
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    wanted = x + block.attention(block.attention_norm(x)) + block.ff(block.ff_norm(x))
    torch.testing.assert_close(block(x), wanted)


@torch.no_grad()
def test_norms_after_are_on_what_is_added():
    """x + after(attention(norm(x))), then the same of the feed-forward."""
    block = Block(BlockConfig(12, 3, 19, norm_after=True, norm="rms"), causal=True).double()
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    middle = x + block.attention_norm_after(block.attention(block.attention_norm(x)))
    torch.testing.assert_close(block(x), middle + block.ff_norm_after(block.ff(block.ff_norm(middle))))


@pytest.mark.parametrize(
    ("block", "outer", "words"),
    [
        ({"norm_first": False, "parallel": True}, {}, "norms come first"),
        ({"window": 3}, {"local": (True,)}, "Got 1 of 3 layers, window 3"),
        ({}, {"local": (True, True, False)}, "window None"),
        ({"window": 3}, {"positions": "rotary", "local_rotary_base": 5.0}, "which layers differ"),
        ({"feature_map": "elu1", "sinks": True}, {}, "linear attention forms no scores"),
        ({"softcap": 0.0}, {}, "softcap must be"),
        ({}, {"positions": "rotary", "rotary_dim": 9}, "must be even"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(block, outer, words):
    with pytest.raises((ArgumentError, ShapeError, UnsupportedError), match=words):
        Transformer(TransformerConfig(VOCAB, BlockConfig(24, 4, 31, **block), n_decoder_layer=3, **outer))


@pytest.mark.parametrize("name", ["alibi", "yarn, norms after", "two bases, part of a head, parallel"])
def test_a_cache_that_forgets_is_for_plainer_positions(name):
    with pytest.raises(UnsupportedError, match="Evict is for decoders that look at all of the past"):
        generate(build(name), [[5, 6, 7]], max_new=3, cache=Evict("streaming", budget=8))
