"""The page in use: heads switched off, two panels, the address, the keyboard, dropped files, no mischief."""

import base64
import http.client

import pytest
import torch
from playwright.sync_api import expect

import regard
from regard.tracing.take import trace
from regard.tracing.traces import Trace
from regard.view.predict import sentence_vector
from regard.view.run import RunRequest, run_model

MODEL, TEXT, TOKEN = "minilm (random)", "to be or not", "a-token-of-the-tests"
EVIL = "<script>alert(1)</script> <img src=x onerror=alert(2)> </script><b>x"


def test_switching_a_head_off_moves_the_sentence_vector_as_the_library_says(looker, served, models):
    """The page's movement is 1 - cosine of the vectors that a gate of 0 for that head gives."""
    looker.open(served[1](layer=2, head=5))
    looker.page.click("button.switch")
    moved = looker.page.wait_for_selector(".moved")
    one = models.get(MODEL)
    ids = one.tokenizer.encode(TEXT)
    with torch.no_grad():
        whole, less = (sentence_vector(run_model(one, ids, off=off)) for off in ((), ((2, 5),)))
        wanted = 1 - float(whole @ less)
    assert wanted > 1e-6
    assert float(moved.get_attribute("data-moved")) == pytest.approx(wanted, abs=1e-6)
    assert "off" in looker.page.get_attribute("[data-head='2.5']", "class")
    looker.settle()
    with regard.intervene(one) as run:
        run.gate(layer=2, head=5, by=0.0)
        changed = trace(one, [ids]).weights(3, 0)
    looker.change(layer=3, head=0)
    assert looker.hovered(4, 9) == pytest.approx(changed[4, 9].item(), abs=2e-6)


def test_the_difference_map_is_one_head_minus_the_other(looker, served, document):
    """With two heads beside each other, the second panel can show A - B, and says so."""
    looker.open(served[1](layer=1, head=3, compare="head", layer2=4, head2=8, difference=True))
    looker.page.wait_for_selector(".mappaper >> nth=1")
    looker.settle()
    wanted = document.weights(1, 3) - document.weights(4, 8)
    for row, col in ((3, 8), (8, 3)):
        assert looker.hovered(row, col, panel=1) == pytest.approx(wanted[row, col].item(), abs=4e-6)
    assert "A − B" in looker.page.inner_text(".mappaper >> nth=1")


def test_two_panels_share_zoom_and_choice(looker, served):
    """Zooming, hovering and choosing in one panel do the same in the other."""
    looker.open(served[1](layer=1, head=3, compare="random"))
    looker.page.wait_for_selector(".mappaper >> nth=1")
    looker.settle()
    looker.page.mouse.move(*looker.place(5, 5))
    looker.page.mouse.wheel(0, -400)
    looker.settle()
    one, two = looker.page.evaluate("() => regard.stage.panels.map(p => p.map.view)")
    assert one == two
    assert one["px"] > 1.5 * looker.page.evaluate("() => regard.stage.panels[0].map.fitPx")
    hovered = "() => regard.stage.panels.map(p => p.map.hovered)"
    assert looker.page.evaluate(hovered)[0] == looker.page.evaluate(hovered)[1] is not None
    looker.page.mouse.click(*looker.place(6, 5, panel=1))
    assert looker.page.evaluate("() => [regard.state.query, regard.state.key]") == [6, 5]


def test_the_same_word_is_picked_out_in_another_text(looker, served):
    """A word chosen in one sentence is marked where it stands in the other."""
    looker.open(served[1](compare="text", other="go to be", query=4, key=5))
    looker.page.wait_for_selector(".mappaper >> nth=1")
    looker.settle()
    # "be" is tokens 4 and 5 of "to be or not" and 7 and 8 of "go to be"
    assert looker.page.evaluate("() => regard.stage.panels[1].map.selected") == {"row": 7, "col": 8}


def test_the_address_opens_the_same_view_again(looker, served):
    """What was chosen is in the address, and a new page at that address shows it."""
    looker.open(served[1](layer=1, head=2))
    looker.change(layer=4, head=9, view="text", scale="log", query=3, off=[[0, 1]])
    looker.page.wait_for_function("() => location.hash.includes('view=text')")  # written once nothing moves
    address = looker.page.url
    before = looker.page.evaluate("() => regard.state")
    looker.page.goto("about:blank")
    looker.open(address, wait=".textview")
    assert looker.page.evaluate("() => regard.state") == before


def test_arrow_keys_move_through_the_heads(looker, served):
    """Right and down in the grid choose the next head and the next layer."""
    looker.open(served[1](layer=1, head=2))
    looker.page.focus(".grid")
    looker.page.keyboard.press("ArrowRight")
    looker.page.keyboard.press("ArrowDown")
    assert looker.page.evaluate("() => [regard.state.layer, regard.state.head]") == [2, 3]
    for which, chosen in enumerate(("2", "3")):
        expect(looker.page.locator(".headline select").nth(which)).to_have_value(chosen)


def test_typing_a_text_shows_it(looker, served):
    """A text typed and sent with Enter is traced and drawn."""
    looker.open(served[1]())
    looker.page.fill("textarea[aria-label='text']", "ab")
    looker.page.press("textarea[aria-label='text']", "Enter")
    looker.page.wait_for_function("() => regard.source.meta.tokens.length === 4")
    assert looker.page.evaluate("() => regard.source.meta.tokens") == ["<cls>", "a", "b", "<sep>"]


def test_a_text_that_is_too_long_is_cut_with_a_notice(looker, served):
    """600 letters are more than the model's 512 positions: the end is cut, the closing token stays."""
    looker.open(served[1]())
    looker.change(text="a" * 600)
    looker.page.wait_for_selector(".message")
    assert "602 tokens" in looker.page.inner_text(".messages")
    tokens = looker.page.evaluate("() => regard.source.meta.tokens")
    assert len(tokens) == 512
    assert tokens[-1] == "<sep>"


@pytest.mark.parametrize(
    ("state", "words"),
    [({"text": " "}, "text is empty"), ({"model": "nowhere"}, "there is no model 'nowhere'")],
    ids=["empty text", "no such model"],
)
def test_what_cannot_be_shown_is_said_in_words(looker, served, state, words):
    """A refusal appears on the page, and what was there stays."""
    looker.open(served[1]())
    looker.page.evaluate("state => regard.change(state)", state)
    looker.page.wait_for_selector(".message")
    assert words in looker.page.inner_text(".messages")
    assert looker.page.locator("canvas.map").count() == 1


@pytest.mark.parametrize("where", ["file", "server"])
def test_text_that_looks_like_markup_stays_text(looker, served, exported, models, where):
    """Script and image tags in a text run nowhere and appear as they were typed."""
    alarms = []
    looker.page.on("dialog", lambda dialog: (alarms.append(dialog.message), dialog.dismiss()))
    if where == "server":
        looker.open(served[1](text=EVIL, view="text"), wait=".textview")
    else:
        rows = [EVIL, "b", "</script>"]
        found = Trace.from_weights(torch.rand(3, 3).softmax(-1), rows=rows, cols=rows)
        looker.open(exported(found, view="text"), wait=".textview")
    shown = looker.page.inner_text(".running")
    assert "<script>alert(1)</script>" in shown
    for view in ("map", "lines"):
        looker.change(view=view)
    assert alarms == []
    assert looker.page.evaluate("() => document.querySelectorAll('img').length") == 0


def test_the_exported_file_needs_no_network(browser, exported, made):
    """From file:// with the network off the page draws, and asks for nothing but itself."""
    context = browser.new_context(offline=True)
    page = context.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    address = exported(made, layer=2, head=3)
    page.goto(address)
    page.wait_for_function("() => window.regard && regard.source && !regard.stage.waiting")
    page.wait_for_function("() => regard.overview.element.dataset.filled === 'all'")
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.locator(".thumb canvas").count() == 72
    assert page.is_disabled("button.switch")
    assert "saved page" in page.get_attribute("button.switch", "title")
    context.close()


def test_a_saved_trace_opens_by_drag_and_drop(looker, served, tmp_path):
    """A trace file dropped on the page is drawn with its own numbers."""
    found = Trace.from_weights(torch.rand(2, 5, 5).softmax(-1), rows=list("abcde"))
    found.save(tmp_path / "some.trace")
    data = base64.b64encode((tmp_path / "some.trace").read_bytes()).decode()
    looker.open(served[1]())
    looker.page.evaluate(
        """data => {
            const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
            const carried = new DataTransfer();
            carried.items.add(new File([bytes], 'some.trace'));
            regard.element.dispatchEvent(new DragEvent('drop', {dataTransfer: carried, bubbles: true}));
        }""",
        data,
    )
    looker.page.wait_for_function("() => regard.source.meta.tokens.length === 5")
    looker.settle()
    assert looker.hovered(1, 3) == pytest.approx(found.weights(0, 0)[1, 3].item(), abs=1e-6)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", {}),
        ("/?token=wrong", {}),
        ("/api/models", {"X-Regard-Token": "wrong"}),
        (f"/?token={TOKEN}", {"Host": "evil.example"}),
        (f"/?token={TOKEN}", {"Origin": "https://evil.example"}),
    ],
    ids=["no token", "wrong token", "wrong token of a question", "foreign host", "foreign origin"],
)
def test_who_is_not_meant_is_refused(served, path, headers):
    """Without the token, for another host or from another site there is a 403 and no page."""
    connection = http.client.HTTPConnection("127.0.0.1", served[2], timeout=10)
    connection.request("GET", path, headers={"Host": f"127.0.0.1:{served[2]}", **headers})
    answer = connection.getresponse()
    said = answer.read()
    assert answer.status == 403
    connection.close()
    assert b"regard-data" not in said


def test_predictions_of_a_decoder_follow_the_library(looker, served, models):
    """The next word's probabilities on the page are the softmax of the logits, with and without a head."""
    key = "linear (random)"
    looker.open(served[1](model=key, layer=1, head=2, off=[[1, 2]]))
    looker.page.wait_for_selector(".predictions td.up, .predictions td.down")
    one = models.get(key)
    ids = torch.tensor([one.tokenizer.encode(TEXT)])
    with torch.no_grad(), regard.intervene(one) as run:
        before = one.model(ids).logits[0, -1].softmax(-1)
        run.gate(layer=1, head=2, by=0.0)
        after = one.model(ids).logits[0, -1].softmax(-1)
    top = before.topk(8)
    said = [float(text) for text in looker.page.locator(".predictions .num").all_inner_texts()]
    wanted = [x for pair in zip(top.values.tolist(), after[top.indices].tolist(), strict=True) for x in pair]
    assert said == pytest.approx(wanted, abs=5e-4)
    assert served[0].document(RunRequest(key, TEXT, None, ((1, 2),))).off == ((1, 2),)
