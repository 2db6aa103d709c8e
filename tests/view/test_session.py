"""The answers of the live page: tiles, the numbers behind a weight, and words where there is no answer."""

import json

import numpy as np
import pytest
import torch

from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, RegardError
from regard.files.loading import load
from regard.tracing.layers import LayerTrace
from regard.tracing.take import trace
from regard.tracing.traces import Trace
from regard.view.document import Document
from regard.view.models import RANDOM, Models
from regard.view.run import RunRequest, make_document
from regard.view.session import Session

MODEL, TEXT = f"minilm{RANDOM}", "a prime"


@pytest.fixture(scope="module")
def session():
    models = Models()
    models.put(MODEL, load("minilm", random=True))
    return Session(models, MODEL, TEXT)


def ask(session, name, **params):
    return json.loads(session.answer(name, params))


def tile_params(doc, **more):
    return {
        "doc": doc,
        "layer": 2,
        "head": 5,
        "r0": 0,
        "r1": 9,
        "c0": 0,
        "c1": 9,
        "nRow": 9,
        "nCol": 9,
        **more,
    }


@pytest.mark.parametrize(("dtype", "error"), [("float32", 0.0), ("float16", 2**-11)])
def test_a_tile_is_that_block_of_the_weights(session, dtype, error):
    """Rows 2 to 7 and columns 1 to 4 of one head, as bytes of the type asked for."""
    meta = ask(session, "trace")
    params = tile_params(meta["id"], r0=2, r1=7, c0=1, c1=4, nRow=5, nCol=3, dtype=dtype)
    data = session.answer("tile", params)
    found = np.frombuffer(data, {"float32": "<f4", "float16": "<f2"}[dtype]).reshape(5, 3)
    one = session.models.get(MODEL)
    wanted = trace(one, [one.tokenizer.encode(TEXT)]).weights(2, 5)[2:7, 1:4].numpy()
    assert np.abs(found - wanted).max() <= error * wanted.max()


@pytest.mark.parametrize("valued", [False, True], ids=["weights", "times the value's length"])
@pytest.mark.parametrize("n", [83, 307], ids=["weight by weight", "by largest score"])
def test_an_overview_is_the_largest_of_each_block(n, valued):
    """Both ways of pooling give the maximum over visible cells, NaN where there is none."""
    rule = ScoreRule(visible=Visibility(causal=True, key_mask=torch.arange(n)[None] % 7 != 3))
    q, k, v = torch.randn(1, 6, n, 5) * 2, torch.randn(1, 3, n, 5), torch.randn(1, 3, n, 5)
    document = Document(Trace((LayerTrace("one", q, k, attend(q, k, v, rule).lse, rule, v),)))
    found = document.tile(0, 4, slice(0, n), slice(0, n), 13, 11, valued=valued)
    scores = (q[0, 4] @ k[0, 2].T / 5**0.5).double()
    visible = torch.ones(n, n).tril().bool() & rule.visible.key_mask
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    if valued:
        weights = weights * v[0, 2].double().norm(dim=-1)
    weights = weights.masked_fill(~visible, -torch.inf)
    for row in range(13):
        for col in range(11):
            rows, cols = (slice(n * i // size, n * (i + 1) // size) for i, size in ((row, 13), (col, 11)))
            top = weights[rows, cols].max().item()
            if top == -torch.inf:
                assert np.isnan(found[row, col])
            else:
                assert found[row, col] == pytest.approx(top, rel=1e-5)


def test_the_strongest_pairs_are_the_largest_weights(session):
    """Ten pairs, largest first, where the whole matrix has them."""
    meta = ask(session, "trace")
    pairs = ask(session, "pairs", doc=meta["id"], layer=1, head=2)
    weights = session.document(RunRequest(MODEL, TEXT)).trace.weights(1, 2)
    assert [p["weight"] for p in pairs] == pytest.approx(weights.flatten().topk(10).values.tolist())
    assert all(weights[p["query"], p["key"]].item() == pytest.approx(p["weight"]) for p in pairs)


def test_the_gradients_of_a_row_cancel(session):
    """Adding one number to all scores of a row changes no weight: the gradients of a row sum to 0."""
    meta = ask(session, "trace")
    row = [
        ask(session, "gradient", doc=meta["id"], position=0, layer=4, head=3, query=2, key=key)["gradient"]
        for key in range(len(meta["tokens"]))
    ]
    largest = max(map(abs, row))
    assert largest > 1e-9
    assert abs(sum(row)) < 1e-4 * largest


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("nothing", {}, "there is no question"),
        ("trace", {"text": " "}, "The text is empty"),
        ("trace", {"text": 7}, "text must be text"),
        ("trace", {"model": "smollm9"}, "there is no model 'smollm9'"),
        ("trace", {"off": [[9, 9]]}, "there is no head 9 in layer 9"),
        ("trace", {"off": ["x"]}, r"a list of heads, \[layer, head\]"),
        ("tile", {"doc": "gone"}, "layer must be a whole number"),
        (
            "parts",
            {"doc": "gone", "layer": 0, "head": 0, "query": 0, "key": 0},
            "press Look to take it again",
        ),
        ("generate", {"maxNew": 100_000}, "maxNew must be a whole number from 0 to 512"),
    ],
)
def test_what_cannot_be_answered_is_said(session, name, params, words):
    """Every refusal is a sentence of ours, whatever is asked."""
    with pytest.raises(RegardError, match=words):
        session.answer(name, params)


@pytest.mark.parametrize(
    "change",
    [{"layer": 6}, {"head": 12}, {"r1": 10}, {"c0": -1}, {"nRow": 0}, {"nCol": True}, {"layer": "1"}],
)
def test_a_tile_outside_is_refused(session, change):
    """Places that are not there, and numbers that are none, are refused before anything is computed."""
    meta = ask(session, "trace")
    with pytest.raises(RegardError):
        session.answer("tile", tile_params(meta["id"], **change))


def test_a_trace_that_was_let_go_is_taken_again(session):
    """A page left open finds its numbers although the trace made room for others."""
    meta = ask(session, "trace", text="left open")
    before = session.answer("tile", tile_params(meta["id"]))
    session._documents.values.pop(meta["id"])
    assert session.answer("tile", tile_params(meta["id"])) == before


@pytest.mark.parametrize("key", ["seq2seq (random)", "linear (random)"])
def test_models_that_are_no_plain_transformer_are_traced(session, key):
    """The recurrent alignment and linear attention have weights that sum to 1, and predictions."""
    meta = ask(session, "trace", model=key)
    layer = meta["layers"][-1]
    assert layer["mechanism"] == ("linear" if key.startswith("linear") else "softmax")
    params = tile_params(
        meta["id"], layer=len(meta["layers"]) - 1, head=0, r1=layer["queries"], c1=layer["keys"]
    )
    params |= {"nRow": layer["queries"], "nCol": layer["keys"]}
    rows = np.frombuffer(session.answer("tile", params), "<f4").reshape(layer["queries"], layer["keys"])
    assert np.nansum(rows, axis=1) == pytest.approx(np.ones(len(rows)), abs=1e-5)
    chances = [each["p"] for each in ask(session, "predict", doc=meta["id"], position=None)["before"]]
    assert chances == sorted(chances, reverse=True)
    assert 0 < sum(chances) < 1


def test_what_look_has_read_is_not_read_again_for_the_page(monkeypatch):
    """The page asks for the text that the command traced: one trace for one look."""
    runs = []
    real = make_document
    monkeypatch.setattr(
        "regard.view.run.make_document", lambda *given: (runs.append(given[1]), real(*given))[1]
    )
    session = Session(Models(), "pocket-gpt", "to be")
    session.document(RunRequest("pocket-gpt", "to be"))  # as `regard look` does before it serves
    for asked in ({"model": "", "text": ""}, {"model": "pocket-gpt", "text": "to be"}):
        session.answer("trace", {**asked, "target": None, "off": [], "maxNew": 0, "run": "a"})
    assert len(runs) == 1


def test_a_long_text_is_named_in_an_address_and_found_again(monkeypatch, tmp_path):
    """The address holds 16 letters in the place of the text; a name that is not one is refused."""
    monkeypatch.setattr("regard.files.hub.cache_folder", lambda: tmp_path)
    session, text = Session(Models(), "linear (random)"), "a long text\r\n " * 200
    view = session.address({"text": text, "layer": 1})
    assert view == {"layer": 1, "ref": view["ref"]}
    assert session.address({"text": "short"}) == {"text": "short"}
    meta = json.loads(session.answer("trace", {"ref": view["ref"]}))
    assert (meta["text"], meta["ref"]) == (text, view["ref"])
    for wrong in ("0" * 16, "../../etc/passwd"):
        with pytest.raises(ArgumentError, match="not kept here any more"):
            session.answer("trace", {"ref": wrong})


def test_the_size_of_a_saved_page_is_told_and_refused_before_anything_is_computed(monkeypatch):
    """The estimate needs no facts and no model."""
    session = Session(Models(), "linear (random)", "to be")
    meta = json.loads(session.answer("trace", {}))
    told = json.loads(session.answer("saved_size", {"docs": [meta["id"]]}))
    assert 0 < told["bytes"] < told["most"]
    monkeypatch.setattr("regard.view.page.MOST_BYTES", 1000)
    monkeypatch.setattr("regard.view.explain.with_layer_vectors", lambda *given: pytest.fail("too late"))
    view = {"title": "", "says": [], "state": {"layer": 0, "head": 0, "query": 0}, "doc": meta["id"]}
    with pytest.raises(ArgumentError, match="the page would have"):
        session.answer("save", {"path": [view]})


def test_models_are_kept_by_their_bytes(monkeypatch):
    """Of models that together have too many bytes the newest stays."""
    monkeypatch.setattr("regard.view.models._KEPT_BYTES", 1)
    models = Models()
    for key in ("linear (random)", "seq2seq (random)"):
        models.get(key)
    assert list(models._kept.values) == ["seq2seq (random)"]
