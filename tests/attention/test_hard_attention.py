"""Hard attention (argmax instead of softmax), and softmax over the first keys only."""

import math

import torch
from attention_cases import DTYPES, OUT_ERROR, cases, exact
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend, attend_hard, masked_softmax
from regard.attention.visibility import Visibility


def hard(q, k, v, rule=None, **options):
    return attend_hard(q[None, None], k[None, None], v[None, None], rule, **options)[0, 0]


def test_hard_attention_picks_the_value_of_the_most_similar_key():
    """Scores 3, 11, 5 and 2, so the second value."""
    q = torch.tensor([[1.0, 1, 2]])
    k = torch.tensor([[1.0, 2, 0], [0, 3, 4], [5, 0, 0], [0, 0, 1]])
    v = torch.tensor([[2.0, 0, 1], [1, 4, 3], [0, -1, 4], [1, 0, -1]])
    assert hard(q, k, v).tolist() == [[1, 4, 3]]
    assert hard(q, k, v, straight_through=True).tolist() == [[1, 4, 3]]
    # Hidden keys do not compete: of 3, 5 and 2 the second.
    rule = ScoreRule(visible=Visibility(key_mask=torch.tensor([[True, False, True, True]])))
    assert hard(q, k, v, rule).tolist() == [[0, -1, 4]]
    assert hard(q, k, v, ScoreRule(visible=Visibility(lengths=torch.tensor([0])))).tolist() == [[0, 0, 0]]


def test_ties_go_to_the_first_key():
    """Equal scores everywhere: the first visible key wins."""
    v = torch.arange(1031.0)[:, None]
    tied = hard(torch.ones(3, 2), torch.ones(1031, 2), v)
    assert tied.tolist() == [[0.0]] * 3
    rule = ScoreRule(visible=Visibility(window=2, start=500))
    assert hard(torch.ones(3, 2), torch.ones(1031, 2), v, rule).tolist() == [[499.0], [500.0], [501.0]]


@given(cases(dtypes=[torch.float64]))
def test_hard_attention_is_the_value_at_the_largest_weight(case):
    """Against the loop's weights, grouped heads, sinks and rows that see nothing included."""
    rows, _, lse = exact(case.q, case.k, case.v, case.rule)
    top = rows.topk(min(2, rows.shape[-1]), -1).values
    clear = (top[..., 0] - top[..., -1] > 1e-9) | (rows.shape[-1] == 1)  # leave near ties to the test of ties
    group = case.q.shape[1] // case.v.shape[1]
    values = case.v.repeat_interleave(group, 1)
    expected = values.gather(2, rows.argmax(-1)[..., None].expand(-1, -1, -1, case.v.shape[3]))
    nothing = rows.sum(-1) == 0
    if case.rule.sink is not None:
        taken = torch.exp(case.rule.sink.double()[:, None] - lse)
        clear &= (taken - top[..., 0]).abs() > 1e-9
        nothing |= taken > top[..., 0]
    expected[nothing] = 0
    got = attend_hard(case.q, case.k, case.v, case.rule)
    sure = clear | (rows.sum(-1) == 0)
    assert torch.equal(got[sure], expected[sure])


@given(cases(dtypes=[torch.float64]))
def test_straight_through_gives_q_and_k_the_gradient_of_soft_attention(case):
    """v gets the hard gradient, which is all there is without straight_through."""
    leaves = [t.clone().requires_grad_() for t in (case.q, case.k, case.v)]
    weight = torch.randn(*case.q.shape[:3], case.v.shape[3], dtype=torch.float64)
    hard_out = attend_hard(*leaves, case.rule)
    through = attend_hard(*leaves, case.rule, straight_through=True)
    assert torch.equal(through, hard_out)
    soft = attend(*leaves, case.rule, path="plain").out
    soft_q, soft_k = torch.autograd.grad((soft * weight).sum(), leaves[:2])
    got_q, got_k, got_v = torch.autograd.grad((through * weight).sum(), leaves)
    torch.testing.assert_close((got_q, got_k), (soft_q, soft_k))
    none_q, none_k, hard_v = torch.autograd.grad((hard_out * weight).sum(), leaves, allow_unused=True)
    assert none_q is None
    assert none_k is None
    assert torch.equal(got_v, hard_v)


def test_hard_attention_keeps_hidden_garbage_out():
    """NaN in a hidden key and value, with and without straight_through."""
    q, k, v = (torch.randn(1, 2, n, 3) for n in (5, 7, 7))
    rule = ScoreRule(visible=Visibility(key_mask=torch.tensor([[True] * 6 + [False]])))
    expected = attend_hard(q, k, v, rule)
    k[:, :, 6], v[:, :, 6] = math.nan, math.inf
    leaves = [t.requires_grad_() for t in (q, k, v)]
    for straight_through in (False, True):
        out = attend_hard(*leaves, rule, straight_through=straight_through)
        assert torch.equal(out, expected)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(out.sum(), leaves))


@settings(max_examples=50)
@given(st.data(), st.sampled_from(DTYPES))
def test_masked_softmax_is_a_loop_over_the_first_keys(data, dtype):
    """1-D and 2-D lengths, 0 among them; hidden scores may be NaN and get gradient 0."""
    batch, n_query, n_key = (data.draw(st.integers(1, n)) for n in (3, 5, 7))
    two_dimensional = data.draw(st.booleans())
    lens = torch.randint(0, n_key + 1, (batch, n_query) if two_dimensional else (batch,))
    scores = torch.randn(batch, n_query, n_key).to(dtype)
    expected = torch.zeros(batch, n_query, n_key, dtype=torch.float64)
    for b in range(batch):
        for i in range(n_query):
            n = int(lens[b, i] if two_dimensional else lens[b])
            total = sum(math.exp(x) for x in scores[b, i, :n].tolist())
            for j in range(n):
                expected[b, i, j] = math.exp(scores[b, i, j].item()) / total
            scores[b, i, n:] = data.draw(st.sampled_from([math.nan, math.inf, 0.0]))
    scores.requires_grad_()
    rows = masked_softmax(scores, lens)
    assert rows.dtype == dtype
    torch.testing.assert_close(rows.double(), expected, rtol=0, atol=OUT_ERROR[dtype])
    rows[..., 0].sum().backward()
    assert torch.isfinite(scores.grad).all()


def test_masked_softmax_without_lengths_is_softmax():
    """Everything visible, and no keys at all."""
    scores = torch.randn(2, 3, 5)
    torch.testing.assert_close(masked_softmax(scores), scores.softmax(-1))
    assert masked_softmax(torch.zeros(2, 3, 0)).shape == (2, 3, 0)
    assert masked_softmax(torch.zeros(2, 3, 0), torch.zeros(2, dtype=torch.long)).shape == (2, 3, 0)
