"""What needs a running model: writing, masked words, gradients, other kinds of models, a lost server."""

import threading
import time

import pytest
import torch
import uvicorn

from regard.tracing.gradients import score_gradients
from regard.tracing.take import trace
from regard.view.run import RunRequest
from regard.view.server import app, link, listen
from regard.view.session import Session

MODEL, TEXT, TOKEN = "minilm (random)", "to be or not", "a-token-of-the-tests"


def test_text_is_written_step_by_step_forwards_and_backwards(looker, served):
    """Each step shows the token's row and its rivals, later rows are covered, and play goes on by itself."""
    looker.open(served[1](model="linear (random)", text="ab", write=5))
    page = looker.page
    made = page.evaluate("() => regard.source.meta.generated")
    start, count = made["start"], len(made["steps"])
    assert page.evaluate("() => regard.source.meta.tokens.length") == start + count
    page.click("button[aria-label='step on']")
    page.click("button[aria-label='step on']")
    # the third token was written after the one before it was read: that row wrote it
    assert page.evaluate("() => regard.state.query") == start + 1
    assert page.evaluate("() => regard.stage.panels[0].map.limit") == start + 2
    page.click("button[aria-label='step back']")
    assert page.evaluate("() => regard.state.query") == start
    said = page.locator(".player ~ div table .num").all_inner_texts()
    assert [float(each) for each in said] == pytest.approx([each["p"] for each in made["steps"][1]], abs=5e-4)
    page.click("button[aria-label='play']:visible")
    page.wait_for_function(f"() => regard.state.query === {start + 2}", timeout=10_000)
    page.click("button[aria-label='pause']")
    stopped = page.evaluate("() => regard.state.query")
    page.wait_for_timeout(900)
    assert page.evaluate("() => regard.state.query") == stopped


def test_what_is_written_is_what_the_model_says(looker, served, models):
    """The rivals of a step are the softmax of the model's logits at the token before."""
    looker.open(served[1](model="linear (random)", text="ab", write=3))
    steps = looker.page.evaluate("() => regard.source.meta.generated.steps")
    found = served[0].document(RunRequest("linear (random)", "ab", max_new=3)).trace
    one = models.get("linear (random)")
    with torch.no_grad():
        chances = one.model(found.ids).logits[0].softmax(-1)
    start = found.ids.shape[1] - len(steps)
    for index, step in enumerate(steps):
        top = chances[start + index - 1].topk(5)
        assert [each["p"] for each in step] == pytest.approx(top.values.tolist(), abs=1e-5)
        assert int(found.ids[0, start + index]) == int(top.indices[0])


def test_a_click_on_a_word_masks_it(looker, served, models):
    """In a model of masked words the clicked token is hidden from it, and its probabilities are shown."""
    key = "bert (random)"
    looker.open(served[1](model=key, view="text"), wait=".textview")
    looker.page.click(".word[data-index='4']")
    looker.page.wait_for_function("() => regard.panels.predicting.textContent.includes('the masked word')")
    one = models.get(key)
    ids = torch.tensor([one.tokenizer.encode(TEXT)])
    ids[0, 4] = one.tokenizer.special.mask
    with torch.no_grad():
        wanted = one.model(ids).logits[0, 4].softmax(-1).topk(8).values.tolist()
    texts = looker.page.locator(".predictions .num").all_inner_texts()
    # two digits are written
    assert [float(text.replace("−", "-")) for text in texts] == pytest.approx(wanted, rel=0.03)


def test_the_gradient_on_a_score_is_the_librarys(looker, served, models):
    """The number beside the equation is the derivative of the prediction with respect to that score."""
    key = "gpt2 (random)"
    looker.open(served[1](model=key, layer=1, head=2, query=5, key=3))
    looker.page.click("text=Gradient of the prediction on this score")
    said = looker.page.wait_for_selector("[data-gradient]").get_attribute("data-gradient")
    one = models.get(key)
    ids = torch.tensor([one.tokenizer.encode(TEXT)])
    at = ids.shape[1] - 1
    with torch.no_grad():
        token = int(one.model(ids).logits[0, at].argmax())
    wanted = score_gradients(one, ids, position=at, token=token)
    tile = wanted.tile(1, 2, slice(5, 6), slice(3, 4)).item()
    assert tile != 0
    assert float(said) == pytest.approx(tile, rel=1e-4)


def test_value_weighting_multiplies_by_the_length_of_the_value(looker, served, made):
    """One click from the caution the map shows weight times |v|."""
    looker.open(served[1](layer=3, head=7))
    looker.page.click("text=Show weight × length of the value")
    looker.settle()
    lengths = made.layers[3].v[0, 7].norm(dim=-1)
    wanted = made.weights(3, 7)[2, 9] * lengths[9]
    assert looker.hovered(2, 9) == pytest.approx(wanted.item(), rel=1e-5)
    assert "weight × |v|" in looker.page.inner_text(".foot")


@pytest.mark.parametrize("key", ["t5 (random)", "seq2seq (random)"])
def test_an_encoder_decoder_shows_who_looks_at_the_source(looker, served, key):
    """Cross-attention has the answer's tokens as rows and the source's as columns, and sums to 1."""
    looker.open(served[1](model=key, text="abc", target="de"))
    layers = looker.page.evaluate("() => regard.source.meta.layers")
    cross = next(index for index, layer in enumerate(layers) if layer["kind"] == "cross")
    looker.change(layer=cross, head=0)
    found = served[0].document(RunRequest(key, "abc", "de")).trace
    weights = found.weights(cross, 0)
    assert looker.hovered(1, 2) == pytest.approx(weights[1, 2].item(), abs=2e-6)
    assert looker.page.evaluate("() => regard.stage.tip.textContent").endswith("“c”")
    assert weights.sum(-1).tolist() == pytest.approx([1.0] * len(weights), abs=1e-5)
    # A row is named by what is written once it is read: the next token of the answer, then what would follow.
    tokens = served[0].document(RunRequest(key, "abc", "de")).trace.tokens[0]
    shown = looker.page.evaluate("() => regard.stage.panels[0].map.rows")
    assert len(shown) == len(tokens)
    assert shown[:-1] == [token.replace("▁", " ").strip() or "␣" for token in tokens[1:]]
    assert not shown[-1].isdecimal()
    names = looker.page.locator(".rowname").all_inner_texts()
    assert names[cross].endswith("×")
    assert len(set(names)) == len(names)


def test_heads_are_sorted_by_a_measure_and_filtered_by_a_label(looker, served):
    """The grid follows the measures: largest first; a label leaves its own heads alone."""
    looker.open(served[1]())
    looker.page.select_option("select[aria-label='order of the heads']", "entropy")
    order = looker.page.locator(".thumb").evaluate_all("all => all.map(t => t.dataset.head)")
    values = looker.page.evaluate("() => regard.facts.measures.entropy.values")
    found = [values[int(layer)][int(head)] for layer, head in (name.split(".") for name in order)]
    assert found == sorted(found, reverse=True)
    assert len(found) == 72
    labels = looker.page.evaluate("() => regard.facts.labels.map(r => r.map(l => l && l.label))")
    some = next(label for row in labels for label in row if label)
    looker.page.select_option("select[aria-label='label']", some)
    assert looker.page.locator(".thumb").count() == sum(row.count(some) for row in labels)


def test_keys_change_the_view_and_switch_a_head_off(looker, served):
    """1, 2 and 3 are map, lines and text; x switches the chosen head off."""
    looker.open(served[1](layer=2, head=5))
    looker.page.focus(".grid")
    for key, there in (("2", ".lines"), ("3", ".textview"), ("1", "canvas.map")):
        looker.page.keyboard.press(key)
        looker.page.wait_for_selector(there)
    looker.page.keyboard.press("x")
    looker.page.wait_for_function("() => regard.source.meta.off.length === 1")
    assert looker.page.evaluate("() => regard.source.meta.off") == [[2, 5]]


def test_zoomed_in_cells_carry_their_numbers(looker, served, made):
    """At the largest zoom a cell's number is drawn: pixels of two colours in its middle."""
    looker.open(served[1](layer=3, head=7, zoom={"x": 2, "y": 3, "px": 72}))
    assert looker.page.evaluate("() => regard.stage.panels[0].map.view.px") == 72
    inks = looker.page.evaluate(
        """() => { const map = regard.stage.panels[0].map; const at = map.place({row: 5, col: 5});
            const r = devicePixelRatio;
            const context = map.canvas.getContext('2d');
            const {data} = context.getImageData((at.x - 14) * r, (at.y - 6) * r, 28 * r, 12 * r);
            const seen = new Set();
            for (let i = 0; i < data.length; i += 4) seen.add(data.slice(i, i + 3).join());
            return seen.size; }"""
    )
    assert inks > 2


def test_a_lost_server_is_said_and_found_again(looker, models):
    """The page says that its server is gone, and goes on by itself when one is back at the same place."""
    session = Session(models, MODEL, TEXT)

    def start(port):
        bound = listen(port)
        got = bound.getsockname()[1]
        config = uvicorn.Config(
            app(session, TOKEN, got), log_level="error", lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        return server, thread, got, bound

    server, thread, port, bound = start(0)
    looker.open(link(TOKEN, port, {"at": "atlas"}))
    server.should_exit = True
    thread.join(10)
    bound.close()
    looker.page.evaluate("() => regard.change({layer: 4, head: 1})")
    looker.page.wait_for_function("() => regard.messages.textContent.includes('The server is gone')")
    server, thread, again, bound = start(port)
    assert again == port
    looker.page.wait_for_function("() => regard.messages.textContent === ''", timeout=20_000)
    looker.settle()
    found = trace(models.get(MODEL), [models.get(MODEL).tokenizer.encode(TEXT)])
    assert looker.hovered(1, 2) == pytest.approx(found.weights(4, 1)[1, 2].item(), abs=2e-6)
    server.should_exit = True
    thread.join(10)
    bound.close()
