"""Interventions on the real weights: models as transformers computes them against the same as ours."""

import pytest
import torch
from transformers import AutoModelForCausalLM, BertModel

import regard
from regard.experiments import ablation
from regard.files import hub
from regard.heads import logit_attribution

TEXT = "The animal didn't cross the street because it was too tired."


@pytest.mark.slow
@torch.no_grad()
def test_minilm_with_heads_off_and_edges_cut():
    """The same vectors from both, with a head silent, an edge cut and a key unseen."""
    ours = regard.load("minilm")
    theirs = BertModel.from_pretrained(hub.get("minilm")).eval()
    ids = torch.tensor([ours.tokenizer.encode(TEXT)])

    def change(run):
        run.gate(layer=1, head=3, by=0.0)
        run.knock_out(layer=3, head=1, query=5, key=2)
        run.knock_out(layer=4, key=0)

    with regard.intervene(ours) as run:
        change(run)
        got = ours.model(ids).hidden
    with regard.intervene(theirs) as run:
        change(run)
        expected = theirs(ids).last_hidden_state
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-5)
    assert not torch.allclose(got, ours.model(ids).hidden, atol=1e-2)


@pytest.mark.slow
@torch.no_grad()
def test_smollm2_effects_and_attribution():
    """What each head of a layer costs, and what it writes toward a token: the same from both."""
    path = hub.get("smollm2")
    ours = regard.load("smollm2")
    theirs = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    ids = ours.tokenizer.encode("The capital of France is Paris, and the capital of Poland is")
    one, other = (ablation(model, [ids], layers=[18]) for model in (ours, theirs))
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3, equal_nan=True)
    token = ours.tokenizer.encode(" Warsaw", add_special=False)[0]
    one, other = (logit_attribution(model, torch.tensor([ids]), token) for model in (ours, theirs))
    torch.testing.assert_close(one.heads, other.heads, rtol=1e-3, atol=1e-3)
    assert one.score == pytest.approx(other.score, rel=1e-4)


@pytest.mark.slow
def test_the_four_strongest_heads_behind_paris():
    """All 270 heads run: two of these four are missed where a gradient chooses which to run."""
    said = regard.effects(regard.load("smollm2"), "The capital of France is", target=" Paris")
    strongest = said.strongest(4)
    assert [one.words for one in strongest] == [
        "layer 23 head 4", "layer 0 head 4", "layer 11 head 7", "layer 12 head 0"
    ]  # fmt: skip
    assert [one.change for one in strongest] == pytest.approx([-1.70, -1.30, -0.49, -0.45], abs=0.01)
    assert said.probability == pytest.approx(0.77, abs=0.01)
    assert strongest[0].probability == pytest.approx(0.14, abs=0.01)
