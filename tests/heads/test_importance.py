"""Importance: the gradient is the slope of the loss, ablation is what happens, signs do not cancel."""

import pytest
import torch
from heads.test_pruning import gate_without, small

from regard.experiments.losses import (
    ablated,
    ablation,
    gated,
    head_means,
    importance,
    mean_loss,
    next_token_loss,
)
from regard.experiments.pruning import prune

TEXTS = ["the cat sat on the mat", "a dog ran", "abcabcabcabc"]


@pytest.mark.parametrize("family", ["gpt2", "bert", "llama"])
def test_importance_is_the_slope_of_the_loss(family):
    """|dL/d gate| of one text equals a difference quotient of the loss."""
    loaded = small(family)
    loaded.model.double()
    values = importance(loaded, TEXTS[:1], normalise=False)
    for layer, head in ((0, 0), (1, 4), (2, 5)):
        gate = torch.ones(3, 6, dtype=torch.float64)
        losses = []
        for value in (1 + 1e-5, 1 - 1e-5):
            gate[layer, head] = value
            with gated(loaded, gate):
                losses.append(mean_loss(loaded, TEXTS[:1]))
        assert float(values[layer, head]) == pytest.approx(
            abs(losses[0] - losses[1]) / 2e-5, rel=1e-4, abs=1e-8
        )


def test_effects_of_opposite_sign_do_not_cancel():
    """The absolute value is taken for each text: a mean of gradients would be smaller."""
    loaded = small("gpt2")
    each = [importance(loaded, [text], normalise=False) for text in TEXTS]
    torch.testing.assert_close(importance(loaded, TEXTS, normalise=False), sum(each) / 3)
    gate = torch.ones(3, 6, requires_grad=True)
    with gated(loaded, gate):
        total = sum(
            next_token_loss(loaded.model, torch.tensor([loaded.tokenizer.encode(text)])) for text in TEXTS
        )
    (signed,) = torch.autograd.grad(total / 3, gate)
    assert (importance(loaded, TEXTS, normalise=False) > signed.abs() + 1e-6).any()


def test_layers_are_normalised_and_weights_left_alone():
    """Each layer's importance has norm 1; no parameter has gained a gradient."""
    loaded = small("llama")
    values = importance(loaded, TEXTS)
    torch.testing.assert_close(values.norm(dim=-1), torch.ones(3, dtype=torch.float64))
    assert all(parameter.grad is None for parameter in loaded.model.parameters())


def test_zero_ablation_is_the_closed_gate_and_the_pruned_model():
    """Three ways of taking a head out give one loss."""
    loaded = small("llama")
    gate = gate_without(loaded, [(1, 2)])
    with ablated(loaded.model, [(1, 2)]):
        inside = mean_loss(loaded, TEXTS)
    with gated(loaded, gate):
        assert inside == pytest.approx(mean_loss(loaded, TEXTS), rel=1e-5)
    assert inside == pytest.approx(mean_loss(prune(loaded, [(1, 2)]), TEXTS), rel=1e-5)
    rise = ablation(loaded, TEXTS, layers=[1])
    assert float(rise[1, 2]) == pytest.approx(inside - mean_loss(loaded, TEXTS), abs=1e-5)
    assert rise[0].isnan().all()


def test_the_model_is_whole_again_after_the_block():
    """Hooks go with the block, even when it ends in an error."""
    loaded = small("gpt2")
    before = mean_loss(loaded, TEXTS)
    with pytest.raises(RuntimeError, match="stop"), ablated(loaded.model, [(0, 1), (2, 3)]):
        raise RuntimeError("stop")
    assert mean_loss(loaded, TEXTS) == before


def test_a_mean_ablated_head_says_the_same_everywhere():
    """Its output is its mean over all positions of all texts, which was counted by hand."""
    loaded = small("gpt2")
    seen = []
    out = loaded.model.decoder.blocks[1].attention.out
    handle = out.register_forward_pre_hook(lambda module, args: seen.append(args[0][0, :, 8:12]))
    with torch.no_grad():
        for text in TEXTS:
            loaded.model(torch.tensor([loaded.tokenizer.encode(text)]))
    handle.remove()
    expected = torch.cat(seen).double().mean(0)
    means = head_means(loaded, TEXTS)
    torch.testing.assert_close(means[1, 2], expected, rtol=1e-5, atol=1e-7)
    with ablated(loaded.model, [(1, 2)], "mean", means):
        handle = out.register_forward_pre_hook(lambda module, args: seen.append(args[0][0, :, 8:12]))
        with torch.no_grad():
            loaded.model(torch.tensor([loaded.tokenizer.encode(TEXTS[0])]))
        handle.remove()
    torch.testing.assert_close(seen[-1], expected.float().expand_as(seen[-1]), rtol=1e-5, atol=1e-6)
