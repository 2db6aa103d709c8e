"""Traces of our models: the weights that were used, checked, and nothing of size N x N."""

import math

import pytest
import torch
from tiny_models import FAMILIES, TEXT, plain_softmax, target_of, tiny, whole
from torch import nn
from torch.nn import functional as F

from regard.attention.scores import ScoreRule
from regard.errors import ArgumentError, TraceError
from regard.files.loading import load
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.tracing.interventions import intervene
from regard.tracing.layers import LinearLayerTrace
from regard.tracing.recorder import Recorder
from regard.tracing.take import trace


def weights_by_hand(loaded, found):
    """The first layer's weights, from the model's own parameters and nothing of the trace but its tokens."""
    model = loaded.model
    stack = model.encoder if model.encoder is not None else model.decoder
    attention, block = stack.blocks[0].attention, stack.blocks[0]
    ids = found.ids
    x = model.embed(ids, torch.arange(ids.shape[1])[None])
    x = block.attention_norm(x) if block.norm_first else x
    q, k = (part.unflatten(-1, (-1, 4)).transpose(1, 2) for part in (attention.query(x), attention.key(x)))
    if model.rotary is not None:
        turn = model.rotary(torch.arange(ids.shape[1])[None])
        q, k = turn(q), turn(k)
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT / 2
    distance = torch.arange(ids.shape[1])[:, None] - torch.arange(ids.shape[1])
    if model.decoder is not None:
        scores = scores.masked_fill(distance < 0, -math.inf)
    if attention.rule.visible.window is not None:
        scores = scores.masked_fill(distance >= attention.rule.visible.window, -math.inf)
    return scores.softmax(-1)


@pytest.mark.parametrize("family", ["gpt2", "bert", "llama", "window"])
@torch.no_grad()
def test_the_first_layers_weights_follow_from_the_parameters(family):
    """Embedding, projections and a softmax written out by hand give the weights of the trace."""
    loaded = tiny(family)
    found = trace(loaded, TEXT)
    assert torch.allclose(whole(found.layers[0]), weights_by_hand(loaded, found), atol=2e-6)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "linear"])
def test_a_trace_of_our_models_is_the_plain_softmax(family):
    """Every weight of every layer, padding and grouping included, is the softmax to float32 rounding."""
    found = trace(tiny(family), [TEXT, "a short one"], **target_of(family, "le chat", "oui"))
    assert found.names == tuple(tiny(family).model.attention_names)
    for layer in found.layers:
        wanted, allowed = plain_softmax(layer)
        assert torch.allclose(whole(layer), wanted, rtol=0, atol=allowed), layer.name
    assert found.checks.passed, str(found.checks)
    assert found.checks.hidden == 0
    assert found.checks.output is not None
    assert len(found.checks.layers) == found.n_layer


@pytest.mark.slow
@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_a_trace_of_published_weights_is_the_plain_softmax(name):
    """Real weights, whose scores reach 65, are recovered as well."""
    found = trace(load(name), [TEXT * 9, "a short one"])
    for layer in found.layers:
        wanted, allowed = plain_softmax(layer)
        assert torch.allclose(whole(layer), wanted, rtol=0, atol=allowed), layer.name
    assert found.checks.passed, str(found.checks)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_in_a_padded_batch_is_traced_as_alone(family):
    """Padding has weight 0 and changes no other weight."""
    loaded = tiny(family)
    short = "a short one"
    together = trace(loaded, [TEXT, short], **target_of(family, "le chat", "oui"))
    alone = trace(loaded, short, **target_of(family, "oui"))
    n_source, n_target = len(short), len("oui") + 1
    for one, both in zip(alone.layers, together.layers, strict=True):
        rows = n_target if one.name.startswith("decoder") and family == "t5" else n_source
        cols = n_source if one.kind == "cross" else rows
        table = whole(both)[1, :, :rows]
        assert torch.allclose(table[..., :cols], whole(one)[0], atol=2e-5)
        assert bool((table[..., cols:] == 0).all())
    if family != "t5":
        assert together.key_mask is not None
        assert together.key_mask.sum(1).tolist() == [len(TEXT), len(short)]


@pytest.mark.parametrize("family", FAMILIES)
def test_tracing_changes_no_output(family):
    """A forward with a recorder gives bit for bit what one without gives."""
    loaded = tiny(family)
    ids = torch.tensor([loaded.tokenizer.encode(TEXT)])
    arguments = (ids, ids[:, :7]) if family == "t5" else (ids,)
    with torch.no_grad():
        before = loaded.model(*arguments).hidden
        recorder = Recorder()
        after = loaded.model(*arguments, record=recorder).hidden
    assert torch.equal(before, after)
    assert recorder.layers


def test_memory_grows_with_the_length_only():
    """Twice the tokens, twice the bytes."""
    loaded = tiny("llama")
    sizes = [trace(loaded, torch.randint(0, 263, (1, n))).bytes for n in (64, 128, 256)]
    assert sizes[1] == 2 * sizes[0]
    assert sizes[2] == 4 * sizes[0]


def test_layers_can_be_chosen_by_index_and_name():
    """Only the chosen ones are kept, under their own names and in the order they run."""
    loaded = tiny("t5")
    everything = trace(loaded, TEXT, target="oui")
    some = trace(loaded, TEXT, target="oui", layers=[-1, "encoder.1.self", 2])
    assert some.names == ("encoder.1.self", "decoder.0.self", "decoder.1.cross")
    assert torch.equal(whole(some.layer("decoder.1.cross")), whole(everything.layer(-1)))
    for wrong in (["encoder.2.self"], [6], []):
        with pytest.raises(ArgumentError, match="layers must be some of 0 to 5"):
            trace(loaded, TEXT, target="oui", layers=wrong)


def test_values_are_kept_on_request_only():
    """With the values, the weights give the layer's output."""
    loaded = tiny("llama")
    assert trace(loaded, TEXT).layers[0].v is None
    layer = trace(loaded, TEXT, keep_v=True).layers[0]
    assert layer.v.shape == (1, 3, len(TEXT), 4)


def test_half_storage_keeps_weights_to_its_own_rounding():
    """float16 halves the bytes; a weight is then off by 2^-11 of the sum |q||k| behind its score, at most."""
    loaded = tiny("llama")
    full, half = trace(loaded, TEXT), trace(loaded, TEXT, dtype=torch.float16)
    assert half.bytes < 0.6 * full.bytes
    assert half.checks.passed, str(half.checks)
    for one, other in zip(full.layers, half.layers, strict=True):
        size = float((one.q.abs() @ one.k.abs().repeat_interleave(2, 1).mT).max()) / 2
        assert float((whole(one) - whole(other)).abs().max()) <= 2**-11 * 2 * size + 1e-6


def test_half_storage_refuses_what_it_cannot_hold():
    """Queries beyond 65504 would become inf without a word."""
    recorder = Recorder(dtype=torch.float16)
    q = torch.full((1, 1, 2, 3), 1e5)
    with pytest.raises(TraceError, match=r"reach 1e\+05, and float16 ends at 65504"):
        recorder("a", q, q, q, q, torch.zeros(1, 1, 2), ScoreRule())


def test_a_trace_with_a_head_gated_passes_its_checks():
    """A layer is checked as it was computed, before the gate; the layers after it change."""
    loaded = tiny("llama")
    with intervene(loaded) as run:
        run.gate(layer=0, head=3, by=0.0)
        found = trace(loaded, TEXT)
    assert found.checks.passed, str(found.checks)
    assert not torch.equal(whole(found.layers[1]), whole(trace(loaded, TEXT).layers[1]))


def test_the_recurrent_models_alignment_is_a_trace():
    """Additive scores of a seq2seq model: one head, rows of the target, columns of the source."""
    config = Seq2SeqConfig(source_vocab=31, target_vocab=37, embed_dim=8, hidden_dim=12)
    model = Seq2Seq(config).eval()
    source, target = torch.randint(0, 31, (2, 11)), torch.randint(0, 37, (2, 7))
    found = trace(model, source, target=target)
    layer = found.layer("decoder.cross")
    assert layer.shape == (2, 1, 7, 11)
    wanted, _ = plain_softmax(layer)
    assert torch.allclose(whole(layer), wanted, atol=1e-6)
    assert found.checks.passed, str(found.checks)
    assert found.checks.output is not None
    assert found.query_tokens(0, 1) == tuple(map(str, target[1].tolist()))
    assert found.key_tokens(0, 1) == tuple(map(str, source[1].tolist()))


def test_linear_attention_traces_as_any_other():
    """A model with linear layers gives layers of their own type, recovered and checked."""
    found = trace(tiny("linear"), [TEXT, "a short one"])
    assert all(isinstance(layer, LinearLayerTrace) for layer in found.layers)
    assert found.checks.passed, str(found.checks)
    table = whole(found.layers[0])
    assert torch.allclose(table.sum(-1), torch.ones(2, 6, len(TEXT)), atol=1e-5)
    assert bool((table.triu(1) == 0).all())


def checked(layer, out):
    """What a recorder says of a layer that gave `out`."""
    recorder = Recorder()
    recorder(layer.name, layer.q, layer.k, layer.v, out, layer.lse, layer.rule)
    return recorder.checks[layer.name]


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (lambda layer: layer.lse.add_(1e-3), "row_sum"),
        (lambda layer: layer.q.mul_(1.01), "row_sum"),
        (lambda layer: layer.k.copy_(layer.k.flip(2)), "row_sum"),
    ],
    ids=["lse", "q", "k"],
)
def test_a_wrong_layer_fails_its_check(spoil, wrong):
    """What is recovered from spoiled numbers is noticed on the rows looked at."""
    layer = trace(tiny("llama"), TEXT, keep_v=True).layers[0]
    out = (whole(layer).unflatten(1, (3, 2)) @ layer.v[:, :, None]).flatten(1, 2)
    assert checked(layer, out).passed
    spoil(layer)
    found = checked(layer, out)
    assert not found.passed
    assert getattr(found, wrong) > getattr(found, f"{wrong}_allowed")


def test_a_wrong_output_fails_the_check():
    """An output that the weights do not give is noticed."""
    layer = trace(tiny("llama"), TEXT, keep_v=True).layers[0]
    out = (whole(layer).unflatten(1, (3, 2)) @ layer.v[:, :, None]).flatten(1, 2)
    assert not checked(layer, out * 1.01).passed


def test_a_model_that_looks_at_padding_is_shown_doing_so():
    """The trace is of what the model did, not of what its mask should have made it do."""

    class Ignores(nn.Module):
        def forward(self, q, attention_mask):
            return F.scaled_dot_product_attention(q, q, q)

    mask = torch.ones(1, 11, dtype=torch.long)
    mask[0, 8:] = 0
    found = trace(Ignores(), {"q": torch.randn(1, 2, 11, 5), "attention_mask": mask})
    assert found.checks.passed
    assert found.checks.hidden is None
    assert float(found.weights(0, 0)[:8, 8:].amax()) > 0.05
