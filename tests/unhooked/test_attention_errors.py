"""What a user reads who asks attention for something that cannot be."""

import pytest
import torch

from regard.attention.scores import DenseBias, DistanceBias, ScoreRule, SlopeBias, alibi_slopes
from regard.attention.softmax import attend, attend_hard, masked_softmax, weights
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, RegardError, ShapeError, UnsupportedError


def t(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


Q, K, V = t(2, 6, 5, 3), t(2, 3, 7, 3), t(2, 3, 7, 3)
BOOL = torch.bool


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        (t(6, 5, 3), K, V, r"q has 3 dimensions: it must be \(batch, head, query, qk_dim\)"),
        (Q, t(1, 3, 7, 3), t(1, 3, 7, 3), r"q has batch 2 and k has batch 1: they must be equal"),
        (Q, t(2, 4, 7, 3), t(2, 4, 7, 3), r"q has 6 heads and k has 4: query heads must be a multiple"),
        (t(2, 0, 5, 3), t(2, 0, 7, 3), t(2, 0, 7, 3), r"neither may be 0"),
        (Q, t(2, 3, 7, 4), V, r"q has qk_dim 3 and k has 4"),
        (t(2, 6, 5, 0), t(2, 3, 7, 0), V, r"qk_dim is 0"),
        (Q, K, t(2, 3, 8, 3), r"k and v differ: .* key 7, qk_dim 3\), v \(batch 2, kv_head 3, key 8"),
        (Q, K.double(), V, r"k has dtype torch.float64 and q has torch.float32"),
        (Q.long(), K.long(), V.long(), r"q has dtype torch.int64: .*floating"),
        (Q, K.to("meta"), V, r"k is on meta and q on cpu"),
    ],
    ids="rank batch heads no-heads qk_dim qk_dim-0 values dtype integers device".split(),
)
@pytest.mark.parametrize("door", [attend, attend_hard])
def test_tensors_that_do_not_fit_are_named_with_their_shapes(door, q, k, v, message):
    """The message says what is wrong, the rule, and what was given."""
    with pytest.raises(ShapeError, match=message):
        door(q, k, v)


@pytest.mark.parametrize(
    ("visible", "error", "message"),
    [
        (lambda: Visibility(start=-1), ArgumentError, r"start .* from 0 on. Got -1"),
        (lambda: Visibility(window=0), ArgumentError, r"window .* at least 1. Got 0"),
        (lambda: Visibility(query_segment=t(2, 5).long()), ArgumentError, r"give both or neither"),
        (lambda: Visibility(lengths=t(2, 5, 1).long()), ShapeError, r"lengths must be \(batch,\) or"),
        (
            lambda: Visibility(lengths=t(2)),
            ShapeError,
            r"lengths must be whole numbers. Got dtype torch.float32",
        ),
        (lambda: Visibility(key_mask=t(2, 7)), ShapeError, r"key_mask must be boolean, True = may look"),
        (
            lambda: Visibility(dense=t(5, 7, dtype=BOOL)),
            ShapeError,
            r"dense must be \(batch, head, query, key\)",
        ),
        (lambda: Visibility(lengths=t(3).long()), ShapeError, r"lengths has batch 3, attention has 2"),
        (
            lambda: Visibility(lengths=torch.tensor([8, 1])),
            ArgumentError,
            r"between 0 and .* 7. Got values from 1 to 8",
        ),
        (lambda: Visibility(lengths=torch.tensor([-1, 1])), ArgumentError, r"Got values from -1 to 1"),
        (
            lambda: Visibility(key_mask=t(2, 8, dtype=BOOL)),
            ShapeError,
            r"key_mask has key 8, attention has 7",
        ),
        (
            lambda: Visibility(dense=t(1, 3, 5, 7, dtype=BOOL)),
            ShapeError,
            r"dense has head 3, attention has 6",
        ),
        (
            lambda: Visibility(query_segment=t(2, 4).long(), key_segment=t(2, 7).long()),
            ShapeError,
            r"query_segment has query 4, attention has 5",
        ),
        (
            lambda: Visibility(key_mask=t(2, 7, dtype=BOOL).to("meta")),
            ShapeError,
            r"visibility is on meta and q on cpu",
        ),
        (
            lambda: Visibility(causal=True) & Visibility(window=2, start=3),
            ArgumentError,
            r"start=0 and start=3",
        ),
    ],
)
def test_a_visibility_that_cannot_be_is_refused(visible, error, message):
    """When it is made, or when it meets queries and keys of other sizes."""
    with pytest.raises(error, match=message):
        attend(Q, K, V, ScoreRule(visible=visible()))


@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        (lambda: ScoreRule(scale=float("nan")), ArgumentError, r"scale must be a finite number"),
        (lambda: ScoreRule(softcap=0.0), ArgumentError, r"softcap must be above 0. Got 0.0"),
        (lambda: ScoreRule(softcap=float("nan")), ArgumentError, r"softcap must be above 0. Got nan"),
        (lambda: ScoreRule(additive=t(3), scale=1.0), ArgumentError, r"`additive` or `scale`, not both"),
        (lambda: ScoreRule(additive=t(4)), ShapeError, r"must be \(qk_dim,\) = \(3,\). Got \(4,\)"),
        (lambda: ScoreRule(bias=SlopeBias(t(4))), ShapeError, r"for 1 head or for each of 6. Got 4"),
        (
            lambda: ScoreRule(bias=DistanceBias(t(1, 7), zero=4)),
            ShapeError,
            r"covers distances -4 to 2, .* -4 to 6",
        ),
        (
            lambda: ScoreRule(bias=DenseBias(t(1, 1, 4, 7))),
            ShapeError,
            r"query or 1, key\). Got \(1, 1, 4, 7\)",
        ),
        (
            lambda: ScoreRule(bias=DenseBias(t(5, 7))),
            ShapeError,
            r"Got \(5, 7\), attention has \(2, 6, 5, 7\)",
        ),
    ],
)
def test_a_rule_that_cannot_be_is_refused(rule, error, message):
    """When it is made, or when it meets queries and keys of other sizes, at both doors."""
    with pytest.raises(error, match=message):
        attend(Q, K, V, rule())
    with pytest.raises(error, match=message):
        weights(Q, K, rule())


@pytest.mark.parametrize(
    ("rule", "options", "v", "message"),
    [
        (ScoreRule(additive=t(3)), {}, V, "additive scores are not a dot product"),
        (ScoreRule(softcap=1.0), {}, V, "the kernel has no softcap"),
        (ScoreRule(), {"dropout": 0.1}, V, "the kernel's dropout could not be reproduced"),
        (ScoreRule(), {}, t(2, 3, 7, 4), "the kernel needs v_dim = qk_dim, got 4 and 3"),
        (ScoreRule(bias=SlopeBias(t(6).requires_grad_())), {}, V, "no gradient to a learned bias"),
    ],
)
def test_fused_says_why_it_cannot(rule, options, v, message):
    """The reason, and what to ask for instead."""
    with pytest.raises(
        UnsupportedError, match=f"fused path cannot do this: .*{message}.* Use path='tiled' or None"
    ):
        attend(Q, K, v, rule, path="fused", **options)


@pytest.mark.parametrize("n_key", [7, 0])
def test_a_path_of_another_name_is_refused(n_key):
    """Even where there is nothing to compute."""
    with pytest.raises(ArgumentError, match=r"path must be 'plain', 'tiled', 'fused' or None. Got 'flash'"):
        attend(Q, K[:, :, :n_key], V[:, :, :n_key], path="flash")


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_dropout_lies_between_0_and_1(dropout):
    """1 would leave nothing, and divide by it."""
    with pytest.raises(ArgumentError, match="dropout must be at least 0 and below 1"):
        attend(Q, K, V, dropout=dropout)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: masked_softmax(t(2, 3)), r"scores has 2 dimensions: it must be \(batch, query, key\)"),
        (lambda: masked_softmax(t(2, 3, 5).long()), r"scores has dtype torch.int64"),
        (lambda: masked_softmax(t(2, 3, 5), torch.tensor([6, 1])), r"between 0 and the number of keys, 5"),
        (
            lambda: masked_softmax(t(2, 3, 5), torch.tensor([1, 1, 1])),
            r"lengths has batch 3, attention has 2",
        ),
        (lambda: ScoreRule().scores(Q, K, slice(0, 5, 2)), r"rows must be a slice without a step"),
        (lambda: alibi_slopes(0), r"n_head must be at least 1. Got 0"),
        (lambda: Visibility.from_additive(t(5, 7).long()), r"boolean, or floating where it is added"),
        (lambda: Visibility.from_additive(t(5, 7, dtype=BOOL)), r"boolean, or floating where it is added"),
        (lambda: Visibility.from_torch_masks(t(5, 7).long()), r"boolean, or floating where it is added"),
        (lambda: Visibility.from_torch_masks(key_padding_mask=t(2, 7).long()), r"Got dtype torch.int64"),
        (
            lambda: Visibility.from_torch_masks(t(5, 2, 7, dtype=BOOL), n_head=2),
            r"attn_mask's batch \* head 5 does not split into n_head 2",
        ),
        (lambda: Visibility.from_torch_masks(n_head=0), r"n_head must be at least 1"),
        (lambda: Visibility.from_dense(t(7, dtype=BOOL)), r"a table must be \(query, key\)"),
        (lambda: Visibility.from_dense(t(1, 1, 1, 5, 7, dtype=BOOL)), r"Got shape \(1, 1, 1, 5, 7\)"),
    ],
)
def test_the_helpers_refuse_in_the_same_style(call, message):
    """Every error is a RegardError and a ValueError with the values in it."""
    with pytest.raises(RegardError, match=message) as caught:
        call()
    assert isinstance(caught.value, ValueError)
