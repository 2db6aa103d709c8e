"""Patching and `why`: exact runs against hooks of PyTorch's, estimates against difference quotients."""

import math

import pytest
import torch
from heads.test_foreign_heads import DECODERS, foreign, tokenizer
from tiny_models import tiny

import regard
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.experiments import patch_effects, why
from regard.experiments.answers import Asked
from regard.heads.model import head_outputs

CLEAN, CORRUPTED = [5, 17, 3, 42, 8, 29], [5, 17, 30, 42, 8, 29]


def outputs(model, ids):
    with torch.no_grad(), head_outputs(model) as kept:
        model.model(torch.tensor([ids]))
    return kept


@pytest.mark.parametrize("family", ["gpt_neox", "qwen3"])
def test_exact_effects_are_what_an_exchange_by_hooks_gives(family):
    """One head's slice, and one position of all heads, of the output projection's input."""
    model = foreign(family)
    effects = patch_effects(model, CLEAN, CORRUPTED, answer=7, against=9)
    where = next(at for at, _ in model.named_modules() if at.endswith(f"1.{DECODERS[family][2]}"))
    projection, kept = model.get_submodule(where), []

    def value(ids):
        with torch.no_grad():
            row = model(torch.tensor([ids])).logits[0, -1]
        return float(row[7] - row[9])

    handle = projection.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    clean = value(CLEAN)
    handle.remove()
    assert effects.clean == pytest.approx(clean, rel=1e-5)
    assert effects.corrupted == pytest.approx(value(CORRUPTED), rel=1e-5)
    for at, found in (((slice(None), slice(12, 18)), effects.heads[1, 2]),
                      ((3, slice(None)), effects.positions[1, 3])):  # fmt: skip

        def exchange(module, args, at=at):
            changed = args[0].clone()
            changed[(0, *at)] = kept[0][(0, *at)]
            return (changed,)

        handle = projection.register_forward_pre_hook(exchange)
        patched = value(CORRUPTED)
        handle.remove()
        assert float(found) == pytest.approx(patched - effects.corrupted, rel=1e-3, abs=1e-5)
    assert "PatchEffects(run:" in repr(effects)
    assert effects.figure().axes


@pytest.mark.parametrize("what", ["outputs", "weights"])
def test_an_estimate_is_the_slope_toward_the_clean_run(what):
    """A hundredth of the way, a hundredth of the effect; and it says how well it agreed where it ran."""
    model = tiny("llama")
    model.model.double()
    effects = patch_effects(model, CLEAN, CORRUPTED, answer=7, against=9, estimate=True, verify=4, what=what)
    mine = outputs(model, CORRUPTED)["decoder.0.self"]
    new = outputs(model, CLEAN)["decoder.0.self"]
    if what == "weights":
        clean = regard.trace(model, torch.tensor([CLEAN])).layer(0)
        values = regard.trace(model, torch.tensor([CORRUPTED]), keep_v=True).layer(0).v
        new = torch.stack([clean.weights(head) @ values[0, head // 2] for head in range(6)])[None]
    asked = Asked.about(model, CORRUPTED, 7, 9, None)
    for head in (0, 4):
        step = asked.run(lambda run: run.patch(layer=0, head=head, source=mine + 1e-3 * (new - mine)))  # noqa: B023
        slope = (step - effects.corrupted) / 1e-3
        assert float(effects.heads[0, head]) == pytest.approx(slope, rel=2e-2, abs=1e-4)
    assert len(effects.verified) == 4
    for one in effects.verified:
        ran = patch_effects(
            model, CLEAN, CORRUPTED, answer=7, against=9, what=what, layers=[int(one.layer.split(".")[1])]
        )
        at = list(ran.layers).index(one.layer)
        assert one.ran == pytest.approx(float(ran.heads[at, one.head]), rel=1e-5, abs=1e-9)
    assert -1 <= effects.agreement <= 1


@pytest.mark.parametrize("family", ["gpt_neox", "qwen3"])
def test_an_estimate_of_a_foreign_model_is_the_slope_too(family):
    """The gradient reaches the outputs of heads in whatever layout the model has them."""
    model = foreign(family).double()
    effects = patch_effects(model, CLEAN, CORRUPTED, answer=7, against=9, estimate=True, verify=0)
    asked = Asked.about(model, CORRUPTED, 7, 9, None)
    mine, new = (outputs(asked.loaded, ids)[effects.layers[0]] for ids in (CORRUPTED, CLEAN))
    step = asked.run(lambda run: run.patch(layer=0, head=1, source=mine + 1e-3 * (new - mine)))
    slope = (step - effects.corrupted) / 1e-3
    assert abs(slope) > 1e-6
    assert float(effects.heads[0, 1]) == pytest.approx(slope, rel=2e-2, abs=1e-6)


@pytest.fixture(scope="module")
def neox():
    return foreign("gpt_neox")


def test_why_says_what_switching_off_does(neox):
    """Each number that it says was run is what a run gives; an edge's estimate is a slope."""
    said = why(neox, "w5 w17 w3 w42 w8", target="w7", tokenizer=tokenizer(), top=3)
    asked = Asked.about(neox, "w5 w17 w3 w42 w8", "w7", None, None, tokenizer())
    logits = neox(torch.tensor([[5, 17, 3, 42, 8]])).logits[0, -1].detach()
    assert said.target == "w7"
    assert said.score == pytest.approx(float(logits.log_softmax(-1)[7]), rel=1e-5)
    assert {one.kind for one in said.findings} == {"head", "edge", "position"}
    head, edge, position = said.of("head")[0], said.of("edge")[0], said.of("position")[0]
    gone = asked.run(lambda run: run.gate(layer=head.layer, head=head.head))
    assert head.ran == pytest.approx(gone - said.score, abs=1e-5)
    place = {"layer": edge.layer, "head": edge.head, "query": edge.query, "key": edge.key}
    cut = asked.run(lambda run: run.knock_out(**place))
    assert edge.ran == pytest.approx(cut - said.score, abs=1e-5)
    trace = regard.trace(neox, torch.tensor([[5, 17, 3, 42, 8]]), keep_v=True)
    layer = trace.layer(edge.layer)
    weights, v = layer.weights(edge.head)[edge.query], layer.v[0, edge.head]
    assert edge.weight == pytest.approx(float(weights[edge.key]), rel=1e-4)
    if edge.weight < 0.999:
        rest = weights.clone()
        rest[edge.key] = 0
        toward = (rest / rest.sum()) @ v
        mine = outputs(asked.loaded, [5, 17, 3, 42, 8])[edge.layer].clone()
        mine[0, edge.head, edge.query] += 1e-2 * (toward - mine[0, edge.head, edge.query])
        moved = asked.run(lambda run: run.patch(layer=edge.layer, source=mine))
        assert edge.estimated == pytest.approx((moved - said.score) / 1e-2, rel=0.1, abs=2e-2)

    def unseen(run):
        for name in said.layers:
            for query in range(5):
                if query != position.key:
                    run.knock_out(layer=name, query=query, key=position.key)

    if position.key < 4:
        assert position.ran == pytest.approx(asked.run(unseen) - said.score, abs=1e-5)
    assert all(one.beyond_chance == (abs(one.ran) > said.chance[one.kind]) for one in said.findings)
    assert said.of("head")[0].written is not None
    assert said.figure().axes


def test_why_of_a_masked_model_and_of_ours():
    bert = tiny("bert")
    mask = bert.tokenizer.special.mask
    assert mask is not None
    ids = [*bert.tokenizer.encode("the cat")[:3], mask, *bert.tokenizer.encode("the cat")[3:]]
    said = why(bert, ids, top=2)
    assert said.note.startswith("what heads write toward a score is known of decoders")
    assert math.isfinite(said.score)
    with pytest.raises(ArgumentError, match="must hide one word"):
        why(bert, "the cat")
    with pytest.raises(UnsupportedError, match="predicts a token"):
        why(tiny("t5"), "the cat")
    with pytest.raises(ArgumentError, match="target must be one token"):
        why(tiny("gpt2"), "the cat", target="mat")
    with pytest.raises(ArgumentError, match="top must be at least 1"):
        why(tiny("gpt2"), "the cat", top=0)
    with pytest.raises(ShapeError, match="equally many tokens"):
        patch_effects(tiny("gpt2"), "the cat", "the cats", answer=7)
    with pytest.raises(ArgumentError, match="there is no layer 2: there are 2"):
        patch_effects(tiny("gpt2"), "the cat", "the cap", answer=7, layers=[2])
