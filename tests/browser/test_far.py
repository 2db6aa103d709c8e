"""Long texts and long runs: where one is on the map, what is named there, how a run is stopped."""

import re
import time

import pytest
import torch

from regard.layers.attention import MultiHeadAttention
from regard.tracing.traces import Trace

SAID = """() => { const map = regard.stage.panels[0].map; const said = [];
    const context = map.canvas.getContext('2d'); const real = context.fillText.bind(context);
    context.fillText = (text, ...more) => { said.push(text); real(text, ...more); };
    map.draw(); context.fillText = real; return said; }"""
MAP = "regard.stage.panels[0].map"


@pytest.fixture(scope="module")
def far():
    """600 tokens whose only strong weight is far from the middle: query 550 looks at key 40."""
    weights = torch.full((1, 600, 600), 1 / 600)
    weights[0, 550] = 0.2 / 599
    weights[0, 550, 40] = 0.8
    names = [f"w{index}" for index in range(600)]
    return Trace.from_weights(weights, rows=names, cols=names)


def test_plus_zooms_to_where_something_is(looker, exported, far):
    """With no cell chosen, + goes to the strongest one; with one chosen, to that."""
    looker.open(exported(far))
    looker.page.focus("canvas.map")
    inside = f"""([row, col]) => {{ const {{r0, r1, c0, c1}} = {MAP}.rect;
        return r0 <= row && row < r1 && c0 <= col && col < c1 && !{MAP}.fitted }}"""
    for _ in range(6):
        looker.page.keyboard.press("+")
    assert looker.page.evaluate(inside, [550, 40])
    assert not looker.page.evaluate(inside, [300, 300])
    looker.page.keyboard.press("0")
    looker.change(query=300, key=310)
    for _ in range(6):
        looker.page.click("button[aria-label='zoom in']")
    assert looker.page.evaluate(inside, [300, 310])


def test_the_small_picture_of_the_whole_says_where_one_is_and_goes_elsewhere(looker, exported, far):
    """It is there while a part is in view, frames that part, and a click in it goes there."""
    looker.open(exported(far))
    assert looker.page.evaluate(f"() => {MAP}.corner") is None
    looker.change(zoom={"x": 0, "y": 0, "px": 12})
    looker.settle()
    corner = looker.page.evaluate(f"() => {MAP}.corner")
    box = looker.page.locator("canvas.map").bounding_box()
    frame = looker.page.evaluate(
        f"""() => {{ const at = {MAP}.corner; const r = devicePixelRatio;
            const {{data}} = {MAP}.canvas.getContext('2d').getImageData(at.x * r, at.y * r, 3 * r, 3 * r);
            return [...data.slice(0, 3)]; }}"""
    )
    assert frame[0] > 200 > 150 > frame[2]  # the orange corner of the frame, at the beginning of the text
    looker.page.mouse.click(
        box["x"] + corner["x"] + 0.5 * corner["w"], box["y"] + corner["y"] + 0.75 * corner["h"]
    )
    rect = looker.page.evaluate(f"() => {MAP}.rect")
    assert (rect["c0"] + rect["c1"]) / 2 == pytest.approx(300, abs=8)
    assert (rect["r0"] + rect["r1"]) / 2 == pytest.approx(450, abs=8)
    assert looker.page.evaluate("() => regard.state.query") is None  # a click in it chooses no cell


def test_a_long_text_has_positions_beside_its_words(looker, exported, far):
    """Where not every token has room, those that are named say which they are, in order, all along."""
    looker.open(exported(far))
    said = looker.page.evaluate(SAID)
    numbers = [int(match[2]) for match in map(re.compile(r"w(\d+) (\d+)").fullmatch, said) if match]
    assert all(f"w{number} {number}" in said for number in numbers)
    assert min(numbers) == 0
    assert max(numbers) > 550
    looker.change(zoom={"x": 100, "y": 200, "px": 30})
    looker.settle()
    assert "w210" in looker.page.evaluate(SAID)  # every one has room: its name is enough


def test_a_long_run_shows_its_layers_and_is_stopped(looker, served, models):
    """The button counts layers while a model reads, stops it, and what was there stays."""
    looker.open(served[1]())
    page, one = looker.page, models.get("minilm (random)")
    before = page.evaluate("() => regard.source.meta.text")
    layers = [part for part in one.model.modules() if isinstance(part, MultiHeadAttention)]
    slow = [layer.register_forward_pre_hook(lambda *_: time.sleep(0.6)) for layer in layers]
    try:
        page.fill("textarea[aria-label='text']", "slowly read")
        page.press("textarea[aria-label='text']", "Enter")
        page.wait_for_function(
            r"() => /Stop [1-5] \/ 6 layers/.test(regard.top.run.textContent)", timeout=20_000
        )
        page.click(".top button.primary")
        page.wait_for_function("() => regard.messages.textContent.includes('This run was stopped.')")
        page.wait_for_function("() => regard.top.run.textContent === 'Look'")
    finally:
        for hook in slow:
            hook.remove()
    assert page.evaluate("() => regard.source.meta.text") == before
    page.press("textarea[aria-label='text']", "Enter")  # and it can be looked at after all
    page.wait_for_function("() => regard.source.meta.text === 'slowly read'")
