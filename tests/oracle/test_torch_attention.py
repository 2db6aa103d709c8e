"""The door against PyTorch's own attention, and its masks against those of nn.MultiheadAttention."""

import math

import pytest
import torch
from attention_cases import DTYPES, GRAD_ERROR, OUT_ERROR
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.attention.scores import DenseBias, ScoreRule
from regard.attention.softmax import attend, weights
from regard.attention.visibility import Visibility

PATHS = ["plain", "tiled", "fused"]


def inputs(n_query=7, n_key=11, dtype=torch.float32, n_kv_head=6):
    shapes = ((2, 6, n_query, 5), (2, n_kv_head, n_key, 5), (2, n_kv_head, n_key, 5))
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


def textbook(q, k, v, **options):
    """PyTorch's attention computed with plain matrix products."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n_kv_head", [6, 3, 1], ids=["multi-head", "grouped", "multi-query"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_equals_scaled_dot_product_attention(dtype, path, n_kv_head, scale):
    """Output and gradients, heads grouped or not; PyTorch's are computed in float64."""
    q, k, v = inputs(dtype=dtype, n_kv_head=n_kv_head)
    out = attend(q, k, v, ScoreRule(scale=scale), path=path).out
    peers = [t.detach().double().requires_grad_() for t in (q, k, v)]
    expected = textbook(*peers, scale=scale, enable_gqa=n_kv_head != 6)
    weight = torch.randn(out.shape, dtype=torch.float64)
    ours = torch.autograd.grad((out.double() * weight).sum(), (q, k, v))
    theirs = torch.autograd.grad((expected * weight).sum(), peers)
    largest = v.abs().max().item()
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=OUT_ERROR[dtype] * largest)
    # Terms of this size cancel in a gradient: see GRAD_ERROR.
    size = weight.abs().sum(-1).max().item() * largest * max(t.abs().max().item() for t in (q, k))
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=0, atol=GRAD_ERROR[dtype] * size)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("n_query", "n_key"), [(11, 11), (7, 11), (11, 7)])
def test_causal_from_position_zero_is_pytorchs_causal_flag(path, n_query, n_key):
    """is_causal aligns the first query with the first key, which is our start=0."""
    q, k, v = inputs(n_query, n_key)
    rule = ScoreRule(visible=Visibility(causal=True))
    torch.testing.assert_close(attend(q, k, v, rule, path=path).out, textbook(q, k, v, is_causal=True))


@pytest.mark.parametrize("path", PATHS)
def test_a_boolean_mask_means_the_same(path):
    """True = may look, here and in scaled_dot_product_attention."""
    q, k, v = inputs()
    table = torch.rand(2, 6, 7, 11) < 0.5
    table[..., 3] = True
    rule = ScoreRule(visible=Visibility.from_dense(table))
    torch.testing.assert_close(attend(q, k, v, rule, path=path).out, textbook(q, k, v, attn_mask=table))


@pytest.mark.parametrize("path", PATHS)
def test_an_additive_mask_means_the_same(path):
    """Numbers and -inf mixed: a bias and a visibility here."""
    q, k, v = inputs()
    mask = torch.randn(2, 1, 7, 11).masked_fill(torch.rand(2, 1, 7, 11) < 0.3, -math.inf)
    mask[..., 3] = 0.5
    visible, bias = Visibility.from_additive(mask)
    rule = ScoreRule(visible=visible, bias=DenseBias(bias))
    torch.testing.assert_close(attend(q, k, v, rule, path=path).out, textbook(q, k, v, attn_mask=mask))


def projected(layer, x, n_head):
    """The q, k and v that nn.MultiheadAttention makes of x."""
    parts = F.linear(x, layer.in_proj_weight, layer.in_proj_bias).chunk(3, -1)
    return [part.unflatten(-1, (n_head, -1)).transpose(1, 2) for part in parts]


HIDDEN = torch.rand(7, 7, generator=torch.Generator().manual_seed(5)) < 0.4
HIDDEN[:, 0] = False
PADDING = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
MASKS = {
    "causal": (torch.ones(7, 7, dtype=torch.bool).triu(1), None),
    "boolean": (HIDDEN, None),
    "padding": (None, PADDING),
    "causal and padding": (torch.ones(7, 7, dtype=torch.bool).triu(1), PADDING),
    "each head": (HIDDEN[None] & (torch.arange(6)[:, None, None] % 2 == 0), None),
    "float": (torch.randn(7, 7).masked_fill(HIDDEN, -math.inf), None),
    "float each head": (torch.randn(6, 7, 7).masked_fill(HIDDEN, -math.inf), None),
    "float padding": (None, torch.randn(2, 7).masked_fill(PADDING, -math.inf)),
    "float both": (torch.randn(7, 7), torch.zeros(2, 7).masked_fill(PADDING, -math.inf)),
}


@pytest.mark.parametrize("name", MASKS)
def test_the_masks_of_multihead_attention_mean_the_same(name):
    """Output and weights of nn.MultiheadAttention with copied projections; True = hidden there."""
    n_head = 3
    attn_mask, padding = MASKS[name]
    layer = nn.MultiheadAttention(15, n_head, batch_first=True)
    nn.init.normal_(layer.in_proj_bias)
    nn.init.normal_(layer.out_proj.bias)
    x = torch.randn(2, 7, 15)
    expected, rows = layer(x, x, x, key_padding_mask=padding, attn_mask=attn_mask, average_attn_weights=False)
    visible, bias = Visibility.from_torch_masks(attn_mask, padding, n_head)
    rule = ScoreRule(visible=visible, bias=None if bias is None else DenseBias(bias))
    q, k, v = projected(layer, x, n_head)
    out = layer.out_proj(attend(q, k, v, rule).out.transpose(1, 2).flatten(2))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(weights(q, k, rule), rows)


def test_a_wholly_padded_sequence_is_nan_in_multihead_attention_and_zero_here():
    """What nn.MultiheadAttention fails (pytorch issue 41508) and we promise: out 0, finite gradients."""
    layer = nn.MultiheadAttention(15, 3, batch_first=True)
    x = torch.randn(2, 7, 15, requires_grad=True)
    padding = torch.tensor([[False] * 7, [True] * 7])
    assert torch.isnan(layer(x, x, x, key_padding_mask=padding)[0][1]).all()
    visible, _ = Visibility.from_torch_masks(key_padding_mask=padding)
    out = attend(*projected(layer, x, 3), ScoreRule(visible=visible)).out
    assert (out[1] == 0).all()
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.isfinite(grad).all()
