"""A real browser: Debian's chromium, driven by playwright, with the network off where a test says so."""

import contextlib
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch
import uvicorn

from regard.files.loading import load
from regard.tracing.take import trace
from regard.view.models import RANDOM, Models
from regard.view.page import export
from regard.view.run import RunRequest
from regard.view.server import app, link, listen
from regard.view.session import Session

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
TOKEN = "a-token-of-the-tests"
TEXT = "to be or not"
MODEL = f"minilm{RANDOM}"


@pytest.fixture(scope="session")
def browser():
    """One browser for all tests. Missing is a failure where continuous integration runs."""
    if CHROMIUM is None:
        reason = "chromium is missing: apt-get install -y chromium"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


def is_error(said):
    """Whether a console message is an error; an answer of 400 is one that the page itself tells."""
    return said.type == "error" and "Failed to load resource" not in said.text


@pytest.fixture
def page(browser):
    """A page that must not report an error of its own."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
    found = context.new_page()
    errors = []
    found.on("pageerror", lambda error: errors.append(str(error)))
    found.on("console", lambda said: errors.append(said.text) if is_error(said) else None)
    yield found
    context.close()
    assert errors == []


@pytest.fixture(scope="session")
def models():
    """A model with random weights that all tests share."""
    found = Models()
    found.put(MODEL, load("minilm", random=True))
    return found


@pytest.fixture(scope="session")
def made(models):
    """The trace of the sentence the tests look at, with its values."""
    one = models.get(MODEL)
    return trace(one, [one.tokenizer.encode(TEXT)], keep_v=True)


@pytest.fixture(scope="session")
def served(models):
    """A running server: (session, function from a view of the atlas to its link, port)."""
    session = Session(models, MODEL, TEXT)
    bound = listen(0)
    port = bound.getsockname()[1]
    config = uvicorn.Config(app(session, TOKEN, port), log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield session, lambda **view: link(TOKEN, port, {"at": "atlas", **view}), port
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def document(served):
    """The served trace, as Python has it."""
    return served[0].document(RunRequest(MODEL, TEXT)).trace


@pytest.fixture
def exported(tmp_path):
    """Writes a trace as a page and gives its address on disk."""

    def write(found, **start):
        path = Path(tmp_path) / "page.html"
        export(found, path, start={"at": "atlas", **start})
        return path.as_uri()

    return write


class Looker:
    """What a test asks of a page: where a cell is, and what it says there."""

    def __init__(self, page):
        self.page = page

    def open(self, address, wait="canvas.map"):
        self.page.goto(address)
        self.page.wait_for_selector(wait)
        self.settle()
        return self

    def settle(self):
        """Wait until nothing is asked for any more and the map is drawn."""
        self.page.wait_for_function(
            "() => window.regard && regard.source && !regard.stage.waiting && regard.facts", timeout=30_000
        )
        self.page.evaluate("() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")

    def change(self, **state):
        self.page.evaluate("state => regard.change(state)", state)
        self.settle()
        if state.get("view") == "lines":
            self.page.wait_for_selector(".column.key")

    def place(self, row, col, panel=0):
        """A cell's middle, in pixels of the window."""
        return self.page.evaluate(
            """([panel, row, col]) => {
                const map = regard.stage.panels[panel].map;
                const box = map.canvas.getBoundingClientRect();
                const at = map.place({row, col});
                return [box.left + at.x, box.top + at.y];
            }""",
            [panel, row, col],
        )

    def hovered(self, row, col, panel=0):
        """The number of the tooltip over a cell: 'masked', or what it says."""
        self.page.mouse.move(5, 400)
        self.page.wait_for_function("() => regard.stage.tip.textContent === ''")
        self.page.mouse.move(*self.place(row, col, panel))
        self.page.wait_for_function(f"() => regard.stage.tip.textContent.includes('query {row} ')")
        return self.page.evaluate(
            "() => { const b = regard.stage.tip.querySelector('b');"
            " return b.textContent === 'masked' ? 'masked' : Number(b.dataset.value); }"
        )

    def pixel(self, row, col, panel=0):
        """The colour of a cell near its corner, where no number stands; nothing is hovered."""
        self.page.mouse.move(5, 400)
        self.settle()
        return self.page.evaluate(
            """([panel, row, col]) => {
                const map = regard.stage.panels[panel].map;
                const at = map.place({row, col});
                const off = Math.min(map.view.px * 0.3, 40);
                const data = map.canvas.getContext('2d').getImageData(
                    (at.x - off) * devicePixelRatio, (at.y - off) * devicePixelRatio, 1, 1).data;
                return [...data.slice(0, 3)];
            }""",
            [panel, row, col],
        )


@pytest.fixture
def looker(page):
    return Looker(page)


@pytest.fixture(autouse=True)
def one_thread():
    with contextlib.suppress(RuntimeError):
        torch.set_num_threads(1)
