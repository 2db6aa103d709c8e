"""The three altitudes: the story that opens, the tour, the machine; and what goes out of the page."""

import csv
import io
import json
import re
import struct
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from regard.registry import LABELS
from regard.tracing.take import trace
from regard.view.page import export
from regard.view.run import RunRequest
from regard.view.session import Session

MODEL, TEXT = "minilm (random)", "to be or not"


@pytest.fixture
def story(looker, served):
    """A live page at its opening."""
    looker.page.goto(served[1](at="story"))
    looker.page.wait_for_function("() => window.regard && regard.facts && regard.story.row", timeout=30_000)
    return looker.page


def test_the_story_opens_with_the_link_that_ranks_first(story, document, served):
    """What opens is the first scene, and the sentence has the weight of the trace."""
    facts = served[0].document(RunRequest(MODEL, TEXT)).facts()
    first = facts["scenes"][0]["state"]
    now = story.evaluate("() => regard.state")
    assert {name: now[name] for name in first} == first
    weight = document.weights(first["layer"], first["head"])[first["query"], first["key"]].item()
    assert float(story.get_attribute(".finding", "data-weight")) == pytest.approx(weight, abs=2e-6)
    assert f"Head {first['layer']}.{first['head']} " in story.inner_text(".story .finding")
    assert story.locator(f".arc.chosen[data-key='{first['key']}']").count() == 1


WAYS = {
    "buttons": ("Enter", "Enter"),
    "arrows": ("ArrowRight", "ArrowLeft"),
    "clicker": ("PageDown", "PageUp"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_tour_is_walked_with_the_keyboard_alone(story, way):
    """On through all views and back, in Atlas too; each is a state of the page with its caption."""
    on, back = WAYS[way]
    n_scene = story.evaluate("() => regard.scenes.length")
    seen = []
    for index in range(n_scene):
        story.wait_for_function(f"() => regard.state.scene === {index}")
        seen.append(story.evaluate("() => regard.state.at"))
        titles = "() => regard.scenes[regard.state.scene].title"
        assert story.inner_text(".scenetitle") == story.evaluate(titles)
        if way == "buttons":
            story.focus("button[aria-label='on']")
        story.keyboard.press(on)
    assert set(seen) == {"story", "atlas"}
    if way == "buttons":
        story.focus("button[aria-label='back']")
    story.keyboard.press(back)
    assert story.evaluate("() => regard.state.scene") == n_scene - 2
    for _ in range(n_scene):
        if way == "buttons":
            story.focus("button[aria-label='back']")
        story.keyboard.press(back)
    # Going back does not hide what was explained there.
    assert story.locator(".explained dt").all_inner_texts() == ["head"]


def test_who_goes_elsewhere_leaves_the_scene(story):
    """A caption is about its view: choosing another word ends it."""
    assert story.evaluate("() => regard.state.scene") == 0
    other = 5 if story.evaluate("() => regard.state.query") != 5 else 6
    story.click(f".said-token[data-index='{other}']")
    assert story.evaluate("() => [regard.state.scene, regard.state.query]") == [None, other]


def test_a_word_is_changed_in_place(story, models):
    """The clicked word becomes a field; Enter reads the text with the new word and says what moved."""
    story.click(".said-token[data-index='7']")  # the o of "or"
    story.click(".said-token[data-index='7']")
    story.fill(".edited", "so")
    story.press(".edited", "Enter")
    story.wait_for_function("() => regard.source.meta.text === 'to be so not'")
    story.wait_for_selector(".moved-weights:visible")
    assert story.inner_text(".moved-weights").startswith("With so for or: ")
    state = story.evaluate("() => regard.state")
    one = models.get(MODEL)
    row = trace(one, [one.tokenizer.encode("to be so not")]).row(
        state["layer"], state["head"], state["query"]
    )
    found = story.evaluate("() => [...regard.story.row.weights]")
    assert found == pytest.approx(row.tolist(), abs=2e-6)


def test_words_are_explained_once_and_listed_on_a_question_mark(story):
    """The first caption explains what a head is; ? opens the glossary and the keys, Escape closes it."""
    assert story.locator(".explained dt").all_inner_texts() == ["head"]
    story.keyboard.press("?")
    said = story.inner_text("dialog.help")
    for word in (
        "query",
        "key",
        "head",
        "layer",
        "softmax",
        "switch the chosen head off",
        *set(LABELS) - {"none"},
    ):
        assert word in said
    story.keyboard.press("Escape")
    assert not story.is_visible("dialog.help")


@pytest.mark.parametrize("where", ["server", "file"])
def test_the_machine_ends_at_the_weight_of_the_trace(looker, served, exported, made, where):
    """Its softmax over raw scores gives the trace's row; a file says that it begins at the query."""
    view = {"at": "machine", "layer": 3, "head": 7, "query": 4, "key": 6}
    looker.page.goto(served[1](**view) if where == "server" else exported(made, **view))
    looker.page.wait_for_selector(".card[data-step='softmax']")
    weight = float(looker.page.get_attribute(".cards", "data-weight"))
    assert weight == pytest.approx(made.weights(3, 7)[4, 6].item(), abs=2e-6)
    names = [card.get_attribute("data-step") for card in looker.page.locator(".card").all()]
    assert names[0] == ("x" if where == "server" else "q, k")
    if where == "file":
        assert "kept nothing more of this layer" in looker.page.inner_text(".card >> nth=0")


@pytest.mark.parametrize(
    ("model", "shown", "other"),
    [
        ("pocket-gpt", (2, 1, 3, 1), (2, 0, 2, 2)),
        pytest.param("t5 (random)", (8, 1, 1, 2), (8, 0, 0, 1), marks=pytest.mark.slow),
        pytest.param("pythia (random)", (2, 1, 3, 1), (2, 0, 2, 2), marks=pytest.mark.slow),
    ],
    ids=["decoder", "cross-attention", "turned by positions"],
)
def test_a_file_keeps_what_the_machine_needs_of_the_layers_it_shows(
    looker, models, tmp_path, model, shown, other
):
    """From x to the push on the next token it has the live machine's numbers; another layer begins at q."""
    session = Session(models, model)
    document = session.document(RunRequest(model, "a cat saw a dog"))
    names = ("layer", "head", "query", "key")
    start = dict(zip(names, shown, strict=True))
    export([session.for_file(document.id, [start])], tmp_path / "page.html", start={"at": "machine", **start})
    looker.page.goto((tmp_path / "page.html").as_uri())
    looker.page.wait_for_selector(".card[data-step='softmax']")

    def both(place):
        at = dict(zip(names, place, strict=True))
        live = json.loads(session.answer("machine", {"doc": document.id, **at}))
        return live, looker.page.evaluate("at => regard.source.machine(...at)", list(place))

    live, kept = both(shown)
    for name in ("x", "xKey", "q", "k"):
        assert kept["model"][name] == pytest.approx(live["model"][name], rel=1e-4, abs=1e-6)
    assert kept["model"]["added"] == pytest.approx(live["model"]["added"], rel=1e-4)
    if live["model"]["push"] is not None:
        assert kept["model"]["push"]["tokens"] == live["model"]["push"]["tokens"]
        for mine, theirs in zip(kept["model"]["push"]["byKey"], live["model"]["push"]["byKey"], strict=True):
            assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    live, kept = both(other)
    assert kept["model"]["x"] == pytest.approx(live["model"]["x"], rel=1e-4, abs=1e-6)
    assert "added" not in kept["model"]
    assert "words of the tour alone" in kept["without"]
    assert "model" not in both((0, *other[1:]))[1]


def test_an_overwritten_number_is_followed_to_the_end(looker, served, made):
    """Temperature, a hidden key and a score of one's own give the softmax of those numbers."""
    looker.page.goto(served[1](at="machine", layer=3, head=7, query=4, key=6))
    page = looker.page
    page.wait_for_selector(".card[data-step='softmax']")
    parts = [made.layers[3].score_parts(7, 4, key).score for key in range(14)]
    scores = torch.tensor(parts, dtype=torch.float64)

    def weight():
        return float(page.get_attribute(".cards", "data-weight"))

    page.evaluate(
        "() => { regard.machine.heat.value = '1'; regard.machine.heat.dispatchEvent(new Event('input')); }"
    )
    assert weight() == pytest.approx((scores / 2).softmax(0)[6].item(), abs=2e-6)
    assert "no longer the model's" in page.inner_text(".machine .caution")
    page.click("text=the model's numbers")
    page.click(".card[data-step='the whole row'] .column1[data-key='2']")
    hidden = scores.clone()
    hidden[2] = -torch.inf
    assert weight() == pytest.approx(hidden.softmax(0)[6].item(), abs=2e-6)
    page.fill(
        "input[aria-label='score of "
        + page.evaluate("() => regard.source.meta.tokens[6].trim() || '␣'")
        + "']",
        "5",
    )
    page.keyboard.press("Tab")
    hidden[6] = 5.0
    assert weight() == pytest.approx(hidden.softmax(0)[6].item(), abs=2e-6)
    page.click("text=the model's numbers")
    assert weight() == pytest.approx(scores.softmax(0)[6].item(), abs=2e-6)


def test_the_steps_of_the_machine_are_gone_through_forwards_and_back(looker, served):
    """The slider shows steps up to its own, and the later ones faintly."""
    looker.page.goto(served[1](at="machine", layer=3, head=7, query=4, key=6))
    looker.page.wait_for_selector(".card[data-step='softmax']")
    slider = looker.page.locator("input[aria-label='step of the computation']")
    slider.focus()
    looker.page.keyboard.press("Home")
    assert looker.page.locator(".card:not(.later)").count() == 1
    looker.page.keyboard.press("ArrowRight")
    assert looker.page.locator(".card:not(.later)").count() == 2
    assert slider.evaluate("input => input === input.getRootNode().activeElement")


def downloaded(page, name):
    """What a button of the sharing panel gives to save."""
    with page.expect_download() as waiting:
        page.click(f".sharing button:text-is('{name}')")
    return Path(waiting.value.path()).read_bytes()


def test_what_is_shown_goes_out_as_numbers_picture_and_code(story, document):
    """CSV has the row's weights, SVG the words and their arcs, the cell runs what is shown."""
    story.click("summary:text-is('Share')")
    rows = list(csv.reader(io.StringIO(downloaded(story, "CSV").decode())))
    state = story.evaluate("() => regard.state")
    wanted = document.row(state["layer"], state["head"], state["query"]).tolist()
    assert [float(cell) for cell in rows[1][1:]] == pytest.approx(wanted, abs=2e-6)
    picture = downloaded(story, "SVG").decode()
    assert picture.startswith("<svg")
    assert picture.count("<path") == story.locator(".arc").count()
    code = downloaded(story, "Notebook cell").decode()
    assert TEXT in code
    compile(code, "cell", "exec")


@pytest.mark.parametrize(
    ("view", "drawn", "words", "lines"),
    [
        (
            {"view": "lines", "chosen": [3], "more": [[2, 5]]},
            ".column.key",
            ["layer 3", "layer 2", "<cls>"],
            10,
        ),
        ({"view": "text", "query": 3}, ".word[data-weight]", ["<cls>", "strongest"], 0),
        (
            {"at": "machine", "query": 4, "key": 6},
            ".card[data-step='softmax']",
            ["softmax", "The", "row", "sums"],
            12,
        ),
    ],
    ids=["lines", "text", "machine"],
)
def test_every_view_is_a_picture_of_vectors(looker, served, view, drawn, words, lines):
    """SVG has the words and the lines of the view, and no pixels; PNG is that in twice as many."""
    at = {"layer": 3, "head": 7, **view}
    looker.page.goto(served[1](**at))
    looker.settle()
    looker.page.wait_for_selector(drawn)
    looker.page.wait_for_timeout(300)
    looker.page.click("summary:text-is('Share')")
    svg = ElementTree.fromstring(downloaded(looker.page, "SVG").decode())
    texts = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    for word in " ".join(words).split():
        assert word in " ".join(texts).split()
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}path"))) >= lines
    assert not list(svg.iter("{http://www.w3.org/2000/svg}image"))
    size = [int(svg.get(name)) for name in ("width", "height")]
    png = downloaded(looker.page, "PNG")
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert list(struct.unpack(">II", png[16:24])) == [2 * length for length in size]
    assert np.asarray(Image.open(io.BytesIO(png)).convert("L")).std() > 5  # something is drawn on it


def test_lines_go_out_as_many_as_are_drawn_and_where_they_are(looker, served, document):
    """The strongest link of the chosen token is the widest path, from its row to its column."""
    looker.page.goto(served[1](layer=3, head=7, view="lines", chosen=[3]))
    looker.settle()
    looker.page.wait_for_selector(".column.key")
    looker.page.click("summary:text-is('Share')")
    text = downloaded(looker.page, "SVG").decode()
    paths = re.findall(
        r'd="M0,([\d.]+) C[^"]* [\d.]+,([\d.]+)" fill="none"[^>]*stroke-width="([\d.]+)"', text
    )
    row = document.row(3, 7, 3)
    assert len(paths) == int((row >= 0.004 * document.weights(3, 7).max()).sum())
    start, end, _ = max(paths, key=lambda path: float(path[2]))
    assert (float(start), float(end)) == (3.5 * 21, (int(row.argmax()) + 0.5) * 21)


def test_a_path_of_views_is_one_file_that_plays_without_a_server(story, browser, tmp_path, made):
    """Views and captions come back in the saved page, in order, with the numbers of the trace."""
    story.click("summary:text-is('Share')")
    for caption, view in (("first <b>", {"at": "atlas", "layer": 2, "head": 3}), ("second", {"at": "story"})):
        story.evaluate("view => regard.change(view)", view)
        story.fill("input[aria-label='caption of this view']", caption)
        story.click("text=Add this view")
    path = tmp_path / "path.html"
    path.write_bytes(downloaded(story, "Save as one offline file"))
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_function("() => window.regard && regard.facts && regard.state.scene === 0")
    assert page.evaluate("() => [regard.state.at, regard.state.layer, regard.state.head]") == ["atlas", 2, 3]
    assert "first <b>" in page.inner_text(".tour")
    page.click("button[aria-label='on']")
    assert "second" in page.inner_text(".tour")
    row = page.evaluate(
        "async () => [...(await regard.source.tile({layer: 2, head: 3, r0: 4, r1: 5, c0: 0, c1: 14, nRow: 1,"
        " nCol: 14, valued: false})).values]"
    )
    assert row == pytest.approx(made.row(2, 3, 4).tolist(), abs=2e-6)
    context.close()


def test_the_grid_shows_what_each_head_does_to_the_prediction(looker, served):
    """Colours of the grid can be the effect of switching a head off."""
    looker.open(served[1](model="linear (random)", tint="effect"))
    looker.page.wait_for_function("() => regard.effects.found", timeout=60_000)
    assert "without the head" in looker.page.inner_text(".legend")
    colours = looker.page.locator(".thumb").evaluate_all("all => all.map(t => t.style.backgroundColor)")
    assert len(set(colours)) > 1
    assert all(colours)


def test_which_head_does_it_is_answered_against_chance(looker, served):
    """The search names heads, the share of sentences and what chance would give."""
    looker.open(served[1]())
    looker.page.click("summary:text-is('Find the head that links ...')")
    looker.page.fill("textarea[aria-label='sentences']", "the [cat] said *it* ran\nno [dog] where *it* is")
    looker.page.click("button:text-is('Find the head that links them')")
    looker.page.wait_for_selector("text=A blind guess", timeout=60_000)
    assert "Of 2 sentences" in looker.page.inner_text(".side.left")
    assert looker.page.locator(".side.left .pairs li").count() == 8
