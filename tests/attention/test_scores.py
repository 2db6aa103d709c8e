"""Scores: worked by hand, equal to the formula cell by cell, and any tile equal to its block."""

import math

import pytest
import torch
from attention_cases import LSE_ERROR, cases, exact_score, table_of
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.scores import DenseBias, DistanceBias, ScoreRule, SlopeBias, alibi_slopes
from regard.attention.visibility import Visibility

Q = torch.tensor([[[[1.0, 0.0, 2.0, 1.0], [0.0, 3.0, 0.0, 0.0]]]])
K = torch.tensor([[[[2.0, 1.0, 1.0, 0.0], [0.0, 2.0, 0.0, 4.0], [1.0, 1.0, 1.0, 1.0]]]])
# q . k by hand: [[4, 4, 4], [3, 6, 3]]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (ScoreRule(), [[2, 2, 2], [1.5, 3, 1.5]]),
        (ScoreRule(scale=1.0), [[4, 4, 4], [3, 6, 3]]),
        (ScoreRule(scale=0.0), [[0, 0, 0], [0, 0, 0]]),
        (
            ScoreRule(softcap=2.0),
            [[2 * math.tanh(1)] * 3, [2 * math.tanh(0.75), 2 * math.tanh(1.5), 2 * math.tanh(0.75)]],
        ),
        (ScoreRule(visible=Visibility(causal=True)), [[2, -math.inf, -math.inf], [1.5, 3, -math.inf]]),
        (ScoreRule(bias=SlopeBias(torch.tensor([0.5]))), [[2, 1.5, 1], [1, 3, 1]]),
        (
            ScoreRule(bias=SlopeBias(torch.tensor([0.5])), visible=Visibility(start=1)),
            [[1.5, 2, 1.5], [0.5, 2.5, 1.5]],
        ),
        (
            ScoreRule(bias=DistanceBias(torch.tensor([[10.0, 20, 30, 40]]), zero=1)),
            [[22, 32, 42], [11.5, 23, 31.5]],
        ),
        (ScoreRule(bias=DenseBias(torch.tensor([[[[1.0, 2.0, 3.0]]]]))), [[3, 4, 5], [2.5, 5, 4.5]]),
        (
            ScoreRule(softcap=1e-6, bias=DenseBias(torch.tensor([[[[1.0, 2, 3], [4, 5, 6]]]]))),
            [[1, 2, 3], [4, 5, 6]],
        ),
    ],
    ids="default scale zero softcap causal slope slope-cache distance shared-row cap-before-bias".split(),
)
def test_scores_are_those_worked_by_hand(rule, expected):
    """Two queries, three keys and a qk_dim of 4, whose root is 2."""
    torch.testing.assert_close(rule.scores(Q, K), torch.tensor([[expected]], dtype=torch.float32))


def test_additive_scores_are_those_worked_by_hand():
    """w . tanh(q + k), with one dimension at a time."""
    q, k = torch.tensor([[[[1.0, -2.0]]]]), torch.tensor([[[[0.0, 2.0], [-1.0, 0.0]]]])
    scores = ScoreRule(additive=torch.tensor([3.0, 5.0])).scores(q, k)
    expected = [3 * math.tanh(1), 5 * math.tanh(-2)]
    torch.testing.assert_close(scores, torch.tensor([[[expected]]]))


@given(cases(dtypes=[torch.float64]))
def test_every_score_is_the_formula_of_its_query_and_key(case):
    """All rules, biases, groupings and visibilities, one cell at a time."""
    scores, table = case.rule.scores(case.q, case.k), table_of(case.rule.visible, *case.sizes)
    group = case.q.shape[1] // case.k.shape[1]
    assert torch.equal(scores == -math.inf, ~table)
    for b, h, i, j in table.nonzero().tolist():
        expected = exact_score(case.q[b, h, i], case.k[b, h // group, j], case.rule, b, h, i, j)
        assert abs(scores[b, h, i, j].item() - expected) <= LSE_ERROR[torch.float64] * max(1, abs(expected))


@given(cases(dtypes=[torch.float32, torch.bfloat16]), st.data())
def test_a_tile_of_scores_is_that_block_of_all_scores(case, data):
    """Rows and columns, none among them, scored alone; a matrix product may add in another order."""
    (_, _, n_query, n_key) = case.sizes
    first, last = sorted(data.draw(st.tuples(st.integers(0, n_query), st.integers(0, n_query))))
    left, right = sorted(data.draw(st.tuples(st.integers(0, n_key), st.integers(0, n_key))))
    tile = case.rule.scores(case.q, case.k, slice(first, last), slice(left, right))
    block = case.rule.scores(case.q, case.k)[:, :, first:last, left:right]
    torch.testing.assert_close(tile, block, rtol=1e-5, atol=1e-5)


def test_slices_count_from_the_end_as_pythons_do():
    """Negative and open ends mean what they mean for a list."""
    whole = ScoreRule().scores(Q, K)
    torch.testing.assert_close(
        ScoreRule().scores(Q, K, slice(-1, None), slice(None, -1)), whole[:, :, 1:, :2]
    )


@pytest.mark.parametrize(
    ("n_head", "powers"),
    [
        (1, [8]),
        (2, [4, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_alibi_slopes_are_the_papers(n_head, powers):
    """2^-p for these p: a geometric sequence, filled up from that of the next power of two."""
    torch.testing.assert_close(alibi_slopes(n_head), torch.tensor([2**-p for p in powers]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_of_half_precision_are_computed_in_float32(dtype):
    """4099 needs 13 bits, half precision has 8 or 11: the score must not lose them."""
    q, k = torch.ones(1, 1, 1, 4099, dtype=dtype), torch.ones(1, 1, 1, 4099, dtype=dtype)
    scores = ScoreRule(scale=1.0).scores(q, k)
    assert scores.dtype == torch.float32
    assert scores.item() == 4099


def test_autocast_does_not_round_the_scores():
    """Under autocast a product would be bfloat16, and log-sum-exp with it."""
    q = k = torch.ones(1, 1, 1, 4099)
    with torch.autocast("cpu", torch.bfloat16):
        for rule in (ScoreRule(scale=1.0), ScoreRule(additive=torch.ones(4099))):
            scores = rule.scores(q, k)
            assert scores.dtype == torch.float32
            # A float32 sum of 4099 terms is off by some roundings (2e-6 here), one in bfloat16 by 4e-3.
            wanted = 4099 * (1.0 if rule.scale else math.tanh(2))
            torch.testing.assert_close(scores.item(), wanted, rtol=1e-5, atol=0)


@pytest.mark.parametrize("bias", ["distance", "slope", "dense"])
def test_a_learned_bias_gets_the_sum_of_its_cells_gradients(bias):
    """A number used in several cells receives the gradient of each of them."""
    values = torch.randn(3, 11, requires_grad=True)
    parts = {
        "distance": lambda: DistanceBias(values, zero=4),
        "slope": lambda: SlopeBias(values[:, 0]),
        "dense": lambda: DenseBias(values[None, :, None, :7]),
    }
    rule = ScoreRule(bias=parts[bias](), scale=0.0)
    assert rule.learned
    weight = torch.randn(2, 3, 5, 7)
    (rule.scores(torch.ones(2, 3, 5, 2), torch.ones(2, 3, 7, 2)) * weight).sum().backward()
    expected = torch.zeros(3, 11)
    for h in range(3):
        for i in range(5):
            for j in range(7):
                at = {"distance": 4 + j - i, "slope": 0, "dense": j}[bias]
                factor = -abs(j - i) if bias == "slope" else 1
                expected[h, at] += factor * weight[:, h, i, j].sum()
    torch.testing.assert_close(values.grad, expected)
