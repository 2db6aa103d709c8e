"""Messages of layers.py, positions.py and cache.py, as a user meets them."""

import pytest
import torch

from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, RegardError, ShapeError
from regard.layers.attention import AdditiveAttention, MultiHeadAttention
from regard.layers.block import Block, BlockConfig, FeedForward
from regard.layers.cache import KVCache, LayerCache
from regard.layers.eviction import Evict
from regard.layers.positions import (
    LearnedPositions,
    RelativeBias,
    Rotary,
    RotaryScaling,
    SinusoidalPositions,
    sinusoidal,
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_head": 5}, "model_dim 12 does not split into n_head 5"),
        ({"n_head": 0}, "n_head 0"),
        ({"n_head": 0, "qk_dim": 2, "v_dim": 3}, "n_head 0"),
        ({"n_head": 0, "n_kv_head": 1, "qk_dim": 2, "v_dim": 3}, "n_head must be at least 1. Got 0"),
        ({"n_head": -4}, "n_head -4"),
        ({"n_head": 4, "n_kv_head": 3}, "n_head 4 does not split into n_kv_head 3"),
        ({"n_head": 4, "n_kv_head": 0}, "n_kv_head 0"),
        ({"n_head": 4, "n_kv_head": 8}, "n_head 4 does not split into n_kv_head 8"),
        ({"n_head": 4, "n_kv_head": -1}, "n_kv_head -1"),
        ({"n_head": 4, "model_dim": 0}, "model_dim must be at least 1. Got 0"),
        ({"n_head": 4, "model_dim": -12}, "model_dim must be at least 1. Got -12"),
        ({"n_head": 4, "qk_dim": 0}, "qk_dim must be at least 1. Got 0"),
        ({"n_head": 4, "v_dim": -3}, "v_dim must be at least 1. Got -3"),
        ({"n_head": 4, "memory_dim": 0}, "memory_dim must be at least 1. Got 0"),
    ],
)
def test_sizes_that_make_no_heads_are_shape_errors(arguments, message):
    """The message names the sizes."""
    with pytest.raises(ShapeError, match=message):
        MultiHeadAttention(**{"model_dim": 12, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1. Got 1.0"),
        ({"dropout": -0.1}, "dropout .* Got -0.1"),
        ({"window": 0}, "window .* at least 1. Got 0"),
        ({"scale": float("nan")}, "scale must be a finite number. Got nan"),
    ],
)
def test_values_out_of_range_are_argument_errors(arguments, message):
    """The message gives the rule and the value."""
    with pytest.raises(ArgumentError, match=message):
        MultiHeadAttention(12, 3, **arguments)


@pytest.mark.parametrize(
    ("x", "memory", "message"),
    [
        (torch.zeros(5, 12), None, r"x must be \(batch, position, 12\) here. Got shape \(5, 12\)"),
        (torch.zeros(2, 3, 5, 12), None, r"x must be .* Got shape \(2, 3, 5, 12\)"),
        (torch.zeros(2, 5, 13), None, r"x must be \(batch, position, 12\) here. Got shape \(2, 5, 13\)"),
        (torch.zeros(2, 5, 12), torch.zeros(2, 3, 12), r"memory must be \(batch, position, 7\) here"),
        (torch.zeros(2, 5, 12), torch.zeros(3, 7), r"memory must be .* Got shape \(3, 7\)"),
        (torch.zeros(2, 5, 12), torch.zeros(3, 11, 7), "q has batch 2 and k has batch 3"),
        (torch.zeros(2, 5, 12).double(), None, "x has dtype torch.float64, .* weights have torch.float32"),
        (torch.zeros(2, 5, 12).long(), None, "x has dtype torch.int64"),
        (torch.zeros(2, 5, 12), torch.zeros(2, 3, 7).bfloat16(), "memory has dtype torch.bfloat16"),
        (torch.zeros(2, 5, 12, device="meta"), None, "x is on meta, the layer's weights on cpu"),
        (torch.zeros(2, 5, 12), torch.zeros(2, 3, 7, device="meta"), "memory is on meta, .* on cpu"),
    ],
)
def test_inputs_that_do_not_fit_the_layer_are_shape_errors(x, memory, message):
    """Rank, width, batch, dtype and device are checked before anything is computed."""
    layer = MultiHeadAttention(12, 3, memory_dim=12 if memory is None else 7)
    with pytest.raises(ShapeError, match=message):
        layer(x, memory)


def test_whole_numbers_are_refused_under_autocast_too():
    """Autocast converts floating inputs only."""
    layer = MultiHeadAttention(12, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ShapeError, match=r"dtype torch.int64"):
        layer(torch.zeros(2, 5, 12, dtype=torch.long))


@pytest.mark.parametrize(
    ("visible", "error", "message"),
    [
        (
            Visibility(lengths=torch.tensor([3, 6])),
            ArgumentError,
            "between 0 and .* 5. Got values from 3 to 6",
        ),
        (Visibility(lengths=torch.tensor([-1, 5])), ArgumentError, "Got values from -1 to 5"),
        (Visibility(lengths=torch.tensor([3, 3, 3])), ShapeError, "lengths has batch 3, attention has 2"),
        (
            Visibility(key_mask=torch.ones(2, 4, dtype=torch.bool)),
            ShapeError,
            "key_mask has key 4, attention has 5",
        ),
        (
            Visibility(key_mask=torch.ones(2, 5, dtype=torch.bool, device="meta")),
            ShapeError,
            "on meta and q on cpu",
        ),
        (Visibility(causal=True, start=3), ArgumentError, "agree on where the queries start"),
    ],
)
def test_a_visibility_that_does_not_fit_is_refused(visible, error, message):
    """Lengths longer than the sequence, other batches, other devices, other positions."""
    with pytest.raises(error, match=message):
        MultiHeadAttention(12, 3, causal=True)(torch.randn(2, 5, 12), visible=visible)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 7, 5), ShapeError, "query_dim must be at least 1. Got 0"),
        ((5, -7, 5), ShapeError, "key_dim must be at least 1. Got -7"),
        ((5, 7, 0), ShapeError, "hidden_dim must be at least 1. Got 0"),
    ],
)
def test_additive_attention_refuses_empty_sizes(arguments, error, message):
    """The message names the size."""
    with pytest.raises(error, match=message):
        AdditiveAttention(*arguments)


@pytest.mark.parametrize(
    ("queries", "keys", "values", "message"),
    [
        ((2, 5), (2, 11, 7), (2, 11, 13), r"queries must be \(batch, position, 5\) here. Got shape \(2, 5\)"),
        ((2, 3, 7), (2, 11, 7), (2, 11, 13), r"queries must be .* Got shape \(2, 3, 7\)"),
        ((2, 3, 5), (2, 11, 5), (2, 11, 13), r"keys must be \(batch, position, 7\) here"),
        ((2, 3, 5), (2, 11, 7), (11, 13), r"values has 2 dimensions: it must be \(batch, key, v_dim\)"),
        ((2, 3, 5), (2, 11, 7), (2, 3, 13), "every key needs one value"),
    ],
)
def test_additive_attention_refuses_inputs_that_do_not_fit(queries, keys, values, message):
    """The message names the input and its shape."""
    with pytest.raises(ShapeError, match=message):
        AdditiveAttention(5, 7, 3)(torch.zeros(queries), torch.zeros(keys), torch.zeros(values))


def test_blocks_say_what_they_are_made_of():
    """Unknown parts, empty sizes, and memory where it is missing or of no use."""
    sizes = {"activation": "relu", "gated": False, "bias": True, "dropout": 0.0}
    with pytest.raises(ArgumentError, match=r"activation must be one of relu, .* Got 'tanh'"):
        FeedForward(5, 7, **{**sizes, "activation": "tanh"})
    with pytest.raises(ShapeError, match=r"ff_dim must be at least 1. Got 0"):
        FeedForward(5, 0, **sizes)
    with pytest.raises(ArgumentError, match=r"dropout .* Got 1"):
        FeedForward(5, 7, **{**sizes, "dropout": 1.0})
    with pytest.raises(ArgumentError, match=r"norm must be one of layer, rms. Got 'batch'"):
        BlockConfig(12, 3, 19, norm="batch")
    with pytest.raises(ArgumentError, match="needs the encoder's output as `memory`"):
        Block(BlockConfig(12, 3, 19), cross=True)(torch.zeros(2, 5, 12))
    with pytest.raises(ArgumentError, match="takes no `memory`"):
        Block(BlockConfig(12, 3, 19))(torch.zeros(2, 5, 12), torch.zeros(2, 5, 12))


@pytest.mark.parametrize("kind", [LearnedPositions, SinusoidalPositions])
@pytest.mark.parametrize(
    ("positions", "error", "message"),
    [
        (torch.tensor([[3, 7]]), ArgumentError, "position 7 is beyond the model's limit of 7 positions"),
        (torch.tensor([[-1, 2]]), ArgumentError, "positions count from 0. Got position -1"),
        (
            torch.tensor([[0.0, 2.0]]),
            ShapeError,
            "positions must be whole numbers .* Got dtype torch.float32",
        ),
    ],
)
def test_positions_outside_the_table_are_refused(kind, positions, error, message):
    """The message gives the position and the limit."""
    with pytest.raises(error, match=message):
        kind(7, 4)(positions)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: sinusoidal(3, 5), ShapeError, "model_dim must be even. Got 5"),
        (lambda: sinusoidal(3, 0), ShapeError, "model_dim must be even. Got 0"),
        (lambda: sinusoidal(-3, 4), ShapeError, "n_position must not be negative. Got -3"),
        (lambda: LearnedPositions(0, 4), ShapeError, "n_position must be at least 1. Got 0"),
        (lambda: LearnedPositions(4, -1), ShapeError, "model_dim must be at least 1. Got -1"),
        (lambda: Rotary(5), ShapeError, "qk_dim must be even. Got 5"),
        (lambda: Rotary(0), ShapeError, "qk_dim must be even. Got 0"),
        (lambda: Rotary(4, base=0.0), ArgumentError, "base must be above 0. Got 0.0"),
        (lambda: RotaryScaling("far"), ArgumentError, "kind must be one of linear, dynamic, llama3, yarn"),
        (lambda: RotaryScaling("linear", 0.0), ArgumentError, "factor must be from 0.001 to .* Got 0.0"),
        (lambda: RotaryScaling("llama3", 8.0, 4.0, 4.0), ArgumentError, "low_freq_factor .* Got 4.0 and 4.0"),
        (lambda: RelativeBias(0, bidirectional=True), ShapeError, "n_head must be at least 1. Got 0"),
        (lambda: RelativeBias(3, 2, bidirectional=True), ArgumentError, "n_bucket must be at least 4"),
        (lambda: RelativeBias(3, 32, 8, bidirectional=True), ArgumentError, "max_distance above the 8"),
        (lambda: RelativeBias(3, bidirectional=True)(-1, 3), ShapeError, "Got query -1, key 3, start 0"),
    ],
)
def test_positions_that_cannot_be_made_are_refused(make, error, message):
    """The message gives the rule and the value."""
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("shape", [(2, 3, 5, 8), (2, 3, 1, 6), (2, 3, 7, 6), (3, 3, 5, 6), (3, 5, 6)])
def test_a_turn_refuses_what_it_would_have_to_broadcast(shape):
    """It is of two sequences at five positions each, and of six dimensions."""
    turn = Rotary(6)(torch.zeros(2, 5, dtype=torch.long))
    with pytest.raises(ShapeError, match="rotation is of 5 positions, 6 dimensions and 2 sequences"):
        turn(torch.zeros(shape))


def test_a_bias_for_other_lengths_is_refused():
    """One built for seven keys does not serve eleven."""
    bias = RelativeBias(3, bidirectional=True)(7, 7)
    with pytest.raises(ShapeError, match="covers distances -6 to 6, attention needs -10 to 10"):
        MultiHeadAttention(12, 3)(torch.randn(2, 11, 12), bias=bias)


@pytest.mark.parametrize(
    ("k", "v", "message"),
    [
        (
            torch.zeros(3, 5, 1, 7),
            torch.zeros(3, 5, 1, 11),
            "new k does not fit the cache: .*batch 2.*batch 3",
        ),
        (torch.zeros(2, 4, 1, 7), torch.zeros(2, 4, 1, 11), "new k does not fit"),
        (torch.zeros(2, 5, 1, 8), torch.zeros(2, 5, 1, 11), "qk_dim 7.*qk_dim 8"),
        (torch.zeros(2, 5, 1, 7), torch.zeros(2, 5, 1, 12), "new v does not fit"),
        (torch.zeros(2, 5, 1, 7).double(), torch.zeros(2, 5, 1, 11), "torch.float32 .* torch.float64"),
        (torch.zeros(2, 5, 1, 7, device="meta"), torch.zeros(2, 5, 1, 11, device="meta"), "on cpu.* on meta"),
        (torch.zeros(2, 5, 3, 7), torch.zeros(2, 5, 1, 11), "every key needs one value"),
        (torch.zeros(2, 5, 7), torch.zeros(2, 5, 1, 11), "k has 3 dimensions"),
        (torch.zeros(2, 5, 1, 7), torch.zeros(5, 1, 11), "v has 3 dimensions"),
    ],
)
def test_an_append_that_does_not_fit_is_refused_and_leaves_the_cache_as_it_was(k, v, message):
    """Batch, heads, sizes, dtype and device must stay; keys and values come in pairs."""
    cache = LayerCache(block=3)
    cache.append(torch.ones(2, 5, 3, 7), torch.ones(2, 5, 3, 11))
    before = cache.length, cache.bytes, cache.bytes_reserved
    with pytest.raises(ShapeError, match=message):
        cache.append(k, v)
    assert (cache.length, cache.bytes, cache.bytes_reserved) == before
    assert torch.equal(cache.k, torch.ones(2, 5, 3, 7))


def test_a_first_append_that_is_refused_leaves_the_cache_empty():
    """The next may have any shape."""
    cache = LayerCache()
    with pytest.raises(ShapeError, match="every key needs one value"):
        cache.append(torch.ones(2, 5, 3, 7), torch.ones(2, 5, 4, 11))
    assert cache.append(torch.ones(1, 2, 1, 3), torch.ones(1, 2, 1, 3))[2] == 0


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda cache: cache.crop(4), ArgumentError, "cache of 3 positions cannot be cropped to 4"),
        (lambda cache: cache.crop(-1), ArgumentError, "cannot be cropped to -1"),
        (lambda cache: cache.reorder(torch.tensor([0, 2])), ArgumentError, "between 0 and 1.* from 0 to 2"),
        (lambda cache: cache.reorder(torch.tensor([-1])), ArgumentError, "Got values from -1 to -1"),
        (lambda cache: cache.reorder(torch.tensor(1)), ShapeError, r"must be \(batch,\)"),
        (lambda cache: cache.reorder(torch.tensor([0.0])), ShapeError, "whole numbers. .* torch.float32"),
        (lambda _: LayerCache(block=0), ArgumentError, "at least 1. Got 0"),
        (lambda _: KVCache(n_layer=-1), ArgumentError, "n_layer must not be negative. Got -1"),
    ],
)
def test_caches_refuse_what_they_cannot_do(use, error, message):
    """The message gives the rule and the value."""
    cache = LayerCache()
    cache.append(torch.ones(2, 5, 3, 7), torch.ones(2, 5, 3, 11))
    with pytest.raises(error, match=message):
        use(cache)


def test_every_error_is_a_value_error_and_one_of_ours():
    """So that `except ValueError` and `except RegardError` both catch it."""
    for error in (ShapeError, ArgumentError):
        assert issubclass(error, ValueError)
        assert issubclass(error, RegardError)


def test_policies_that_do_not_exist_are_named_with_those_that_do():
    """So are places that positions cannot have."""
    with pytest.raises(ArgumentError, match=r"policy must be one of streaming, h2o, snapkv. Got 'lru'"):
        Evict("lru", budget=4)
    with pytest.raises(ArgumentError, match=r"positions must be one of text, cache or None. Got 'here'"):
        Evict("h2o", budget=4, positions="here")
