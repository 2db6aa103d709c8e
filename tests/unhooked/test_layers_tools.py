"""PyTorch's tools on our layers: export, whole-graph compilation, quantisation, the meta device."""

import warnings

import pytest
import torch
from torch import nn

from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError
from regard.files.loading import load
from regard.layers.attention import MultiHeadAttention
from regard.models.model import Output

LAYERS = {
    "causal": {"causal": True},
    "grouped": {"n_kv_head": 1},
    "window": {"causal": True, "window": 3},
}


def layer_of(name):
    return MultiHeadAttention(24, 3, **LAYERS[name]).eval()


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_a_layer_can_be_exported(name):
    """The exported graph gives the layer's output, and NaN where what is seen is NaN."""
    layer, x = layer_of(name), torch.randn(2, 7, 24)
    exported = torch.export.export(layer, (x,)).module()
    assert torch.allclose(exported(x), layer(x), atol=1e-6)
    x[1, 5, 0] = float("nan")  # seen by the tokens after it, and by nobody before
    assert torch.equal(exported(x).isnan(), layer(x).isnan())


@pytest.mark.parametrize("family", ["gpt2", "bert", "llama", "t5"])
@torch.no_grad()
def test_a_whole_model_can_be_exported(family):
    """The exported graph returns an `Output` with the model's numbers."""
    model, ids = load(family, random=True).model, torch.randint(0, 50, (2, 7))
    given = (ids, ids[:, :5]) if model.kind == "encoder-decoder" else (ids,)
    exported, wanted = torch.export.export(model, given).module()(*given), model(*given)
    assert isinstance(exported, Output)
    assert torch.allclose(exported.hidden, wanted.hidden, atol=1e-5)
    assert torch.allclose(exported.logits, wanted.logits, atol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_compiles_as_one_graph(name):
    """`compile(fullgraph=True)`: nothing asks what tensors hold, and gradients are the same."""
    layer, x = layer_of(name), torch.randn(2, 7, 24)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert torch.allclose(compiled(x), layer(x), atol=1e-6)
    with torch.no_grad():
        assert torch.allclose(compiled(x), layer(x), atol=1e-6)


@torch.no_grad()
def test_a_layer_can_be_quantised():
    """`quantize_dynamic` makes a function of a weight; the layer goes on, to 8 bits or so."""
    layer, x = layer_of("causal"), torch.randn(2, 7, 24)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it will be gone one day
        quantised = torch.ao.quantization.quantize_dynamic(layer, {nn.Linear}, dtype=torch.qint8)
        assert torch.allclose(quantised(x), layer(x), atol=0.05)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_runs_on_the_meta_device(name):
    """Shapes without numbers."""
    with torch.device("meta"):
        layer = layer_of(name)
        assert layer(torch.randn(2, 7, 24)).shape == (2, 7, 24)


def test_a_mask_in_place_of_a_rule_is_answered():
    """A tensor where a rule or a visibility belongs: the error says what to write."""
    q, mask = torch.randn(1, 2, 5, 3), torch.ones(5, 5, dtype=torch.bool).tril()
    with pytest.raises(ArgumentError, match=r"ScoreRule\(visible=Visibility\.from_dense\(mask\)\)"):
        attend(q, q, q, mask)
    with pytest.raises(ArgumentError, match=r"Visibility\.from_dense\(table\)"):
        ScoreRule(visible=mask)
    assert attend(q, q, q, ScoreRule(visible=Visibility.from_dense(mask))).out.shape == q.shape
