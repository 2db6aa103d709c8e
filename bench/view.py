"""The page against bertviz: bytes, time to make it, time to the first picture, frames while moving.

Both begin with the tokens and end with one HTML file, MiniLM as published; the browser is Chromium without a
GPU. What bertviz loads from the internet is handed to it from disk. Ours is zoomed in fourfold and moved six
pixels a frame; the pages of bertviz do not pan, so they are scrolled as fast.
"""

from __future__ import annotations

import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from timing import Options, PlainTable, parse_options, readable_bytes, readable_seconds, report

from regard.files import hub
from regard.files.loading import Loaded, load
from regard.tracing.take import trace
from regard.view.document import documents_of
from regard.view.page import page

PEERS = Path(__file__).parent.parent / "out" / "bench-peers"
LENGTHS, LONG = (16, 128, 512), (20, 2048, 8192)
QUICK_LENGTHS, QUICK_LONG = (16, 32), (20, 64)
LAYER, HEAD = 2, 5
MOVED_SECONDS = 2.0
PATIENCE = 45.0  # seconds a page is waited for
LIBRARIES = {  # what the pages of bertviz ask for, and where npm has it
    "require.min.js": "requirejs/require.js",
    "d3.min.js": "d3/dist/d3.min.js",
    "jquery.min.js": "jquery/dist/jquery.min.js",
}
Make = Callable[[list[int]], str]


@dataclass(frozen=True, slots=True)
class Measured:
    """One page of one tool."""

    n_byte: int
    make: float
    first: float | None  # None: not within the patience
    frames: float | None

    def cells(self) -> list[str]:
        first = f"more than {PATIENCE:.0f} s" if self.first is None else readable_seconds(self.first)
        frames = "-" if self.frames is None else f"{self.frames:.0f}"
        return [readable_bytes(self.n_byte), readable_seconds(self.make), first, frames]


def install_peers() -> None:
    """bertviz, and the libraries its pages load, into a folder of the bench."""
    if not (PEERS / "bertviz").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(PEERS)]
        subprocess.run([*pip, "bertviz==1.4.1"], check=True)
    if not (PEERS / "node_modules").exists():
        wanted = ["requirejs@2.3.6", "d3@5.7.0", "jquery@2.1.0"]
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(PEERS)]
        subprocess.run([*npm, *wanted], check=True)
    sys.path.insert(0, str(PEERS))


def ids_of(model: Loaded, length: int) -> list[int]:
    """A text of that many tokens."""
    assert model.tokenizer is not None
    words = "the cat sat on the mat and the dog who had seen it ran across the street because it was tired ."
    ids = model.tokenizer.encode(" ".join([words] * (1 + length // 12)))
    return [*ids[: length - 1], ids[-1]]


def our_page(model: Loaded) -> Make:
    def make(ids: list[int]) -> str:
        found = trace(model, [ids], keep_v=True)
        return page(documents_of(found), {"at": "atlas", "layer": LAYER, "head": HEAD})

    return make


def with_machine(ids: list[int]) -> float:
    """How many times as large what Machine needs makes the page that `regard look --save` writes."""
    from regard.view.models import Models
    from regard.view.run import RunRequest
    from regard.view.session import Session

    session = Session(Models(), "minilm")
    tokenizer = session.models.get("minilm").tokenizer
    assert tokenizer is not None
    asked = RunRequest("minilm", tokenizer.decode(ids[1:-1]))
    plain = session.document(asked)
    kept = session.for_file(plain.id, [scene["state"] for scene in plain.facts()["scenes"]])
    return len(page([kept]).encode()) / len(page([plain]).encode())


def their_page(view: str, model: Loaded) -> Make:
    """The same model in transformers, its weights returned, and bertviz's page of them."""
    from transformers import BertModel

    bertviz = import_module("bertviz")

    assert model.tokenizer is not None
    folder = hub.present("minilm")
    loader: Any = BertModel
    theirs = loader.from_pretrained(folder, attn_implementation="eager").eval()
    draw = {"head view": bertviz.head_view, "model view": bertviz.model_view}[view]

    def make(ids: list[int]) -> str:
        assert model.tokenizer is not None
        with torch.no_grad():
            attentions = theirs(torch.tensor([ids]), output_attentions=True).attentions
        written = draw(attentions, model.tokenizer.tokens(ids), html_action="return").data
        return f"<!doctype html><meta charset='utf-8'><body>{written}</body>"

    return make


OURS_DRAWN = """() => window.regard && regard.source && !regard.stage.waiting
    && regard.stage.panels[0].map.frames > 0"""
THEIRS_DRAWN = "() => document.querySelector('svg line, svg rect') !== null"
# Looked for in the page itself, frame by frame. What is in the page has still to be laid out and painted: the
# frame after next begins when it is.
NOTE_PAINTED = """(() => {
    const drawn = %s, frame = requestAnimationFrame;
    const note = () => frame(() => setTimeout(() => window.paintedAt = performance.now()));
    const look = () => { let there = false; try { there = drawn(); } catch {} frame(there ? note : look); };
    frame(look);
})()"""


def first_picture(tab: Any, address: str, drawn: str) -> float | None:
    """Seconds from asking for a page until its picture has been drawn."""
    from playwright.sync_api import Error

    try:
        tab.add_init_script(NOTE_PAINTED % drawn)
        tab.goto(address, wait_until="commit", timeout=1000 * PATIENCE)
        tab.set_default_timeout(1000 * PATIENCE)
        return float(tab.wait_for_function("() => window.paintedAt").json_value()) / 1000
    except Error:  # out of time, or out of memory
        return None


MOVE_OURS = """async seconds => {
    const map = regard.stage.panels[0].map;
    map.setView({...map.view, px: 4 * map.fitPx});
    const wait = () => new Promise(resolve => setTimeout(resolve, 50));
    do await wait(); while (regard.stage.waiting);
    const before = map.frames, began = performance.now();
    for (let step = 0; performance.now() - began < 1000 * seconds; step++) {
        await new Promise(requestAnimationFrame);
        const by = (step % 120 < 60 ? 6 : -6) / map.view.px;  // six pixels a frame, there and back
        map.setView({...map.view, x: map.view.x + by, y: map.view.y + by / 2});
    }
    return 1000 * (map.frames - before) / (performance.now() - began);
}"""
# From choosing a head whose small picture is there until something of it is on the screen.
OTHER_HEAD = """async () => {
    const began = performance.now(), map = regard.stage.panels[0].map, before = map.frames;
    regard.change({layer: 12, head: 5});
    const drawn = () => map.frames > before && (map.seed || map.pyramid.ready);
    while (!drawn()) await new Promise(requestAnimationFrame);
    return performance.now() - began;
}"""
TRACE_CAME = "() => performance.getEntriesByType('resource').find(e => /api.trace/.test(e.name)).responseEnd"
MOVE_THEIRS = """async seconds => {
    let frames = 0;
    const began = performance.now();
    for (; performance.now() - began < 1000 * seconds; frames++) {
        await new Promise(requestAnimationFrame);
        window.scrollBy(0, frames % 120 < 60 ? 6 : -6);
    }
    return 1000 * frames / (performance.now() - began);
}"""


def measure(tool: str, make: Make, ids: list[int], browser: Any, folder: Path, rounds: int) -> Measured:
    """The median over rounds of making a page and of opening it."""
    ours = tool == "Regard"
    making: list[float] = []
    opening: list[float] = []
    frames, size = None, 0
    for index in range(rounds):
        began = time.perf_counter()
        written = make(ids)
        making.append(time.perf_counter() - began)
        size = len(written.encode("utf-8"))
        path = folder / "page.html"
        path.write_text(written, encoding="utf-8")
        del written
        with fresh_tab(browser) as tab:
            found = first_picture(tab, path.as_uri(), OURS_DRAWN if ours else THEIRS_DRAWN)
            if found is None:
                opening = []
                break
            opening.append(found)
            if index == rounds - 1:
                frames = float(tab.evaluate(MOVE_OURS if ours else MOVE_THEIRS, MOVED_SECONDS))
    return Measured(size, statistics.median(making), statistics.median(opening) if opening else None, frames)


@contextmanager
def fresh_tab(browser: Any) -> Iterator[Any]:
    """A tab without a past, whose questions to the internet are answered from disk."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})

    def answer(route: Any) -> None:
        name = route.request.url.rpartition("/")[2]
        route.fulfill(path=PEERS / "node_modules" / LIBRARIES[name]) if name in LIBRARIES else route.abort()

    context.route("https://**/*", answer)
    try:
        yield context.new_page()
    finally:
        context.close()


def serve_long(length: int, quick: bool, sender: Connection) -> None:
    """A live page of a text of that many tokens, its forward pass done: in a process of its own."""
    import uvicorn

    from regard.view.models import Models
    from regard.view.run import RunRequest
    from regard.view.server import app, link, listen
    from regard.view.session import Session

    model = load("smollm2", random=quick)
    models = Models()
    models.put("smollm2", model)
    assert model.tokenizer is not None
    text = model.tokenizer.decode(ids_of(model, length))
    session = Session(models, "smollm2", text)
    began = time.perf_counter()
    session.document(RunRequest("smollm2", text))
    forward = time.perf_counter() - began
    bound = listen(0)
    port = int(bound.getsockname()[1])
    sender.send((link("x" * 32, port, {"at": "atlas", "layer": 10, "head": 2}), forward))
    config = uvicorn.Config(app(session, "x" * 32, port), log_level="error", lifespan="off")
    uvicorn.Server(config).run(sockets=[bound])


def resident(process: int | None) -> int:
    """Bytes of memory that a process has now."""
    pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096


def open_live(browser: Any, address: str) -> tuple[float, ...]:
    """Seconds to the trace, the first picture, all small ones, and to another head; frames a second."""
    with fresh_tab(browser) as tab:
        first = first_picture(tab, address, OURS_DRAWN)
        assert first is not None
        tab.wait_for_function(
            "() => regard.overview.element.dataset.filled === 'all'", timeout=10_000 * PATIENCE
        )
        filled = float(tab.evaluate("() => performance.now()")) / 1000
        loaded = float(tab.evaluate(TRACE_CAME)) / 1000
        other = float(tab.evaluate(OTHER_HEAD)) / 1000
        return loaded, first, filled, other, float(tab.evaluate(MOVE_OURS, MOVED_SECONDS))


def long_texts(options: Options, browser: Any) -> PlainTable:
    """Ours alone: SmolLM2 live, from the end of its forward pass on."""
    columns = [
        "tokens",
        "forward pass",
        "page and trace",
        "first picture",
        "all 270 heads",
        "another head",
        "frames/s while panning",
    ]
    lines = [[*columns, "server", "goal"]]
    for length in QUICK_LONG if options.quick else LONG:
        receiver, sender = multiprocessing.Pipe(duplex=False)
        server = multiprocessing.get_context("spawn").Process(
            target=serve_long, args=(length, options.quick, sender), daemon=True
        )
        server.start()
        try:
            address, forward = receiver.recv()
            opened = [open_live(browser, address) for _ in range(options.rounds if length == LONG[0] else 1)]
            loaded, first, filled, other, frames = map(statistics.median, zip(*opened, strict=True))
            held = resident(server.pid)
        finally:
            server.kill()
            server.join()
        goal = "-"
        if length == LONG[0]:
            met = first - loaded <= 0.5 and filled - loaded <= 1.5
            goal = f"{'met' if met else 'missed'}: first within 0.5 s of the trace, all within 1.5 s"
        if length == LONG[-1]:
            met = first <= 3 and frames >= 30 and other <= 0.3 and held <= 1.5e9
            goal = f"{'met' if met else 'missed'}: 3 s, another head 0.3 s, 30 frames, 1.5 GB"
        times = [readable_seconds(each) for each in (forward, loaded, first, filled, other)]
        lines.append([str(length), *times, f"{frames:.0f}", readable_bytes(held), goal])
    note = "Times from opening the page, the forward pass done. Tiles are asked for as they come into view."
    return PlainTable("SmolLM2, live", lines, note)


def against_bertviz(options: Options, browser: Any) -> list[PlainTable]:
    model = load("minilm")
    tools = {"Regard": our_page(model)}
    tools |= {f"bertviz {view}": their_page(view, model) for view in ("head view", "model view")}
    lines = [["tokens", "page", "bytes", "time to make", "first picture", "frames/s while moving"]]
    found: dict[tuple[int, str], Measured] = {}
    with tempfile.TemporaryDirectory() as folder:
        for length in QUICK_LENGTHS if options.quick else LENGTHS:
            for tool, make in tools.items():
                heavy = tool != "Regard" and length > 16
                rounds = 1 if options.quick or (heavy and length > 128) else 2 if heavy else 5
                one = measure(tool, make, ids_of(model, length), browser, Path(folder), rounds)
                found[length, tool] = one
                lines.append([str(length), tool, *one.cells()])
                print(*lines[-1], sep="  ", flush=True)
    goals = [["goal", "found", "verdict"]]
    if not options.quick:
        size = found[512, "bertviz model view"].n_byte / found[512, "Regard"].n_byte
        goals.append(_goal("512 tokens: 50 times fewer bytes than the model view", size, 50))
        ours, theirs = found[128, "Regard"].first, found[128, "bertviz model view"].first
        assert ours is not None
        goals.append(_goal("128 tokens: the first picture 20 times sooner", (theirs or PATIENCE) / ours, 20))
        mega = found[512, "Regard"].n_byte / 1e6
        word = "met" if mega <= 15 else "missed"
        goals.append(["512 tokens: at most 15 MB", f"{mega:.1f} MB", word])
        for length in LENGTHS:
            more = with_machine(ids_of(model, length))
            word = "met" if more <= 1.3 else "missed"
            said = f"{length} tokens: with what Machine needs at most 1.3 times the bytes"
            goals.append([said, f"{more:.2f} ×", word])
    note = "bertviz 1.4.1, html_action='return'. Regard's page holds every head, as the model view does."
    return [PlainTable("One page of MiniLM, 6 layers of 12 heads", lines, note), PlainTable("Goals", goals)]


def _goal(what: str, ratio: float, at_least: float) -> list[str]:
    return [what, f"{ratio:.0f} ×", "met" if ratio >= at_least else "missed"]


def main() -> None:
    """Both parts, or one: `view.py peers`, `view.py long`."""
    named = len(sys.argv) > 1 and sys.argv[1] in ("peers", "long")
    part = sys.argv.pop(1) if named else "both"
    options = parse_options(__doc__)
    install_peers()
    import shutil

    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        if part != "long":
            report("The page", against_bertviz(options, browser), options)
        if part != "peers":
            report("The page, long texts", [long_texts(options, browser)], options)
        browser.close()


if __name__ == "__main__":
    main()
