"""What a page opens with is found by numbers; the machine's numbers are the model's; colours stay apart."""

import json
import socket
import threading

import numpy as np
import pytest
import torch

from regard.errors import ArgumentError, RegardError
from regard.heads.chance import RandomNull
from regard.heads.flow import logit_attribution
from regard.models.families import FAMILIES
from regard.registry import LABEL_COLORS
from regard.tracing.interventions import intervene
from regard.tracing.traces import Trace
from regard.view.document import Document
from regard.view.explain import layer_vectors, machine
from regard.view.models import Models
from regard.view.predict import effects, predict, search
from regard.view.run import RunProgress, RunRequest, make_document
from regard.view.server import listen
from regard.view.session import Session
from regard.view.story import OPENINGS

TEXT = "a cat saw a dog and a cat"


@pytest.fixture(scope="module")
def models():
    return Models()


def weights_with(links, n=11, n_head=3):
    """Heads that look everywhere alike, but for these (head, query, key, weight)."""
    made = torch.full((n_head, n, n), 1 / n)
    for head, query, key, weight in links:
        made[head, query] = (1 - weight) / (n - 1)
        made[head, query, key] = weight
    return made


def null(link):
    """What random weights are said to reach: single weights this share of the way from chance to 1."""
    return RandomNull({"link": link}, n_draw=1, n_head=1, n_token=11)


def first_scene(weights, tokens, reached=0.1):
    made = None if reached is None else lambda: null(reached)
    return Document(Trace.from_weights(weights, rows=tokens, cols=tokens), make_null=made).facts()["scenes"][
        0
    ]


def told(scene):
    """What a caption says, with its words and terms in their places."""
    return "".join(part if isinstance(part, str) else next(iter(part.values())) for part in scene["says"])


def test_the_opening_is_the_link_that_is_strong_long_and_not_shared():
    """A long link of one word wins over a stronger one of neighbours and over one that all words share."""
    tokens = ["[CLS]", *"the old animal did not cross it was tired".split(), "[SEP]"]
    shared = [(2, query, 3, 0.9) for query in range(11)]
    made = weights_with([(0, 7, 6, 0.99), (1, 7, 3, 0.6), *shared])
    state = first_scene(made, tokens)["state"]
    assert (state["at"], state["head"], state["query"], state["key"]) == ("story", 1, 7, 3)


def test_whole_words_open_before_pieces_of_words():
    """A reader knows words: a somewhat weaker link between two of them is shown first."""
    tokens = [" the", " an", "im", "al", " did", " not", " cross", " it", " was", " ti", "red"]
    state = first_scene(weights_with([(0, 10, 3, 0.8), (1, 7, 0, 0.9), (2, 8, 4, 0.6)]), tokens)["state"]
    assert (state["head"], state["query"], state["key"]) == (2, 8, 4)


def test_a_repeated_word_that_looks_behind_its_copy_is_called_induction():
    """The caption says what the link is: the key follows an earlier copy of the query."""
    tokens = ["[CLS]", *"ab x cd ef gh ij ab kl mn".split(), "[SEP]"]
    assert "induction" in told(first_scene(weights_with([(1, 7, 2, 0.8)]), tokens))


def test_a_link_that_stands_out_is_asked_about_before_it_is_told():
    """The first scene asks where the word looks; every copy of the right word is a right answer."""
    tokens = ["[CLS]", *"the dog and the bird saw it there too".split(), "[SEP]"]
    scene = first_scene(weights_with([(1, 7, 2, 0.7)]), tokens)
    assert scene["guess"]["answers"] == [2]
    assert "70 %" in told(scene)
    assert "9.1 %" in told(scene)  # one of eleven


@pytest.mark.parametrize(("weight", "reached"), [(0.24, 0.1), (0.6, 0.55), (0.9, None)])
def test_a_caption_claims_nothing_that_chance_or_random_weights_give(weight, reached):
    """Too little, no more than random weights reach, or not known: the caption says what is."""
    tokens = ["[CLS]", *"the old animal did not cross it was tired".split(), "[SEP]"]
    scene = first_scene(weights_with([(1, 7, 3, weight)]), tokens, reached)
    assert "guess" not in scene
    assert "comes near" not in told(scene)
    assert f"{100 * weight:.0f} %" in told(scene)
    assert (scene["title"] == "Nothing stands out here") == (reached is not None)


SHAPES = ("gpt2", "bert", "llama", "t5", "qwen3", "gemma3")


@pytest.mark.slow
@pytest.mark.parametrize("family", SHAPES)
def test_no_caption_of_a_random_model_says_that_something_stands_out(family):
    """Two random models of each family, two texts: by the null and the threshold of the labels."""
    texts = ("The animal didn't cross the street because it was too tired", "Paris is in France. Rome is in")
    for seed in (0, 1):
        models = Models(seed=seed)
        size = next(iter(FAMILIES[family].sizes))
        for text in texts:
            key = f"{size} (random)"
            scenes = make_document(models.get(key), RunRequest(key, text)).facts()["scenes"]
            assert not any("comes near" in told(scene) for scene in scenes)
            assert not any("guess" in scene for scene in scenes)


def test_every_model_has_a_tour_that_ends_with_the_reader(models):
    """It begins with a link and ends with "your turn"; a model's own has a scene about what it predicts."""
    for key, text in (("pocket-gpt", TEXT), ("pocket-dates", "9 August 1988")):
        scenes = make_document(models.get(key), RunRequest(key, text)).facts()["scenes"]
        assert [scene["state"]["at"] for scene in scenes] == ["story", "story", "atlas", "story"]
        assert scenes[1]["act"]["kind"] == "knock out"
        assert scenes[-1]["title"] == "Your turn"
        assert all(scene["title"] and scene["says"] for scene in scenes)


@pytest.mark.parametrize("opening", OPENINGS, ids=lambda one: one.title)
def test_an_opening_offers_its_change_and_afterwards_the_way_back(opening):
    """What its button does leads from one of its texts to the other, and back again."""
    assert len(OPENINGS) == 3
    for text in opening.texts:
        act = opening.act_on(text)
        if act["kind"] == "word":
            assert act["from"] in text.split()
            assert text.replace(act["from"], act["to"]) in opening.texts
        elif act["kind"] == "text":
            assert act["text"] in opening.texts
            assert act["text"] != text


def test_other_heads_of_a_word_are_its_strongest_links_against_an_even_spread(models):
    """For one query the list has each head's largest weight; links to other words come first."""
    document = make_document(models.get("pocket-gpt"), RunRequest("pocket-gpt", TEXT))
    query = len(document.ids) - 1
    found = document.links(query, count=100)
    assert len(found) == sum(layer.n_head for layer in document.trace.layers)
    for link in found:
        row = document.trace.row(link["layer"], link["head"], query)
        assert link["weight"] == pytest.approx(row.max().item(), rel=1e-4)
        assert row[link["key"]].item() == pytest.approx(row.max().item(), rel=1e-4)
        assert link["even"] == pytest.approx(1 / len(document.ids))
    rests = [link["key"] == query or not document.trace.tokens[0][link["key"]].strip() for link in found]
    assert rests == sorted(rests)


def test_the_facts_of_one_head_are_those_it_has_among_all(models):
    """A head measured alone has the numbers that it has beside the others."""
    document = make_document(models.get("pocket-gpt"), RunRequest("pocket-gpt", TEXT))
    alone = document.head_facts(2, 3)
    assert alone["label"] is None  # all heads of random models must be known for that
    every = document.facts()
    for name, one in alone["measures"].items():
        value, chance = every["measures"][name]["values"][2][3], every["measures"][name]["chance"][2]
        assert one["value"] == (None if value is None else pytest.approx(value, abs=1e-5))
        assert one["chance"] == (None if chance is None else pytest.approx(chance, abs=1e-5))
    assert document.head_facts(2, 3)["label"] == every["labels"][2][3]


def test_a_cut_link_changes_the_prediction_as_the_model_without_it_does(models):
    """`now` is what the model says without the link, and `was` what it says with it."""
    one = models.get("pocket-gpt")
    query = len(one.tokenizer.encode(TEXT)) - 1
    link = (1, 2, query, 3)
    document = make_document(one, RunRequest("pocket-gpt", TEXT, cut=(link,)))
    answer = predict(one, document)
    ids = torch.tensor([document.ids])
    with torch.no_grad(), intervene(one) as run:
        whole = one.model(ids).logits[0, -1].softmax(-1)
        run.knock_out(layer=1, head=2, query=query, key=3)
        without = one.model(ids).logits[0, -1].softmax(-1)
    best = int(without.argmax())
    assert answer["now"][0]["token"] == one.tokenizer.tokens([best])[0]
    assert answer["now"][0]["p"] == pytest.approx(without[best].item(), rel=1e-4)
    assert answer["now"][0]["was"] == pytest.approx(whole[best].item(), rel=1e-4)
    assert document.meta()["cut"] == [list(link)]
    with pytest.raises(ArgumentError, match="there is no link from 99 to 0"):
        make_document(one, RunRequest("pocket-gpt", TEXT, cut=((0, 0, 99, 0),)))


def test_rows_of_cross_attention_are_named_by_what_is_written(models):
    """The row that writes the first digit has its name, and the last row that of what ends the answer."""
    document = make_document(models.get("pocket-dates"), RunRequest("pocket-dates", "9 August 1988"))
    (cross,) = [index for index, layer in enumerate(document.trace.layers) if layer.kind == "cross"]
    rows, _ = document.names(cross)
    assert rows == [*"1988-08-09", "<eos>"]
    assert document.meta()["layers"][cross]["rows"] == "written"
    assert document.meta()["written"] == rows


def test_an_encoder_decoder_writes_step_by_step(models):
    """Writing gives each written token with its rivals, the written one first."""
    document = make_document(
        models.get("pocket-dates"), RunRequest("pocket-dates", "9 August 1988", max_new=12)
    )
    generated = document.generated
    tokens = document.trace.tokens[0]
    written = [step[0]["token"] for step in generated["steps"]]
    assert written == list(tokens[generated["start"] :])
    assert "".join(written) == "1988-08-09"


def test_the_machine_begins_with_the_models_own_vectors(models):
    """x W_q turned by positions is the trace's query: without positions in the heads it is that at once."""
    opened = models.get("minilm (random)")
    document = make_document(opened, RunRequest("minilm (random)", "abc"))
    found = machine(document, 3, 7, 2, 1, opened)
    more = found["model"]
    layer = document.trace.layers[3]
    assert more["q"] == pytest.approx(layer.q[0, 7, 2].tolist(), abs=1e-5)
    assert more["k"] == pytest.approx(layer.k[0, 7, 1].tolist(), abs=1e-5)
    row = torch.tensor(found["scores"], dtype=torch.float64).softmax(0)
    assert row.tolist() == pytest.approx(layer.row(7, 2).tolist(), abs=1e-6)


def test_another_text_read_meanwhile_does_not_come_into_the_machine(models):
    """A second thread that runs the same model on other words leaves x as it is."""
    opened = models.get("minilm (random)")
    document = make_document(opened, RunRequest("minilm (random)", "abc"))
    wanted = layer_vectors(opened, document, 3).x
    other = torch.tensor([opened.tokenizer.encode("quite another text")])

    def meanwhile(*_):
        thread = threading.Thread(target=lambda: opened.model(other))
        hook.remove()
        thread.start()
        thread.join()

    hook = opened.model.encoder.blocks[4].register_forward_pre_hook(
        meanwhile
    )  # behind the layer that is seen
    assert torch.equal(layer_vectors(opened, document, 3).x, wanted)


def test_the_machines_push_is_the_attribution_of_the_head(models):
    """Weights times what each key pushes is what `logit_attribution` gives the head at the last position."""
    opened = models.get("pocket-gpt")
    document = make_document(opened, RunRequest("pocket-gpt", TEXT))
    last = document.trace.layers[0].n_query - 1
    push = machine(document, 2, 1, last, 0, opened)["model"]["push"]
    row = document.trace.row(2, 1, last).double()
    totals = row @ torch.tensor(push["byKey"], dtype=torch.float64)
    ids = document.trace.ids[0]
    raised = [index for index in range(opened.model.config.vocab)
              if opened.tokenizer.tokens([index])[0] == push["tokens"][0]]  # fmt: skip
    wanted = [float(logit_attribution(opened, ids[None], token).heads[2, 1]) for token in raised]
    assert min(abs(totals[0].item() - value) for value in wanted) < 1e-4 * (1 + abs(totals[0].item()))
    assert totals[:4].tolist() == sorted(totals[:4].tolist(), reverse=True)


def test_what_comes_before_a_query_is_not_computed_for_a_long_text(models, monkeypatch):
    """It needs a run of the model: beyond some tokens the machine begins at the query and says why."""
    monkeypatch.setattr("regard.view.explain.MOST_RUN_AGAIN", 5)
    session = Session(models, "pocket-gpt")
    at = {"layer": 1, "head": 0, "query": 0, "key": 0}
    for text, keeps in (("ab", True), (TEXT, False)):
        document = session.document(RunRequest("pocket-gpt", text))
        answer = json.loads(session.answer("machine", {"doc": document.id, **at}))
        assert ("model" in answer, "more than 5 tokens" in answer.get("without", "")) == (keeps, not keeps)
        assert bool(session.for_file(document.id, [at]).vectors) == keeps


def test_a_long_row_keeps_its_largest_keys_and_one_number_for_the_rest(monkeypatch):
    """Softmax over the kept scores and the rest gives the kept keys their own weights."""
    monkeypatch.setattr("regard.view.explain.MOST_KEYS", 5)
    opened = Models().get("minilm (random)")
    document = make_document(opened, RunRequest("minilm (random)", "abcdefghijk"))
    found = machine(document, 1, 2, 4, 9)
    assert len(found["keys"]) <= 5
    assert 9 in found["keys"]
    scores = torch.tensor([*found["scores"], found["rest"]], dtype=torch.float64)
    wanted = document.trace.row(1, 2, 4)[found["keys"]]
    assert scores.softmax(0)[:-1].tolist() == pytest.approx(wanted.tolist(), abs=1e-6)


def test_effects_are_those_of_switching_a_head_off(models):
    """Where nothing adds up by itself, each head is switched off: its effect is what the prediction loses."""
    opened = models.get("linear (random)")
    document = make_document(opened, RunRequest("linear (random)", "ab"))
    ids, found = document.ids, effects(opened, document)
    with torch.no_grad(), intervene(opened.model) as run:
        before = opened.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        run.gate(layer=1, head=2, by=0.0)
        after = opened.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    token = int(before.argmax())
    assert found["values"][1][2] == pytest.approx((before - after)[token].item(), abs=1e-5)


@pytest.mark.parametrize("line", ["no marks", "*one* mark", "[one] mark"])
def test_a_search_needs_both_words_marked(models, line):
    """A sentence without both marks is refused with how to mark."""
    with pytest.raises(ArgumentError, match=r"\*stars\*"):
        search(models.get("minilm (random)"), [line])


def test_small_pictures_of_many_heads_come_in_one_answer(models):
    """Their bytes are those of the tiles, one after the other."""
    session = Session(models, "minilm (random)", "abc")
    document = session.document(RunRequest("minilm (random)", "abc"))
    found = session.answer("small", {"doc": document.id, "heads": [[2, 5], [0, 1]], "cells": 3})
    wanted = [document.tile(layer, head, slice(0, 5), slice(0, 5), 3, 3) for layer, head in ((2, 5), (0, 1))]
    assert found == np.concatenate([tile.ravel() for tile in wanted]).astype("<f2").tobytes()


def test_a_run_counts_its_layers_and_can_be_stopped(models):
    """Progress ends at all layers; a stopped run ends with words before its next layer."""
    opened, told = models.get("minilm (random)"), []
    make_document(
        opened,
        RunRequest("minilm (random)", "ab"),
        RunProgress(lambda done, total: told.append((done, total))),
    )
    assert told == [(index + 1, 6) for index in range(6)]
    progress = RunProgress(lambda done, total: setattr(progress, "stopped", done == 2))
    with pytest.raises(RegardError, match="stopped"):
        make_document(opened, RunRequest("minilm (random)", "ab"), progress)
    assert progress.done == 2


def test_answers_do_not_wait_for_acknowledgements():
    """A socket that says it is TCP gets TCP_NODELAY from asyncio."""
    bound = listen(0)
    assert bound.proto == socket.IPPROTO_TCP
    bound.close()


# Machado et al. 2009, severity 1: what the kinds of colour blindness make of linear RGB.
SEEN = {
    "all colours": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)


@pytest.mark.parametrize("eye", SEEN)
def test_colours_of_labels_are_told_apart_by_every_eye(eye):
    """No two colours of the registry, which the page and the figures share, are nearer than 12 in CIELAB."""
    colors = [color for name, color in LABEL_COLORS.items() if name != "none"]
    rgb = np.array([[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in colors])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    white = XYZ @ np.ones(3)
    xyz = np.clip(linear @ np.array(SEEN[eye]).T, 0, 1) @ XYZ.T / white
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    lab = np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)
    apart = np.linalg.norm(lab[:, None] - lab, axis=-1)[np.triu_indices(len(lab), 1)]
    assert apart.min() >= 12
