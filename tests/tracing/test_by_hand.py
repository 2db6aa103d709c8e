"""Attention written out by hand, as in homework: traced like any other."""

import math
import warnings

import pytest
import torch
from tiny_models import whole
from torch import nn
from torch.nn import functional as F

from regard.errors import ArgumentError, TraceError
from regard.tracing.generation import watch
from regard.tracing.layers import DenseLayerTrace, LayerTrace
from regard.tracing.take import trace


class Annotated(nn.Module):
    """Projections, scores over sqrt(d), -1e9 where hidden, softmax, dropout: the annotated Transformer's."""

    def __init__(self):
        super().__init__()
        self.linears = nn.ModuleList([nn.Linear(24, 24) for _ in range(4)])
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, mask):
        q, k, v = (lin(x).view(x.size(0), -1, 3, 8).transpose(1, 2) for lin in self.linears[:3])
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(8)
        scores = scores.masked_fill(mask == 0, -1e9)
        self.attn = self.dropout(scores.softmax(dim=-1))
        x = torch.matmul(self.attn, v).transpose(1, 2).contiguous().view(x.size(0), -1, 24)
        return self.linears[-1](x)


class Head(nn.Module):
    """One head, three dimensions: a lecture's."""

    def __init__(self):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(24, 8, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(13, 13)))

    def forward(self, x, mask):
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * 8**-0.5
        wei = wei.masked_fill(self.tril[: x.shape[1], : x.shape[1]] == 0, float("-inf"))
        self.attn = F.softmax(wei, dim=-1)
        return self.attn @ self.value(x)


class Einsum(nn.Module):
    """Heads in the third place, products by einsum, softmax over dimension 3: a tutorial's."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(24, 72)

    def forward(self, x, mask):
        queries, keys, values = (part.reshape(*x.shape[:2], 3, 8) for part in self.qkv(x).chunk(3, -1))
        energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
        energy = energy.masked_fill(mask == 0, float("-1e20"))
        self.attn = torch.softmax(energy / 24**0.5, dim=3)
        return torch.einsum("nhql,nlhd->nqhd", [self.attn, values]).reshape(*x.shape[:2], 24)


class Batched(nn.Module):
    """Heads folded into the batch, bmm, a softmax of exp and sum: a course book's."""

    def __init__(self):
        super().__init__()
        self.w = nn.ModuleList([nn.Linear(24, 24) for _ in range(3)])

    def forward(self, x, mask):
        q, k, v = (w(x).reshape(2, -1, 3, 8).permute(0, 2, 1, 3).reshape(6, -1, 8) for w in self.w)
        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(8)
        scores = scores + (1 - mask[:, 0].repeat_interleave(3, 0)) * -1e6
        exps = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
        self.attn = exps / exps.sum(dim=-1, keepdim=True)
        return torch.bmm(self.attn, v)


class Additive(nn.Module):
    """w . tanh(q + k): no product of queries and keys, so its weights are kept themselves."""

    def __init__(self):
        super().__init__()
        self.w_q, self.w_k, self.w_v = nn.Linear(24, 8), nn.Linear(24, 8), nn.Linear(8, 1)

    def forward(self, x, mask):
        features = torch.tanh(self.w_q(x).unsqueeze(2) + self.w_k(x).unsqueeze(1))
        scores = self.w_v(features).squeeze(-1).masked_fill(mask[:, 0] == 0, -1e6)
        self.attn = nn.functional.softmax(scores, dim=-1)
        return torch.bmm(self.attn, x)


class Biased(nn.Module):
    """A learned bias for each distance, a softcap and a sink: what models add to the product."""

    def __init__(self):
        super().__init__()
        self.qkv, self.far = nn.Linear(24, 72), nn.Parameter(torch.randn(3, 25))
        self.sink = nn.Parameter(torch.randn(3))

    def forward(self, x, mask):
        q, k, v = (part.unflatten(-1, (3, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = 4.0 * torch.tanh(q @ k.mT * 8**-0.5 / 4.0)
        distance = torch.arange(13) - torch.arange(13)[:, None] + 12
        scores = scores + self.far[:, distance]
        scores = torch.where(mask == 0, torch.finfo(scores.dtype).min, scores)
        scores = torch.cat([scores, self.sink[None, :, None, None].expand(2, 3, 13, 1)], -1)
        self.attn = scores.softmax(-1)[..., :-1]
        return self.attn @ v


@pytest.mark.parametrize("kind", [Annotated, Head, Einsum, Batched, Additive, Biased])
@torch.no_grad()
def test_attention_written_by_hand_is_traced(kind):
    """The weights that met the values, the output to the bit; queries and keys where they were multiplied."""
    model, x = kind().eval(), 2 * torch.randn(2, 13, 24)
    mask = torch.ones(13, 13).tril().repeat(2, 1, 1, 1)
    mask[1, :, :, 0] = 0
    mask[1, :, 0, 1] = 1  # every row sees something
    wanted = model(x, mask)
    weights = model.attn
    outs = []
    handle = model.register_forward_hook(lambda module, args, out: outs.append(out))
    found = trace(model, (x, mask))
    handle.remove()
    assert torch.equal(outs[0], wanted)
    layer = found.layers[0]
    n_head = 1 if kind in (Head, Additive) else 3
    assert layer.shape == (2, n_head, 13, 13)
    assert torch.allclose(whole(layer), weights.reshape(2, n_head, 13, 13), atol=3e-6)
    assert found.checks.passed, str(found.checks)
    assert isinstance(layer, DenseLayerTrace if kind is Additive else LayerTrace)
    assert ("weights_kept" in found.facts) == (kind is Additive)
    assert layer.kind == "self"


def test_what_is_done_to_weights_after_the_softmax_is_in_them():
    """The weights of a trace are those that met the values, not those before a head was gated."""

    class Gated(nn.Module):
        def forward(self, x):
            weights = (x @ x.mT).softmax(-1) * torch.tensor([1.0, 0.5]).view(2, 1, 1)
            return weights @ x

    x = torch.randn(1, 2, 5, 3)
    found = trace(Gated(), (x,))
    assert torch.allclose(
        whole(found.layers[0]).sum(-1), torch.tensor([1.0, 0.5]).view(1, 2, 1).expand(1, 2, 5)
    )
    assert "changed after their softmax" in found.marks["changed"]
    with watch(model := Gated()) as seen:
        model(x)
    assert seen.trace.marks == found.marks


def test_dropout_of_weights_by_hand_is_refused():
    """In training the weights differ from run to run."""
    with pytest.raises(ArgumentError, match=r"dropout 0\.1.*model\.eval\(\)"):
        trace(Annotated().train(), (torch.randn(2, 13, 24), torch.ones(2, 1, 13, 13)))


def test_a_softmax_that_is_no_attention_is_no_layer():
    """A router's softmax chooses experts; it meets no values."""

    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.router = Head(), nn.Sequential(nn.Linear(8, 4), nn.Softmax(-1))

        def forward(self, x):
            x = self.attention(x, None)
            gate = self.router(x)
            return x * gate.amax(-1, keepdim=True)

    found = trace(Routed().eval(), (torch.randn(2, 13, 24),))
    assert found.names == ("attention",)
    assert "not_seen" not in found.facts
    assert found.facts["other_softmax"] == "router.*"


class Summed(nn.Module):
    """Softmax over products whose weights meet values and something else in one function."""

    def forward(self, x, mask=None):
        self.attn = (x @ x.mT).softmax(-1)
        return torch.einsum("bij,bjd,d->bid", self.attn, x, torch.ones(x.shape[2]))


def test_a_softmax_that_meets_no_values_is_named():
    """Whatever its module is called, and also where another softmax of the same module is seen."""

    class Twice(Head):
        def forward(self, x, mask=None):
            out = super().forward(x, mask)
            (out @ out.mT).softmax(-1)
            return out

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.mixer, self.twice = Summed(), Twice()

        def forward(self, x):
            return self.twice(self.mixer(x))

    found = trace(Both().eval(), (torch.randn(2, 13, 24),))
    assert found.names == ("twice", "twice#2")  # the second as the softmax gave it
    said = "a softmax that was not seen to meet values"
    assert f"mixer ({said}, used by einsum of several tensors, test_by_hand.py:" in found.not_seen
    assert f"twice ({said}, a pointer's: shown as they are, test_by_hand.py:" in found.not_seen
    assert found.not_seen in repr(found)


def test_weights_that_a_model_returns_are_the_last_resort():
    """Where no call can be seen: as returned by the model, and marked so."""

    class Returning(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Summed(), Summed()])

        def forward(self, x, output_attentions=False):
            for layer in self.layers:
                x = layer(x)
            attentions = tuple(layer.attn[:, None] for layer in self.layers)
            return {"x": x, "attentions": attentions} if output_attentions else {"x": x}

    model, x = Returning(), torch.randn(2, 5, 3)
    found = trace(model, (x,))
    assert found.names == ("attentions.0", "attentions.1")
    for layer, summed in zip(found.layers, model.layers, strict=True):
        assert torch.equal(whole(layer)[:, 0], summed.attn)
    assert "as returned by the model" in found.marks["as returned"]
    assert "layers.1" in found.not_seen
    assert "as returned" in repr(found)
    with pytest.raises(TraceError, match="made no attention call that can be seen"):
        trace(Summed(), (x,))


@pytest.mark.parametrize("kind", ["by hand", "fused"])
def test_weights_of_large_scores_are_as_the_model_had_them(kind):
    """Scores of hundreds round to 1e-5, and their sums again: weights are nearer all the same."""
    x = torch.randn(2, 3, 17, 8) * 6
    (layer,) = trace(Plain() if kind == "by hand" else Fused(), (x,)).layers
    assert (x @ x.mT).max() > 400
    assert isinstance(layer, LayerTrace)
    assert torch.allclose(whole(layer), (x @ x.mT).softmax(-1), atol=1e-6, rtol=0)


class Plain(nn.Module):
    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


class Fused(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, scale=1.0)


def test_a_softmax_inside_a_function_of_pytorch_is_seen():
    """`F.gumbel_softmax` is written in Python, around a softmax."""

    class Gumbel(nn.Module):
        def forward(self, x):
            self.attn = F.gumbel_softmax(x @ x.mT)
            return self.attn @ x

    model = Gumbel()
    (layer,) = trace(model, (torch.randn(1, 2, 5, 3),)).layers
    assert torch.equal(whole(layer), model.attn)


def test_layers_of_a_hybrid_that_were_not_seen_are_named():
    """A stack in which some layers have no softmax attention says which, in facts and repr."""

    class Mixer(nn.Module):
        def forward(self, x, mask):
            return x.cumsum(1)

    class Hybrid(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Mixer(), Annotated(), Mixer()])

        def forward(self, x, mask):
            for layer in self.layers:
                x = layer(x, mask)
            return x

    found = trace(Hybrid().eval(), (torch.randn(2, 13, 24), torch.ones(2, 1, 13, 13)))
    assert found.names == ("layers.1",)
    assert found.facts["not_seen"] == "layers.0, layers.2"
    assert "not seen: layers.0, layers.2" in repr(found)


def test_direct_calls_of_kernels_and_of_flex_attention_are_seen():
    """aten's flash kernel, and flex_attention with a score of its own."""
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v = (torch.randn(2, 3, 7, 8) for _ in range(3))

    class Kernel(nn.Module):
        def forward(self, q, k, v):
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)[0]

    class Flex(nn.Module):
        def forward(self, q, k, v):
            return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + 0.3 * (j - i), scale=0.7)

    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    wanted = (q @ k.mT / math.sqrt(8)).masked_fill(hidden, -math.inf).softmax(-1)
    assert torch.allclose(whole(trace(Kernel(), (q, k, v)).layers[0]), wanted, atol=2e-6)
    distance = torch.arange(7) - torch.arange(7)[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is slow uncompiled
        layer = trace(Flex(), (q, k, v)).layers[0]
    assert torch.allclose(whole(layer), (0.7 * q @ k.mT + 0.3 * distance).softmax(-1), atol=2e-6)
    assert type(layer.rule.bias).__name__ == "DistanceBias"
