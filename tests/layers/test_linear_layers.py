"""Linear attention wherever softmax attention is: in the layer, in the Transformer, in decoding."""

import pytest
import torch

from regard.attention.feature_maps import feature_map
from regard.attention.linear import LinearRule, linear_weights
from regard.attention.visibility import Visibility
from regard.decoding.loop import generate
from regard.errors import UnsupportedError
from regard.layers.attention import MultiHeadAttention
from regard.models.families import FAMILIES, initialise
from regard.models.transformer import Transformer

FEATURE_MAPS = ["elu1", "relu", "quadratic", "favor"]


def dense(layer, x, memory, keys, causal):
    """The layer's output with every similarity written out, one head at a time."""
    memory = x if memory is None else memory
    group = layer.n_head // layer.n_kv_head
    q = layer.query(x).unflatten(-1, (layer.n_head, -1))
    k = layer.key(memory).unflatten(-1, (layer.n_kv_head, -1))
    v = layer.value(memory).unflatten(-1, (layer.n_kv_head, -1))
    outs = []
    for head in range(layer.n_head):
        table = layer.feature_map.similarity(q[:, :, head], k[:, :, head // group])
        seen = (
            torch.ones_like(table, dtype=torch.bool) if not causal else torch.ones_like(table).tril().bool()
        )
        if keys is not None:
            seen = seen & keys[:, None]
        table = torch.where(seen, table, 0.0)
        total = table.sum(-1, keepdim=True)
        outs.append(torch.where(total > 0, table / total, 0.0) @ v[:, :, head // group])
    return layer.out(torch.cat(outs, dim=-1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_a_linear_layer_equals_its_dense_table(name, causal):
    """With grouped heads and padding, output and weights are those of the written-out similarities."""
    layer = MultiHeadAttention(30, 6, n_kv_head=2, v_dim=7, causal=causal, feature_map=name).double()
    x = torch.randn(2, 13, 30, dtype=torch.float64)
    keys = torch.ones(2, 13, dtype=torch.bool)
    keys[1, 9:] = False
    out, weights = layer(x, visible=Visibility(key_mask=keys), return_weights=True)
    torch.testing.assert_close(out, dense(layer, x, None, keys, causal))
    sums = weights.sum(-1)
    empty = (weights == 0).all(-1)  # a query that relu leaves nothing in common with any key
    assert name == "relu" or not empty.any()
    torch.testing.assert_close(sums, (~empty).to(sums.dtype))
    assert (weights[1, :, :, 9:] == 0).all()


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_a_linear_cross_layer_equals_its_dense_table(name):
    """Queries of one sequence over the keys of another, with the memory's sum kept in the cache."""
    from regard.layers.cache import LayerCache

    layer = MultiHeadAttention(20, 5, feature_map=name).double()
    x, memory = torch.randn(3, 7, 20, dtype=torch.float64), torch.randn(3, 11, 20, dtype=torch.float64)
    expected = dense(layer, x, memory, None, False)
    torch.testing.assert_close(layer(x, memory), expected)
    cache = LayerCache()
    steps = [layer(token[:, None], memory, cache=cache) for token in x.unbind(1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected)


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_a_linear_layer_records_what_gives_its_weights(name):
    """The recorded q, k, normaliser and rule give back every weight."""
    layer = MultiHeadAttention(12, 3, causal=True, feature_map=name)
    seen = []
    _, weights = layer(torch.randn(1, 7, 12), record=lambda *given: seen.append(given), return_weights=True)
    ((name, q, k, _, _, normaliser, rule),) = seen
    assert name == "attention"
    assert isinstance(rule, LinearRule)
    again = linear_weights(q, k, normaliser, rule.feature_map, causal=rule.causal, key_mask=rule.key_mask)
    torch.testing.assert_close(again, weights)


@pytest.mark.parametrize("name", FEATURE_MAPS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@torch.no_grad()
def test_a_linear_transformer_decodes_with_a_state_of_fixed_size(family, name):
    """Step by step equals the whole text at every position, and the cache does not grow."""
    from dataclasses import replace

    sizes = {
        "gpt2": {"vocab_size": 101, "n_positions": 37, "n_embd": 12, "n_layer": 2, "n_head": 3},
        "llama": {
            "vocab_size": 101,
            "num_hidden_layers": 2,
            "hidden_size": 24,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "intermediate_size": 17,
        },
    }
    config = FAMILIES[family].config(sizes[family])
    config = replace(config, block=replace(config.block, feature_map=name))
    model = initialise(Transformer(config), seed=3).double().eval()
    for parameter in model.parameters():
        parameter.mul_(3.0)
    tokens = torch.randint(0, 101, (2, 11))
    whole = model(tokens).logits
    cache = model.new_cache()
    pieces = []
    sizes_seen = set()
    for piece in tokens.split([4, 1, 1, 3, 2], dim=1):
        pieces.append(model(piece, cache=cache).logits)
        sizes_seen.add(cache.bytes)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole)
    assert len(sizes_seen) == 1
    assert cache.length == 11
    prompts = [tokens[0].tolist(), tokens[1, :5].tolist()]
    together = generate(model, prompts, max_new=5, n_beam=3).tokens
    assert together == tuple(generate(model, [prompt], max_new=5, n_beam=3).tokens[0] for prompt in prompts)
    with pytest.raises(UnsupportedError, match="taken out"):
        cache.crop(3)


def test_what_linear_attention_cannot_do_is_refused():
    """Dropout of weights, a scale, a window and pairs have no meaning without scores."""
    for options in ({"dropout": 0.1}, {"scale": 0.5}, {"window": 3, "causal": True}):
        with pytest.raises(UnsupportedError, match="forms no scores"):
            MultiHeadAttention(12, 3, feature_map="elu1", **options)
    layer = MultiHeadAttention(12, 3, feature_map=feature_map("relu"))
    with pytest.raises(UnsupportedError, match="no pairs"):
        layer(torch.randn(1, 5, 12), visible=Visibility(lengths=torch.full((1, 5), 3)))
