"""Whatever is sent to the page's server is answered, with what was asked for or a line that says why not."""

import json
from urllib.parse import quote

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from fuzzing import attack, damaged_bytes, damaged_json
from tiny_models import tiny

from regard.view.models import Models
from regard.view.run import RunRequest
from regard.view.server import app
from regard.view.session import Session

TOKEN, PORT = "t" * 40, 8471
HEADERS = [(b"host", b"127.0.0.1:8471"), (b"x-regard-token", TOKEN.encode())]
ANSWERED = {200: "answered", 400: "refused (400)", 404: "refused (404)", 413: "refused (413)"}


@pytest.fixture(scope="module")
def session():
    models = Models()
    for family in ("gpt2", "t5", "bert"):
        models.put(family, tiny(family))
    return Session(models, "gpt2", "a cat")


@pytest.fixture(scope="module")
def ask(session):
    """Asks the server and gives the status."""
    server = app(session, TOKEN, PORT)

    async def call(name, body, headers):
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": f"/api/{name}",
            "query_string": b"",
            "headers": [*HEADERS, *headers],
        }
        status, unread = [], [body]

        async def receive():
            if not unread:
                await anyio.sleep_forever()  # the page waits for its answer
            return {"type": "http.request", "body": unread.pop(), "more_body": False}

        async def send(message):
            if message["type"] == "http.response.start":
                status.append(message["status"])

        await server(scope, receive, send)
        return status[0]

    with start_blocking_portal() as portal:
        yield lambda name, body, headers=(): portal.call(call, name, body, headers)


def questions(session):
    """What a page asks, of each kind."""
    runs = [
        RunRequest("gpt2", "a cat sat"),
        RunRequest("t5", "a cat", "le chat"),
        RunRequest("bert", "a cat"),
    ]
    ids = [session.document(asked).id for asked in runs]
    at = {"doc": ids[0], "layer": 1, "head": 2, "query": 3, "key": 1}
    tile = {
        **at,
        "r0": 0,
        "r1": 4,
        "c0": 0,
        "c1": 4,
        "nRow": 2,
        "nCol": 2,
        "valued": True,
        "dtype": "float16",
    }
    views = [{"doc": ids[0], "title": "a", "says": ["b"], "state": {"layer": 0}}]
    return {
        "health": [{}],
        "models": [{}],
        "trace": [
            {"text": "a cat", "model": "gpt2", "off": [[0, 1]], "run": "1"},
            {"text": "a", "target": "b", "model": "t5"},
        ],
        "generate": [{"text": "a cat", "model": "gpt2", "maxNew": 3}],
        "progress": [{"run": "1"}],
        "stop": [{"run": "1"}],
        "tile": [tile],
        "small": [{"doc": ids[1], "heads": [[0, 0], [1, 2]], "cells": 4}],
        "parts": [at],
        "machine": [at, {**at, "doc": ids[2]}],
        "pairs": [at],
        "facts": [{"doc": doc} for doc in ids],
        "predict": [{"doc": doc, "position": 1} for doc in ids],
        "gradient": [{**at, "position": 3}],
        "effects": [{"doc": ids[0]}],
        "save": [{"path": views}],
        "search": [{"doc": ids[0], "lines": ["a cat", "a dog"]}],
        "open": [{"name": "x"}],
        "nonsense": [{}],
    }


@pytest.mark.filterwarnings("ignore:the trace does not agree")  # the page shows it, as it should
def test_server_bodies(record_property, session, ask, tmp_path):
    """Damaged questions and dropped traces: 200, 400, 404 or 413, and never 500."""
    asked = questions(session)
    path = tmp_path / "a.trace"
    session.document(RunRequest("gpt2", "a cat sat")).trace.save(path)
    trace = path.read_bytes()

    def case(rng):
        name = rng.choice(list(asked))
        params = rng.choice(asked[name])
        params = damaged_json(rng, params) if rng.random() < 0.8 else params
        if isinstance(params, dict) and isinstance(params.get("maxNew"), int):
            params["maxNew"] = min(params["maxNew"], 5)  # 512 tokens are honest work, and slow
        text = json.dumps(params).encode("utf-8", "surrogatepass")
        if name == "open":
            said = [(b"x-regard-params", quote(text).encode())]
            return ANSWERED[ask(name, damaged_bytes(rng, trace), said)]
        if rng.random() < 0.2:
            text = rng.choice(
                (damaged_bytes(rng, text), b"[" * 100_000, b'{"a":' * 50_000, b"\xff", b"NaN", b"5")
            )
        return ANSWERED[ask(name, text)]

    attack(record_property, "server", case, few=300, many=10_000)


def test_a_body_that_is_too_large_is_refused_before_it_is_read(ask):
    """By what it says of itself: the app never asks for it."""
    assert ask("open", b"", [(b"content-length", str(300 << 20).encode())]) == 413
    assert ask("trace", b"", [(b"content-length", b"9" * 30)]) == 413
    assert ask("trace", b" " * (3 << 20)) == 413


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"text": "a", "off": 5}', b'{"text": 5}', b"[]"])
def test_a_question_that_is_none_is_a_bad_request(ask, body):
    """Not an error of the server's."""
    assert ask("trace", body) == 400


def test_texts_and_dropped_traces_are_forgotten(monkeypatch, tmp_path):
    """A page that is open for a month holds the last of them; what Python gave it stays."""
    monkeypatch.setattr("regard.view.session._KEPT", 5)
    models = Models()
    models.put("gpt2", tiny("gpt2"))
    session = Session(models, "gpt2", "a")
    given = session.add(session.document(RunRequest("gpt2", "first")))
    path = tmp_path / "a.trace"
    for number in range(12):
        document = session.document(RunRequest("gpt2", f"text {number}"))
        document.trace.save(path)
        session.answer("open", {"name": f"file {number}"}, path.read_bytes())
    for kept in (session._documents.values, session._asked, session._traces()):
        assert len(kept) <= 6
    assert not session._documents._making
    assert session._document(given.id) is given
