"""The page in a notebook: the messages of its Python side, and what is refused."""

import json
import sys
import threading

import numpy as np
import pytest
import torch

import regard
from regard.errors import ArgumentError, UnsupportedError
from regard.files.loading import load
from regard.tracing.take import trace
from regard.tracing.traces import Trace
from regard.view import widget as widgets

TEXT = "a prime"


@pytest.fixture(scope="module")
def model():
    return load("minilm", random=True)


@pytest.fixture(scope="module")
def made(model):
    return trace(model, TEXT, keep_v=True)


class Notebook:
    """The other end of the messages: asks as the page does and keeps what comes back."""

    def __init__(self, shown):
        self.shown = shown
        self.sent = {}
        self.came = threading.Event()
        shown.answers.send = self._got

    def _got(self, content, buffers=()):
        self.sent[content["id"]] = (content, [bytes(each) for each in buffers])
        self.came.set()

    def ask(self, name, params, key="q-1", body=None):
        self.came.clear()
        content = {"id": key, "name": name, "params": params}
        self.shown._handle_custom_msg(content, [] if body is None else [body])
        assert self.came.wait(60)
        return self.sent.pop(key)

    def json(self, name, **params):
        content, buffers = self.ask(name, params)
        assert "error" not in content, content
        return json.loads(buffers[0])


def tile(doc, **more):
    base = {"doc": doc, "layer": 2, "head": 5, "r0": 0, "r1": 9, "c0": 0, "c1": 9, "nRow": 9, "nCol": 9}
    return {**base, **more}


def test_a_notebook_opens_with_what_it_was_given(made):
    """The page's first question, for no model and no text, is answered with the trace."""
    notebook = Notebook(regard.show(made, embed=False))
    meta = notebook.json("trace", model="", text="")
    assert meta["tokens"] == list(made.tokens[0])
    assert meta["text"] == TEXT
    assert json.loads(notebook.shown.docs) == []


def test_a_tile_comes_as_a_buffer_of_the_weights(made):
    """A part of one head, asked for by message, is that block of the trace's weights."""
    notebook = Notebook(regard.show(made, embed=False))
    meta = notebook.json("trace", model="", text="")
    params = tile(meta["id"], r0=2, r1=7, c0=1, c1=4, nRow=5, nCol=3, dtype="float32")
    content, buffers = notebook.ask("tile", params)
    assert content == {"id": "q-1"}
    found = np.frombuffer(buffers[0], "<f4").reshape(5, 3)
    np.testing.assert_array_equal(found, made.weights(2, 5)[2:7, 1:4].numpy())


def test_a_question_that_cannot_be_answered_comes_back_in_words(made):
    """An error is a message with words, so that the page does not wait for ever."""
    notebook = Notebook(regard.show(made, embed=False))
    content, buffers = notebook.ask("tile", tile("nowhere"))
    assert "not here any more" in content["error"]
    assert buffers == []
    content, _ = notebook.ask("trace", {"model": "", "text": "another"})
    assert "there is no model here" in content["error"]


def test_a_question_taken_back_is_not_computed(made):
    """Tiles out of view are cancelled: those that still wait are left out."""
    shown = regard.show(made, embed=False)
    notebook = Notebook(shown)
    begun, go = threading.Event(), threading.Event()
    asked = []

    def slow(name, params, body):
        asked.append(params["n"])
        begun.set()
        assert go.wait(60)
        return b"x"

    shown.session.answer = slow
    for n in range(widgets._WORKERS + 1):
        shown.answers.take(shown, {"id": f"q-{n}", "name": "tile", "params": {"n": n}}, [])
    assert begun.wait(60)
    shown.answers.take(shown, {"cancel": f"q-{widgets._WORKERS}"}, [])
    go.set()
    shown.answers.pool.shutdown()
    assert sorted(asked) == list(range(widgets._WORKERS))
    assert sorted(notebook.sent) == [f"q-{n}" for n in range(widgets._WORKERS)]


def test_with_its_model_text_can_be_typed_and_heads_switched_off(model, made):
    """A live notebook traces other texts, and its weights with a head off are those of a gate of 0."""
    notebook = Notebook(regard.show(made, model=model))
    first = notebook.json("trace", model="", text="")
    typed = notebook.json("trace", model=first["modelKey"], text="ab")
    assert typed["tokens"] == ["<cls>", "a", "b", "<sep>"]
    changed = notebook.json("trace", model=first["modelKey"], text=TEXT, off=[[1, 3]])
    _, buffers = notebook.ask("tile", tile(changed["id"], dtype="float32"))
    with regard.intervene(model) as run:
        run.gate(layer=1, head=3, by=0.0)
        wanted = trace(model, TEXT).weights(2, 5)
    np.testing.assert_allclose(np.frombuffer(buffers[0], "<f4").reshape(9, 9), wanted.numpy(), atol=1e-6)
    assert not torch.allclose(wanted, made.weights(2, 5))
    moved = notebook.json("predict", doc=changed["id"], position=None)["moved"]
    assert moved > 1e-7


def test_a_text_can_be_shown_at_once(model):
    """With a model a text is enough."""
    shown = regard.show("ab", model=model, layer=3, head=7, view="lines")
    assert json.loads(shown.start) == {"at": "atlas", "layer": 3, "head": 7, "view": "lines"}
    assert json.loads(regard.show("ab", model=model).start) == {}  # the story opens
    assert Notebook(shown).json("trace", model="", text="")["tokens"] == ["<cls>", "a", "b", "<sep>"]


def test_weights_of_ones_own_are_shown_with_their_labels():
    """An array of (batch, head, query, key) is a document for each sequence, each under a name of its own."""
    values = torch.rand(2, 3, 5, 5).softmax(-1)
    notebook = Notebook(regard.show(values, rows=list("abcde"), embed=False))
    first, second = (each for each in notebook.json("models") if each["given"])
    meta = notebook.json("trace", model=second["key"], text="")
    assert meta["tokens"] == list("abcde")
    _, buffers = notebook.ask("tile", tile(meta["id"], layer=0, head=1, r1=5, c1=5, nRow=5, nCol=5))
    np.testing.assert_array_equal(np.frombuffer(buffers[0], "<f4"), values[1, 1].flatten().numpy())
    assert first["key"] != second["key"]


def test_small_traces_are_kept_in_the_notebook_and_large_ones_are_not(made):
    """A saved notebook shows a short text without a kernel; a long one would bloat it."""
    (kept,) = json.loads(regard.show(made).docs)
    assert kept["meta"]["tokens"] == list(made.tokens[0])
    many = Trace.from_weights(torch.rand(1, 7, 307, 307).softmax(-1))
    assert json.loads(regard.show(many).docs) == []


def test_where_no_widget_can_be_there_is_a_picture(made):
    """What a notebook shows has an HTML part, for viewers that run nothing."""
    found = regard.show(made)._repr_mimebundle_()
    data = found[0] if isinstance(found, tuple) else found
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "data:image/png;base64," in data["text/html"]


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        (torch.rand(5, 5), {"layer": 1}, "no layer 1: there are 1"),
        (torch.rand(5, 5), {"head": 2}, "no head 2: .* has 1"),
        (Trace(()), {}, "no layer"),
    ],
    ids=["layer", "head", "empty"],
)
def test_what_cannot_be_shown_is_refused(given, options, words):
    """Wrong arguments are named."""
    with pytest.raises(ArgumentError, match=words):
        regard.show(given, **options)


def test_a_trace_of_another_model_is_refused(made):
    """A model may not answer for a trace it did not make."""
    with pytest.raises(ArgumentError, match="the trace is not of"):
        regard.show(made, model=load("gpt2", random=True))


def test_without_anywidget_the_way_to_get_it_is_said(made, monkeypatch):
    """The extra is named, and how to install it."""
    monkeypatch.setitem(sys.modules, "anywidget", None)
    widgets._widget_class.cache_clear()
    with pytest.raises(UnsupportedError, match=r"regard\[notebook\]"):
        regard.show(made)
    widgets._widget_class.cache_clear()
