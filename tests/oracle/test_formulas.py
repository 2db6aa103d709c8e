"""Formulas of our layers against the transformers library's own functions."""

from types import SimpleNamespace

import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from regard.attention import ScoreRule, alibi_slopes, attend, weights
from regard.attention.visibility import Visibility


def test_sinks_give_the_weights_of_gpt_oss():
    """Its eager attention: grouped heads, a causal window, a learned score beside those of the keys."""
    torch.manual_seed(3)
    q, k, v = torch.randn(2, 6, 11, 5), torch.randn(2, 3, 11, 5), torch.randn(2, 3, 11, 5)
    module = SimpleNamespace(num_key_value_groups=2, sinks=torch.randn(6), training=False)
    visible = Visibility(causal=True, window=4)
    seen = visible.tile(slice(0, 11), slice(0, 11))
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    theirs_out, theirs = eager_attention_forward(module, q, k, v, mask, scaling=0.3)
    rule = ScoreRule(scale=0.3, visible=visible, sink=module.sinks)
    torch.testing.assert_close(weights(q, k, rule), theirs, rtol=0, atol=1e-6)
    assert (theirs.sum(-1) < 0.99).any()
    for path in ("plain", "tiled", "fused"):
        out = attend(q, k, v, rule, path=path).out
        torch.testing.assert_close(out, theirs_out.transpose(1, 2), rtol=0, atol=2e-6)


def test_slopes_are_those_of_bloom():
    """For numbers of heads that are powers of two, and others."""
    for n_head in (1, 2, 6, 8, 12, 20):
        line = build_alibi_tensor(torch.ones(1, 9), n_head, torch.float32)[:, 0]  # slope times position
        torch.testing.assert_close(alibi_slopes(n_head)[:, None] * torch.arange(9.0), line)
