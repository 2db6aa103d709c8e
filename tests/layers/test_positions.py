"""Positions against their formulas, and against the transformers library."""

import math

import pytest
import torch
from transformers import LlamaConfig, T5Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

from regard.attention.scores import ScoreRule
from regard.layers.attention import MultiHeadAttention
from regard.layers.positions import (
    LearnedPositions,
    RelativeBias,
    Rotary,
    RotaryScaling,
    SinusoidalPositions,
    sinusoidal,
)


@pytest.mark.parametrize("base", [10_000.0, 7.0])
def test_sinusoidal_positions_equal_the_formula(base):
    """sin at even and cos at odd dimensions of position / base^(2i / model_dim), to float32's last bit."""
    table = sinusoidal(503, 14, base)
    for position in (0, 1, 2, 97, 502):
        for i in range(7):
            angle = position / base ** (2 * i / 14)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=6e-8)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=6e-8)


def test_sinusoidal_positions_as_a_layer_are_the_rows_of_the_table_and_not_saved():
    """Positions may come in any order and differ between sequences; a checkpoint has nothing of them."""
    layer = SinusoidalPositions(11, 6)
    positions = torch.tensor([[3, 0, 10], [1, 1, 2]])
    assert torch.equal(layer(positions), sinusoidal(11, 6)[positions])
    assert not layer.state_dict()
    assert not list(layer.parameters())


def test_learned_positions_are_rows_of_their_weight_and_only_those_get_a_gradient():
    """A position that comes twice gets both gradients."""
    layer = LearnedPositions(7, 5)
    positions = torch.tensor([[6, 2], [2, 0]])
    out = layer(positions)
    assert torch.equal(out, layer.weight[positions])
    out.sum().backward()
    assert layer.weight.grad[:, 0].tolist() == [1, 0, 2, 0, 0, 0, 1]


def test_a_turn_of_one_pair_is_a_turn_in_the_plane():
    """Worked by hand: (1, 0) at position p goes to (cos p, sin p), and dimension i is paired with i + d/2."""
    turn = Rotary(2)(torch.arange(5)[None])
    turned = turn(torch.tensor([1.0, 0.0]).expand(1, 1, 5, 2))
    for p in range(5):
        assert turned[0, 0, p].tolist() == pytest.approx([math.cos(p), math.sin(p)], abs=1e-7)
    paired = Rotary(6)(torch.tensor([[3]]))(torch.eye(6)[None, :, None])[0, :, 0]
    assert (paired != 0).int().tolist() == torch.eye(3).tile(2, 2).int().tolist()


@pytest.mark.parametrize("shift", [0, 1, 17, 1000])
def test_only_the_difference_of_positions_reaches_a_dot_product(shift):
    """Scores of all pairs stay when all positions move; lengths of vectors stay always.

    Base 16 turns four dimensions by 1 and 1/4: angles exact in float32, so that the error is that of the
    cosine alone, whatever the position.
    """
    rotary = Rotary(4, base=16.0)
    q, k = torch.randn(2, 3, 11, 4, dtype=torch.float64), torch.randn(2, 3, 11, 4, dtype=torch.float64)
    here, there = rotary(torch.arange(11)[None]), rotary(torch.arange(shift, shift + 11)[None])
    torch.testing.assert_close(there(q) @ there(k).mT, here(q) @ here(k).mT, atol=3e-6, rtol=0)
    torch.testing.assert_close(there(q).norm(dim=-1), q.norm(dim=-1), atol=1e-6, rtol=0)
    if shift % 4:
        assert not torch.allclose(there(q) @ here(k).mT, here(q) @ here(k).mT, atol=1e-2)


def test_sequences_may_stand_at_different_positions():
    """As with padding on the left: each is turned by its own positions, in its own dtype."""
    rotary, x = Rotary(6), torch.randn(2, 3, 4, 6)
    positions = torch.tensor([[0, 1, 2, 3], [0, 0, 0, 7]])
    both = rotary(positions)(x)
    for b in range(2):
        assert torch.equal(both[b], rotary(positions[b : b + 1])(x[b : b + 1])[0])
    assert rotary(positions)(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_converting_a_model_leaves_the_angles_as_they_were(dtype):
    """bfloat16 cannot count beyond 256 and float16 not beyond 2048: angles stay in float32."""
    rotary = Rotary(8)
    positions = torch.tensor([[0, 257, 2049, 30_001]])
    wanted = rotary(positions)
    got = rotary.to(dtype)(positions)
    assert torch.equal(got.cos, wanted.cos)
    assert torch.equal(got.sin, wanted.sin)
    exact = math.cos(30_001 * 10_000 ** (-3 / 4))
    assert got.cos[0, 0, 3, 3].item() == pytest.approx(exact, abs=1e-5)


def test_a_model_built_without_storage_has_its_angles_all_the_same():
    """Built on the meta device and given storage later, as large models are loaded."""
    with torch.device("meta"):
        rotary = Rotary(8)
    positions = torch.tensor([[0, 3]])
    assert torch.equal(rotary.to_empty(device="cpu")(positions).cos, Rotary(8)(positions).cos)


SCALINGS = {
    "none": (None, {"rope_type": "default"}),
    "linear": (RotaryScaling("linear", 4.0), {"rope_type": "linear", "factor": 4.0}),
    # With 64 original positions the 8 rates fall on all three sides of the two limits.
    "llama3": (
        RotaryScaling("llama3", 8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=64),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
}


@pytest.mark.parametrize("kind", SCALINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_positions_equal_those_of_transformers(kind, dtype):
    """Bit for bit: rates, turned queries and keys of a Llama, plain and with both kinds of scaling."""
    scaling, parameters = SCALINGS[kind]
    config = LlamaConfig(
        hidden_size=32,
        num_attention_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        rope_parameters={"rope_theta": 500.0, **parameters},
    )
    peer, rotary = LlamaRotaryEmbedding(config), Rotary(16, 500.0, scaling)
    assert torch.equal(rotary.rate(), peer.inv_freq)
    positions = torch.stack([torch.arange(211), torch.arange(800, 1011)])
    q, k = torch.randn(2, 3, 211, 16, dtype=dtype), torch.randn(2, 1, 211, 16, dtype=dtype)
    wanted = apply_rotary_pos_emb(q, k, *peer(q, positions))
    turn = rotary(positions)
    assert torch.equal(turn(q), wanted[0])
    assert torch.equal(turn(k), wanted[1])


def test_the_llama3_test_meets_rates_of_all_three_kinds():
    """Some rates stay, some are divided by the factor, some are between: else the test above is blind."""
    plain, stretched = Rotary(16, 500.0).rate(), Rotary(16, 500.0, SCALINGS["llama3"][0]).rate()
    ratio = plain / stretched
    assert ratio[0] == 1
    assert ratio[-1] == 8
    assert ((ratio > 1.01) & (ratio < 7.99)).any()


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("n_bucket", "max_distance"), [(32, 128), (8, 20), (31, 1000), (4, 3)])
def test_buckets_equal_those_of_t5_for_all_distances(bidirectional, n_bucket, max_distance):
    """Every distance from far before to far after, beyond the largest that is told apart."""
    distance = torch.arange(-3 * max_distance, 3 * max_distance + 1)
    wanted = T5Attention._relative_position_bucket(distance, bidirectional, n_bucket, max_distance)
    relative = RelativeBias(3, n_bucket, max_distance, bidirectional=bidirectional)
    assert torch.equal(relative.bucket(distance), wanted)


@pytest.mark.parametrize("bidirectional", [True, False], ids=["encoder", "decoder"])
@pytest.mark.parametrize(
    ("n_query", "n_key", "start"), [(7, 7, 0), (3, 11, 0), (1, 8, 7), (3, 13, 10), (5, 3, 2)]
)
def test_the_bias_equals_that_of_t5(bidirectional, n_query, n_key, start):
    """The whole table and any tile of it, also with `start` positions in a cache."""
    config = T5Config(
        num_heads=3,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=10,
        is_decoder=not bidirectional,
    )
    peer = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    torch.nn.init.normal_(peer.relative_attention_bias.weight)
    relative = RelativeBias(3, 8, 10, bidirectional=bidirectional)
    relative.load_state_dict(peer.relative_attention_bias.state_dict())
    wanted = peer.compute_bias(n_query, n_key, past_seen_tokens=start)
    bias = relative(n_query, n_key, start)
    assert torch.equal(bias.tile(slice(0, n_query), slice(0, n_key), start), wanted)
    rows, cols = slice(n_query // 2, n_query), slice(n_key // 3, n_key - 1)
    assert torch.equal(bias.tile(rows, cols, start), wanted[:, :, rows, cols])
    bias.check(2, 3, n_query, n_key, start)


def test_relative_positions_are_added_to_the_scores_and_learn():
    """Attention with the bias equals softmax(scores + table), and its weight gets that gradient."""
    layer = MultiHeadAttention(12, 3, scale=1.0, causal=True).double()
    relative = RelativeBias(3, 8, 10, bidirectional=False).double()
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    direction = torch.randn(2, 7, 12, dtype=torch.float64)
    q, k, v = (
        part(x).unflatten(-1, (3, 4)).transpose(1, 2) for part in (layer.query, layer.key, layer.value)
    )
    distance = torch.arange(7) - torch.arange(7)[:, None]
    table = relative.weight[relative.bucket(distance)].permute(2, 0, 1)
    weights = (q @ k.mT + table).masked_fill(distance > 0, -torch.inf).softmax(-1)
    wanted = layer.out((weights @ v).transpose(1, 2).flatten(2))
    got = layer(x, bias=relative(7, 7))
    torch.testing.assert_close(got, wanted, atol=1e-12, rtol=1e-10)
    gradients = [torch.autograd.grad(out, relative.weight, direction)[0] for out in (got, wanted)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=1e-10)
    assert gradients[0].any()


@pytest.mark.parametrize(("n_query", "n_key"), [(0, 5), (5, 0), (1, 1)])
def test_relative_positions_of_empty_lengths_are_allowed(n_query, n_key):
    """Nothing is drawn, nothing raises."""
    bias = RelativeBias(3, bidirectional=True)(n_query, n_key)
    layer = MultiHeadAttention(12, 3)
    out = layer(torch.randn(2, n_query, 12), torch.randn(2, n_key, 12), bias=bias)
    assert out.shape == (2, n_query, 12)
    assert ScoreRule(bias=bias).learned
