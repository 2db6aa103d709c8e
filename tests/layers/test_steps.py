"""One token with the past kept equals the whole prefix computed again."""

import pytest
import torch
from torch import Tensor

from regard.layers.steps import mha_step, mqa_step

BATCH, N_HEAD, MODEL_DIM, QK_DIM, V_DIM, LENGTH = 2, 3, 13, 5, 7, 11
EXACT = {"atol": 1e-12, "rtol": 1e-10}  # float64: a few hundred roundings of 1e-16


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def causal_by_hand(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor) -> Tensor:
    """Multi-head attention of every position over its prefix, from nothing, without a scale."""
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for i in range(x.shape[1]):
            prefix = x[b, : i + 1]
            for h in range(w_q.shape[0]):
                q = x[b, i] @ w_q[h]
                weights = torch.softmax((prefix @ w_k[h]) @ q, dim=0)
                out[b, i] += (weights @ (prefix @ w_v[h])) @ w_o[h]
    return out


def test_each_multi_head_step_equals_the_whole_prefix_computed_again():
    """At every position: the output, and keys and values with the new one at the end."""
    x = random(BATCH, LENGTH, MODEL_DIM)
    w_q, w_k = random(N_HEAD, MODEL_DIM, QK_DIM), random(N_HEAD, MODEL_DIM, QK_DIM)
    w_v, w_o = random(N_HEAD, MODEL_DIM, V_DIM), random(N_HEAD, V_DIM, MODEL_DIM)
    wanted = causal_by_hand(x, w_q, w_k, w_v, w_o)
    k, v = x.new_zeros(BATCH, N_HEAD, 0, QK_DIM), x.new_zeros(BATCH, N_HEAD, 0, V_DIM)
    for i in range(LENGTH):
        y, k, v = mha_step(x[:, i], k, v, w_q, w_k, w_v, w_o)
        torch.testing.assert_close(y, wanted[:, i], **EXACT)
        assert k.shape == (BATCH, N_HEAD, i + 1, QK_DIM)
    torch.testing.assert_close(k, torch.stack([x @ w for w in w_k], dim=1), **EXACT)
    torch.testing.assert_close(v, torch.stack([x @ w for w in w_v], dim=1), **EXACT)


def test_each_multi_query_step_equals_the_whole_prefix_computed_again():
    """As above, with one key and one value head that all queries share, and a cache N_HEAD times smaller."""
    x = random(BATCH, LENGTH, MODEL_DIM)
    w_q, w_o = random(N_HEAD, MODEL_DIM, QK_DIM), random(N_HEAD, V_DIM, MODEL_DIM)
    w_k, w_v = random(MODEL_DIM, QK_DIM), random(MODEL_DIM, V_DIM)
    wanted = causal_by_hand(x, w_q, w_k.expand(N_HEAD, -1, -1), w_v.expand(N_HEAD, -1, -1), w_o)
    k, v = x.new_zeros(BATCH, 0, QK_DIM), x.new_zeros(BATCH, 0, V_DIM)
    for i in range(LENGTH):
        y, k, v = mqa_step(x[:, i], k, v, w_q, w_k, w_v, w_o)
        torch.testing.assert_close(y, wanted[:, i], **EXACT)
    torch.testing.assert_close(k, x @ w_k, **EXACT)
    torch.testing.assert_close(v, x @ w_v, **EXACT)


def test_a_multi_query_step_equals_a_multi_head_step_with_its_weights_repeated():
    """And its keys and values are those of every head."""
    x = random(BATCH, LENGTH, MODEL_DIM)
    w_q, w_o = random(N_HEAD, MODEL_DIM, QK_DIM), random(N_HEAD, V_DIM, MODEL_DIM)
    w_k, w_v = random(MODEL_DIM, QK_DIM), random(MODEL_DIM, V_DIM)
    k, v = x.new_zeros(BATCH, 0, QK_DIM), x.new_zeros(BATCH, 0, V_DIM)
    all_k, all_v = x.new_zeros(BATCH, N_HEAD, 0, QK_DIM), x.new_zeros(BATCH, N_HEAD, 0, V_DIM)
    for i in range(LENGTH):
        y, k, v = mqa_step(x[:, i], k, v, w_q, w_k, w_v, w_o)
        wanted, all_k, all_v = mha_step(
            x[:, i], all_k, all_v, w_q, w_k.repeat(N_HEAD, 1, 1), w_v.repeat(N_HEAD, 1, 1), w_o
        )
        torch.testing.assert_close(y, wanted, **EXACT)
        torch.testing.assert_close(k[:, None].expand(-1, N_HEAD, -1, -1), all_k, **EXACT)
        torch.testing.assert_close(v[:, None].expand(-1, N_HEAD, -1, -1), all_v, **EXACT)


@pytest.mark.parametrize("n_head", [1, 3])
def test_a_step_has_no_scale(n_head):
    """Worked by hand: scores 0 and log 3 give weights 1/4 and 3/4, whatever the size of a head."""
    one = torch.ones(n_head, 1, 4, dtype=torch.float64)
    w_q, w_k, w_v = one / 4, one * torch.tensor(3.0, dtype=torch.float64).log(), one[..., :1]
    past_k = torch.zeros(1, n_head, 1, 4, dtype=torch.float64)
    past_v = torch.zeros(1, n_head, 1, 1, dtype=torch.float64)
    y, _, _ = mha_step(torch.ones(1, 1, dtype=torch.float64), past_k, past_v, w_q, w_k, w_v, one[..., :1])
    torch.testing.assert_close(y, torch.full((1, 1), 0.75 * n_head, dtype=torch.float64), **EXACT)


def test_steps_leave_the_past_as_it_was():
    """What was given is not written to: the past may be shared by several continuations."""
    past_k, past_v = random(BATCH, 5, QK_DIM), random(BATCH, 5, V_DIM)
    copies = past_k.clone(), past_v.clone()
    w_q, w_o = random(N_HEAD, MODEL_DIM, QK_DIM), random(N_HEAD, V_DIM, MODEL_DIM)
    mqa_step(
        random(BATCH, MODEL_DIM),
        past_k,
        past_v,
        w_q,
        random(MODEL_DIM, QK_DIM),
        random(MODEL_DIM, V_DIM),
        w_o,
    )
    assert torch.equal(past_k, copies[0])
    assert torch.equal(past_v, copies[1])
