"""Attention under hostile numbers: every path gives the same answer, or the same refusal."""

import math

import torch
from fuzzing import attack

from regard.attention.feature_maps import feature_map
from regard.attention.linear import attend_linear
from regard.attention.scores import DenseBias, ScoreRule, SlopeBias
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, UnsupportedError

SIZES = [0.0, 1e-38, 1e-6, 1.0, 1.0, 1.0, 30.0, 1e4, 1e9, 1e15, 1e18, 1e19, 1e20, 1e30, 1e38]


def draw(rng):
    """Queries, keys, values and a rule."""
    dtype = rng.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16))
    generator = torch.Generator().manual_seed(rng.randrange(2**62))
    batch, n_kv, group = rng.choice((1, 2)), rng.choice((1, 2)), rng.choice((1, 3))
    n_query, n_key, dim = rng.choice((1, 2, 7)), rng.choice((1, 3, 11)), rng.choice((1, 4, 5))
    shapes = (batch, n_kv * group, n_query, dim), (batch, n_kv, n_key, dim), (batch, n_kv, n_key, dim)
    q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
    for tensor in (q, k):
        tensor.mul_(rng.choice(SIZES))
    v.mul_(rng.choice((1.0, 1.0, 1e-30, 1e30)))
    for tensor in (q, k, v):
        if rng.random() < 0.3:
            tensor.view(-1)[rng.randrange(tensor.numel())] = rng.choice((math.nan, math.inf, -math.inf, 1e38))
    parts = {"causal": rng.random() < 0.4}
    if rng.random() < 0.3:
        parts["lengths"] = torch.tensor([rng.randrange(n_key + 1) for _ in range(batch)])
    if rng.random() < 0.2:
        parts["window"] = rng.choice((1, 2, 5))
    if rng.random() < 0.2:
        parts["start"] = rng.choice((0, 1, n_key))
    if rng.random() < 0.2:
        parts["dense"] = torch.rand(1, 1, n_query, n_key, generator=generator) < 0.7
    bias = None
    if rng.random() < 0.2:
        numbers = torch.randn(1, 1, n_query, n_key, generator=generator) * rng.choice((1.0, 1e9))
        bias = rng.choice((DenseBias(numbers), SlopeBias(torch.tensor([0.5]))))
    scale = rng.choice((None, None, None, 0.0, 1.0, -1.0, 1e-30, 1e10))
    q, k, v = (t.to(dtype) for t in (q, k, v))
    return q, k, v, ScoreRule(scale=scale, visible=Visibility(**parts), bias=bias)


def answered(q, k, v, rule, path):
    """Output, lse and gradients; the error, where there is one."""
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    try:
        out, lse = attend(*leaves, rule, path=path)
    except ArgumentError:  # the only one there is for inputs that fit together: out of range
        return None
    used = torch.where(torch.isfinite(out), out, 0.0)
    return out.detach(), lse.detach(), *torch.autograd.grad(used.sum(), leaves)


def case(rng):
    q, k, v, rule = draw(rng)
    plain = answered(q, k, v, rule, "plain")
    for path in ("tiled", "fused"):
        try:
            other = answered(q, k, v, rule, path)
        except UnsupportedError:
            continue
        assert (plain is None) == (other is None), f"{path} and plain do not refuse alike"
        if plain is None or other is None:
            continue
        with torch.no_grad():
            alone = attend(q, k, v, rule, path=path)
        eps = 64 * torch.finfo(q.dtype).eps
        # A score is rounded by some eps of |q| |k|, and a weight by as much of itself.
        wide = [t.double().nan_to_num(0.0, 0.0, 0.0).abs().max().item() for t in (q, k, v)]
        score = abs(rule.scale_for(q.shape[3])) * wide[0] * wide[1] * q.shape[3]
        score += 0.0 if rule.bias is None else 1e10 if isinstance(rule.bias, DenseBias) else 10.0
        sharp = min(2.0, eps * (1 + score))
        for name, got in (("with gradient", other), ("without", alone)):
            for what, a, b, size in zip(
                ("out", "lse"), got[:2], plain[:2], (wide[2] * sharp, eps * (1 + score)), strict=True
            ):
                assert torch.equal(torch.isnan(a), torch.isnan(b)), f"NaN of {what} differs, {path} {name}"
                torch.testing.assert_close(
                    a.double(), b.double(), rtol=0, atol=max(size, 1e-37), equal_nan=True
                )
        # A gradient of q is some v times some k: beyond this size it is no number, on any path.
        if wide[2] * max(wide[:2]) * max(1.0, abs(rule.scale_for(q.shape[3]))) < 1e36:
            for what, a, b in zip("qkv", other[2:], plain[2:], strict=True):
                assert torch.equal(torch.isfinite(a), torch.isfinite(b)), (
                    f"gradient of {what} differs, {path}"
                )
    if plain is None:
        return "refused as out of range"
    return "right, some rows NaN" if bool(torch.isnan(plain[0]).any()) else "right"


def linear_case(rng):
    """A query that is not finite spoils its own row and no gradient."""
    q, k, v, _ = draw(rng)
    k, v = (torch.randn_like(t.float()) for t in (k, v))
    q = q.float()
    phi = feature_map(rng.choice(("elu1", "relu")), qk_dim=q.shape[3])
    causal = q.shape[2] <= k.shape[2] and rng.random() < 0.5
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    out = attend_linear(*leaves, phi, causal=causal).out
    grads = torch.autograd.grad(torch.where(torch.isfinite(out), out, 0.0).sum(), leaves)
    bad = ~torch.isfinite(q).all(-1)
    assert torch.isfinite(out[~bad]).all() or q[~bad].abs().max() > 1e17
    if q[~bad].numel() == 0 or q[~bad].abs().max() < 1e9:
        assert all(torch.isfinite(grad).all() for grad in grads)
    return "right, some rows NaN" if bool(bad.any()) else "right"


def test_softmax_attention(record_property):
    """Out, lse and gradients of three paths, with and without a graph, NaN and refusals included."""
    attack(record_property, "attention", case, few=300, many=10_000)


def test_linear_attention(record_property):
    """Finite gradients, whatever one query holds."""
    attack(record_property, "linear attention", linear_case, few=200, many=3_000)
