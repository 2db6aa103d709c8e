"""What the page asks and Python answers, over HTTP or a notebook's messages: `Session.answer`.

Answers are bytes: JSON, or numbers. A session keeps the models, the last traces and the last texts; a trace
that was let go is taken again when it is asked for.
"""

import hashlib
import inspect
import json
import re
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.allocation import give_back_memory
from regard.errors import ArgumentError
from regard.files.loading import Loaded
from regard.heads.chance import RandomNull
from regard.heads.nulls import null_maker
from regard.tracing.disk import drop_resident_pages
from regard.tracing.gradients import ScoreGradients
from regard.tracing.traces import Trace
from regard.view import explain, predict, run
from regard.view.document import Document, Json, documents_of, plain
from regard.view.models import Kept, Models, choice
from regard.view.page import MOST_BYTES, check_size, embedded_bytes, page
from regard.view.run import RunProgress, RunRequest
from regard.view.texts import keep_text, kept_text, text_key

QUICK = frozenset({"tile", "small", "parts", "health", "models", "progress", "stop"})  # answered at once
NUMBERS = frozenset({"tile", "small"})  # answered with bytes, not JSON
_KEPT_BYTES = 1 << 30  # of traces; the newest is kept whatever it takes
_LONG_BYTES = 1 << 27  # of a trace whose run needed memory that others do not
_KEPT = 256  # traces, and texts
_MOST_CHARACTERS = 200_000
MOST_PREDICTED = 1024  # tokens of a text whose prediction a saved page keeps

# Questions about a document, which may need the model that made it.
_QUESTIONS: list[Callable[..., Any]] = [Document.parts, Document.pairs, Document.facts]
_QUESTIONS += [Document.head_facts, Document.links, predict.why]
_QUESTIONS += [explain.machine, predict.predict, predict.effects, predict.search]
_OF_DOCUMENT = {question.__name__: question for question in _QUESTIONS}


class Session:
    """The live side of a page. Its methods may be called from several threads at once.

    A question of the page is a function in `_OF_DOCUMENT` or a method `ask_...`. What it is asked with are
    its parameters, each checked as `_KINDS` says for its name; it is given the `document` it is about, and
    the `loaded` model of that.
    """

    def __init__(self, models: Models | None = None, default: str = "minilm", text: str = "") -> None:
        self.models = models or Models()
        self.default, self.text = default, text
        self._lock = threading.Lock()
        self._documents: Kept[Document] = Kept(_too_many)
        self._asked: OrderedDict[str, RunRequest] = OrderedDict()  # the run that a document is of
        self._given: dict[str, Document] = {}  # what Python gave: never let go, it cannot be had again
        self._running: dict[str, RunProgress] = {}  # by what the page calls its question
        self._gradients: Kept[tuple[ScoreGradients, str]] = Kept(lambda kept: len(kept) > 2)

    def knows(self, name: str) -> bool:
        """Whether there is such a question."""
        return name in _OF_DOCUMENT or hasattr(self, f"ask_{name}")

    def answer(self, name: str, params: Json, body: bytes = b"") -> bytes:
        """The answer to one question; `RegardError` where it cannot be given."""
        if not self.knows(name):
            raise ArgumentError(f"there is no question {name!r}.")
        question = _OF_DOCUMENT.get(name) or getattr(self, f"ask_{name}")
        wanted = inspect.signature(question).parameters
        arguments: Json = {"body": body}
        for parameter in filter(_KINDS.get, wanted):
            word = re.sub("_(.)", lambda match: match[1].upper(), parameter)  # n_row is the page's nRow
            value, (rule, fits) = params.get(word), _KINDS[parameter]
            if value is not None or wanted[parameter].default is inspect.Parameter.empty:
                if not fits(value):
                    raise ArgumentError(f"{word} must be {rule}. Got {str(value)[:80]!r}.")
                arguments[parameter] = value
        if wanted.keys() & {"self", "document", "loaded"}:  # last: it may have to be taken again
            document = self._document(str(params.get("doc")))
            arguments |= {"self": document, "document": document}
            needed = "loaded" in wanted and wanted["loaded"].default is inspect.Parameter.empty
            if needed or ("loaded" in wanted and document.id in self._asked):
                arguments["loaded"] = self._model(document)
        answer = question(**{word: arguments[word] for word in wanted if word in arguments})
        drop_resident_pages()
        return answer if isinstance(answer, bytes) else json.dumps(plain(answer), allow_nan=False).encode()

    def add(self, document: Document, model: str | None = None) -> Document:
        """Take a document that is made already; with the key of its model it can be run again and changed."""
        if model is not None:
            document = replace(document, **run.describe_model(self.models.get(model), document.text))
            self._asked[document.id] = RunRequest(model, document.text, document.target)
        self._given[document.id] = document
        return document

    def document(self, asked: RunRequest, progress: RunProgress | None = None) -> Document:
        """The trace of a run: the one kept, or a new one."""
        with self._lock:
            self._asked[asked.id] = asked
            self._asked.move_to_end(asked.id)
            for key in list(self._asked)[:-_KEPT]:
                if key not in self._given:
                    del self._asked[key]

        def make() -> Document:
            document = run.make_document(self.models.get(asked.model), asked, progress)
            if document.trace.bytes > _LONG_BYTES:
                give_back_memory()
            if document.make_null is None:
                return document
            n_token = len(document.ids)

            def make_null() -> RandomNull:
                # The model is looked up when it is needed: a kept trace must not keep its model too.
                maker = null_maker(self.models.get(asked.model), n_token)
                assert maker is not None  # as there was one for the same model
                return maker()

            return replace(document, make_null=make_null)

        return self._documents.get(asked.id, make)

    def _document(self, key: str) -> Document:
        document = self._given.get(key) or self._documents.values.get(key)
        if document is not None:
            return document
        if key not in self._asked:
            raise ArgumentError(
                "this trace is not here any more: press Look to take it again, or drop its file."
            )
        return self.document(self._asked[key])

    def _traces(self) -> dict[str, Document]:
        """Traces that were handed over or dropped, by what the page calls them."""
        dropped = [kept for kept in list(self._documents.values.values()) if kept.id not in self._asked]
        return {trace.model_key: trace for trace in (*self._given.values(), *dropped)}

    def _model(self, document: Document) -> Loaded:
        """The model that made a document."""
        asked = self._asked.get(document.id)
        if asked is None:
            raise ArgumentError("this trace came from a file: its model is not loaded here.")
        return self.models.get(asked.model)

    def ask_health(self) -> Json:
        return {"alive": True}

    def ask_models(self) -> list[Json]:
        traces = self._traces().items()
        given = [choice(key, trace.title, "given", trace.kind, given=True) for key, trace in traces]
        return given + self.models.choices()

    def ask_trace(
        self,
        model: str = "",
        text: str = "",
        target: str = "",
        off: Sequence[list[int]] = (),
        cut: Sequence[list[int]] = (),
        max_new: int = 0,
        run: str = "",
        ref: str = "",
    ) -> Json:
        traces = self._traces()
        given = traces.get(model)
        if not (model or text or self.default):  # a notebook opens with what it was given
            given = next(iter(traces.values()), None)
        if given is not None:
            unchanged = text in ("", given.text) and (target or None) == given.target
            if unchanged and not (off or cut or max_new):
                return given.meta()
            if given.id not in self._asked:
                raise ArgumentError(f"{given.title} is a trace without its model: choose a model above.")
            model, text = self._asked[given.id].model, text or given.text
        if ref and not text:
            text = kept_text(ref)
        model, text = model or self.default, text or self.text
        if not text.strip():
            raise ArgumentError("The text is empty: type at least one word.")
        if len(text) > _MOST_CHARACTERS:
            raise ArgumentError(f"the text has {len(text)} characters: at most {_MOST_CHARACTERS} are read.")
        if not model:
            raise ArgumentError("there is no model here: choose one above.")
        heads = {(layer, head) for layer, head in off}
        links = {tuple(link) for link in cut}
        asked = RunRequest(model, text, target or None, tuple(sorted(heads)), max_new, tuple(sorted(links)))
        keep_text(text)
        progress = self._running[run] = RunProgress()
        try:
            return self.document(asked, progress).meta()
        finally:
            self._running.pop(run, None)

    ask_generate = ask_trace

    def ask_progress(self, run: str = "") -> Json:
        progress = self._running.get(run, RunProgress())
        return {"done": progress.done, "total": progress.total}

    def ask_stop(self, run: str = "") -> Json:
        progress = self._running.get(run)
        if progress is not None:
            progress.stopped = True
        return {"stopped": progress is not None}

    def ask_open(self, body: bytes, name: str = "trace") -> Json:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "opened.trace"
            path.write_bytes(body)
            opened = Trace.load(path)
        # The tensors are mapped: they outlive the name of their file.
        document = replace(
            documents_of(opened)[0],
            id=hashlib.sha256(body).hexdigest()[:16],
            title=f"{name} · {opened.facts.get('name', 'trace')}",
            model_key=f"file {name}",
        )
        return self._documents.get(document.id, lambda: document).meta()

    def ask_tile(
        self,
        document: Document,
        layer: int,
        head: int,
        r0: int,
        r1: int,
        c0: int,
        c1: int,
        n_row: int,
        n_col: int,
        valued: object = False,
        dtype: object = "float32",
    ) -> bytes:
        rows, cols = slice(r0, r1), slice(c0, c1)
        tile = document.tile(layer, head, rows, cols, n_row, n_col, valued=valued is True)
        return tile.astype("<f2" if dtype == "float16" else "<f4").tobytes()

    def ask_small(self, document: Document, cells: int, heads: Sequence[list[int]] = ()) -> bytes:
        return b"".join(document.small(layer, head, cells).astype("<f2").tobytes() for layer, head in heads)

    def ask_gradient(
        self, loaded: Loaded, document: Document, position: int, layer: int, head: int, query: int, key: int
    ) -> Json:
        if document.off or document.cut:
            raise ArgumentError("gradients are those of the whole model: switch all heads on first.")
        of_text = f"{document.id} {position}"
        result, name = self._gradients.get(of_text, lambda: predict.gradients(loaded, document, position))
        tile = result.tile(layer, head, slice(query, query + 1), slice(key, key + 1))
        if tile.numel() != 1:
            raise ArgumentError(f"there is no query {query} with a key {key} here.")
        return {"gradient": float(tile), "value": result.value, "token": name}

    def ask_saved_size(self, docs: list[str]) -> Json:
        """Tell how large a page of these traces would be, before it is written."""
        total = sum(embedded_bytes(self._document(key), "float24") for key in docs)
        return {"bytes": total, "most": MOST_BYTES}

    def ask_save(self, path: list[Any]) -> bytes:
        """Write a page of the traces that a path of views shows."""
        ids = list(dict.fromkeys(str(view.get("doc")) for view in path))
        check_size([self._document(key) for key in ids])  # before anything is computed for it
        documents = [self.for_file(key, [v["state"] for v in path if v.get("doc") == key]) for key in ids]
        views = []
        for view in path:
            state = {**view["state"], "doc": ids.index(str(view.get("doc")))}
            says = list(map(str, view.get("says", [])))
            views.append({"title": str(view.get("title", "")), "says": says, "state": state})
        return page(documents, path=plain(views)).encode()

    def for_file(self, key: str, views: list[Json]) -> Document:
        """A document with what the machine of these views needs, where there will be no model."""
        document = self._document(key)
        if key not in self._asked:
            return document
        loaded = self._model(document)
        document = explain.with_layer_vectors(document, loaded, views)
        short = (
            len(document.trace.tokens[document.batch]) <= MOST_PREDICTED if document.trace.tokens else False
        )
        if short and document.predicts is not None and document.generated is None:
            document = replace(document, prediction=predict.predict(loaded, document))
        return document

    def address(self, view: Json) -> Json:
        """Return a view for an address: a long text is kept here and named."""
        key = text_key(str(view.get("text", "")))
        if not key:
            return view
        keep_text(view["text"])
        return {**{name: value for name, value in view.items() if name != "text"}, "ref": key}


def _too_many(documents: Collection[Document]) -> bool:
    held = sum(document.trace.bytes for document in documents)
    return held > _KEPT_BYTES or len(documents) > _KEPT


def _whole(least: int, most: int) -> tuple[str, Callable[[Any], bool]]:
    rule = f"a whole number from {least} to {most}"
    return rule, lambda value: type(value) is int and least <= value <= most


def _listed(kind: type, fits: Callable[[Any], bool] = bool) -> Callable[[Any], bool]:
    """Whether a value is a list of such things."""
    return lambda value: isinstance(value, list) and all(isinstance(v, kind) and fits(v) for v in value)


def _is_view(view: Json) -> bool:
    return isinstance(view.get("state"), dict) and isinstance(view.get("says", []), list)


_HEADS = _listed(list, lambda pair: [*map(type, pair)] == [int, int])
_LINKS = _listed(list, lambda link: [*map(type, link)] == [int] * 4 and min(link) >= 0)
# What the page may send, in words and as a test, by the name of the parameter it is for.
_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys("layer head query key position r0 r1 c0 c1".split(), _whole(0, 2**31)),
    **dict.fromkeys("n_row n_col".split(), _whole(1, 2**16)),
    "cells": _whole(1, 256),
    "max_new": _whole(0, 512),
    **dict.fromkeys("model text target run name ref".split(), ("text", lambda value: isinstance(value, str))),
    **dict.fromkeys("off heads".split(), ("a list of heads, [layer, head]", _HEADS)),
    "cut": ("a list of links, [layer, head, query, key]", _LINKS),
    "docs": ("a list of texts", _listed(str)),
    "lines": ("a list of texts", _listed(str, lambda line: True)),
    "path": ("a list of views", _listed(dict, _is_view)),
    **dict.fromkeys("valued dtype".split(), ("anything", lambda value: True)),
}
