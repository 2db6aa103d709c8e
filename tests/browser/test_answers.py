"""The page as somebody new, a student, a teacher and a researcher use it."""

import json

import pytest

from regard.tracing.take import trace
from regard.tracing.traces import Trace
from regard.view.page import to_html

TEXT = "to be or not"


def opened(looker, address):
    """A page whose facts are measured."""
    looker.page.goto(address)
    looker.page.wait_for_function("() => window.regard && regard.source && regard.facts", timeout=60_000)
    return looker.page


@pytest.fixture
def gpt(looker, served):
    """A live page of a small GPT that predicts the next word."""
    page = opened(
        looker, served[1](at="story", model="pocket-gpt", text="The hacker wrote a", query=3, key=1)
    )
    page.wait_for_selector(".bars5 li", timeout=30_000)
    return page


def bars(page):
    return page.evaluate(
        "() => [...document.getElementById('regard').shadowRoot.querySelectorAll('.bars5 li')]"
        ".map(li => [li.querySelector('.token1').textContent, li.querySelector('.num').textContent])"
    )


def test_the_prediction_is_in_view_and_a_cut_link_shows_what_it_does(gpt):
    """Five bars in Story; cutting the link runs the model without it, says so, and can be undone."""
    assert len(bars(gpt)) == 5
    gpt.click("button:text-is('Cut this link')")
    gpt.wait_for_function("() => regard.source.meta.cut.length === 1", timeout=30_000)
    gpt.wait_for_selector(".bars5[data-moved='true']", timeout=30_000)
    assert "without the links that are cut" in gpt.inner_text(".predicted")
    assert gpt.locator(".arc.cut").count() == 1
    assert "This link is cut" in gpt.inner_text(".story .finding")
    gpt.click("button:text-is('Undo all changes')")
    gpt.wait_for_selector(".bars5[data-moved='false']", timeout=30_000)


def test_other_heads_of_the_word_lead_on(gpt):
    """A strip under the sentence has the strongest links of this word; one click goes to that head."""
    gpt.wait_for_selector(".strip button")
    other = gpt.locator(".strip button:not([aria-pressed='true'])").first
    wanted = other.get_attribute("data-head")
    other.click()
    assert gpt.evaluate("() => `${regard.state.layer}.${regard.state.head}`") == wanted
    assert gpt.evaluate("() => regard.state.query") == 3


def test_back_goes_to_the_view_before_and_stays_on_the_page(gpt):
    """Each view is a step of the browser's history."""
    gpt.keyboard.press("a")
    gpt.wait_for_selector("canvas.map")
    gpt.keyboard.press("2")
    gpt.wait_for_selector(".lines")
    gpt.go_back()
    gpt.wait_for_function("() => regard.state.view === 'map'")
    gpt.go_back()
    gpt.wait_for_function("() => regard.state.at === 'story'")


def test_presenting_makes_the_map_larger_and_is_kept_in_the_address(looker, served):
    """The map gets more of the screen than before; Esc ends it."""
    looker.page.set_viewport_size({"width": 1280, "height": 720})
    page = opened(looker, served[1](layer=3, head=7))
    looker.settle()
    before = page.locator("canvas.map").bounding_box()
    page.keyboard.press("p")
    page.wait_for_function("() => location.hash.includes('present=true')")
    looker.settle()
    after = page.locator("canvas.map").bounding_box()
    assert after["width"] * after["height"] > 1.2 * before["width"] * before["height"]
    page.mouse.move(300, 300)
    assert page.locator(".pointer").is_visible()
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.hash.includes('present')")


def test_a_model_that_is_not_there_is_told_and_the_usual_one_is_shown(looker, served):
    """An address with an unknown model does not give bare panels."""
    page = opened(looker, served[1](model="nobody", layer=99))
    assert "nobody" in page.inner_text(".messages")
    assert page.evaluate("() => regard.source.meta.text") == TEXT


def test_what_is_typed_stays_while_a_trace_arrives(looker, served):
    """Typing during a run is not lost when the run is done; Share closes with Esc."""
    page = opened(looker, served[1](at="story"))
    page.fill("textarea[aria-label='text']", "typed meanwhile")
    page.evaluate("() => regard.change({off: [[0, 1]]})")
    page.wait_for_function("() => regard.source.meta.off.length === 1", timeout=30_000)
    assert page.input_value("textarea[aria-label='text']") == "typed meanwhile"
    page.click("summary:text-is('Share')")
    page.keyboard.press("Escape")
    assert not page.evaluate("() => regard.share.element.open")


def test_a_frame_in_another_page_changes_heads_by_arrows_and_has_its_picker_in_sight(looker, made):
    """In a frame of 640 pixels the head picker and the whole map are in sight, and arrows work."""
    page = looker.page
    page.set_viewport_size({"width": 820, "height": 700})
    page.set_content(f"<p>text</p>{to_html(made, height=640, layer=1, head=2)}")
    frame = page.frame_locator("iframe")
    frame.locator("canvas.map").wait_for()
    inside = page.frames[1]
    inside.wait_for_function("() => window.regard && regard.facts && !regard.stage.waiting", timeout=30_000)
    outer = page.locator("iframe").bounding_box()
    for part in (".picker", "canvas.map"):
        box = frame.locator(part).bounding_box()
        assert box["y"] + box["height"] <= outer["y"] + outer["height"] + 1
    frame.locator(".brand").click()
    page.keyboard.press("ArrowRight")
    assert inside.evaluate("() => [regard.state.layer, regard.state.head]") == [1, 3]


def test_arabic_and_hebrew_run_from_right_to_left(looker, tmp_path):
    """The sentence's direction is that of its letters; names in findings stand apart from it."""
    tokens = ["קרא", " את", " הספר", " היום", " כולו"]
    found = Trace.from_weights([[0.1, 0.1, 0.6, 0.1, 0.1]] * 5, rows=tokens, cols=tokens)
    path = tmp_path / "page.html"
    path.write_text(to_html(found), encoding="utf-8")
    page = opened(looker, path.as_uri())
    page.evaluate("() => regard.change({at: 'story', query: 4, key: 2})")
    page.wait_for_function("() => regard.story.row")
    assert page.get_attribute(".running", "dir") == "rtl"
    left = [page.locator(f".said-token[data-index='{i}']").bounding_box()["x"] for i in range(5)]
    assert left == sorted(left, reverse=True)
    assert page.locator(".finding bdi").count() >= 2


def test_unequal_texts_have_no_difference_and_the_page_says_so(looker, served):
    """A difference that cannot be taken is not silently left out."""
    page = opened(looker, served[1](layer=1, head=2, compare="text", other="to be", difference=True))
    page.wait_for_selector(".mappaper >> nth=1", timeout=30_000)
    assert "Only maps of one size can be subtracted" in page.inner_text(".stage")


def test_small_pictures_have_one_scale_and_each_its_own_on_demand(looker, exported):
    """A head that spreads its weight is lighter than one that does not, unless each has its own scale."""
    flat, sharp = [[0.2] * 5] * 5, [[1.0 if i == j else 0.0 for j in range(5)] for i in range(5)]
    looker.open(exported(Trace.from_weights([flat, sharp], rows=list("abcde"))))
    looker.page.wait_for_function("() => regard.overview.element.dataset.filled === 'all'")
    dark = """() => [...regard.overview.element.querySelectorAll('canvas')].map(canvas => Math.min(
        ...canvas.getContext('2d').getImageData(0, 0, 5, 5).data.filter((_, i) => i % 4 === 0)))"""
    spread, whole = looker.page.evaluate(dark)
    assert spread > whole + 40
    looker.change(thumbs="own")
    spread, whole = looker.page.evaluate(dark)
    assert spread == whole


@pytest.mark.slow
def test_a_tour_asks_then_tells_and_its_change_keeps_the_reader_in_it(looker, served):
    """With a trained model: a guess is answered, the link is told, the word is changed, the tour goes on."""
    text = "The animal didn't cross the street because it was too tired"
    page = opened(looker, served[1](at="story", model="minilm", text=text))
    page.wait_for_function("() => regard.state.scene === 0")
    assert not page.locator(".arcs").is_visible()
    page.click(".said-token[data-index='2']")
    assert "That is it." in page.inner_text(".tour")
    assert page.locator(".arc.chosen").count() == 1
    page.keyboard.press("PageDown")
    page.click("button:text-is('Change tired to wide')")
    page.wait_for_function("() => regard.source.meta.text.endsWith('wide') && regard.facts", timeout=60_000)
    assert page.evaluate("() => regard.state.scene") == 1
    page.wait_for_selector("button:text-is('Change wide to tired')")


@pytest.mark.slow
def test_why_it_said_so_lists_what_was_run_and_one_can_be_cut(gpt):
    """The list is of parts whose absence was run, and cutting one shows what it does to the prediction."""
    gpt.click("button:has-text('Why did it say')")
    gpt.wait_for_selector(".whysaid h2", timeout=120_000)
    said = gpt.inner_text(".whysaid")
    assert "19 of 20" in said or "nothing stands out" in said


def test_the_numbers_of_a_saved_page_hold_its_prediction(looker, models, tmp_path):
    """A file without a model still shows what the model predicted."""
    from regard.view.page import export
    from regard.view.run import RunRequest
    from regard.view.session import Session

    session = Session(models, "pocket-gpt")
    document = session.document(RunRequest("pocket-gpt", "The hacker wrote a"))
    export([session.for_file(document.id, [])], tmp_path / "page.html", start={"at": "story", "query": 3})
    page = opened(looker, (tmp_path / "page.html").as_uri())
    page.wait_for_selector(".bars5 li")
    live = json.loads(session.answer("predict", {"doc": document.id}))
    assert bars(page)[0][0] == live["before"][0]["token"].strip()


def test_the_code_of_a_head_has_the_layers_own_steps(looker, served, models):
    """Grouped heads use the key head that they share; rotation is there where the model has it."""
    page = opened(
        looker, served[1](at="machine", model="llama (random)", text="ab", layer=0, head=3, query=1, key=0)
    )
    page.wait_for_selector(".card[data-step='softmax']", timeout=60_000)
    code = page.evaluate("() => regard.machine.code.textContent")
    one = models.get("llama (random)")
    n_head, n_kv = one.model.sizes.n_head, one.model.sizes.n_kv_head
    assert f"W_k[{3 * n_kv // n_head}]" in code
    assert "rotate(q" in code
    found = trace(one, [one.tokenizer.encode("ab")]).weights(0, 3)[1, 0].item()
    assert f"w[1, 0] = {found:.3f}" in code
