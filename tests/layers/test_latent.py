"""Multi-head latent attention: two forms, one layer; its cache; its traces."""

import pytest
import torch
from torch import nn
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

import regard
from regard.attention.visibility import Visibility
from regard.errors import ShapeError
from regard.layers.cache import LayerCache
from regard.layers.latent import LatentAttention
from regard.layers.positions import Rotary

MODEL_DIM, HEAD, LATENT, ROTARY, QK_DIM, V_DIM = 13, 5, 7, 4, 6, 3
CLOSE = {"rtol": 0, "atol": 1e-12}  # float64: some tens of roundings of numbers around 1


def build(query_latent_dim=None):
    torch.manual_seed(3)
    layer = LatentAttention(
        MODEL_DIM, HEAD, latent_dim=LATENT, rotary_dim=ROTARY, qk_dim=QK_DIM, v_dim=V_DIM,
        query_latent_dim=query_latent_dim,
    ).double()  # fmt: skip
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def turn(start, stop):
    return Rotary(ROTARY, base=50.0)(torch.arange(start, stop)[None])


@pytest.mark.parametrize("query_latent_dim", [None, 9])
def test_absorbed_is_the_naive_form(query_latent_dim):
    """Outputs and gradients, with padding."""
    layer = build(query_latent_dim)
    x = torch.randn(2, 11, MODEL_DIM, dtype=torch.float64, requires_grad=True)
    visible = Visibility(key_mask=torch.rand(2, 11) < 0.8)
    results = []
    for absorbed in (False, True):
        out = layer(x, visible=visible, rotary=turn(0, 11), absorbed=absorbed)
        results.append((out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])))
    for naive, other in zip(*results, strict=True):
        torch.testing.assert_close(other, naive, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_steps_with_the_short_cache_are_the_whole_text():
    """It holds latent_dim + rotary_dim numbers a token, for any number of heads."""
    layer, x = build(), torch.randn(2, 9, MODEL_DIM, dtype=torch.float64)
    whole = layer(x, rotary=turn(0, 9))
    cache, at, steps = LayerCache(), 0, []
    for part in x.split([4, 1, 1, 3], 1):
        steps.append(layer(part, rotary=turn(at, at + part.shape[1]), cache=cache))
        at += part.shape[1]
    torch.testing.assert_close(torch.cat(steps, 1), whole, **CLOSE)
    assert cache.bytes == 2 * 9 * (LATENT + ROTARY) * 8


@pytest.mark.parametrize("query_latent_dim", [None, 9])
@torch.no_grad()
def test_it_is_the_layer_of_deepseek_v3(query_latent_dim):
    """The same weights give the same numbers, rotary part included."""
    config = DeepseekV3Config(
        hidden_size=MODEL_DIM, num_attention_heads=HEAD, num_key_value_heads=HEAD, kv_lora_rank=LATENT,
        q_lora_rank=query_latent_dim, qk_rope_head_dim=ROTARY, qk_nope_head_dim=QK_DIM, v_head_dim=V_DIM,
        rope_interleave=False, rope_parameters={"rope_type": "default", "rope_theta": 50.0},
        attn_implementation="eager",
    )  # fmt: skip
    theirs, ours = DeepseekV3Attention(config, 0).double().eval(), build(query_latent_dim)
    if query_latent_dim is None:
        theirs.q_proj.weight.copy_(ours.query.weight)
    else:
        theirs.q_a_proj.weight.copy_(ours.query_down.weight)
        theirs.q_a_layernorm.weight.copy_(ours.query_norm.weight)
        theirs.q_b_proj.weight.copy_(ours.query.weight)
    theirs.kv_a_proj_with_mqa.weight.copy_(torch.cat([ours.down.weight, ours.key_rotary.weight]))
    theirs.kv_a_layernorm.weight.copy_(ours.down_norm.weight)
    both = [linear.weight.unflatten(0, (HEAD, -1)) for linear in (ours.key, ours.value)]
    theirs.kv_b_proj.weight.copy_(torch.cat(both, 1).flatten(0, 1))
    theirs.o_proj.weight.copy_(ours.out.weight)
    x = torch.randn(2, 8, MODEL_DIM, dtype=torch.float64)
    angles = turn(0, 8)
    mask = torch.zeros(8, 8, dtype=torch.float64).masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf)
    expected, _ = theirs(x, (angles.cos[:, 0].double(), angles.sin[:, 0].double()), mask[None, None])
    # Their norm goes through float32.
    torch.testing.assert_close(ours(x, rotary=angles), expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_both_forms_are_traced_and_changed():
    """The weights are the same in both, and a gate of 0 leaves the output's bias: none."""
    layer, x = build(), torch.randn(1, 6, MODEL_DIM, dtype=torch.float64)
    traces = [regard.trace(layer, {"x": x, "absorbed": absorbed}) for absorbed in (False, True)]
    assert all(trace.checks.passed for trace in traces)
    torch.testing.assert_close(traces[0].weights(0, 3), traces[1].weights(0, 3), **CLOSE)
    model = nn.Sequential(layer)
    with regard.intervene(model) as run:
        run.gate(layer=0, by=0.0)
        assert (model(x) == 0).all()


def test_inputs_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError, match="latent_dim must be at least 1"):
        LatentAttention(8, 2, latent_dim=0, rotary_dim=2, qk_dim=3, v_dim=3)
    with pytest.raises(ShapeError, match=r"x must be \(batch, position, 13\)"):
        build()(torch.randn(1, 4, 8).double())
