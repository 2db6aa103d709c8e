"""Gradients with respect to scores, by tile, against autograd and against finite differences."""

import pytest
import torch
from tiny_models import TEXT, NanoGPT, target_of, tiny

from regard.errors import ArgumentError
from regard.layers.block import BlockConfig
from regard.models.families import initialise
from regard.models.transformer import Transformer, TransformerConfig
from regard.tracing.gradients import score_gradients


def dense_score_gradients(layer, gradient):
    """d objective / d scores through a softmax that autograd differentiates."""
    scores = layer.rule.scores(layer.q, layer.k).detach().requires_grad_()
    weights = scores.softmax(-1)
    out = (weights.unflatten(1, (layer.v.shape[1], -1)) @ layer.v[:, :, None]).flatten(1, 2)
    (wanted,) = torch.autograd.grad(out, scores, gradient)
    return wanted


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5"])
def test_a_tile_of_score_gradients_is_what_autograd_gives(family):
    """P (dO.V - rowsum(dO.O)) equals the gradient through a dense softmax, tile by tile."""
    found = score_gradients(tiny(family), TEXT, token=101, **target_of(family, "oui"))
    for each in found.layers:
        wanted = dense_score_gradients(each.layer, each.grad_out)
        got = each.tile(4, slice(2, 9), slice(1, 11))
        assert torch.allclose(got, wanted[0, 4, 2:9, 1:11], atol=1e-6 * float(wanted.abs().max()) + 1e-9)
    assert any(float(each.grad_out.abs().max()) > 0 for each in found.layers)


def test_score_gradients_predict_the_change_of_the_prediction():
    """Raising one score by a little moves the log-probability by the gradient times that little."""
    torch.manual_seed(5)
    loaded = tiny("gpt2")
    loaded.model.double()
    ids = torch.randint(0, 263, (1, 11))
    found = score_gradients(loaded, ids, token=7)
    row, col, head, step = 8, 3, 2, 1e-4
    gradient = float(found.tile(0, head, slice(row, row + 1), slice(col, col + 1)))

    def prediction(amount):
        """The prediction with one score of the first layer raised, through a dense forward."""
        block = loaded.model.decoder.blocks[0]
        raised = {}

        def replace_heads(module, args):
            layer = found.layers[0].layer
            scores = layer.rule.scores(layer.q, layer.k).clone()
            scores[0, head, row, col] += amount
            heads = scores.softmax(-1) @ layer.v
            raised["heads"] = heads
            return (heads.transpose(1, 2).flatten(2),)

        handle = block.attention.out.register_forward_pre_hook(replace_heads)
        with torch.no_grad():
            value = loaded.model(ids).logits[0, -1].log_softmax(-1)[7]
        handle.remove()
        return float(value)

    slope = (prediction(step) - prediction(-step)) / (2 * step)
    assert found.value == pytest.approx(prediction(0.0), abs=1e-5)
    assert gradient == pytest.approx(slope, rel=1e-3, abs=1e-9)


def test_score_gradients_of_a_foreign_model():
    """Any module's attention has them too, frozen or not, and parameters keep no gradient."""
    model, ids = NanoGPT().eval(), torch.randint(0, 61, (1, 7))
    free = score_gradients(model, ids, token=3)
    model.requires_grad_(False)
    frozen = score_gradients(model, ids, token=3)
    for one, other in zip(free.layers, frozen.layers, strict=True):
        wanted = dense_score_gradients(one.layer, one.grad_out)
        assert torch.allclose(one.tile(2, slice(0, 7), slice(0, 7)), wanted[0, 2], atol=1e-7)
        assert torch.allclose(one.grad_out, other.grad_out, atol=1e-6)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_objective_stands_for_a_prediction():
    """A model without logits needs to be told what is predicted."""
    config = TransformerConfig(
        vocab=61, block=BlockConfig(model_dim=24, n_head=3, ff_dim=31), n_encoder_layer=1, lm_head="none"
    )
    model = initialise(Transformer(config), 0).eval()
    ids = torch.randint(0, 61, (1, 7))
    with pytest.raises(ArgumentError, match="gives no logits"):
        score_gradients(model, ids)
    found = score_gradients(model, ids, objective=lambda output: output.hidden[0, 0, 0])
    assert float(found.layers[0].grad_out.abs().sum()) > 0
