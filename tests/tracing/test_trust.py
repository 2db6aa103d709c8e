"""What is shown is what was computed, or it is said: masks, long texts, what is refused in words."""

import math
import threading
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import regard
from regard.attention.visibility import hidden_by
from regard.errors import ArgumentError, TraceError, UnsupportedError
from regard.tracing.layers import LayerTrace
from regard.tracing.recorder import Recorder


def heads(linear, x):
    return (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in linear(x).chunk(3, -1))


class Made(nn.Module):
    """A model of one function."""

    def __init__(self, function):
        super().__init__()
        self.lin, self.function = nn.Linear(8, 24), function
        self.mix = nn.Parameter(torch.randn(2, 2))

    def forward(self, x):
        return self.function(self, x)


MASKS = {"-1e4": -1e4, "-1e9": -1e9, "lowest": torch.finfo(torch.float32).min, "-inf": -math.inf}


def masked(scores, mask):
    return (scores + mask).softmax(-1)


DOORS = {
    "by hand, added": lambda q, k, v, mask: masked(q @ k.mT / 2, mask) @ v,
    "by hand, filled": lambda q, k, v, mask: (
        (q @ k.mT / 2).masked_fill(mask < 0, float(mask.min())).softmax(-1) @ v
    ),
    "by exp": lambda q, k, v, mask: ((e := (q @ k.mT / 2 + mask).exp()) / e.sum(-1, keepdim=True)) @ v,
    "PyTorch's": lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask),
    "einsum": lambda q, k, v, mask: torch.einsum(
        "bhij,bhjd->bhid", masked(torch.einsum("bhid,bhjd->bhij", q, k) / 2, mask), v
    ),
}


@pytest.mark.parametrize("number", MASKS)
@pytest.mark.parametrize("door", DOORS)
@torch.no_grad()
def test_a_large_negative_number_masks_through_every_door(door, number):
    """The same keys are masked, whoever adds the number and however large it is."""
    mask = torch.zeros(2, 1, 1, 7)
    mask[1, ..., 5:] = MASKS[number]
    model = Made(lambda self, x: DOORS[door](*heads(self.lin, x), mask.expand(2, 2, 7, 7))).eval()
    (layer,) = regard.trace(model, torch.randn(2, 7, 8)).layers
    visible = torch.stack([layer.visible(1, slice(None), slice(None), batch) for batch in range(2)])
    assert torch.equal(visible, (mask == 0)[:, 0].expand(2, 7, 7))
    assert float(layer.weights(1, batch=1)[:, 5:].abs().max()) == 0.0


def test_a_bias_that_falls_with_distance_is_no_mask():
    """ALiBi's numbers may be low, and they are many; a mask has one or two."""
    distance = -torch.arange(4096.0)
    assert not hidden_by(0.5 * distance).any()
    assert hidden_by(torch.tensor([0.0, -200.0])).tolist() == [False, True]
    assert hidden_by(torch.tensor([0.0, -200.0]), score_size=60.0).tolist() == [False, False]


@pytest.mark.parametrize("n_key", [1000, 65_536])
def test_long_repetitive_texts_are_no_alarm_and_ten_times_their_rounding_is(n_key):
    """A row that looks everywhere sums as many numbers as there are keys."""
    torch.manual_seed(0)
    q = torch.randn(1, 1, 1, 8).expand(1, 1, 3, 8).contiguous()
    k = torch.randn(1, 1, 1, 8).expand(1, 1, n_key, 8).contiguous()
    v = torch.randn(1, 1, 7, 8).repeat(1, 1, n_key // 7 + 1, 1)[:, :, :n_key]
    out = regard.attend(q, k, v)
    recorder = Recorder()
    recorder("decoder.0.self", q, k, v, out.out, out.lse, regard.ScoreRule())
    (check,) = recorder.checks.values()
    assert check.passed, check
    assert not replace(check, output=10 * check.output_allowed).passed
    wrong = Recorder()
    wrong("decoder.0.self", q, k, v, out.out + 10 * check.output_allowed, out.lse, regard.ScoreRule())
    assert not wrong.checks["decoder.0.self"].passed
    assert check.output_allowed < 4e-9 * (n_key + 1000) * float(v.abs().max())


@torch.no_grad()
def test_a_closed_gate_reaches_every_use_of_the_weights():
    """Positions are averaged with the weights before the values are: both are of the layer."""

    def twice(self, x):
        q, k, v = heads(self.lin, x)
        a = (q @ k.mT).softmax(-1)
        self.at = a @ torch.arange(5.0)[:, None]
        return a @ v + self.at

    model, x = Made(twice).eval(), torch.randn(2, 5, 8)
    assert regard.trace(model, x).n_layer == 1
    with regard.intervene(model) as run:
        run.gate(layer=0, by=0.0)
        assert model(x).abs().max() == 0.0
        run.clear()
        run.knock_out(layer=0, head=1, query=3, key=2, batch=1)
        changed = model(x)
    q, k, v = heads(model.lin, x)
    scores = q @ k.mT
    scores[1, 1, 3, 2] = -math.inf
    a = scores.softmax(-1)
    assert torch.allclose(changed, a @ v + a @ torch.arange(5.0)[:, None], atol=1e-6)


@torch.no_grad()
def test_heads_mixed_by_einsum_are_seen_as_they_met_the_values():
    """(batch, head, query, key), and marked."""
    model = Made(
        lambda self, x: (lambda q, k, v: torch.einsum("bhij,hg->bgij", (q @ k.mT).softmax(-1), self.mix) @ v)(
            *heads(self.lin, x)
        )
    ).eval()
    x = torch.randn(2, 5, 8)
    found = regard.trace(model, x)
    q, k, _ = heads(model.lin, x)
    wanted = torch.einsum("bhij,hg->bgij", (q @ k.mT).softmax(-1), model.mix)
    assert found.layers[0].shape == (2, 2, 5, 5)
    assert torch.allclose(found.weights(0, None, None), wanted, atol=1e-6)
    assert "changed" in found.marks


@torch.no_grad()
def test_peaked_rows_in_half_precision_are_cut_where_the_scores_are():
    """What is left of a row may be 0 in every digit: its scores are not."""
    model = Made(lambda self, x: (60 * x @ x.mT).softmax(-1) @ x).eval().half()
    x = torch.randn(1, 5, 8).half()
    row = (60 * x @ x.mT)[0, 3]
    key = int(row.argmax())
    with regard.intervene(model) as run:
        run.knock_out(layer=0, query=3, key=key)
        changed = model(x)
    row = row.clone()
    row[key] = -math.inf
    assert torch.allclose(changed[0, 3], row.softmax(-1) @ x[0], atol=1e-2)
    assert changed.isfinite().all()


@torch.no_grad()
def test_an_unseen_use_of_weights_refuses_a_change_of_outputs():
    """A gate would not reach what einsum makes of three tensors."""

    def also(self, x):
        a = (x @ x.mT).softmax(-1)
        return a @ x + torch.einsum("bij,bjd,d->bid", a, x, torch.ones(8))

    model, x = Made(also).eval(), torch.randn(2, 5, 8)
    assert "also used by einsum" in regard.trace(model, x).marks["also used"]

    def gated():
        with regard.intervene(model) as run:
            run.gate(layer=0, by=0.0)
            model(x)

    with pytest.raises(UnsupportedError, match="also used by einsum"):
        gated()
    with regard.intervene(model) as run:
        run.knock_out(layer=0, query=1, key=2)
        changed = model(x)
    scores = x @ x.mT
    scores[:, 1, 2] = -math.inf
    assert torch.allclose(changed, 2 * scores.softmax(-1) @ x, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 0, 8), (0, 5, 8)])
def test_an_empty_input_is_refused_in_words(shape):
    """No sequence, or none with a position."""
    model = Made(lambda self, x: (x @ x.mT).softmax(-1) @ x)
    with pytest.raises(ArgumentError, match=r"nothing to attend to: an input has shape \(\d, \d, 8\)"):
        regard.trace(model, torch.zeros(shape))


@torch.no_grad()
def test_a_model_of_one_mapping_is_given_it():
    """Not its entries by name."""

    class OfMapping(nn.Module):
        def forward(self, batch):
            return (batch["x"] @ batch["x"].mT).softmax(-1) @ batch["x"]

    assert regard.trace(OfMapping(), {"x": torch.randn(2, 5, 8)}).n_layer == 1


def test_a_matrix_that_no_memory_holds_is_refused():
    """With what to call instead."""
    q = torch.zeros(1, 1, 1, 4).expand(1, 1, 131_072, 4)
    layer = LayerTrace("long", q, q, torch.zeros(1, 1, 131_072), regard.ScoreRule())
    with pytest.raises(ArgumentError, match=r"64 GiB in float32: ask for a part with tile, row or column"):
        layer.weights(0)


@torch.no_grad()
def test_a_refusal_says_what_was_seen_and_where():
    """The softmax, its line, and what became of it."""
    model = Made(lambda self, x: torch.einsum("bij,bjd,d->bid", (x @ x.mT).softmax(-1), x, torch.ones(8)))
    with pytest.raises(
        TraceError, match=r"a softmax .* used by einsum of several tensors, test_trust.py:\d+"
    ):
        regard.trace(model, torch.randn(2, 5, 8))


@torch.no_grad()
def test_attention_in_another_thread_is_said_to_be_unseen():
    """Beside attention that is seen."""

    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = Made(attention), Made(attention)

        def forward(self, x):
            outs = []
            thread = threading.Thread(target=lambda: outs.append(self.two(x)))
            thread.start()
            thread.join()
            return self.one(x) + outs[0]

    def attention(self, x):
        q, k, v = heads(self.lin, x)
        return (q @ k.mT).softmax(-1) @ v

    found = regard.trace(Split().eval(), torch.randn(2, 5, 8))
    assert found.names == ("one",)
    assert "two (it runs in another thread)" in found.not_seen
