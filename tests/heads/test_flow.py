"""Rollout, value-weighted attention and logit attribution, each against its definition written out."""

import pytest
import torch

from regard.heads.flow import ValueWeightedLayer, logit_attribution, rollout, value_weighted
from regard.heads.measures import measure
from regard.heads.model import attention_of
from regard.layers.block import BlockConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.tracing import layers
from regard.tracing.take import trace
from regard.tracing.traces import Trace

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]])


def decoder(norm="rms", tied=True, lm_head_scale=1.0):
    block = BlockConfig(
        model_dim=12,
        n_head=6,
        n_kv_head=3,
        qk_dim=4,
        v_dim=4,
        ff_dim=17,
        norm=norm,
        attention_bias=norm == "layer",
    )
    config = TransformerConfig(
        vocab=13, block=block, n_decoder_layer=3, n_position=19, tied=tied, lm_head_scale=lm_head_scale
    )
    model = Transformer(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model


@pytest.mark.parametrize("block", [1 << 19, 20])
def test_rollout_is_one_row_of_the_product_of_all_layers(block, monkeypatch):
    """A row of (A_3 + I)/2 (A_2 + I)/2 (A_1 + I)/2 with A the mean over heads; rows sum to 1."""
    monkeypatch.setattr(layers, "BLOCK", block)
    found = trace(decoder(), TOKENS)
    product = torch.eye(11)
    for layer in found.layers:
        mean = torch.stack([layer.weights(head) for head in range(layer.n_head)]).mean(0)
        product = (mean + torch.eye(11)) / 2 @ product
    for query in (0, 6, -1):
        torch.testing.assert_close(rollout(found, query), product[query])
        assert float(rollout(found, query).sum()) == pytest.approx(1.0)


def test_rollout_can_stop_at_a_layer():
    """Through the first layer alone, it is that layer's row."""
    found = trace(decoder(), TOKENS)
    mean = torch.stack([found.layers[0].weights(head) for head in range(6)]).mean(0)
    torch.testing.assert_close(rollout(found, 7, layers=[0]), (mean[7] + torch.eye(11)[7]) / 2)


def test_value_weighted_attention_is_the_norm_of_what_each_key_sends():
    """|w_ij v_j W_o| over its row, with the part of the output projection that is the head's own."""
    model = decoder()
    found = trace(model, TOKENS, keep_v=True)
    weighted = value_weighted(found, model)
    for index, layer in enumerate(found.layers):
        out = attention_of(model, layer.name).out.weight.detach()
        for head in (0, 5):
            value = layer.v[0, head * 3 // 6]
            sent = value @ out[:, 4 * head : 4 * head + 4].T
            expected = layer.weights(head) * sent.norm(dim=-1)
            expected = expected / expected.sum(-1, keepdim=True)
            torch.testing.assert_close(weighted.weights(index, head), expected, rtol=1e-4, atol=1e-6)


def test_value_weighted_attention_can_be_measured():
    """A key whose value is zero is not looked at, however large its weight."""
    model = decoder()
    found = trace(model, TOKENS, keep_v=True)
    layer = found.layers[0]
    layer.v[:, :, 0] = 0.0
    weighted = ValueWeightedLayer.of(layer)
    measured = measure(Trace((weighted,), found.tokens, ids=found.ids))
    assert measured["first"].abs().max() < 1e-30
    assert measure(found)["first"][0].min() > 0.0
    torch.testing.assert_close(weighted.weights(3).sum(-1)[1:], torch.ones(10))


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_parts_of_a_score_add_up(norm, tied):
    """Heads, embeddings, feed-forward and biases, each through the frozen norm, make up the logit."""
    model = decoder(norm, tied, lm_head_scale=0.7).double()
    found = logit_attribution(model, TOKENS, 7, position=5)
    parts = {}

    def keep(name):
        def hook(module, args, out):
            parts[name] = out[0, 5]

        return hook

    stack = model.decoder
    for index, block in enumerate(stack.blocks):
        block.ff.register_forward_hook(keep(f"ff{index}"))
    held = []
    stack.norm.register_forward_pre_hook(lambda module, args: held.append(args[0][0, 5]))
    with torch.no_grad():
        logits = model(TOKENS).logits[0, 5]
        embedded = model.embed(TOKENS, torch.arange(11)[None])[0, 5]
        x = held[-1]
        rest = embedded + sum(parts.values())
        for block in stack.blocks:
            if block.attention.out.bias is not None:
                rest = rest + block.attention.out.bias
        if norm == "rms":
            scaled = rest / (x.square().mean() + stack.norm.eps).sqrt() * stack.norm.weight
        else:
            scaled = (
                (rest - rest.mean()) / (x.var(unbiased=False) + stack.norm.eps).sqrt() * stack.norm.weight
            )
            scaled = scaled + stack.norm.bias
        vector = (model.token if tied else model.unembed).weight[7] * 0.7
    assert found.score == pytest.approx(float(logits[7]))
    assert found.rest == pytest.approx(float(scaled @ vector), abs=1e-9)


def test_attribution_against_another_token_is_the_difference():
    """Toward one and away from the other, head by head."""
    model = decoder()
    one, other = (logit_attribution(model, TOKENS, token) for token in (2, 8))
    both = logit_attribution(model, TOKENS, 2, against=8)
    torch.testing.assert_close(both.heads, one.heads - other.heads)
    assert both.score == pytest.approx(one.score - other.score, abs=1e-5)
