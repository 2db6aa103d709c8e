"""What linear attention says when its inputs do not fit."""

import math

import pytest
import torch

from regard.attention import (
    EluPlusOne,
    LinearState,
    Quadratic,
    RandomFeatures,
    attend_linear,
    feature_map,
    linear_step,
    linear_weights,
)
from regard.errors import ArgumentError, ShapeError

Q, K, V = torch.randn(2, 6, 3, 5), torch.randn(2, 3, 7, 5), torch.randn(2, 3, 7, 11)
ELU1 = EluPlusOne()


def test_an_unknown_feature_map_lists_those_there_are():
    """A typing error in a name is answered with the names."""
    with pytest.raises(
        ArgumentError, match=r"no feature map is called 'elu': there are elu1, relu, quadratic, favor"
    ):
        feature_map("elu")


def test_favor_asks_for_the_size_of_its_directions():
    """Random directions cannot be drawn without knowing how many numbers a query has."""
    with pytest.raises(ArgumentError, match=r"favor needs qk_dim"):
        feature_map("favor")


@pytest.mark.parametrize("c", [-1.0, math.nan, math.inf])
def test_a_quadratic_map_needs_a_real_root(c):
    """(q . k + c)^2 has features only for c of 0 or more."""
    with pytest.raises(ArgumentError, match=r"c is .*: it must be finite and at least 0"):
        Quadratic(c)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"qk_dim": 0}, r"qk_dim is 0: random features need at least 1"),
        ({"qk_dim": 3, "n_feature": 0}, r"n_feature is 0: random features need at least 1"),
        ({"qk_dim": 3, "scale": -1.0}, r"scale is -1.0: it must be finite and above 0"),
    ],
)
def test_random_features_that_cannot_be_drawn_say_why(options, message):
    """Each bad count or scale is named, with its value."""
    with pytest.raises(ArgumentError, match=message):
        RandomFeatures.draw(**options)


def test_random_features_of_another_width_are_refused():
    """Directions of 4 numbers meet queries of 5."""
    with pytest.raises(ShapeError, match=r"drawn for qk_dim 4 and q has 5"):
        attend_linear(Q, K, V, RandomFeatures.draw(4, 7))


def test_a_name_is_not_a_kernel():
    """The error says how to make one from a name."""
    with pytest.raises(
        ArgumentError, match=r"feature_map is 'elu1': it must be a FeatureMap.*feature_map\('elu1'\)"
    ):
        attend_linear(Q, K, V, "elu1")


def test_heads_that_do_not_divide_are_refused():
    """Query heads must be a multiple of key heads, as everywhere."""
    with pytest.raises(ShapeError, match=r"q has 6 heads and k has 4"):
        attend_linear(Q, torch.randn(2, 4, 7, 5), torch.randn(2, 4, 7, 11), ELU1)


def test_causal_queries_before_the_first_key_are_refused():
    """With causal, queries stand at the keys' last positions, so there are not more of them."""
    with pytest.raises(ShapeError, match=r"there are 8 queries and 7 keys: with causal"):
        attend_linear(torch.randn(2, 6, 8, 5), K, V, ELU1, causal=True)


@pytest.mark.parametrize("chunk", [0, -3])
def test_a_chunk_has_at_least_one_position(chunk):
    """The error names the value and the rule."""
    with pytest.raises(ArgumentError, match=rf"chunk is {chunk}: it must be at least 1"):
        attend_linear(Q, K, V, ELU1, chunk=chunk)


@pytest.mark.parametrize("key_mask", [torch.ones(2, 6, dtype=torch.bool), torch.ones(2, 7)])
def test_a_key_mask_of_another_shape_or_dtype_is_refused(key_mask):
    """One bool for each key, and nothing else."""
    with pytest.raises(ShapeError, match=r"key_mask must be a bool tensor on cpu, one entry for each key"):
        attend_linear(Q, K, V, ELU1, key_mask=key_mask)


def test_a_state_of_another_kernel_is_refused():
    """A state made with other features cannot be added to."""
    state = attend_linear(Q, K, V, ELU1, return_state=True).state
    with pytest.raises(
        ShapeError,
        match=r"state is of another layer or feature map: S must be \(batch 2, kv_head 3, feature 21",
    ):
        attend_linear(Q, K, V, Quadratic(), state=state)


def test_a_state_in_half_precision_is_refused():
    """Sums over a sequence stay in float32."""
    state = attend_linear(Q, K, V, ELU1, return_state=True).state
    with pytest.raises(ShapeError, match=r"of torch.float32 on cpu, .* Got S .* of torch.float16 on cpu"):
        attend_linear(Q, K, V, ELU1, state=LinearState(state.S.half(), state.z.half()))


def test_a_step_takes_one_token():
    """Many tokens at once are for attend_linear, and the error says so."""
    with pytest.raises(
        ShapeError, match=r"a step takes one token: there are 3 queries and 7 keys.*attend_linear"
    ):
        linear_step(Q, K, V, None, ELU1)


def test_weights_need_a_normaliser_for_each_row():
    """A normaliser of other queries is refused."""
    with pytest.raises(ShapeError, match=r"the normaliser has shape \(2, 6, 7\)"):
        linear_weights(Q, K, torch.ones(2, 6, 7), ELU1)
