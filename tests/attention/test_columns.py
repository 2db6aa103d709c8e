"""Sums of columns: how much all queries look at each key, never query x key."""

import pytest
import torch
from attention_cases import DTYPES, LSE_ERROR, cases, exact
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.attention import shapes
from regard.attention.columns import column_sums
from regard.attention.scores import DenseBias, DistanceBias, ScoreRule, SlopeBias, alibi_slopes
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility

BATCH, N_HEAD, N_KV_HEAD, N, QK_DIM = 2, 6, 3, 23, 5


def test_the_sums_worked_by_hand():
    """Three queries that look at all they see alike: 1 + 1/2 + 1/3, 1/2 + 1/3 and 1/3."""
    q = k = torch.zeros(1, 1, 3, 2)
    rule = ScoreRule(visible=Visibility(causal=True))
    sums = column_sums(q, k, attend(q, k, k, rule).lse, rule)
    torch.testing.assert_close(sums[0, 0], torch.tensor([11 / 6, 5 / 6, 1 / 3]))


@settings(max_examples=200)
@given(cases(dtypes=DTYPES), st.data())
def test_every_rule_gives_the_sums_of_the_exact_weights(case, data):
    """Against a loop in float64 over single queries and keys, for all rows and for some."""
    weights, _, lse = exact(case.q, case.k, case.v, case.rule)
    n_query = case.q.shape[2]
    first = data.draw(st.integers(0, n_query))
    rows = data.draw(st.sampled_from([None, slice(first, data.draw(st.integers(first, n_query)))]))
    got = column_sums(case.q, case.k, attend(case.q, case.k, case.v, case.rule).lse, case.rule, rows)
    wanted = weights[:, :, rows or slice(None)].sum(2)
    assert got.dtype == torch.promote_types(case.q.dtype, torch.float32)
    largest = max(1.0, lse.clamp(min=0).max().item())
    allowed = 2 * LSE_ERROR[case.q.dtype] * largest * max(1.0, wanted.max().item() if wanted.numel() else 1.0)
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=allowed)


def rules():
    keys = torch.ones(BATCH, N, dtype=torch.bool)
    keys[1, :4] = False
    segment = torch.arange(N).div(7, rounding_mode="floor").expand(BATCH, -1).contiguous()
    causal = Visibility(causal=True)
    return {
        "plain": ScoreRule(),
        "causal": ScoreRule(visible=causal),
        "window": ScoreRule(visible=Visibility(causal=True, window=5)),
        "window both ways": ScoreRule(visible=Visibility(window=5)),
        "padding": ScoreRule(visible=Visibility(causal=True, key_mask=keys)),
        "segments": ScoreRule(visible=Visibility(causal=True, query_segment=segment, key_segment=segment)),
        "slopes": ScoreRule(visible=causal, bias=SlopeBias(alibi_slopes(N_HEAD))),
        "distance": ScoreRule(visible=causal, bias=DistanceBias(torch.randn(N_HEAD, 2 * N - 1), N - 1)),
        "softcap": ScoreRule(softcap=2.0),
        "additive": ScoreRule(additive=torch.ones(QK_DIM)),
        "table": ScoreRule(visible=causal, bias=DenseBias(torch.randn(1, N_HEAD, N, N))),
    }


@pytest.mark.parametrize("kind", list(rules()))
@pytest.mark.parametrize("block", [1, shapes.BLOCK])
def test_strips_of_any_height_give_the_sums_of_the_whole_table(kind, block, monkeypatch):
    """One row at a time, and all at once."""
    monkeypatch.setattr(shapes, "BLOCK", block)
    rule = rules()[kind]
    q, k = torch.randn(BATCH, N_HEAD, N, QK_DIM), torch.randn(BATCH, N_KV_HEAD, N, QK_DIM)
    got = column_sums(q, k, attend(q, k, k, rule).lse, rule)
    wanted = torch.softmax(rule.scores(q.double(), k.double()), -1).nan_to_num(0.0).sum(2)
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=1e-5)


def test_hidden_garbage_does_not_reach_a_sum():
    """NaN in a key that nobody sees leaves its own sum 0 and the others as they are."""
    keys = torch.ones(1, N, dtype=torch.bool)
    keys[0, 3] = False
    rule = ScoreRule(visible=Visibility(causal=True, key_mask=keys))
    q, k = torch.randn(1, 2, N, QK_DIM), torch.randn(1, 2, N, QK_DIM)
    clean = column_sums(q, k, attend(q, k, k, rule).lse, rule)
    k[:, :, 3] = torch.nan
    torch.testing.assert_close(column_sums(q, k, attend(q, k, k, rule).lse, rule), clean)
    assert clean[0, 0, 3] == 0
