"""Traces of anybody's modules, seen at PyTorch's attention functions and in layers of ours."""

import math
import threading

import pytest
import torch
from tiny_models import NanoAttention, NanoGPT, whole
from torch import nn
from torch.nn import functional as F

from regard.errors import ArgumentError, TraceError
from regard.layers.attention import AdditiveAttention, MultiHeadAttention
from regard.layers.block import BlockConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.tracing.generation import watch
from regard.tracing.recorder import Recorder
from regard.tracing.take import trace
from regard.tracing.watch import watching


def dense_nano(model, ids):
    """The weights of both blocks, by the definition."""
    x, found = model.wte(ids), []
    for block in model.h:
        q, k, v = (part.unflatten(-1, (3, -1)).transpose(1, 2) for part in block.c_attn(x).chunk(3, dim=-1))
        hidden = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        weights = (q @ k.mT / math.sqrt(8)).masked_fill(hidden, -math.inf).softmax(-1)
        found.append(weights)
        x = x + block.c_proj((weights @ v).transpose(1, 2).flatten(2))
    return found


@torch.no_grad()
def test_a_hand_written_module_is_traced_where_it_lives():
    """No registration, no change: names from the module tree, weights by the definition."""
    model, ids = NanoGPT().eval(), torch.randint(0, 61, (2, 13))
    found = trace(model, ids)
    assert found.names == ("h.0", "h.1")
    assert found.tokens[1] == tuple(map(str, ids[1].tolist()))
    for layer, wanted in zip(found.layers, dense_nano(model, ids), strict=True):
        assert torch.allclose(whole(layer), wanted, atol=1e-6)
        assert layer.rule.visible.causal
        assert layer.kind == "self"
    assert found.checks.passed


def test_a_copy_is_kept_of_what_was_used():
    """Queries that are views of a fused projection do not keep it, and later writes do not reach them."""
    found = trace(NanoGPT().eval(), torch.randint(0, 61, (1, 13)))
    for layer in found.layers:
        for tensor in (layer.q, layer.k, layer.lse):
            assert tensor.is_contiguous()
            assert tensor.untyped_storage().nbytes() == tensor.numel() * 4


class Shared(nn.Module):
    """One attention module that runs three times."""

    def __init__(self):
        super().__init__()
        self.block = NanoAttention()

    def forward(self, x):
        for _ in range(3):
            x = self.block(x)
        return x


def test_a_module_that_runs_several_times_is_several_layers():
    """The runs are numbered, and can be chosen."""
    model, x = Shared().eval(), torch.randn(2, 7, 24)
    found = trace(model, x)
    assert found.names == ("block", "block#2", "block#3")
    assert found.tokens == ()
    assert found.query_tokens(1) == tuple("0123456")
    second = trace(model, x, layers=["block#2"])
    assert torch.equal(whole(second.layers[0]), whole(found.layers[1]))


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage")  # what its fast path uses
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_an_encoder_of_torch_is_traced(batch_first, padded):
    """`nn.TransformerEncoder`, whose fast path would hide it, gives its weights and its output to the bit."""
    layer = nn.TransformerEncoderLayer(24, 4, 31, dropout=0.0, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first)
    x = torch.randn(2, 11, 24)
    hidden = torch.zeros(2, 11, dtype=torch.bool)
    hidden[1, 8:] = padded
    given = {"src": x if batch_first else x.transpose(0, 1)}
    if padded:
        given["src_key_padding_mask"] = hidden
    with torch.no_grad():
        plain = model.train()(**given)  # in training it takes no fast path, and there is no dropout
        wanted = model.eval()(**given)
        with watch(model) as watched:
            assert torch.equal(model(**given), wanted)
        seen = []
        handle = model.register_forward_hook(lambda module, args, out: seen.append(out))
        found = trace(model, given)
        handle.remove()
    assert found.names == ("layers.0.self_attn", "layers.1.self_attn")
    assert {each.kind for each in found.layers} == {"self"}
    assert torch.equal(seen[0], wanted)
    real = ~hidden if batch_first else ~hidden.T
    assert torch.allclose(plain[real], wanted[real], atol=1e-5)
    assert watched.trace.names == found.names
    attention = model.layers[0].self_attn
    _, dense = attention(
        given["src"],
        given["src"],
        given["src"],
        key_padding_mask=given.get("src_key_padding_mask"),
        average_attn_weights=False,
    )
    assert torch.allclose(whole(found.layers[0]), dense.detach(), atol=1e-6)
    assert found.layers[0].rule.visible.dense is None


def test_weights_that_a_module_asks_for_are_still_given():
    """`nn.MultiheadAttention` with need_weights returns them as it would untraced."""

    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(
                24, 3, batch_first=True, add_bias_kv=True, add_zero_attn=True
            )
            self.given = []

        def forward(self, x, y, averaged):
            out, weights = self.attention(x, y, y, average_attn_weights=averaged)
            self.given.append((out, weights))

    model, x, y = Asks().eval(), torch.randn(2, 5, 24), torch.randn(2, 7, 24)
    for averaged in (True, False):
        with torch.no_grad():
            model(x, y, averaged)
        found = trace(model, (x, y, averaged))
        (out, weights), (same_out, same_weights) = model.given[-2:]
        assert torch.allclose(out, same_out, atol=1e-6)
        assert torch.allclose(weights, same_weights, atol=1e-6)
        assert found.layers[0].shape == (2, 3, 5, 9)  # 7 keys, the learned one and the zero
        assert found.layers[0].kind == "cross"


def test_an_encoder_decoder_of_torch_is_traced():
    """`nn.Transformer`: the encoder, the causal decoder and its cross-attention, told apart."""
    model = nn.Transformer(24, 4, 2, 2, 31, batch_first=True).eval()
    source, target = torch.randn(2, 11, 24), torch.randn(2, 7, 24)
    mask = nn.Transformer.generate_square_subsequent_mask(7)
    found = trace(model, {"src": source, "tgt": target, "tgt_mask": mask, "tgt_is_causal": True})
    assert [layer.kind for layer in found.layers] == ["self", "self", "self", "cross", "self", "cross"]
    assert found.layers[2].rule.visible.causal
    assert found.layers[3].shape == (2, 4, 7, 11)
    assert found.checks.passed, str(found.checks)


class Calls(nn.Module):
    """One call of PyTorch's attention, as given."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        self.out = F.scaled_dot_product_attention(q, k, v, **self.options)
        return self.out


def additive(visible):
    return torch.zeros(visible.shape).masked_fill(~visible, -math.inf)


BAND = (torch.arange(13) <= torch.arange(13)[:, None]) & (torch.arange(13) > torch.arange(13)[:, None] - 4)
LEFT = torch.ones(2, 13, dtype=torch.bool)
LEFT[1, :5] = False
SCATTERED = torch.rand(13, 13, generator=torch.Generator().manual_seed(0)) < 0.7
LINE = torch.linspace(-2, 2, 25)[torch.arange(13) - torch.arange(13)[:, None] + 12]
MASKS = {
    "none": ({}, "nothing"),
    "causal flag": ({"is_causal": True}, "causal"),
    "causal table": ({"attn_mask": BAND | torch.ones(13, 13, dtype=torch.bool).tril()}, "causal"),
    "window": ({"attn_mask": BAND}, "window"),
    "window added": ({"attn_mask": additive(BAND)}, "window"),
    "left padding": ({"attn_mask": LEFT[:, None, None]}, "keys"),
    "left padding and causal": (
        {"attn_mask": LEFT[:, None, None] & torch.ones(13, 13).bool().tril()},
        "keys",
    ),
    "scattered": ({"attn_mask": SCATTERED}, "dense"),
    "distance": ({"attn_mask": LINE}, "line"),
    "distance, causal": ({"attn_mask": LINE + additive(torch.ones(13, 13).bool().tril())}, "line"),
    "table for each head": ({"attn_mask": torch.randn(1, 6, 13, 13)}, "table"),
    "scale": ({"scale": 0.9}, "nothing"),
    "grouped": ({"enable_gqa": True}, "nothing"),
}


@pytest.mark.parametrize("name", MASKS)
def test_every_form_of_pytorchs_call_is_answered_and_kept_compact(name):
    """Output as PyTorch's own; weights by the definition; the mask as a flag, a row, a line, or itself."""
    options, kept = MASKS[name]
    n_kv_head = 2 if options.get("enable_gqa") else 6
    q, k, v = (torch.randn(2, n, 13, 5) for n in (6, n_kv_head, n_kv_head))
    model = Calls(**options)
    wanted = F.scaled_dot_product_attention(q, k, v, **options)
    found = trace(model, (q, k, v))
    assert torch.equal(model.out, wanted)
    layer = found.layers[0]
    scores = q @ k.repeat_interleave(6 // n_kv_head, 1).mT * options.get("scale", 5**-0.5)
    mask = options.get("attn_mask", torch.ones(13, 13).bool().tril() if options.get("is_causal") else None)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    assert torch.allclose(whole(layer), scores.softmax(-1).nan_to_num(0.0), atol=2e-6)
    visible = layer.rule.visible
    was = {
        "causal": visible.causal and visible.everything is False and visible.window is None,
        "window": visible.window == 4,
        "keys": visible.key_mask is not None and visible.dense is None,
        "dense": visible.dense is not None,
        "line": type(layer.rule.bias).__name__ == "DistanceBias",
        "table": type(layer.rule.bias).__name__ == "DenseBias",
        "nothing": visible.everything and layer.rule.bias is None,
    }
    assert was[kept]
    assert ("kept_whole" in found.facts) == (kept in ("dense", "table"))


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3)], ids=str)
def test_any_number_of_leading_dimensions_is_taken(lead):
    """PyTorch's attention does not ask for a head or a batch."""
    q, k, v = torch.randn(*lead, 7, 5), torch.randn(*lead, 11, 5), torch.randn(*lead, 11, 5)
    model = Calls()
    wanted = F.scaled_dot_product_attention(q, k, v)
    found = trace(model, (q, k, v))
    assert model.out.shape == wanted.shape
    assert torch.allclose(model.out, wanted, atol=1e-6)
    scores = q.reshape(-1, 7, 5) @ k.reshape(-1, 11, 5).mT / math.sqrt(5)
    assert torch.allclose(whole(found.layers[0]).reshape(-1, 7, 11), scores.softmax(-1), atol=1e-6)


def test_rows_hidden_by_a_finite_number_see_all_alike():
    """Softmax over equal low numbers is flat: the trace says what the model did, and its check agrees."""
    mask = torch.zeros(5, 5)
    mask[2] = torch.finfo(torch.float32).min
    q = torch.randn(1, 2, 5, 3)
    model = Calls(attn_mask=mask)
    wanted = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    found = trace(model, (q, q, q))
    assert torch.equal(model.out, wanted)
    assert torch.allclose(found.row(0, 0, 2), torch.full((5,), 0.2))
    assert found.checks.passed


class ByHand(nn.Module):
    """Attention written out, in whatever precision it is given."""

    def forward(self, q, k, v):
        self.weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return self.weights @ v


@pytest.mark.parametrize("n_key", [12, 48, 200])
@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16, "autocast"], ids=str)
@pytest.mark.parametrize("kind", [Calls, ByHand])
def test_half_precision_is_no_alarm(kind, precision, n_key):
    """Rounding of the format, and of exp in half-precision kernels, is allowed for; no warning comes."""
    for size in (1.0, 3.0):
        given = tuple(size * torch.randn(2, 3, n_key, 16) for _ in range(3))
        if precision != "autocast":
            given = tuple(tensor.to(precision) for tensor in given)
        model = kind()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            found = trace(model, given)
        assert found.checks.passed, str(found.checks)
        if kind is ByHand:
            assert torch.equal(whole(found.layers[0]), model.weights)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16], ids=str)
def test_a_real_error_in_half_precision_is_caught(precision):
    """Row sums off by ten times what half precision is allowed fail the check."""
    q, k, v = (torch.randn(2, 3, 48, 16).to(precision) for _ in range(3))
    layer = trace(Calls(), (q, k, v)).layers[0]
    out = F.scaled_dot_product_attention(q, k, v)
    for factor, passes in ((0.0, True), (10.0, False)):
        recorder = Recorder()
        recorder("a", q, k, v, out, layer.lse, layer.rule)
        allowed = recorder.checks["a"].row_sum_allowed
        assert allowed < 2e-4
        recorder = Recorder()
        recorder("a", q, k, v, out, layer.lse + factor * allowed, layer.rule)
        assert recorder.checks["a"].passed == passes


def test_layers_of_ours_in_a_users_module_report_themselves():
    """No `record` need be passed on: self, cross and additive attention are named by their place."""

    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = MultiHeadAttention(24, 3, causal=True)
            self.across = MultiHeadAttention(24, 3)
            self.align = AdditiveAttention(24, 24, 7)

        def forward(self, x, y):
            x = self.first(x)
            return self.align(self.across(x, y), y, y)

    x, y = torch.randn(2, 5, 24), torch.randn(2, 7, 24)
    model = Mine().eval()
    found = trace(model, (x, y))
    assert found.names == ("first", "across", "align")
    assert [layer.kind for layer in found.layers] == ["self", "cross", "cross"]
    assert [check.output is not None for check in found.checks.layers] == [True] * 3
    assert found.checks.passed, str(found.checks)
    with torch.no_grad():
        _, weights = model.first(x, return_weights=True)
    assert torch.allclose(whole(found.layers[0]), weights, atol=1e-6)
    assert not model.first._forward_pre_hooks
    assert not model.align._forward_hooks


def test_a_trace_inside_a_trace_leaves_both_whole():
    """A recorder around a call that traces sees every layer too, and only once."""
    model, ids = NanoGPT().eval(), torch.randint(0, 61, (1, 7))
    outer = Recorder()
    with torch.no_grad(), watching(model, outer):
        inner = trace(model, ids)
        model(ids[:, :5])
    assert inner.names == ("h.0", "h.1")
    assert [layer.n_query for layer in outer.layers] == [7, 7, 5, 5]
    assert torch.equal(whole(inner.layers[1]), whole(outer.layers[1]))
    after = Recorder()
    model(ids)
    assert not after.layers


def test_threads_trace_apart():
    """Each thread's trace holds its own input, and a thread that traces nothing is left alone."""
    model = NanoGPT().eval()
    inputs = [torch.randint(0, 61, (1, n)) for n in (3, 5, 7, 11)]
    alone = [trace(model, ids) for ids in inputs]
    found = [None] * 4
    untraced = []
    started = threading.Barrier(5)

    def work(index):
        started.wait()
        for _ in range(5):
            found[index] = trace(model, inputs[index])

    def plain():
        started.wait()
        with torch.no_grad():
            untraced.extend(model(inputs[0]) for _ in range(20))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)] + [threading.Thread(target=plain)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(alone, found, strict=True):
        assert other.names == ("h.0", "h.1")
        assert torch.equal(whole(one.layers[1]), whole(other.layers[1]))
    with torch.no_grad():
        assert all(torch.equal(out, model(inputs[0])) for out in untraced)


def test_no_attention_call_is_an_error_that_says_what_to_do():
    """A model without attention, or with its own, is refused with the ways out."""
    with pytest.raises(TraceError, match=r"Linear made no attention call.*Trace\.from_weights"):
        trace(nn.Linear(3, 5), torch.randn(2, 3))


def test_dropout_is_refused():
    """Weights that differ from run to run are no weights to trace: eval() is asked for."""
    with pytest.raises(ArgumentError, match=r"dropout 0\.3.*model\.eval\(\)"):
        trace(Calls(dropout_p=0.3), (torch.randn(1, 2, 3, 5),) * 3)
    config = TransformerConfig(
        vocab=61, block=BlockConfig(model_dim=24, n_head=3, ff_dim=31, dropout=0.1), n_decoder_layer=1
    )
    with pytest.raises(ArgumentError, match=r"dropout 0\.1.*model\.eval\(\)"):
        trace(Transformer(config).train(), torch.randint(0, 61, (1, 7)))
