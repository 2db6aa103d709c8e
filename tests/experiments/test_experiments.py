"""Effects, patching and `why`: every number against a run of its own, some by hooks of PyTorch's."""

import math

import pytest
import torch
from heads.test_foreign_heads import DECODERS, foreign, tokenizer
from tiny_models import tiny

import regard
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.experiments import PredictionTarget, effects, patch_effects, why
from regard.experiments.engine import RowEngine
from regard.experiments.exact import share_of
from regard.experiments.explain import direct_effects, head_pairs
from regard.experiments.targets import layer_words
from regard.heads.model import layers_of

CLEAN, CORRUPTED = [5, 17, 3, 42, 8, 29], [5, 17, 30, 42, 8, 29]
WORDS = "w5 w17 w3 w42 w8"


def run(asked, change):
    """The score under a change, in a run of its own."""
    with torch.no_grad(), regard.intervene(asked.loaded) as inside:
        change(inside)
        logits = asked.loaded.model(*asked.given.args, **{
            name: value for name, value in asked.given.kwargs.items() if name != "input_ids"
        }) if asked.given.args else asked.loaded.model(asked.given.kwargs["input_ids"])  # fmt: skip
    return float(asked.score(logits.logits[0, asked.position]))


@pytest.mark.parametrize("of", ["heads", "edges", "positions", "layers"])
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_every_effect_is_the_change_of_a_run_without_the_part(family, of):
    """All parts of a kind, the score and the probability; an encoder's edges go both ways."""
    model = tiny(family)
    ids, options = CORRUPTED, {"target": 7, "against": 9, "position": 4}
    found = effects(model, ids, of, **options)
    asked = PredictionTarget.about(model, ids, 7, 9, 4)
    n_layer, n_head, n = 2, 6, len(ids)
    last = 5 if family == "llama" else n
    n_part = {"heads": 12, "edges": n_layer * n_head * last, "positions": last, "layers": 2}[of]
    assert len(found.parts) == found.n_run == n_part
    assert found.share_run == 1.0
    with torch.no_grad():
        unchanged = float(asked.score(model.model(torch.tensor([ids])).logits[0, 4]))
    assert found.score == pytest.approx(unchanged, abs=1e-6)
    for part, moved in list(zip(found.parts, found.changes.tolist(), strict=True))[:: 1 + n_part // 13]:

        def off(inside, part=part):
            if part.layer is None:
                others = [at for at in range(n) if at != part.key]
                for name in layers_of(model):
                    inside.knock_out(layer=name, query=others, key=part.key)
            elif part.key is None:
                inside.gate(layer=part.layer, head=part.head, by=0.0)
            else:
                inside.knock_out(layer=part.layer, head=part.head, query=part.query, key=part.key)

        assert moved == pytest.approx(run(asked, off) - unchanged, abs=1e-5)
    strongest = found.strongest(3)
    assert abs(strongest[0].change) == pytest.approx(float(found.changes.abs().max()))
    assert found.figure().axes


def test_an_answer_of_an_encoder_decoder_has_effects_in_both_stacks():
    """From the start token on; layers are told apart by stack and kind."""
    model = tiny("t5")
    found = effects(model, "the cat", target=7)
    asked = PredictionTarget.about(model, "the cat", 7)
    assert len(found.parts) == 36
    for index in (1, 14, 33):
        part = found.parts[index]
        with torch.no_grad(), regard.intervene(model) as inside:
            inside.gate(layer=part.layer, head=part.head)
            logits = model.model(*asked.given.args, **asked.given.kwargs).logits[0, -1]
        assert float(found.changes[index]) == pytest.approx(
            float(asked.score(logits)) - found.score, abs=1e-5
        )
    said = [one.words for one in found.strongest()]
    assert {"encoder layer 1 head 2", "decoder layer 0 head 3", "decoder layer 1 cross head 5"} <= {*said}


def test_beyond_the_budget_estimates_choose_and_only_runs_are_shown():
    """NaN where nothing was run; what was run is exact; the share is what the sample says."""
    model = tiny("gpt2")
    ids = list(range(3, 40))
    whole = effects(model, ids, "edges", target=7, budget=None)
    asked = PredictionTarget.about(model, ids, 7)
    kinds = dict.fromkeys(layers_of(model), "self")
    changes = [part.off(layers_of(model), 37, kinds) for part in whole.parts]
    seconds = RowEngine(asked.loaded, asked.given, asked.reading).seconds_of(changes)
    some = effects(model, ids, "edges", target=7, budget=seconds / 3, seed=3)
    ran = ~some.changes.isnan()
    assert 20 <= int(ran.sum()) == some.n_run < len(some.parts)
    torch.testing.assert_close(some.changes[ran], whole.changes[ran], rtol=1e-4, atol=1e-6)
    assert 0 < some.share_run < 1
    assert "of 444 edges were run" in some.run_note
    assert not math.isnan(some.strongest(1)[0].change)
    true = float(whole.changes[ran].abs().sum() / whole.changes.abs().sum())
    assert some.share_run == pytest.approx(true, abs=0.35)


def test_the_share_that_was_run_is_reckoned_from_the_random_sample():
    """By hand: 6 and 4 were chosen, 1 and 3 drawn from four; two are left, of 2 each by the sample's mean."""
    moved = torch.tensor([6.0, math.nan, -4.0, 1.0, math.nan, -3.0])
    assert share_of(moved, [0, 2, 3, 5], 2) == pytest.approx(14 / (14 + 2 * 2))
    assert share_of(torch.ones(3), [0, 1, 2], 3) == 1.0


@pytest.mark.parametrize("family", ["gpt_neox", "qwen3"])
def test_exact_effects_are_what_an_exchange_by_hooks_gives(family):
    """One head's slice, and one position of all heads, of the output projection's input."""
    model = foreign(family)
    found = patch_effects(model, CLEAN, CORRUPTED, answer=7, against=9)
    where = next(at for at, _ in model.named_modules() if at.endswith(f"1.{DECODERS[family][2]}"))
    projection, kept = model.get_submodule(where), []

    def value(ids):
        with torch.no_grad():
            row = model(torch.tensor([ids])).logits[0, -1]
        return float(row[7] - row[9])

    handle = projection.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    clean = value(CLEAN)
    handle.remove()
    assert found.clean == pytest.approx(clean, rel=1e-5)
    assert found.corrupted == pytest.approx(value(CORRUPTED), rel=1e-5)
    for at, ours in (((slice(None), slice(12, 18)), found.heads[1, 2]),
                     ((3, slice(None)), found.positions[1, 3])):  # fmt: skip

        def exchange(module, args, at=at):
            changed = args[0].clone()
            changed[(0, *at)] = kept[0][(0, *at)]
            return (changed,)

        handle = projection.register_forward_pre_hook(exchange)
        patched = value(CORRUPTED)
        handle.remove()
        assert float(ours) == pytest.approx(patched - found.corrupted, rel=1e-3, abs=1e-5)
    assert found.share_run == 1.0
    assert found.figure().axes


@pytest.mark.parametrize("what", ["outputs", "weights"])
def test_patching_runs_what_intervene_puts(what):
    """Heads and positions, outputs or only where they look; a budget leaves the rest NaN."""
    model = tiny("llama")
    found = patch_effects(model, CLEAN, CORRUPTED, answer=7, against=9, what=what)
    asked = PredictionTarget.about(model, CORRUPTED, 7, 9)
    source = regard.trace(model, torch.tensor([CLEAN]), keep_v=True)
    for layer, head in ((0, 4), (1, 2)):
        patched = run(asked, lambda r: r.patch(layer=layer, head=head, source=source, what=what))  # noqa: B023
        assert float(found.heads[layer, head]) == pytest.approx(patched - found.corrupted, abs=1e-5)
    patched = run(asked, lambda r: r.patch(layer=1, query=3, source=source, what=what))
    assert float(found.positions[1, 3]) == pytest.approx(patched - found.corrupted, abs=1e-5)
    some = patch_effects(model, CLEAN, CORRUPTED, answer=7, against=9, what=what, budget=1e-6)
    ran = ~some.heads.isnan()
    assert some.n_run == 20
    torch.testing.assert_close(some.heads[ran], found.heads[ran], rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def neox():
    return foreign("gpt_neox")


def test_why_says_what_switching_off_does(neox):
    """Each number is what a run gives; the sentence is about the strongest head."""
    said = why(neox, WORDS, target="w7", tokenizer=tokenizer(), top=3)
    asked = PredictionTarget.about(neox, WORDS, "w7", tokenizer=tokenizer())
    logits = neox(torch.tensor([[5, 17, 3, 42, 8]])).logits[0, -1].detach()
    assert said.target == "w7"
    assert said.score == pytest.approx(float(logits.log_softmax(-1)[7]), rel=1e-5)
    assert {one.kind for one in said.findings} == {"head", "edge", "position"}
    head, edge, position = said.of("head")[0], said.of("edge")[0], said.of("position")[0]
    gone = run(asked, lambda r: r.gate(layer=head.part.layer, head=head.part.head))
    assert head.change == pytest.approx(gone - said.score, abs=1e-5)
    assert head.probability == pytest.approx(math.exp(gone), rel=1e-4)
    assert f"Without head {head.part.head} of layer" in said.sentence
    assert head.what == f"layer {head.part.layer.split('.')[2]} head {head.part.head}"
    place = {"layer": edge.part.layer, "head": edge.part.head, "query": edge.part.query, "key": edge.part.key}
    assert edge.change == pytest.approx(run(asked, lambda r: r.knock_out(**place)) - said.score, abs=1e-5)
    layer = regard.trace(neox, torch.tensor([[5, 17, 3, 42, 8]])).layer(edge.part.layer)
    assert edge.weight == pytest.approx(
        float(layer.weights(edge.part.head)[edge.part.query, edge.part.key]), rel=1e-4
    )

    def unseen(inside):
        for name in said.heads.layers:
            others = [at for at in range(5) if at != position.part.key]
            inside.knock_out(layer=name, query=others, key=position.part.key)

    assert position.change == pytest.approx(run(asked, unseen) - said.score, abs=1e-5)
    assert position.beyond_chance is None  # five positions do not say what chance would do
    every = said.edges.changes.abs()
    assert said.edges.chance == pytest.approx(float(every.quantile(0.95)))
    assert edge.beyond_chance == (abs(edge.change) > said.edges.chance)
    assert said.figure().axes


@torch.no_grad()
def test_the_direct_effect_of_a_head_is_what_it_writes_into_the_last_norm():
    """By hand: the stream before the last norm without what the head's output matrix added to it."""
    loaded = tiny("gpt2")
    model = loaded.model
    asked = PredictionTarget.about(loaded, CORRUPTED, 7)
    engine = RowEngine(asked.loaded, asked.given, asked.reading)
    found = effects(loaded, CORRUPTED, target=7)
    chosen = [found.parts[index] for index in (1, 5, 8)]
    direct = direct_effects(asked, engine, chosen)
    stream = engine.rows.kept[0][-1]
    for part, change in zip(chosen, direct, strict=True):
        block = model.decoder.blocks[int(part.layer.split(".")[1])]
        matrix = block.attention.out.weight.unflatten(1, (6, 4))[:, part.head]
        without = stream[0, -1] - matrix @ engine.outputs[part.layer][0, part.head, -1]
        logits = model.logits(model.decoder.norm(without)[None, None])[0, 0]
        assert change == pytest.approx(float(asked.score(logits)) - float(engine.unchanged[0]), abs=1e-5)
    # In the last layer nothing comes after a head but the feed-forward layer.
    totals = [float(found.changes[found.parts.index(part)]) for part in chosen]
    assert any(abs(total - part) > 1e-3 for total, part in zip(totals, direct, strict=True))


def test_pairs_of_heads_are_run_together():
    """What two do beyond the sum of each, against a run of its own."""
    loaded = tiny("llama")
    asked = PredictionTarget.about(loaded, CORRUPTED, 7)
    engine = RowEngine(asked.loaded, asked.given, asked.reading)
    found = effects(loaded, CORRUPTED, target=7)
    (pair,) = head_pairs(asked, engine, found, 1)
    heads = [tuple(map(int, words.replace("layer ", "").split(" head "))) for words in pair.heads]

    def both(inside):
        for layer, head in heads:
            inside.gate(layer=layer, head=head)

    assert pair.change == pytest.approx(run(asked, both) - found.score, abs=1e-5)
    alone = [run(asked, lambda r, at=at: r.gate(layer=at[0], head=at[1])) - found.score for at in heads]
    assert pair.sum == pytest.approx(sum(alone), abs=1e-5)
    assert pair.together == pytest.approx(pair.change - sum(alone), abs=1e-5)


def test_why_of_a_masked_model_and_what_is_refused():
    bert = tiny("bert")
    mask = bert.tokenizer.special.mask
    ids = [*bert.tokenizer.encode("the cat")[:3], mask, *bert.tokenizer.encode("the cat")[3:]]
    said = why(bert, ids, top=2)
    assert math.isfinite(said.score)
    assert why(tiny("t5"), "the cat", top=2).sentence.startswith("Without head")
    assert "has no scores that are known" in why(tiny("linear"), "the cat", top=2).note
    with pytest.raises(ArgumentError, match="mask token in it once"):
        why(bert, "the cat")
    with pytest.raises(ArgumentError, match="target must be one token"):
        why(tiny("gpt2"), "the cat", target="mat")
    with pytest.raises(ArgumentError, match="top must be at least 1"):
        why(tiny("gpt2"), "the cat", top=0)
    with pytest.raises(ArgumentError, match="one text is asked about"):
        effects(tiny("gpt2"), ["the cat", "a mat"])
    with pytest.raises(UnsupportedError, match="gives no logits"):
        effects(torch.nn.Unflatten(1, (2, 3)), torch.zeros(1, 6, 8))
    with pytest.raises(ShapeError, match="equally many tokens"):
        patch_effects(tiny("gpt2"), "the cat", "the cats", answer=7)
    with pytest.raises(ArgumentError, match="there is no layer 2: there are 2"):
        patch_effects(tiny("gpt2"), "the cat", "the cap", answer=7, layers=[2])


def test_layers_are_called_as_people_call_them():
    assert layer_words(["model.layers.0.self_attn", "model.layers.1.self_attn"]) == {
        "model.layers.0.self_attn": "layer 0",
        "model.layers.1.self_attn": "layer 1",
    }
