"""Derivatives of derivatives through attention: right on every path."""

import pytest
import torch

from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility

RULES = {
    "all": None,
    "causal": ScoreRule(visible=Visibility(causal=True)),
    "padded": ScoreRule(scale=0.3, visible=Visibility(key_mask=torch.arange(7)[None] < 5)),
    "blind": ScoreRule(visible=Visibility(causal=True, key_mask=torch.arange(7)[None] > 1)),
}


@pytest.mark.parametrize("path", [None, "fused", "tiled"])
@pytest.mark.parametrize("rule", RULES)
def test_second_derivatives_equal_those_of_the_definition(rule, path):
    """A gradient's gradient in a residual model whose values are made of its keys, by every path."""
    q, k = (torch.randn(2, n, 7, 5, dtype=torch.float64, requires_grad=True) for n in (4, 2))

    def second(path):
        out, lse = attend(q, k, 2 * k, RULES[rule], path=path)
        lse = torch.where(lse.isfinite(), lse, 0.0)
        grads = torch.autograd.grad(((out + q) ** 2).sum() + lse.sum(), (q, k), create_graph=True)
        return torch.autograd.grad(sum((grad**2).sum() for grad in grads), (q, k))

    for got, wanted in zip(second(path), second("plain"), strict=True):
        assert float(wanted.norm()) > 1
        assert torch.allclose(got, wanted, rtol=1e-9)


def test_a_hessian_vector_product_is_not_zero():
    """`hvp` of one call, whose incoming gradient is constant: it gave 0 without a word."""
    x = torch.randn(1, 2, 5, 3, dtype=torch.float64)
    along = torch.ones_like(x)
    _, got = torch.autograd.functional.hvp(lambda x: attend(x, x, x).out.sum(), x, along)
    _, wanted = torch.autograd.functional.hvp(lambda x: attend(x, x, x, path="plain").out.sum(), x, along)
    assert float(wanted.norm()) > 0.01
    assert torch.allclose(got, wanted)
