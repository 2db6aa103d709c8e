"""Linear attention against the table it never forms, against its own decoding, and at its edges."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.attention import (
    EluPlusOne,
    FeatureMap,
    LinearState,
    Quadratic,
    RandomFeatures,
    Relu,
    attend_linear,
    feature_map,
    linear_step,
    linear_weights,
)

BATCH, HEAD, KV_HEAD, QK_DIM, V_DIM = 2, 6, 3, 5, 7
QUERY, KEY = 13, 29
DOUBLE = {"atol": 1e-10, "rtol": 1e-10}  # a few hundred sums in float64 lose far less
FEATURE_MAPS = [EluPlusOne(), Relu(), Quadratic(0.7), RandomFeatures.draw(QK_DIM, 11, seed=3)]
every_feature_map = pytest.mark.parametrize("phi", FEATURE_MAPS, ids=["elu1", "relu", "quadratic", "favor"])


def similarity_by_hand(q: Tensor, k: Tensor, phi: FeatureMap) -> Tensor:
    """The phi's value for every pair, written out anew for each phi."""
    if isinstance(phi, EluPlusOne):
        return torch.einsum("bhid,bhjd->bhij", F.elu(q) + 1, F.elu(k) + 1)
    if isinstance(phi, Relu):
        return torch.einsum("bhid,bhjd->bhij", q.clamp(min=0), k.clamp(min=0))
    if isinstance(phi, Quadratic):
        return (torch.einsum("bhid,bhjd->bhij", q, k) + phi.c) ** 2
    assert isinstance(phi, RandomFeatures)
    w = phi.projection.to(q)
    root = math.sqrt(phi.scale)
    exponents = [x * root @ w.T - ((x * root) ** 2).sum(-1, keepdim=True) / 2 for x in (q, k)]
    return torch.einsum("bhif,bhjf->bhij", exponents[0].exp(), exponents[1].exp()) / len(w)


def dense(q, k, v, phi, *, causal=False, key_mask=None):
    """Output and weights by the whole table: form it, hide, normalise rows, average."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    seen = torch.ones(q.shape[0], 1, q.shape[2], k.shape[2], dtype=torch.bool)
    if causal:
        at = torch.arange(k.shape[2])
        seen = seen & (at[None, :] <= at[k.shape[2] - q.shape[2] :, None])
    if key_mask is not None:
        seen = seen & key_mask[:, None, None]
        k = torch.where(key_mask[:, None, :, None], k, 0.0)
        v = torch.where(key_mask[:, None, :, None], v, 0.0)
    table = torch.where(seen, similarity_by_hand(q, k, phi), 0.0)
    total = table.sum(-1, keepdim=True)
    weights = torch.where(total > 0, table / torch.where(total > 0, total, 1.0), 0.0)
    return weights @ v, weights


def draw(query=QUERY, key=KEY, kv_head=KV_HEAD, dtype=torch.float64, grad=False):
    q = torch.randn(BATCH, HEAD, query, QK_DIM, dtype=dtype)
    k = torch.randn(BATCH, kv_head, key, QK_DIM, dtype=dtype)
    v = torch.randn(BATCH, kv_head, key, V_DIM, dtype=dtype)
    return tuple(x.requires_grad_(grad) for x in (q, k, v))


def test_causal_average_worked_by_hand():
    """Features of (1, 0) and (0, 1) under elu + 1 are (2, 1) and (1, 2): weights 4/9 and 5/9 follow."""
    q = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
    v = torch.tensor([[[[0.0], [9.0]]]])
    # Row 1 sees key 0 with (1,2).(2,1) = 4 and key 1 with (1,2).(1,2) = 5.
    attended = attend_linear(q, q, v, EluPlusOne(), causal=True)
    torch.testing.assert_close(attended.out.flatten(), torch.tensor([0.0, 5.0]))
    torch.testing.assert_close(attended.normaliser.flatten(), torch.tensor([5.0, 9.0]))


@every_feature_map
@pytest.mark.parametrize("kv_head", [6, 3, 1], ids=["multi-head", "grouped", "multi-query"])
@pytest.mark.parametrize(("causal", "query"), [(False, QUERY), (True, KEY), (True, QUERY)])
def test_attention_equals_the_normalised_table(phi, kv_head, causal, query):
    """Taking the sum over keys first, or chunk by chunk, gives what the whole table gives; gradients too."""
    q, k, v = draw(query, kv_head=kv_head, grad=True)
    key_mask = torch.rand(BATCH, KEY) < 0.8
    ours = attend_linear(q, k, v, phi, causal=causal, key_mask=key_mask, chunk=4).out
    expected, _ = dense(q, k, v, phi, causal=causal, key_mask=key_mask)
    torch.testing.assert_close(ours, expected, **DOUBLE)
    direction = torch.randn_like(ours)
    for ours_grad, expected_grad in zip(
        torch.autograd.grad(ours, (q, k, v), direction),
        torch.autograd.grad(expected, (q, k, v), direction),
        strict=True,
    ):
        torch.testing.assert_close(ours_grad, expected_grad, atol=1e-8, rtol=1e-8)


@every_feature_map
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 29, 64])
def test_the_chunk_length_does_not_matter(phi, chunk):
    """Whether or not it divides the length, a chunk only decides where sums are split."""
    q, k, v = draw(KEY)
    expected = attend_linear(q, k, v, phi, causal=True, chunk=5, return_state=True)
    ours = attend_linear(q, k, v, phi, causal=True, chunk=chunk, return_state=True)
    torch.testing.assert_close(ours.out, expected.out, **DOUBLE)
    torch.testing.assert_close(ours.normaliser, expected.normaliser, **DOUBLE)
    torch.testing.assert_close(ours.state.S, expected.state.S, **DOUBLE)
    torch.testing.assert_close(ours.state.z, expected.state.z, **DOUBLE)


@every_feature_map
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_the_chunk_length_does_not_change_a_gradient(phi, chunk):
    """Causal or not, however many chunks are computed again."""
    q, k, v = draw(KEY, grad=True)
    gradient = torch.randn(BATCH, HEAD, KEY, V_DIM, dtype=torch.float64)
    for causal in (True, False):
        runs = []
        for size in (3, chunk):
            out = attend_linear(q, k, v, phi, causal=causal, chunk=size).out
            runs.append((out, *torch.autograd.grad(out, (q, k, v), gradient)))
        for one, other in zip(*runs, strict=True):
            torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


@every_feature_map
def test_decoding_token_by_token_equals_the_causal_form(phi):
    """At every position the recurrent step gives the chunked form's row, and ends in its state."""
    q, k, v = draw(KEY)
    whole = attend_linear(q, k, v, phi, causal=True, chunk=4, return_state=True)
    state = None
    for at in range(KEY):
        here = slice(at, at + 1)
        out, state = linear_step(q[:, :, here], k[:, :, here], v[:, :, here], state, phi)
        torch.testing.assert_close(out, whole.out[:, :, here], **DOUBLE)
    torch.testing.assert_close(state.S, whole.state.S, **DOUBLE)
    torch.testing.assert_close(state.z, whole.state.z, **DOUBLE)


@every_feature_map
@pytest.mark.parametrize("cut", [1, 11, 28])
def test_a_state_stands_for_the_keys_it_has_seen(phi, cut):
    """A prompt taken in two parts, the first as a state, gives the rows and gradients of one part."""
    q, k, v = draw(KEY, grad=True)
    whole = attend_linear(q, k, v, phi, causal=True).out
    first = attend_linear(
        q[:, :, :cut], k[:, :, :cut], v[:, :, :cut], phi, causal=True, chunk=4, return_state=True
    )
    second = attend_linear(
        q[:, :, cut:], k[:, :, cut:], v[:, :, cut:], phi, causal=True, chunk=3, state=first.state
    )
    ours = torch.cat([first.out, second.out], 2)
    torch.testing.assert_close(ours, whole, **DOUBLE)
    direction = torch.randn_like(whole)
    for one, other in zip(
        torch.autograd.grad(ours, (q, k, v), direction),
        torch.autograd.grad(whole, (q, k, v), direction),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


@every_feature_map
def test_without_causal_a_state_is_seen_by_every_query(phi):
    """Keys given as a state count as if they had been given as keys."""
    q, k, v = draw()
    earlier = attend_linear(q, k[:, :, :17], v[:, :, :17], phi, return_state=True).state
    ours = attend_linear(q, k[:, :, 17:], v[:, :, 17:], phi, state=earlier, return_state=True)
    whole = attend_linear(q, k, v, phi, return_state=True)
    torch.testing.assert_close(ours.out, whole.out, **DOUBLE)
    torch.testing.assert_close(ours.state.S, whole.state.S, **DOUBLE)


def test_a_step_leaves_the_state_it_was_given():
    """A search may return to an earlier state, so a step makes a new one."""
    q, k, v = draw(1, 1)
    _, state = linear_step(q, k, v, None, EluPlusOne())
    kept = state.S.clone(), state.z.clone()
    linear_step(q, k, v, state, EluPlusOne())
    assert torch.equal(state.S, kept[0])
    assert torch.equal(state.z, kept[1])


def test_selected_states_are_those_of_the_chosen_batch_entries():
    """A beam that goes on from entry 1 twice has entry 1's state twice."""
    q, k, v = draw()
    state = attend_linear(q, k, v, EluPlusOne(), return_state=True).state
    chosen = state.select(torch.tensor([1, 1, 0]))
    assert torch.equal(chosen.S, torch.stack([state.S[1], state.S[1], state.S[0]]))
    assert torch.equal(chosen.z, torch.stack([state.z[1], state.z[1], state.z[0]]))


@every_feature_map
def test_a_hidden_token_leaves_the_state_as_it_was(phi):
    """In a batch of prompts of different lengths, a padded step changes nothing, NaN or not."""
    q, k, v = draw(1, 1)
    _, state = linear_step(q, k, v, None, phi)
    key_mask = torch.tensor([[True], [False]])
    k[1], v[1] = math.nan, math.inf
    out, after = linear_step(q, k, v, state, phi, key_mask=key_mask)
    assert torch.equal(after.S[1], state.S[1])
    assert torch.equal(after.z[1], state.z[1])
    assert not torch.equal(after.z[0], state.z[0])
    assert out.isfinite().all()


def test_more_random_features_come_closer_to_softmax():
    """With 16 times the features the error falls to about a quarter, as the square root of their number."""
    generator = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(1, 2, 31, 17, dtype=torch.float64, generator=generator) for _ in range(3))
    # Long vectors make exp's tails so heavy that the square-root law would need far more features to show.
    q, k = q / 2, k / 2
    softmax = F.scaled_dot_product_attention(q, k, v)

    def error(n_feature: int) -> float:
        maps = [RandomFeatures.draw(17, n_feature, seed=seed) for seed in range(10)]
        errors = [(attend_linear(q, k, v, phi).out - softmax).square().mean() for phi in maps]
        return float(torch.stack(errors).mean().sqrt())

    coarse, fine = error(128), error(2048)
    assert 0.15 < fine / coarse < 0.4


def test_a_long_query_does_not_overflow_random_features():
    """Each query row is scaled by its own largest feature, so exp stays finite in float32."""
    q, k, v = draw(dtype=torch.float32)
    out = attend_linear(q * 1e4, k, v, FEATURE_MAPS[3]).out
    assert out.isfinite().all()
    assert (out.abs() <= v.abs().max() * 1.001).all()


@every_feature_map
@pytest.mark.parametrize("causal", [True, False])
def test_garbage_in_hidden_keys_never_leaks(phi, causal):
    """NaN and infinity in hidden keys and values change no output and no gradient."""
    q, k, v = draw(KEY)
    key_mask = torch.ones(BATCH, KEY, dtype=torch.bool)
    key_mask[0, 3:9] = key_mask[1, 20:] = False
    spoilt_k, spoilt_v = k.clone(), v.clone()
    spoilt_k[0, :, 3:9], spoilt_v[1, :, 20:] = math.nan, math.inf
    spoilt_v[0, :, 3:9], spoilt_k[1, :, 20:] = -math.inf, math.nan
    direction = torch.randn(BATCH, HEAD, KEY, V_DIM, dtype=torch.float64)
    results = []
    for keys, values in ((k, v), (spoilt_k, spoilt_v)):
        inputs = [x.clone().requires_grad_() for x in (q, keys, values)]
        out = attend_linear(*inputs, phi, causal=causal, key_mask=key_mask, chunk=4).out
        results.append((out, *torch.autograd.grad(out, inputs, direction)))
    for clean, spoilt in zip(*results, strict=True):
        assert torch.equal(clean, spoilt)
    assert (results[1][2][0, :, 3:9] == 0).all()
    assert (results[1][3][1, :, 20:] == 0).all()


@every_feature_map
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_garbage_in_a_padded_query_reaches_no_gradient(phi, causal, garbage):
    """Nobody uses its output; the gradients are those of a finite query whose output nobody uses."""
    q, k, v = draw(KEY)
    spoilt = q.clone()
    spoilt[0, :, 5:7] = garbage
    direction = torch.randn(BATCH, HEAD, KEY, V_DIM, dtype=torch.float64)
    direction[0, :, 5:7] = 0
    results = []
    for queries in (q, spoilt):
        inputs = [x.clone().requires_grad_() for x in (queries, k, v)]
        out = attend_linear(*inputs, phi, causal=causal, chunk=4).out
        results.append(torch.autograd.grad(out, inputs, direction))
    for clean, dirty in zip(*results, strict=True):
        torch.testing.assert_close(clean, dirty)


@every_feature_map
@pytest.mark.parametrize("chunk", [4, 64])
def test_a_future_value_that_is_not_finite_reaches_no_earlier_row(phi, chunk):
    """Inside a chunk a future value has weight 0, and 0 times NaN must not count."""
    q, k, v = draw(KEY, dtype=torch.float64)
    q, k = q.abs(), k.abs()  # under relu too, every row then sees every key before it
    clean = attend_linear(q, k, v, phi, causal=True, chunk=chunk).out
    v[1, 2, 18, 3], v[0, 1, 9, 0] = math.nan, math.inf
    k[0, 0, 21] = math.nan
    out = attend_linear(q, k, v, phi, causal=True, chunk=chunk).out
    assert torch.equal(out[1, :, :18], clean[1, :, :18])
    assert torch.equal(out[0, :, :9], clean[0, :, :9])
    assert torch.equal(out[0, 4:, :21], clean[0, 4:, :21])
    assert out[1, 4:, 18:, 3].isnan().all()
    assert not out[0, 2:4, 9:, 0].isfinite().any()
    assert out[0, :2, 21:].isnan().all()


@every_feature_map
@pytest.mark.parametrize("causal", [True, False])
def test_a_row_that_sees_nothing_is_0_with_finite_gradients(phi, causal):
    """All keys hidden for one batch entry: output 0, normaliser 0, gradients 0 there and finite elsewhere."""
    q, k, v = draw(KEY, grad=True)
    key_mask = torch.tensor([[False] * KEY, [True] * KEY])
    attended = attend_linear(q, k, v, phi, causal=causal, key_mask=key_mask, chunk=4)
    assert (attended.out[0] == 0).all()
    assert (attended.normaliser[0] == 0).all()
    for grad in torch.autograd.grad(attended.out.square().sum() + attended.out.sum(), (q, k, v)):
        assert (grad[0] == 0).all()
        assert grad.isfinite().all()
        assert (grad[1] != 0).any()


def test_a_query_that_meets_no_key_under_relu_is_0():
    """Features on different axes give a normaliser of 0: output 0, and finite gradients."""
    q = torch.tensor([[[[1.0, -1.0], [1.0, 1.0]]]], requires_grad=True)
    k = torch.tensor([[[[-1.0, 2.0], [-1.0, 1.0]]]], requires_grad=True)
    v = torch.tensor([[[[3.0], [6.0]]]], requires_grad=True)
    out = attend_linear(q, k, v, Relu(), causal=True).out
    torch.testing.assert_close(out.flatten(), torch.tensor([0.0, 4.0]))
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), (q, k, v)))


@pytest.mark.parametrize("causal", [True, False])
def test_rounding_under_the_quadratic_map_is_not_taken_for_weight(causal):
    """Queries at right angles to all keys weigh 0: features cancel to rounding, no divisor."""
    q = torch.randn(1, 1, 700, 8)
    q[..., 4:] = 0
    k = torch.randn(1, 1, 700, 8)
    k[..., :4] = 0
    turn, _ = torch.linalg.qr(torch.randn(8, 8))
    v = torch.randn(1, 1, 700, 3)
    out = attend_linear(q @ turn, k @ turn, v, Quadratic(0.0), causal=causal, chunk=16).out
    assert (out.abs() <= v.abs().max()).all()


@every_feature_map
def test_gradients_agree_with_finite_differences(phi):
    """gradcheck along random directions, with grouped heads, padding, a state in and a state out."""

    def away_from_0(*shape: int) -> Tensor:
        # A kink of relu, or a row of features all near 0, within reach of the finite step fails any gradient.
        x = torch.randn(*shape, dtype=torch.float64)
        return x + 0.1 * x.sign()

    q = away_from_0(1, 4, 5, QK_DIM).requires_grad_()
    k = away_from_0(1, 2, 7, QK_DIM).requires_grad_()
    v = torch.randn(1, 2, 7, 3, dtype=torch.float64, requires_grad=True)
    # Of the form a real state has: the sum of the features of some keys.
    features = phi.phi(torch.randn(1, 2, 17, QK_DIM, dtype=torch.float64))
    S = (features.mT @ torch.randn(1, 2, 17, 3, dtype=torch.float64)).requires_grad_()
    z = features.sum(2).requires_grad_()
    key_mask = torch.tensor([[True, True, False, True, True, False, True]])

    def run(q, k, v, S, z):
        results = []
        for causal in (True, False):
            attended = attend_linear(
                q,
                k,
                v,
                phi,
                causal=causal,
                key_mask=key_mask,
                state=LinearState(S, z),
                chunk=2,
                return_state=True,
            )
            results += [attended.out, attended.state.S, attended.state.z]
        return tuple(results)

    assert torch.autograd.gradcheck(run, (q, k, v, S, z), fast_mode=True)


@every_feature_map
def test_a_step_has_the_gradients_of_the_causal_form(phi):
    """Training through decoding steps is training through the chunked form."""
    q, k, v = draw(3, 3)
    # A query near its own key: were they nearly orthogonal, a square near 0 would be divided by itself.
    q = 0.3 * q + k.repeat_interleave(HEAD // KV_HEAD, 1)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    state, outs = None, []
    for at in range(3):
        here = slice(at, at + 1)
        out, state = linear_step(q[:, :, here], k[:, :, here], v[:, :, here], state, phi)
        outs.append(out)
    stepped, whole = torch.cat(outs, 2), attend_linear(q, k, v, phi, causal=True).out
    direction = torch.randn_like(whole)
    for one, other in zip(
        torch.autograd.grad(stepped, (q, k, v), direction),
        torch.autograd.grad(whole, (q, k, v), direction),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-8, rtol=1e-8)


@every_feature_map
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)])
def test_half_precision_sums_in_float32(phi, dtype, tolerance):
    """Outputs are those of the same numbers in float64, rounded once to the dtype (two units of its eps)."""
    q, k, v = draw(KEY, dtype=dtype)
    attended = attend_linear(q, k, v, phi, causal=True, chunk=4, return_state=True)
    expected, _ = dense(q.double(), k.double(), v.double(), phi, causal=True)
    assert attended.out.dtype == dtype
    assert attended.state.S.dtype == attended.normaliser.dtype == torch.float32
    torch.testing.assert_close(attended.out.double(), expected, atol=tolerance, rtol=tolerance)
    out, state = linear_step(q[:, :, -1:], k[:, :, -1:], v[:, :, -1:], None, phi)
    assert out.dtype == dtype
    assert state.S.dtype == torch.float32


def test_autocast_does_not_reach_the_sums():
    """Under bfloat16 autocast the result is the same as without."""
    q, k, v = draw(KEY, dtype=torch.float32, grad=True)
    expected = attend_linear(q, k, v, EluPlusOne(), causal=True).out
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = attend_linear(q, k, v, EluPlusOne(), causal=True).out
    ours_grad = torch.autograd.grad(ours.sum(), q)[0]
    assert torch.equal(ours, expected)
    assert torch.equal(ours_grad, torch.autograd.grad(expected.sum(), q)[0])


@every_feature_map
def test_heads_in_the_layout_of_a_projection_give_the_same(phi):
    """Inputs that are transposed views, as layers make them, need not be contiguous."""
    q, k, v = draw(KEY, grad=True)
    views = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    assert not views[0].is_contiguous()
    for causal in (True, False):
        expected = attend_linear(q, k, v, phi, causal=causal, chunk=4).out
        ours = attend_linear(*views, phi, causal=causal, chunk=4).out
        torch.testing.assert_close(ours, expected, **DOUBLE)
        for one, other in zip(
            torch.autograd.grad(ours.sum(), views),
            torch.autograd.grad(expected.sum(), (q, k, v)),
            strict=True,
        ):
            torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


@every_feature_map
@pytest.mark.parametrize(("causal", "query"), [(False, QUERY), (True, KEY), (True, QUERY)])
def test_a_tile_of_weights_is_that_block_of_the_table(phi, causal, query):
    """From q, k and the normaliser alone, any tile of the weights can be recovered."""
    q, k, v = draw(query)
    key_mask = torch.rand(BATCH, KEY) < 0.8
    k[~key_mask.T[None].expand(KV_HEAD, -1, -1).permute(2, 0, 1)] = math.nan
    normaliser = attend_linear(q, k, v, phi, causal=causal, key_mask=key_mask).normaliser
    _, expected = dense(q, k, v, phi, causal=causal, key_mask=key_mask)
    rows, cols = slice(3, 10), slice(5, 28)
    tile = linear_weights(q, k, normaliser, phi, rows, cols, causal=causal, key_mask=key_mask)
    torch.testing.assert_close(tile, expected[:, :, rows, cols], **DOUBLE)
    whole = linear_weights(q, k, normaliser, phi, causal=causal, key_mask=key_mask)
    torch.testing.assert_close(whole, expected, **DOUBLE)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("batch", "query", "key", "v_dim"), [(0, 3, 3, 2), (2, 0, 3, 2), (2, 0, 0, 2), (2, 3, 3, 0)]
)
def test_empty_sizes_give_empty_results(causal, batch, query, key, v_dim):
    """No batch entry, no query, no key or no value column: shapes hold, and gradients exist."""
    q = torch.randn(batch, 2, query, 5, requires_grad=True)
    k = torch.randn(batch, 1, key, 5, requires_grad=True)
    v = torch.randn(batch, 1, key, v_dim, requires_grad=True)
    attended = attend_linear(q, k, v, EluPlusOne(), causal=causal, return_state=True)
    assert attended.out.shape == (batch, 2, query, v_dim)
    assert attended.state.S.shape == (batch, 1, 5, v_dim)
    grads = torch.autograd.grad(attended.out.sum() + attended.state.z.sum(), (q, k), allow_unused=True)
    assert all(grad is None or grad.isfinite().all() for grad in grads)


def test_no_keys_at_all_give_0():
    """Queries before an empty memory see nothing."""
    q, k, v = draw(key=0)
    assert torch.equal(
        attend_linear(q, k, v, EluPlusOne()).out, torch.zeros(BATCH, HEAD, QUERY, V_DIM).double()
    )


def test_the_backward_pass_keeps_inputs_and_one_state_a_chunk():
    """No features, no similarities: what autograd holds between the passes is q, k, v and few states."""
    q, k, v = draw(512, 512, grad=True, dtype=torch.float32)
    held = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: held.append(x) or x, lambda x: x):
        attend_linear(q, k, v, EluPlusOne(), causal=True, chunk=64)
    chunks = 512 // 64
    state = BATCH * KV_HEAD * QK_DIM * (V_DIM + 1)
    assert sum(x.numel() for x in held) <= sum(x.numel() for x in (q, k, v)) + chunks * (state + 1)


@every_feature_map
@pytest.mark.parametrize("causal", [True, False])
def test_it_can_be_differentiated_twice(phi, causal):
    """By finite differences of the gradient."""
    q, k, v = (torch.randn(1, 2, 5, QK_DIM, dtype=torch.float64, requires_grad=True) for _ in range(3))

    def attended(*inputs):
        return attend_linear(*inputs, phi, causal=causal, chunk=2).out

    assert torch.autograd.gradgradcheck(attended, (q, k, v), atol=1e-4)


@given(data=st.data())
def test_any_shape_agrees_with_the_table(data):
    """Causal or not, whatever the sizes, the chunk and the padding."""
    size = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731  # read once, right here
    batch, kv_head, group, chunk = size(1, 3), size(1, 3), size(1, 3), size(1, 9)
    causal = data.draw(st.booleans())
    key = size(0, 20)
    query = size(0, key) if causal else size(0, 20)
    name = data.draw(st.sampled_from(["elu1", "relu", "quadratic", "favor"]))
    qk_dim, v_dim = size(1, 6), size(0, 5)
    phi = feature_map(name, qk_dim=qk_dim, n_feature=size(1, 9))
    source = torch.Generator().manual_seed(size(0, 1000))
    q = torch.randn(batch, kv_head * group, query, qk_dim, dtype=torch.float64, generator=source)
    k = torch.randn(batch, kv_head, key, qk_dim, dtype=torch.float64, generator=source)
    v = torch.randn(batch, kv_head, key, v_dim, dtype=torch.float64, generator=source)
    key_mask = torch.rand(batch, key, generator=source) < 0.7
    ours = attend_linear(q, k, v, phi, causal=causal, key_mask=key_mask, chunk=chunk).out
    expected, _ = dense(q, k, v, phi, causal=causal, key_mask=key_mask)
    torch.testing.assert_close(ours, expected, atol=1e-8, rtol=1e-8)
