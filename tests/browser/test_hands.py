"""The page in the hand: keyboard, focus, small and large screens, other scripts; axe-core is content."""

import pytest

from regard.tracing.traces import Trace
from regard.view.models import RANDOM

TEXT = "to be or not"
FOCUS = """() => { const one = regard.element.getRootNode().activeElement;
    return one.ariaLabel ?? one.textContent }"""


def test_the_slider_of_writing_can_be_dragged(looker, served):
    """It stays the same element while steps change."""
    looker.open(served[1](model="linear (random)", text="ab", write=5))
    slider = looker.page.locator("input[aria-label='step']")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    middle = box["y"] + box["height"] / 2
    looker.page.mouse.move(box["x"] + 8, middle)
    looker.page.mouse.down()
    seen = []
    for share in (0.3, 0.6, 0.98):
        looker.page.mouse.move(box["x"] + share * box["width"], middle)
        seen.append(int(slider.input_value()))
    looker.page.mouse.up()
    assert seen == sorted(set(seen))
    assert len(seen) == 3


def test_keys_work_on_a_fresh_page(looker, served):
    """1, 2, 3 change the view before anything was clicked, and a, s, m the altitude."""
    looker.open(served[1]())
    looker.page.keyboard.press("2")
    looker.page.wait_for_selector(".lines")
    looker.page.keyboard.press("s")
    looker.page.wait_for_selector(".story:visible")


@pytest.mark.parametrize(
    "control",
    ["select[aria-label='colour scale']", "button[data-value='lines']", "select[aria-label='label']"],
)
def test_a_control_keeps_the_focus_that_it_has(looker, served, control):
    """The page around a control is drawn again, and the control is still the one in hand."""
    looker.open(served[1]())
    looker.page.focus(control)
    before = looker.page.evaluate(FOCUS)
    looker.change(scale="log", layer=2)
    after = looker.page.evaluate(FOCUS)
    assert before == after


def test_after_a_control_click_arrows_choose_again(looker, served):
    """Adding a head by control-click does not make arrows add more."""
    looker.open(served[1](layer=1, head=2, view="lines"), wait=".lines")
    looker.page.click(".thumb[data-head='0.3']", modifiers=["Control"])
    assert looker.page.evaluate("() => regard.state.more") == [[0, 3]]
    looker.page.keyboard.press("ArrowDown")
    assert looker.page.evaluate("() => [regard.state.layer, regard.state.head, regard.state.more]") == [
        2, 2, [[0, 3]]]  # fmt: skip


def test_moving_on_the_map_is_said(looker, served, document):
    """A screen reader hears the number of the cell that arrows came to."""
    looker.open(served[1](layer=3, head=7, query=4, key=5))
    looker.page.focus("canvas.map")
    looker.page.keyboard.press("ArrowRight")
    looker.page.wait_for_function("() => regard.stage.announced.textContent !== ''")
    said = looker.page.evaluate("() => regard.stage.announced.textContent")
    assert said.startswith(f"{document.weights(3, 7)[4, 6].item():.3f}, query 4 ")


def test_words_of_the_text_view_are_reached_by_keyboard(looker, served):
    """Tab reaches one word, arrows the others, Enter chooses."""
    looker.open(served[1](view="text", query=3), wait=".textview")
    looker.page.focus(".word[data-index='3']")
    looker.page.keyboard.press("ArrowRight")
    looker.page.keyboard.press("Enter")
    assert looker.page.evaluate("() => regard.state.query") == 4
    assert looker.page.evaluate(FOCUS) == "b, 4"


def test_an_emptied_text_is_not_replaced_silently(looker, served):
    """The page says that there is no text, and keeps what it shows."""
    looker.open(served[1]())
    looker.page.fill("textarea[aria-label='text']", " ")
    looker.page.press("textarea[aria-label='text']", "Enter")
    looker.page.wait_for_selector(".message")
    assert "text is empty" in looker.page.inner_text(".messages")
    assert looker.page.evaluate("() => regard.source.meta.text") == TEXT


def test_a_tooltip_goes_with_the_model_it_was_of(looker, served):
    """Another trace leaves no number of the last one behind."""
    looker.open(served[1](layer=3, head=7))
    looker.hovered(2, 9)
    looker.page.evaluate("() => regard.change({text: 'ab'})")
    looker.page.wait_for_function("() => regard.source.meta.text === 'ab'")
    assert looker.page.evaluate("() => regard.stage.tip.textContent") == ""


def test_the_old_map_stays_until_the_new_one_is_there_and_is_not_fetched_twice(looker, served):
    """Going back to a head asks for nothing."""
    looker.open(served[1](layer=1, head=2))
    looker.change(layer=4, head=9)
    looker.page.wait_for_function("() => regard.overview.element.dataset.filled === 'all'")
    asked = []
    looker.page.on(
        "request", lambda request: asked.append(request.url) if "/api/tile" in request.url else None
    )
    looker.change(layer=1, head=2)
    looker.page.wait_for_timeout(300)
    assert asked == []


def test_parts_of_one_character_are_called_by_it(looker, exported):
    """Byte tokens of an emoji have its picture and their number; single bytes stay bytes."""
    names = ["hi", " \\xf0\\x9f\\x98", "\\x80", "\\xff"]
    looker.open(exported(Trace.from_weights([[0.25] * 4] * 4, rows=names, cols=names)))
    shown = looker.page.evaluate("() => regard.stage.panels[0].map.rows")
    assert shown == ["hi", "\U0001f600 1/2", "\U0001f600 2/2", "\\xff"]


def test_every_row_of_35_tokens_has_its_label(looker, exported):
    """Labels are made smaller before any is left out."""
    looker.page.set_viewport_size({"width": 1280, "height": 720})
    names = [f"w{index}" for index in range(35)]
    looker.open(exported(Trace.from_weights([[1 / 35] * 35] * 35, rows=names, cols=names)))
    drawn = looker.page.evaluate(
        """() => { const map = regard.stage.panels[0].map; const said = [];
            const context = map.canvas.getContext('2d'); const real = context.fillText.bind(context);
            context.fillText = (text, ...more) => { said.push(text); real(text, ...more); };
            map.draw(); context.fillText = real; return said; }"""
    )
    assert [name for name in names if drawn.count(name) < 2] == []


def test_many_lines_are_the_strongest_of_each_token(looker, exported):
    """From 40 tokens on three links of each are drawn, and that is said; all are one choice away."""
    names = [f"w{index}" for index in range(50)]
    looker.open(exported(Trace.from_weights([[1 / 50] * 50] * 50, rows=names, cols=names)))
    looker.change(view="lines")
    assert "3 strongest links of each token" in looker.page.inner_text(".lines")
    looker.change(links="all")
    assert "3 strongest links" not in looker.page.inner_text(".lines")


def test_the_layers_of_a_second_model_are_reached_in_a_grid_of_their_own(looker, served):
    """Two models beside each other have two grids; the second chooses in the second panel alone."""
    looker.open(served[1](compare="model", other=f"linear{RANDOM}", layer=5, head=1))
    looker.page.wait_for_selector(".mappaper >> nth=1")
    looker.page.click(".grid >> nth=1 >> .thumb[data-head='1.3']")
    state = looker.page.evaluate("() => regard.state")
    assert [state[name] for name in ("layer", "head", "layer2", "head2")] == [5, 1, 1, 3]


SIZES = {"phone": (390, 844), "laptop": (1280, 800), "4K": (3840, 2160), "zoom of 200 %": (640, 400)}


@pytest.mark.parametrize("at", ["story", "machine", "atlas"])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_lost_at_any_size(looker, served, size, at):
    """No sideways scrolling; the text field and its button can be seen and are not covered."""
    looker.page.set_viewport_size(dict(zip(("width", "height"), SIZES[size], strict=True)))
    looker.page.goto(served[1](at=at, layer=3, head=7, query=4, key=6))
    looker.page.wait_for_function("() => window.regard && regard.source && regard.facts", timeout=30_000)
    wide = looker.page.evaluate("() => [regard.element.scrollWidth, regard.element.clientWidth]")
    assert wide[0] <= wide[1]
    for control in ("textarea[aria-label='text']", ".top button.primary"):
        box = looker.page.locator(control).bounding_box()
        assert box["width"] >= 40
        assert box["x"] + box["width"] <= SIZES[size][0]
        seen = looker.page.evaluate(
            """([x, y]) => { const one = regard.element.getRootNode().elementFromPoint(x, y);
                return one.className + one.tagName }""",
            [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2],
        )
        assert "primary" in seen or "TEXTAREA" in seen or "spin" in seen
    if at == "atlas":
        map_box = looker.page.locator("canvas.map").bounding_box()
        cells = looker.page.evaluate("() => regard.stage.panels[0].map.view.px * 14")
        assert cells >= 0.5 * min(map_box["width"], map_box["height"])


STATES = {
    "story": {"at": "story"},
    "story, dark": {"at": "story", "theme": "dark"},
    "machine": {"at": "machine", "layer": 3, "head": 7, "query": 4, "key": 6},
    "machine, dark": {"at": "machine", "layer": 3, "head": 7, "query": 4, "key": 6, "theme": "dark"},
    "map": {"layer": 3, "head": 7, "query": 4, "key": 6},
    "map, dark": {"layer": 3, "head": 7, "query": 4, "key": 6, "theme": "dark"},
    "lines": {"view": "lines", "chosen": [3]},
    "text": {"view": "text", "query": 3},
    "two heads": {"compare": "head", "difference": True},
}


@pytest.mark.parametrize("name", STATES)
def test_axe_has_nothing_to_say(looker, served, name):
    """axe-core finds no violation in nine states."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is missing"
    )
    looker.page.goto(served[1](**STATES[name]))
    looker.page.wait_for_function("() => window.regard && regard.source && regard.facts", timeout=30_000)
    looker.page.wait_for_timeout(500)
    found = axe.Axe().run(looker.page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:160]) for one in found] == []
