"""The notebook's side in a real browser: the module's default export, speaking to our Python side."""

import base64

import pytest

import regard
from regard.files.loading import load
from regard.tracing.take import trace
from regard.view.page import bundle

TEXT = "to be or not"

# What anywidget gives a front end: get, send, on. Messages go to Python and back, as a notebook carries them.
MODEL = """
async (traits) => {
    const handlers = [];
    window.answered = (content, buffers) => {
        const views = buffers.map(b => {
            const bytes = Uint8Array.from(atob(b), c => c.charCodeAt(0));
            return new DataView(bytes.buffer);
        });
        for (const handler of handlers) handler(content, views);
    };
    const coded = (buffer) => {
        const bytes = new Uint8Array(buffer);
        let text = '';
        for (const byte of bytes) text += String.fromCharCode(byte);
        return btoa(text);
    };
    const model = {
        get: name => traits[name],
        send: (content, _, buffers) => window.asked(content, (buffers ?? []).map(coded)),
        on: (event, handler) => { if (event === 'msg:custom') handlers.push(handler); },
    };
    const module = await import(URL.createObjectURL(new Blob([window.source], {type: 'text/javascript'})));
    const el = document.createElement('div');
    document.body.append(el);
    window.cleanup = module.default.render({model, el});
    window.regard = el.querySelector('.regard-page').regard;
}
"""


@pytest.fixture(scope="module")
def model():
    return load("minilm", random=True)


@pytest.fixture(scope="module")
def made(model):
    return trace(model, TEXT, keep_v=True)


@pytest.fixture
def notebook(looker):
    """Shows a widget in an empty page. Its messages are carried between the browser and Python."""
    page = looker.page
    waiting = []

    def open_widget(shown):
        shown.answers.send = lambda content, buffers=(): waiting.append((content, list(buffers)))
        page.goto("about:blank")
        page.expose_function(
            "asked",
            lambda content, bodies: shown._handle_custom_msg(content, [base64.b64decode(b) for b in bodies]),
        )
        page.evaluate("source => { window.source = source; }", bundle())
        traits = {name: getattr(shown, name) for name in ("live", "docs", "start", "height")}
        page.evaluate(MODEL, traits)
        return looker

    def carry(until, most=3000):
        """Pass answers on until the page says so."""
        for _ in range(most):
            while waiting:
                content, buffers = waiting.pop(0)
                coded = [base64.b64encode(bytes(each)).decode() for each in buffers]
                page.evaluate("([content, buffers]) => window.answered(content, buffers)", [content, coded])
            if page.evaluate(until):
                return
            page.wait_for_timeout(10)
        raise AssertionError(f"the page never came to {until}")

    return open_widget, carry


DRAWN = "() => regard.source !== null && !regard.stage.waiting && regard.facts !== null"


def weight(carry, looker, row, col):
    """The number over a cell, as the tooltip has it."""
    looker.page.mouse.move(5, 5)
    looker.page.mouse.move(*looker.place(row, col))
    carry(f"() => regard.stage.tip.textContent.includes('query {row} ')")
    return looker.page.evaluate("() => Number(regard.stage.tip.querySelector('b').dataset.value)")


def test_tiles_come_by_message(notebook, made):
    """With nothing kept in the notebook every number is asked of the kernel, and is the trace's."""
    show, carry = notebook
    looker = show(regard.show(made, layer=3, head=7, embed=False))
    carry(DRAWN)
    for row, col in ((2, 9), (9, 2)):
        assert weight(carry, looker, row, col) == pytest.approx(made.weights(3, 7)[row, col].item(), abs=2e-6)


def test_without_a_kernel_a_short_text_is_still_drawn(notebook, made):
    """The numbers kept in the notebook are enough: no message is answered here."""
    show, _ = notebook
    looker = show(regard.show(made, layer=3, head=7))
    looker.page.wait_for_function(DRAWN)
    assert looker.hovered(4, 6) == pytest.approx(made.weights(3, 7)[4, 6].item(), abs=2e-6)


def test_a_notebook_types_text_and_switches_heads_off(notebook, model, made):
    """Both go to the kernel's model, and the page draws what it answers."""
    show, carry = notebook
    looker = show(regard.show(made, model=model, layer=2, head=5))
    carry(DRAWN)
    looker.page.fill("textarea[aria-label='text']", "ab")
    looker.page.press("textarea[aria-label='text']", "Enter")
    carry("() => regard.source.meta.tokens.length === 4")
    carry(DRAWN)
    looker.page.click("button.switch")
    carry("() => document.querySelector('.regard-page').shadowRoot.querySelector('.moved') !== null")
    carry(DRAWN)
    with regard.intervene(model) as run:
        run.gate(layer=2, head=5, by=0.0)
        wanted = trace(model, "ab").weights(4, 1)
    looker.page.evaluate("() => regard.change({layer: 4, head: 1})")
    carry(DRAWN)
    assert weight(carry, looker, 1, 3) == pytest.approx(wanted[1, 3].item(), abs=2e-6)


def test_an_error_of_the_kernel_is_said_on_the_page(notebook, made):
    """A trace without its model cannot read another text: the page says what to do."""
    show, carry = notebook
    looker = show(regard.show(made, embed=False))
    carry(DRAWN)
    looker.page.fill("textarea[aria-label='text']", "ab")
    looker.page.press("textarea[aria-label='text']", "Enter")
    carry("() => regard.messages.textContent !== ''")
    assert "a trace without its model" in looker.page.inner_text(".messages")


def test_the_widget_goes_when_its_cell_is_cleared(notebook, made):
    """The function that render gives back removes the page."""
    show, carry = notebook
    looker = show(regard.show(made))
    carry(DRAWN)
    looker.page.evaluate("() => window.cleanup()")
    assert looker.page.locator(".regard-page").count() == 0


def test_scrolling_a_notebook_is_not_caught_by_the_map(notebook, made):
    """The wheel over the map scrolls the notebook; with Control, or once the map is clicked, it zooms."""
    show, carry = notebook
    looker = show(regard.show(made, layer=3, head=7))
    carry(DRAWN)
    page = looker.page
    page.evaluate("() => { document.body.style.paddingBottom = '2000px'; }")
    px = "() => regard.stage.panels[0].map.view.px"
    before = page.evaluate(px)
    page.mouse.move(*looker.place(5, 5))
    page.mouse.wheel(0, 120)
    page.wait_for_function("() => scrollY > 60")
    assert page.evaluate(px) == before
    page.evaluate("() => scrollTo(0, 0)")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -240)
    page.keyboard.up("Control")
    page.wait_for_function(f"() => ({px})() > {1.2 * before}")
    page.mouse.click(*looker.place(5, 5))
    zoomed = page.evaluate(px)
    page.mouse.wheel(0, -240)
    page.wait_for_function(f"() => ({px})() > {1.2 * zoomed} || ({px})() === 72")
    assert page.evaluate("() => scrollY") == 0
