"""What the page asks and Python answers, over HTTP or a notebook's messages: `Session.answer`.

Answers are bytes: JSON, or numbers. A session keeps the models, the last traces and the last texts; a trace
that was let go is taken again when it is asked for.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any

import torch

from regard.allocation import give_back_memory
from regard.decoding.loop import generate
from regard.errors import ArgumentError, RegardError
from regard.layers.attention import MultiHeadAttention
from regard.tracing.disk import let_go
from regard.tracing.generation import trace_generation
from regard.tracing.take import trace
from regard.tracing.traces import Trace
from regard.view.ask import effects, search
from regard.view.document import Document, documents_of, plain
from regard.view.machine import from_model, inside, machine, with_insides
from regard.view.models import Models, Opened
from regard.view.page import page
from regard.view.predict import gradients, predict, rivals

QUICK = frozenset({"tile", "small", "parts", "health", "models", "progress", "stop"})  # answered at once
NUMBERS = frozenset({"tile", "small"})  # answered with bytes, not JSON
_KEPT_BYTES = 1 << 30  # of traces; the newest is kept whatever it takes
_LONG_BYTES = 1 << 27  # of a trace whose run needed memory that others do not
_KEPT = 256  # traces, and texts
_MOST_CHARACTERS = 200_000
_MOST_RUN_AGAIN = 1024  # tokens of a text that is read once more for what comes before a query
_ANSWERED = 24  # tokens an encoder-decoder writes where no answer is given


@dataclass(frozen=True, slots=True)
class Asked:
    """One run of a model: all that decides its trace."""

    model: str
    text: str
    target: str | None = None
    off: tuple[tuple[int, int], ...] = ()
    max_new: int = 0

    @property
    def id(self) -> str:
        said = json.dumps([self.model, self.text, self.target, self.off, self.max_new])
        return hashlib.sha256(said.encode()).hexdigest()[:16]


class Progress:
    """How far the run of a model is, in layers. `stop` ends it before its next layer."""

    def __init__(self, tell: Callable[[int, int], None] | None = None) -> None:
        self.done, self.total, self.stopped, self._tell = 0, 0, False, tell

    @contextmanager
    def of(self, opened: Opened, n_pass: int) -> Iterator[None]:
        """Count the layers that this thread runs."""
        layers = [module for module in opened.model.modules() if isinstance(module, MultiHeadAttention)]
        self.total = len(layers) * n_pass
        runner = threading.get_ident()

        def reached(*_: object) -> None:
            if threading.get_ident() != runner:  # the same model, on another text
                return
            if self.stopped:
                raise RegardError("This run was stopped.")
            self.done += 1
            if self._tell is not None:
                self._tell(self.done, self.total)

        hooks = [layer.register_forward_pre_hook(reached) for layer in layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


class Session:
    """The live side of a page. Its methods may be called from several threads at once."""

    def __init__(self, models: Models | None = None, default: str = "minilm", text: str = "") -> None:
        self.models = models or Models()
        self.default, self.text = default, text
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}
        self._documents: OrderedDict[str, Document] = OrderedDict()
        self._asked: OrderedDict[str, Asked] = OrderedDict()
        self._lasting: set[str] = set()  # what Python gave: it cannot be had again
        self._running: dict[str, Progress] = {}  # by what the page calls its question
        self._given: dict[str, Document] = {}  # traces that were handed over, by what the page calls them
        self._alive: dict[str, str] = {}  # the model that made a given trace, where it is here
        self._gradients: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._questions: dict[str, Callable[[dict[str, Any], bytes], Any]] = {
            "health": lambda params, body: {"alive": True},
            "models": lambda params, body: self._choices(),
            "trace": lambda params, body: self._trace(params, 0),
            "generate": lambda params, body: self._trace(params, _whole(params, "maxNew", 512)),
            "progress": self._progress,
            "stop": self._stop,
            "open": self._open,
            "tile": self._tile,
            "small": self._small,
            "parts": self._parts,
            "machine": self._machine,
            "pairs": self._pairs,
            "facts": lambda params, body: self._document(params).facts(),
            "predict": self._predict,
            "gradient": self._gradient,
            "effects": self._effects,
            "save": self._save,
            "search": self._search,
        }

    def knows(self, name: str) -> bool:
        """Whether there is such a question."""
        return name in self._questions

    def answer(self, name: str, params: dict[str, Any], body: bytes = b"") -> bytes:
        """The answer to one question; `RegardError` where it cannot be given."""
        if name not in self._questions:
            raise ArgumentError(f"there is no question {name!r}.")
        found = self._questions[name](params, body)
        let_go()
        return found if isinstance(found, bytes) else json.dumps(plain(found), allow_nan=False).encode()

    def add(self, document: Document, model: Opened | None = None, *, lasting: bool = True) -> Document:
        """Take a document that is made already; with its `model` it can be run again and changed.

        Unless `lasting`, it is let go of as runs are when there are newer ones.
        """
        if model is not None:
            self.models.put(model)
            document = replace(document, kind=model.kind, predicts=model.predicts)
            document = replace(document, special_ids=model.tokenizer.special.all())
        with self._lock:
            self._documents[document.id] = document
            self._given[document.model_key] = document
            if model is not None:
                self._alive[document.model_key] = model.key
                self._asked[document.id] = Asked(model.key, document.text, document.target)
            if lasting:
                self._lasting.add(document.id)
            self._forget()
        return document

    def document(self, asked: Asked, progress: Progress | None = None) -> Document:
        """The trace of a run: the one kept, or a new one."""
        with self._lock:
            self._asked[asked.id] = asked
            self._asked.move_to_end(asked.id)
            found = self._documents.get(asked.id)
            if found is not None:
                self._documents.move_to_end(asked.id)
                return found
            lock = self._making.setdefault(asked.id, threading.Lock())
        try:
            with lock:
                with self._lock:
                    found = self._documents.get(asked.id)
                if found is None:
                    found = make_document(self.models.get(asked.model), asked, progress)
                    if found.trace.bytes > _LONG_BYTES:
                        give_back_memory()
                    with self._lock:
                        self._documents[found.id] = found
        finally:
            with self._lock:
                self._making.pop(asked.id, None)
                self._forget()
        return found

    def _forget(self) -> None:
        """Let go of the oldest traces and texts beyond what is kept; not of what lasts, nor of the newest."""
        held = sum(document.trace.bytes for document in self._documents.values())
        for key in list(self._documents)[:-1]:
            if key not in self._lasting and (held > _KEPT_BYTES or len(self._documents) > _KEPT):
                document = self._documents.pop(key)
                held -= document.trace.bytes
                if self._given.get(document.model_key) is document:
                    del self._given[document.model_key]
        for key in list(self._asked)[:-_KEPT]:
            if key not in self._lasting:
                del self._asked[key]

    def _document(self, params: dict[str, Any]) -> Document:
        key = params.get("doc")
        with self._lock:
            found = self._documents.get(str(key))
            asked = self._asked.get(str(key))
        if found is not None:
            return found
        if asked is None:
            raise ArgumentError(
                "this trace is not here any more: press Look to take it again, or drop its file anew."
            )
        return self.document(asked)

    def _choices(self) -> list[dict[str, Any]]:
        given = [
            {"key": key, "name": each.title, "what": "given", "present": True, "command": None,
             "kind": each.kind, "random": False, "given": True}
            for key, each in self._given.items()
        ]  # fmt: skip
        return given + self.models.choices()

    def _trace(self, params: dict[str, Any], max_new: int) -> dict[str, Any]:
        text, key = params.get("text"), params.get("model")
        target = params.get("target")
        given = self._given.get(str(key))
        if not (key or text or self.default):  # a notebook opens with what it was given
            given = next(iter(self._given.values()), None)
        if given is not None:
            unchanged = text in ("", None, given.text) and (target or None) == given.target
            if unchanged and not (params.get("off") or max_new):
                return given.meta()
            key = self._alive.get(given.model_key)
            if key is None:
                raise ArgumentError(
                    f"{given.title} is a trace without its model: it can be looked at and not run again. "
                    "Choose a model above to read another text."
                )
            text = text or given.text
        text = text or self.text
        if not isinstance(text, str) or not (target is None or isinstance(target, str)):
            raise ArgumentError("a text must be text.")
        if not text.strip():
            raise ArgumentError("The text is empty: type at least one word.")
        if len(text) > _MOST_CHARACTERS:
            raise ArgumentError(f"the text has {len(text)} characters: at most {_MOST_CHARACTERS} are read.")
        off = tuple(sorted({_pair(head) for head in _list(params, "off")}))
        if not (key or self.default):
            raise ArgumentError("there is no model here: choose one above.")
        asked = Asked(str(key or self.default), text, target or None, off, max_new)
        run, progress = str(params.get("run", "")), Progress()
        with self._lock:
            self._running[run] = progress
        try:
            return self.document(asked, progress).meta()
        finally:
            with self._lock:
                self._running.pop(run, None)

    def _progress(self, params: dict[str, Any], body: bytes) -> dict[str, Any]:
        found = self._running.get(str(params.get("run")))
        return {"done": 0, "total": 0} if found is None else {"done": found.done, "total": found.total}

    def _stop(self, params: dict[str, Any], body: bytes) -> dict[str, Any]:
        found = self._running.get(str(params.get("run")))
        if found is not None:
            found.stopped = True
        return {"stopped": found is not None}

    def _open(self, params: dict[str, Any], body: bytes) -> dict[str, Any]:
        name = str(params.get("name", "trace"))
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "opened.trace"
            path.write_bytes(body)
            found = Trace.load(path)
        # The tensors are mapped: they outlive the name of their file.
        document = replace(documents_of(found)[0], title=f"{name} · {found.facts.get('name', 'trace')}")
        document = replace(document, id=hashlib.sha256(body).hexdigest()[:16], model_key=f"file {name}")
        return self.add(document, lasting=False).meta()

    def _tile(self, params: dict[str, Any], body: bytes) -> bytes:
        rows = slice(_index(params, "r0"), _index(params, "r1"))
        cols = slice(_index(params, "c0"), _index(params, "c1"))
        tile = self._document(params).tile(
            _index(params, "layer"),
            _index(params, "head"),
            rows,
            cols,
            _whole(params, "nRow", 1 << 16),
            _whole(params, "nCol", 1 << 16),
            valued=params.get("valued") is True,
        )
        return tile.astype("<f2" if params.get("dtype") == "float16" else "<f4").tobytes()

    def _small(self, params: dict[str, Any], body: bytes) -> bytes:
        heads = [_pair(head) for head in _list(params, "heads")]
        return self._document(params).small(heads, _whole(params, "cells", 256))

    def _parts(self, params: dict[str, Any], body: bytes) -> dict[str, Any]:
        return self._document(params).parts(*(_index(params, n) for n in ("layer", "head", "query", "key")))

    def _machine(self, params: dict[str, Any], body: bytes) -> dict[str, Any]:
        document = self._document(params)
        at = [_index(params, name) for name in ("layer", "head", "query", "key")]
        found = machine(document, *at)
        if document.id not in self._asked or not found["keys"]:
            return found
        if document.trace.layers[at[0]].n_query > _MOST_RUN_AGAIN:
            found["without"] = f"The text has more than {_MOST_RUN_AGAIN} tokens, and what comes before the "
            found["without"] += "query needs a run of the model: the machine begins at the query and the key."
            return found
        _, opened, _, source = self._live(params)
        vectors = inside(opened, document, source, at[0])
        if vectors is not None:
            found["model"] = from_model(opened, document, vectors, *at)
            if found["model"].get("push") is not None:
                by_key = found["model"]["push"]["byKey"]
                found["model"]["push"]["byKey"] = [by_key[index] for index in found["keys"]]
        return found

    def _pairs(self, params: dict[str, Any], body: bytes) -> list[dict[str, Any]]:
        return self._document(params).pairs(_index(params, "layer"), _index(params, "head"))

    def _live(self, params: dict[str, Any]) -> tuple[Asked, Opened, list[int], list[int] | None]:
        """The run a document is of, its model and what it read."""
        document = self._document(params)
        asked = self._asked.get(document.id)
        if asked is None:
            raise ArgumentError("this trace came from a file: its model is not loaded here.")
        opened = self.models.get(asked.model)
        assert document.trace.ids is not None
        ids = document.trace.ids[document.batch].tolist()
        source = _read(opened, asked.text)[0] if opened.kind == "encoder-decoder" else None
        return asked, opened, ids, source

    def _predict(self, params: dict[str, Any], body: bytes) -> dict[str, Any]:
        asked, opened, ids, source = self._live(params)
        position = params.get("position")
        if position is not None:
            position = _index(params, "position")
        return predict(opened, ids, source, asked.off, position)

    def _save(self, params: dict[str, Any], body: bytes) -> bytes:
        """A page of the traces that a path of views shows."""
        views = _list(params, "path")
        if not all(isinstance(view, dict) and isinstance(view.get("state"), dict) for view in views):
            raise ArgumentError("path must be a list of views.")
        ids = list(dict.fromkeys(str(view.get("doc")) for view in views))
        documents = [self.for_file(key, [v["state"] for v in views if v.get("doc") == key]) for key in ids]
        path = [
            {
                "title": str(view.get("title", "")),
                "says": [str(line) for line in _list(view, "says")],
                "state": {**view["state"], "doc": ids.index(str(view.get("doc")))},
            }
            for view in views
        ]
        return page(documents, path=plain(path)).encode()

    def for_file(self, key: str, views: list[dict[str, Any]]) -> Document:
        """A document with what the machine of these views needs, where there will be no model."""
        document = self._document({"doc": key})
        if key not in self._asked or document.trace.layers[0].n_query > _MOST_RUN_AGAIN:
            return document
        _, opened, _, source = self._live({"doc": key})
        return with_insides(document, opened, source, views)

    def _effects(self, params: dict[str, Any], body: bytes) -> dict[str, Any]:
        _, opened, ids, source = self._live(params)
        return effects(opened, ids, source)

    def _search(self, params: dict[str, Any], body: bytes) -> dict[str, Any]:
        lines = _list(params, "lines")
        if not all(isinstance(line, str) for line in lines):
            raise ArgumentError("lines must be a list of sentences.")
        return search(self._live(params)[1], lines)

    def _gradient(self, params: dict[str, Any], body: bytes) -> dict[str, Any]:
        asked, opened, ids, source = self._live(params)
        if asked.off:
            raise ArgumentError("gradients are those of the whole model: switch all heads on first.")
        position = _index(params, "position")
        key = (asked.id, position)
        with self._lock:
            found = self._gradients.get(key)
        if found is None:
            found = gradients(opened, ids, source, position)
            with self._lock:
                self._gradients[key] = found
                while len(self._gradients) > 2:
                    self._gradients.popitem(last=False)
        result, name = found
        layer, head, query, at = (_index(params, n) for n in ("layer", "head", "query", "key"))
        tile = result.tile(layer, head, slice(query, query + 1), slice(at, at + 1))
        if tile.numel() != 1:
            raise ArgumentError(f"there is no query {query} with a key {at} here.")
        return {"gradient": float(tile), "value": result.value, "token": name}


def make_document(opened: Opened, asked: Asked, progress: Progress | None = None) -> Document:
    """Run the model and keep its trace."""
    ids, notices = _read(opened, asked.text)
    if asked.max_new and asked.off:
        raise ArgumentError("text is written with all heads: switch them on first.")
    source = ids if opened.kind == "encoder-decoder" else None
    with (progress or Progress()).of(opened, max(1, asked.max_new)):
        if source is not None:
            if asked.target is None or asked.max_new:
                answer = _answer(opened, ids, asked.max_new or _ANSWERED)
            else:
                answer, more = _read(opened, asked.target)
                notices += more
            with opened.without(asked.off):
                found = trace(opened.loaded, [ids], target=[answer], keep_v=True, to_disk=True)
        elif asked.max_new and opened.kind == "decoder":
            found = trace_generation(opened.loaded, ids, max_new=asked.max_new, keep_v=True)
        else:
            with opened.without(asked.off):
                found = trace(opened.loaded, [ids], keep_v=True, to_disk=True)
    generated, last = None, "…"
    if source is not None or asked.max_new:
        assert found.ids is not None
        start_at = 1 if source is not None else len(ids)
        *steps, following = rivals(opened, found.ids[0].tolist(), source, start_at)
        last = str(following[0]["token"])
        generated = {"start": start_at, "steps": steps} if asked.max_new and steps else None
    return Document(
        found,
        0,
        id=asked.id,
        title=opened.title,
        model_key=opened.key,
        text=asked.text,
        target=asked.target,
        notices=tuple(notices),
        off=asked.off,
        kind=opened.kind,
        predicts=opened.predicts,
        generated=generated,
        written_last=last,
        special_ids=opened.tokenizer.special.all(),
    )


def _read(opened: Opened, text: str) -> tuple[list[int], list[str]]:
    """The ids of a text, cut at the model's limit with a notice."""
    ids = opened.tokenizer.encode(text)
    if not ids:
        raise ArgumentError("The text has no token: type at least one word.")
    limit = opened.limit
    if limit is None or len(ids) <= limit:
        return ids, []
    said = f"The text has {len(ids)} tokens, {opened.title} reads {limit}: the rest is cut."
    special = opened.tokenizer.special
    if ids[-1] in special.all():  # what ends a text ends a cut one too
        return [*ids[: limit - 1], ids[-1]], [said]
    return ids[:limit], [said]


def _answer(opened: Opened, ids: list[int], max_new: int) -> list[int]:
    """What an encoder-decoder says to a text; at least one token, so that there is a row to see."""
    done = generate(opened.loaded, torch.tensor([ids]), max_new=max_new)
    return list(done.tokens[0]) or [opened.loaded.start_token or 0]


def _list(params: dict[str, Any], name: str) -> list[Any]:
    value = params.get(name)
    if not isinstance(value, list | NoneType):
        raise ArgumentError(f"{name} must be a list. Got {str(value)[:80]!r}.")
    return value or []


def _index(params: dict[str, Any], name: str) -> int:
    value = params.get(name)
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ArgumentError(f"{name} must be a whole number from 0. Got {str(value)[:80]!r}.")
    return value


def _whole(params: dict[str, Any], name: str, most: int) -> int:
    value = params.get(name)
    if type(value) is not int or not 1 <= value <= most:
        raise ArgumentError(f"{name} must be a whole number from 1 to {most}. Got {value!r}.")
    return value


def _pair(value: Any) -> tuple[int, int]:
    if not isinstance(value, list | tuple) or len(value) != 2 or any(type(each) is not int for each in value):
        raise ArgumentError(f"a head is [layer, head]. Got {value!r}.")
    return value[0], value[1]
