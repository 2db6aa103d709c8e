"""The one door: three paths, one answer, whatever the rule, the shape, the dtype or the garbage behind it."""

import math
from dataclasses import replace

import pytest
import torch
from attention_cases import DTYPES, GRAD_ERROR, LSE_ERROR, OUT_ERROR, Case, cases, exact, table_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from regard.attention.scores import DenseBias, DistanceBias, ScoreRule, SlopeBias
from regard.attention.softmax import _why_not_fused, attend, attend_hard, weights
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, UnsupportedError

PATHS = ["plain", "tiled", "fused"]


def possible_paths(case, dropout=0.0):
    """The paths that can do it; fused must say so itself."""
    rule = replace(case.rule, visible=case.rule.visible.simplified(*case.sizes[2:]))
    refused = _why_not_fused(case.q, case.k, case.v, rule, dropout)
    return PATHS if refused is None else PATHS[:2]


def assert_near(got, expected, error, size):
    """Equal to within `error * size`, -inf and NaN in the same places."""
    torch.testing.assert_close(got.double(), expected.double(), rtol=0, atol=error * size, equal_nan=True)


def gradients(case, path, out_weight, lse_weight):
    """Results and the gradients of q, k and v of a weighted sum of out and finite lse."""
    leaves = [t.detach().clone().requires_grad_() for t in (case.q, case.k, case.v)]
    out, lse = attend(*leaves, case.rule, path=path)
    finite = torch.where(torch.isfinite(lse), lse, 0.0)
    loss = torch.where(torch.isfinite(out), out, 0.0).double().mul(out_weight).sum()
    loss = loss + finite.double().mul(lse_weight).sum()
    return out.detach(), lse.detach(), *torch.autograd.grad(loss, leaves)


def test_a_row_is_the_average_worked_by_hand():
    """Scores ln 1, ln 2 and ln 5 give weights 1/8, 2/8 and 5/8, and lse ln 8."""
    q = torch.tensor([[[[1.0, 0.0]]]])
    k = torch.tensor([[[[0.0, 9.0], [math.log(2), 9.0], [math.log(5), 9.0]]]])
    v = torch.tensor([[[[8.0, 0.0], [0.0, 8.0], [16.0, 24.0]]]])
    rule = ScoreRule(scale=1.0)
    for path in PATHS:
        out, lse = attend(q, k, v, rule, path=path)
        torch.testing.assert_close(out, torch.tensor([[[[11.0, 17.0]]]]))
        torch.testing.assert_close(lse, torch.tensor([[[math.log(8)]]]))
    torch.testing.assert_close(weights(q, k, rule), torch.tensor([[[[0.125, 0.25, 0.625]]]]))


def test_a_sink_takes_part_and_gives_nothing():
    """Beside scores ln 1, ln 2 and ln 5 a sink of ln 8 leaves half: weights 1/16, 2/16, 5/16, lse ln 16."""
    q = torch.tensor([[[[1.0, 0.0]]]])
    k = torch.tensor([[[[0.0, 9.0], [math.log(2), 9.0], [math.log(5), 9.0]]]])
    v = torch.tensor([[[[8.0, 0.0], [0.0, 8.0], [16.0, 24.0]]]])
    rule = ScoreRule(scale=1.0, sink=torch.tensor([math.log(8)]))
    for path in PATHS:
        out, lse = attend(q, k, v, rule, path=path)
        torch.testing.assert_close(out, torch.tensor([[[[5.5, 8.5]]]]))
        torch.testing.assert_close(lse, torch.tensor([[[math.log(16)]]]))
    torch.testing.assert_close(weights(q, k, rule), torch.tensor([[[[1 / 16, 2 / 16, 5 / 16]]]]))
    assert torch.equal(attend_hard(q, k, v, rule), torch.zeros(1, 1, 1, 2))
    lower = ScoreRule(scale=1.0, sink=torch.tensor([1.0]))
    assert torch.equal(attend_hard(q, k, v, lower), v[:, :, 2:])


@pytest.mark.parametrize("path", PATHS)
def test_a_sink_learns_on_every_path(path):
    """gradcheck of all inputs and the sink, causal and with a row that sees nothing."""
    source = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, n, 5, 3, generator=source, dtype=torch.float64) for n in (4, 2, 2))
    sink = torch.randn(4, generator=source, dtype=torch.float64)
    visible = Visibility(causal=True, key_mask=torch.tensor([[False, True, True, True, False]]))

    def attended(q, k, v, sink):
        out, lse = attend(q, k, v, ScoreRule(visible=visible, sink=sink), path=path)
        return out, torch.where(torch.isfinite(lse), lse, 0.0)

    leaves = [tensor.requires_grad_() for tensor in (q, k, v, sink)]
    assert gradcheck(attended, leaves)
    out, lse = attend(q, k, v, ScoreRule(visible=visible, sink=sink), path=path)
    assert (out[:, :, 0] == 0).all()
    assert (lse[:, :, 0] == -math.inf).all()


@settings(max_examples=150)
@given(cases(dtypes=DTYPES))
def test_every_path_gives_the_exact_answer(case):
    """Out, lse and weights against a loop in float64 over single queries and keys."""
    rows, out, lse = exact(case.q, case.k, case.v, case.rule)
    dtype, largest = case.q.dtype, max(1.0, case.v.abs().max().item())
    for path in [None, *possible_paths(case)]:
        got = attend(case.q, case.k, case.v, case.rule, path=path)
        assert got.out.dtype == dtype
        assert got.lse.dtype == torch.promote_types(dtype, torch.float32)
        assert_near(got.out, out, OUT_ERROR[dtype], largest)
        assert_near(got.lse, lse, LSE_ERROR[dtype], max(1.0, lse.clamp(min=0).max().item()))
    assert_near(weights(case.q, case.k, case.rule), rows, OUT_ERROR[dtype], 1)


@settings(max_examples=150)
@given(cases(dtypes=DTYPES))
def test_every_path_gives_the_gradient_of_the_plain_path_in_float64(case):
    """Through out and through lse, to q, k and v."""
    out_weight = torch.randn(*case.q.shape[:3], case.v.shape[3], dtype=torch.float64)
    lse_weight = torch.randn(case.q.shape[:3], dtype=torch.float64)
    double = Case(case.q.double(), case.k.double(), case.v.double(), case.rule)
    expected = gradients(double, "plain", out_weight, lse_weight)[2:]
    dtype = case.q.dtype
    # Terms as large as this cancel inside a gradient, so its error is relative to them.
    enters = out_weight.abs().sum(-1).max() * case.v.abs().max() + lse_weight.abs().max()
    factor = abs(case.rule.scale_for(case.q.shape[3])) if case.rule.additive is None else 1.0
    size = max(1.0, float(enters)) * max(1.0, factor * max(case.q.abs().max(), case.k.abs().max()).item())
    for path in possible_paths(case):
        for got, want in zip(gradients(case, path, out_weight, lse_weight)[2:], expected, strict=True):
            assert_near(got, want, GRAD_ERROR[dtype], size)


RULES = {
    "default": ScoreRule(),
    "causal": ScoreRule(visible=Visibility(causal=True)),
    "cache": ScoreRule(visible=Visibility(causal=True, start=2)),
    "window": ScoreRule(visible=Visibility(causal=True, window=2)),
    "lengths": ScoreRule(visible=Visibility(lengths=torch.tensor([5, 0]))),
    "causal padding": ScoreRule(
        visible=Visibility(causal=True, key_mask=torch.tensor([[False, True, True, False, True]] * 2))
    ),
    "slope": ScoreRule(bias=SlopeBias(torch.tensor([0.3, 0.1, 0.5, 0.2])), scale=0.7),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", RULES)
def test_gradients_are_those_of_finite_differences(path, name):
    """gradcheck of out and of lse where it is finite, for grouped heads."""
    q, k, v = (
        torch.randn(2, heads, n, 3, dtype=torch.float64, requires_grad=True)
        for heads, n in ((4, 3), (2, 5), (2, 5))
    )

    def both(q, k, v):
        out, lse = attend(q, k, v, RULES[name], path=path)
        return out, torch.where(torch.isfinite(lse), lse, 0.0)

    assert gradcheck(both, (q, k, v))


@pytest.mark.parametrize("path", ["plain", "tiled"])
@pytest.mark.parametrize("kind", ["distance", "slope", "dense", "additive", "softcap"])
def test_gradients_of_learned_rules_are_those_of_finite_differences(path, kind):
    """gradcheck of what only plain and tiled can do: softcap, and gradients to a bias or additive vector."""
    q, k, v, learned = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((1, 2, 3, 2), (1, 1, 5, 2), (1, 1, 5, 7), (2, 7))
    )
    visible = Visibility(causal=True, start=1, lengths=torch.tensor([4]))

    def out_and_lse(q, k, v, learned):
        rule = {
            "distance": lambda: ScoreRule(bias=DistanceBias(learned, zero=2)),
            "slope": lambda: ScoreRule(bias=SlopeBias(learned[:, 0]), visible=visible),
            "dense": lambda: ScoreRule(bias=DenseBias(learned[None, :, None, :5]), visible=visible),
            "additive": lambda: ScoreRule(additive=learned[0, :2], visible=visible),
            "softcap": lambda: ScoreRule(softcap=0.8, bias=SlopeBias(learned[:, 1]), visible=visible),
        }[kind]()
        return attend(q, k, v, rule, path=path)

    assert gradcheck(lambda *x: tuple(out_and_lse(*x)), (q, k, v, learned))


def test_the_plain_path_is_differentiable_twice():
    """gradgradcheck, with a row that sees nothing among the others."""
    q, k, v = (torch.randn(1, 2, n, 2, dtype=torch.float64, requires_grad=True) for n in (2, 3, 3))
    rule = ScoreRule(visible=Visibility(lengths=torch.tensor([[0, 2]])))
    assert gradgradcheck(lambda *x: attend(*x, rule, path="plain").out, (q, k, v))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "visible",
    [
        Visibility(lengths=torch.tensor([0, 3])),
        Visibility(lengths=torch.tensor([[0, 1, 0, 5, 7], [7, 0, 0, 0, 2]])),
        Visibility(key_mask=torch.zeros(1, 7, dtype=torch.bool)),
        Visibility(causal=True, key_mask=torch.tensor([[False] * 3 + [True] * 4] * 2)),
        Visibility(window=2, start=8),
        Visibility(dense=torch.zeros(2, 6, 5, 7, dtype=torch.bool)),
    ],
    ids=["a sequence", "some queries", "everybody", "left padding", "window past the keys", "dense"],
)
def test_a_row_that_sees_nothing_is_zero_with_finite_gradients(dtype, path, visible):
    """Weights 0, out 0, lse -inf, and no gradient from the row; other rows see as ever."""
    blind = ~table_of(visible, 2, 6, 5, 7).any(-1)
    assert blind.any()
    rule = ScoreRule(visible=visible)
    q, k, v = (
        torch.randn(2, heads, n, 3).to(dtype).requires_grad_() for heads, n in ((6, 5), (3, 7), (3, 7))
    )
    out, lse = attend(q, k, v, rule, path=path)
    assert (out[blind] == 0).all()
    assert (lse[blind] == -math.inf).all()
    assert torch.isfinite(lse[~blind]).all()
    assert (weights(q, k, rule)[blind] == 0).all()
    (out.sum() + lse.exp().sum()).backward()
    assert all(torch.isfinite(t.grad).all() for t in (q, k, v))
    assert (q.grad[blind] == 0).all()


def test_a_row_that_a_bias_hides_wholly_sees_nothing_on_every_path():
    """-inf in a bias hides like visibility does."""
    values = torch.randn(1, 1, 3, 5)
    values[..., 1, :] = -math.inf
    q, k, v = (torch.randn(2, 1, n, 7, requires_grad=True) for n in (3, 5, 5))
    for path in PATHS:
        out, lse = attend(q, k, v, ScoreRule(bias=DenseBias(values)), path=path)
        assert (out[:, :, 1] == 0).all()
        assert (lse[:, :, 1] == -math.inf).all()
        grads = torch.autograd.grad(out.sum() + lse.exp().sum(), (q, k, v))
        assert all(torch.isfinite(g).all() for g in grads)


@settings(max_examples=150)
@given(cases(dtypes=DTYPES), st.sampled_from([math.nan, math.inf, -math.inf]), st.data())
def test_garbage_reaches_only_those_who_look_at_it(case, garbage, data):
    """NaN and inf in q, k and v: rows that meet none are unchanged, and every gradient is as if it were 0."""
    table = table_of(case.rule.visible, *case.sizes)
    assume(not table.all())
    group = case.q.shape[1] // case.k.shape[1]
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    bad_key = torch.rand(case.k.shape[:3], generator=generator) < 0.2
    bad_value = torch.rand(case.k.shape[:3], generator=generator) < 0.2
    bad_query = torch.rand(case.q.shape[:3], generator=generator) < 0.2
    dirty = Case(case.q.clone(), case.k.clone(), case.v.clone(), case.rule)
    clean = Case(case.q.clone(), case.k.clone(), case.v.clone(), case.rule)
    for name, bad in (("q", bad_query), ("k", bad_key), ("v", bad_value)):
        getattr(dirty, name)[..., 0][bad] = garbage
        getattr(clean, name)[..., 0][bad] = 0.0
    meets = bad_query | (table & (bad_key | bad_value).repeat_interleave(group, 1)[:, :, None]).any(-1)
    out_weight = torch.randn(*case.q.shape[:3], case.v.shape[3], dtype=torch.float64)
    lse_weight = torch.randn(case.q.shape[:3], dtype=torch.float64)
    out_weight[meets], lse_weight[meets] = 0, 0
    for path in possible_paths(case):
        got = gradients(dirty, path, out_weight, lse_weight)
        want = gradients(clean, path, out_weight, lse_weight)
        assert torch.isnan(got[0][meets]).all()
        assert torch.isnan(got[1][meets]).all()
        for result, expected in zip(got[:2], want[:2], strict=True):
            assert torch.equal(result[~meets], expected[~meets])
        for result, expected in zip(got[2:], want[2:], strict=True):
            assert torch.isfinite(result).all()
            assert torch.equal(result, expected)
        for grad, bad in zip(got[2:], (bad_query, bad_key, bad_value), strict=True):
            assert (grad[..., 0][bad] == 0).all() or not bad.any()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("causal", [True, False])
def test_a_padded_batch_may_hold_nan_in_its_padding(path, causal):
    """NaN activations at padded positions, queries too: the real positions get what they get alone."""
    q, k, v = (torch.randn(3, 2, 11, 5) for _ in range(3))
    lengths = torch.tensor([11, 7, 0])
    for t in (q, k, v):
        t[1, :, 7:], t[2] = math.nan, math.nan
    leaves = [t.requires_grad_() for t in (q, k, v)]
    out, _ = attend(*leaves, ScoreRule(visible=Visibility(causal=causal, lengths=lengths)), path=path)
    (out[0].sum() + out[1, :, :7].sum()).backward()
    for i, n in ((0, 11), (1, 7)):
        alone = [t.detach()[i : i + 1, :, :n].clone().requires_grad_() for t in leaves]
        expected = attend(*alone, ScoreRule(visible=Visibility(causal=causal)), path="plain").out
        torch.testing.assert_close(out[i : i + 1, :, :n], expected)
        expected.sum().backward()
        for whole, one in zip(leaves, alone, strict=True):
            torch.testing.assert_close(whole.grad[i : i + 1, :, :n], one.grad)
    assert all((t.grad[1, :, 7:] == 0).all() and (t.grad[2] == 0).all() for t in leaves)


def test_garbage_in_a_hidden_bias_does_not_leak():
    """NaN in a bias where visibility hides is never added."""
    values = torch.randn(1, 1, 5, 5)
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    q, k, v = (torch.randn(1, 1, 5, 3) for _ in range(3))
    visible = Visibility(causal=True)
    clean = attend(q, k, v, ScoreRule(bias=DenseBias(values), visible=visible), path="plain")
    dirty = ScoreRule(bias=DenseBias(values.masked_fill(hidden, math.nan)), visible=visible)
    for path in PATHS:
        torch.testing.assert_close(attend(q, k, v, dirty, path=path), clean)


def test_inputs_whose_sum_overflows_are_still_finite():
    """The quick test for garbage adds everything up: an infinite sum of finite numbers is a false alarm."""
    big = torch.full((1, 1, 5, 2), 2.0**125)
    q, k = torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 5, 2)
    for path in PATHS:
        out, _ = attend(q, k, big, ScoreRule(visible=Visibility(causal=True)), path=path)
        torch.testing.assert_close(out, big[:, :, :3])


@pytest.mark.parametrize("path", [None, *PATHS])
@pytest.mark.parametrize(
    ("batch", "n_query", "n_key"), [(0, 3, 5), (2, 0, 5), (2, 3, 0), (2, 0, 0), (0, 0, 0)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_empty_sizes_give_zeros_that_pass_gradients(path, batch, n_query, n_key, dtype):
    """No batch, queries or keys: out 0, lse -inf, gradients 0, even from NaN or where a sum overflows."""
    rule = ScoreRule(visible=Visibility(causal=True))
    for filling in (60000.0, math.nan):
        q, k, v = (
            torch.full((batch, heads, n, 7), filling, dtype=dtype, requires_grad=True)
            for heads, n in ((6, n_query), (3, n_key), (3, n_key))
        )
        out, lse = attend(q, k, v, rule, path=path)
        assert out.shape == (batch, 6, n_query, 7)
        assert (out == 0).all()
        assert (lse == -math.inf).all()
        assert lse.dtype == torch.float32
        (out.sum() + lse.exp().sum()).backward()
        assert all((t.grad == 0).all() for t in (q, k, v))
    assert weights(q, k, rule).shape == (batch, 6, n_query, n_key)
    assert attend_hard(q, k, v, rule).shape == (batch, 6, n_query, 7)


def test_values_of_no_width_still_have_a_log_sum_exp():
    """v_dim 0: an empty output, and the lse of the scores."""
    q, k = torch.randn(1, 2, 3, 5), torch.randn(1, 2, 7, 5)
    for path in PATHS[:2]:
        out, lse = attend(q, k, k[..., :0], path=path)
        assert out.shape == (1, 2, 3, 0)
        torch.testing.assert_close(lse, attend(q, k, k, path="plain").lse)


LAYOUTS = {
    "transposed": lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2),
    "every other": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "heads last": lambda t: t.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    "positions first": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "offset": lambda t: torch.nn.functional.pad(t, (1, 2, 3, 1))[..., 3:-1, 1:-2],
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_strides_do_not_matter(path, layout, dtype):
    """The same numbers laid out otherwise, last stride among them, give the same result and gradient."""
    rule = ScoreRule(visible=Visibility(causal=True, key_mask=torch.rand(2, 11) < 0.8))
    tensors = [torch.randn(2, heads, n, 5).to(dtype) for heads, n in ((6, 7), (3, 11), (3, 11))]
    laid_out = [LAYOUTS[layout](t) for t in tensors]
    assert any(a.stride() != b.stride() for a, b in zip(laid_out, tensors, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(laid_out, tensors, strict=True))
    results = []
    for inputs in (tensors, laid_out):
        inputs = [t.detach().requires_grad_() for t in inputs]
        out, lse = attend(*inputs, rule, path=path)
        weight = LAYOUTS[layout](torch.ones_like(out)) * torch.arange(5)
        loss = (out * weight).sum() + torch.where(torch.isfinite(lse), lse, 0).sum()
        results.append((out, lse, *torch.autograd.grad(loss, inputs)))
    for expected, got in zip(*results, strict=True):
        size = max(1.0, expected.nan_to_num(neginf=0).abs().max().item())
        assert_near(got, expected, OUT_ERROR[dtype], size)


@pytest.mark.parametrize("path", PATHS)
def test_expanded_inputs_are_as_good_as_copies(path):
    """Stride 0 over batch, head or position: nothing is written where memory is shared."""
    q = torch.randn(2, 3, 1, 5).expand(2, 3, 7, 5)
    k = torch.randn(1, 3, 11, 5).expand(2, 3, 11, 5)
    v = torch.randn(2, 1, 11, 5).expand(2, 3, 11, 5)
    results = []
    for inputs in ((q, k, v), (q.contiguous(), k.contiguous(), v.contiguous())):
        inputs = [t.detach().requires_grad_() for t in inputs]
        out, lse = attend(*inputs, ScoreRule(visible=Visibility(causal=True, start=2)), path=path)
        loss = (out * torch.arange(5)).sum() + (lse * lse).sum()
        results.append((out, lse, *torch.autograd.grad(loss, inputs)))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


def test_a_gradient_that_is_expanded_is_taken_as_it_is():
    """`out.sum()` sends back one number with stride 0."""
    q, k, v = (torch.randn(1, 2, 5, 3, requires_grad=True) for _ in range(3))
    for path in PATHS:
        (grad,) = torch.autograd.grad(attend(q, k, v, path=path).out.sum(), v)
        torch.testing.assert_close(grad, weights(q, k).sum(2)[..., None].expand(-1, -1, -1, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [-0.7, 0.0])
def test_a_scale_that_turns_scores_round_hides_the_future_all_the_same(scale, dtype):
    """The kernel hides before it scales: with a scale of 0 or less all paths still agree."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, 1, 2, 5, 4, generator=generator, dtype=torch.float64).to(dtype)
    rule = ScoreRule(scale=scale, visible=Visibility(causal=True))
    results = {
        path: gradients(Case(q, k, v, rule), path, torch.ones(1, 2, 5, 4), torch.ones(1, 2, 5))
        for path in ("plain", "tiled", "fused")
    }
    for path in ("tiled", "fused"):
        for got, expected in zip(results[path], results["plain"], strict=True):
            assert_near(got, expected, 8 * torch.finfo(dtype).eps, 4)


@pytest.mark.parametrize("path", PATHS)
def test_keys_and_values_only_may_need_a_gradient(path):
    """Whichever of q, k and v is a constant, the others get the same gradient."""
    tensors = [torch.randn(1, 2, n, 3, dtype=torch.float64) for n in (5, 7, 7)]

    def grads(*needed):
        inputs = [t.clone().requires_grad_(i in needed) for i, t in enumerate(tensors)]
        out, lse = attend(*inputs, path=path)
        (out.square().sum() + lse.sum()).backward()
        return [t.grad for t in inputs]

    every = grads(0, 1, 2)
    for i in range(3):
        torch.testing.assert_close(grads(i)[i], every[i])


@pytest.mark.parametrize("n_key", [1031, 1571])
def test_rows_that_span_several_kernel_blocks_agree(n_key):
    """Keys hidden for longer than a kernel's block of 512, at the left and in the middle; grouped heads."""
    q, k, v = (torch.randn(1, heads, n, 8) for heads, n in ((2, n_key), (1, n_key), (1, n_key)))
    keys = torch.ones(1, n_key, dtype=torch.bool)
    keys[:, :700] = False
    keys[:, 710:1030] = False
    case = Case(q, k, v, ScoreRule(visible=Visibility(causal=True, key_mask=keys)))
    out_weight, lse_weight = torch.randn(1, 2, n_key, 8).double(), torch.randn(1, 2, n_key).double()
    plain, tiled, fused = (gradients(case, path, out_weight, lse_weight) for path in PATHS)
    for a, b, c in zip(plain, tiled, fused, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(c, a, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "visible",
    [
        Visibility(causal=True, start=200),
        Visibility(window=100),
        Visibility(causal=True, window=100, start=17),
        Visibility(window=3, start=2500),
        Visibility(lengths=torch.arange(1601)[None] % 1800),
    ],
    ids=["cache", "window", "local", "window past the keys", "lengths"],
)
def test_rows_computed_in_several_blocks_are_joined_in_order(visible):
    """Tiled and fused cut 1601 queries into blocks of rows with their own range of keys."""
    q, k, v = (torch.randn(1, 1, n, 4) for n in (1601, 1801, 1801))
    case = Case(q, k, v, ScoreRule(visible=visible))
    out_weight, lse_weight = torch.randn(1, 1, 1601, 4).double(), torch.randn(1, 1, 1601).double()
    plain, tiled, fused = (gradients(case, path, out_weight, lse_weight) for path in PATHS)
    for a, b, c in zip(plain, tiled, fused, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(c, a, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("path", ["plain", "tiled"])
def test_dropout_uses_one_set_of_weights_forward_and_backward(path, monkeypatch):
    """With unit vectors as values the output is the weights: some doubled, the others 0; the gradient too."""
    monkeypatch.setattr(
        "regard.attention.shapes.BLOCK", 64
    )  # several blocks, each with its own random numbers
    q, k = torch.randn(1, 2, 23, 5, requires_grad=True), torch.randn(1, 2, 13, 5)
    v = torch.eye(13).expand(1, 2, 13, 13).contiguous().requires_grad_()
    out, lse = attend(q, k, v, dropout=0.5, path=path)
    expected = weights(q, k)
    kept = out != 0
    torch.testing.assert_close(out[kept], 2 * expected[kept])
    assert 0.3 < kept.float().mean() < 0.7
    torch.testing.assert_close(lse, attend(q, k, v, path="plain").lse)
    (grad,) = torch.autograd.grad(out.sum(), v)
    torch.testing.assert_close(grad, out.detach().sum(2)[..., None].expand(-1, -1, -1, 13))


@pytest.mark.parametrize("path", PATHS)
def test_autocast_changes_neither_dtype_nor_value(path):
    """The door computes in the dtype of its inputs; a lse rounded to bfloat16 could give back no weight."""
    q, k, v = (torch.randn(1, 2, 7, 5) for _ in range(3))
    expected = attend(q, k, v, path=path)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(attend(q, k, v, path=path), expected)


def test_the_path_is_chosen_by_what_the_inputs_need(monkeypatch):
    """Fused where a kernel can, plain where the table is small, else tiled."""
    taken = []
    for name in PATHS:
        original = getattr(__import__("regard.attention.softmax", fromlist=["_"]), f"_{name}")
        monkeypatch.setattr(
            f"regard.attention.softmax._{name}",
            lambda *a, _original=original, _name=name: taken.append(_name) or _original(*a),
        )
    q = torch.randn(1, 1, 1031, 3)
    learned = DenseBias(torch.zeros(1, 1, 1, 1031, requires_grad=True))
    attend(q, q, q)
    attend(q, q, q, ScoreRule(softcap=1.0))
    attend(q[:, :, :7], q[:, :, :7], q[:, :, :7], ScoreRule(softcap=1.0))
    attend(q, q, q[..., :2])
    attend(q, q, q, ScoreRule(bias=learned))
    with torch.no_grad():
        attend(q, q, q, ScoreRule(bias=learned))
    assert taken == ["fused", "tiled", "plain", "tiled", "tiled", "fused"]


def test_fused_refuses_what_it_cannot_do_on_every_example():
    """Where `possible_paths` says no, asking for fused is an error and not a wrong answer."""
    q, v = torch.randn(1, 1, 3, 5), torch.randn(1, 1, 3, 7)
    assert possible_paths(Case(q, q, v, ScoreRule())) == PATHS[:2]
    with pytest.raises(UnsupportedError, match="v_dim = qk_dim"):
        attend(q, q, v, path="fused")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("size", "scale"), [(1e30, 0.0), (1e19, None), (1e25, 1e-13)])
def test_large_numbers_with_scores_in_range_are_averaged(path, size, scale):
    """The kernel multiplies before it scales, and gives 0 or NaN: equal scores have the mean for output."""
    q, k, v = torch.full((1, 1, 3, 4), size), torch.full((1, 1, 5, 4), size), torch.randn(1, 1, 5, 4)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    out, lse = attend(*leaves, ScoreRule(scale=scale), path=path)
    torch.testing.assert_close(out, v.mean(2, keepdim=True).expand_as(out))
    assert torch.isfinite(lse).all()
    assert all(torch.isfinite(grad).all() for grad in torch.autograd.grad(out.sum(), leaves))


@pytest.mark.parametrize("sign", [1, -1], ids=["above", "below"])
def test_scores_that_overflow_are_refused_on_every_path(sign):
    """No NaN, and no row that takes itself for blind: the error says how large q, k and the scale are."""
    q, k, v = torch.full((1, 1, 3, 4), 1e25), torch.full((1, 1, 5, 4), sign * 1e25), torch.randn(1, 1, 5, 4)
    rule = ScoreRule(visible=Visibility(causal=True))
    calls = [lambda path=path: attend(q, k, v, rule, path=path) for path in PATHS]
    for call in (*calls, lambda: weights(q, k, rule), lambda: attend_hard(q, k, v, rule)):
        with pytest.raises(ArgumentError, match=r"out of range.*\|q\| up to 1\.0e\+25"):
            call()


@pytest.mark.parametrize("path", PATHS)
def test_large_numbers_in_hidden_keys_change_nothing(path):
    """A product that overflows where nobody looks is no reason to refuse, and no NaN."""
    q, k, v = torch.randn(2, 1, 3, 4) * 1e15, torch.randn(2, 1, 5, 4), torch.randn(2, 1, 5, 4)
    rule = ScoreRule(visible=Visibility(lengths=torch.tensor([4, 0])))
    clean = attend(q, k, v, rule, path="plain")
    k[:, :, 4] = 1e38
    torch.testing.assert_close(attend(q, k, v, rule, path=path), clean)


@pytest.mark.parametrize("path", PATHS)
def test_a_query_of_nan_is_nan_where_all_is_visible(path):
    """The kernel itself answers 0 to it."""
    q, k, v = (torch.randn(1, 1, 5, 4) for _ in range(3))
    q[0, 0, 1, 2] = math.nan
    out, lse = attend(q, k, v, path=path)
    assert torch.isnan(out[0, 0, 1]).all()
    assert torch.isnan(lse).sum() == 1
    assert torch.isfinite(out).all(-1).sum() == 4


@pytest.mark.parametrize("size", [1e4, 1e9, 1e17])
def test_gradients_of_saturated_rows_agree(size):
    """Scores so large that rounding moves them by more than 1 have the same gradients on both paths."""
    q, k, v = (torch.randn(2, 2, 29, 4) for _ in range(3))
    case = Case(q * size, k * size, v, ScoreRule(visible=Visibility(causal=True)))
    weighted = torch.randn(2, 2, 29, 4, dtype=torch.float64), torch.zeros(2, 2, 29, dtype=torch.float64)
    plain, fused = (gradients(case, path, *weighted) for path in ("plain", "fused"))
    for got, expected, largest in zip(fused, plain, (1, size**2, size, size, 1), strict=True):
        assert_near(got, expected, 1e-5, largest)
