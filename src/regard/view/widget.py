"""The page in a notebook: Jupyter, VS Code, Colab and marimo, through anywidget.

    regard.show(trace)                             # what was traced
    regard.show(trace, model=model)                # with its model: type text, switch heads off
    regard.show(trace, image="cat.png")            # of a vision model, over a picture
    regard.show(weights, rows=tokens)              # weights one already has
    regard.show("some text", model="minilm")       # a model, on a text

The module is the one of the browser page. Its questions come as messages to the kernel, which answers with
tiles: only what is looked at is sent, however long the text.
"""

import contextvars
import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any, Literal

from regard.errors import ArgumentError, RegardError, UnsupportedError
from regard.files.loading import Loaded
from regard.tracing.traces import Trace
from regard.view.document import documents_of, plain
from regard.view.models import Models
from regard.view.page import bundle, embedded, embedded_bytes
from regard.view.run import RunRequest, make_document
from regard.view.session import Session

EMBEDDED_BYTES = 2_000_000  # kept in the notebook itself, so that it shows without a kernel
_WORKERS = 2


def show(
    trace_or_weights: Any,
    *,
    model: Loaded | str | None = None,
    rows: Sequence[str] | None = None,
    cols: Sequence[str] | None = None,
    layer: int | None = None,
    head: int | None = None,
    image: Any = None,
    view: Literal["map", "lines", "text"] | None = None,
    height: int = 720,
    embed: bool | None = None,
) -> Any:
    """Show the page in a notebook: the last value of a cell displays itself.

    It opens with the story of the text, or in the atlas at the ``layer``, ``head`` and ``view`` you name.

    Args:
        trace_or_weights: A trace; weights of 1 to 5 dimensions as ``Trace.from_weights`` takes them; or a
            text for ``model`` to read.
        model: What ``regard.load`` returned, or a model's name. With the model that made a trace, text can be
            typed on the page and heads switched off.
        rows: Names of the queries, where weights are given.
        cols: Names of the keys, where weights are given.
        layer: The layer that the atlas opens with.
        head: The head that the atlas opens with.
        image: What lies under the weights of a vision model, in place of what the model saw, in more pixels:
            a file's path, one of Pillow's images, an array (height, width, channel), or a list of these.
        view: How the head is drawn: "map", "lines" or "text".
        height: Height of the cell's output, in pixels.
        embed: Whether the numbers are kept in the notebook too, so that it shows without a kernel. Default:
            where they have at most 2 MB.

    Returns:
        A widget of anywidget, for Jupyter, VS Code, Colab and marimo.

    Raises:
        ArgumentError: If the trace has no layer or is not of ``model``, or if something is given that does
            not belong to what is shown.
        UnsupportedError: If anywidget is not installed.
    """
    session = Session(Models(), default="")
    key = model.facts.name if isinstance(model, Loaded) else model
    if isinstance(model, Loaded):
        session.models.put(model.facts.name, model)
    elif model is not None and not isinstance(model, str):
        got = f"Got {type(model).__name__}: show a trace of it (regard.trace) without `model`."
        raise ArgumentError(f"model must be what regard.load gave, or its name. {got}")
    if (rows is not None or cols is not None) and isinstance(trace_or_weights, str | Trace):
        raise ArgumentError("rows and cols label weights: a text and a trace have their own tokens.")
    if isinstance(trace_or_weights, str):
        if image is not None:
            raise ArgumentError("an image goes with the trace of a vision model, not with a text.")
        key = key or "minilm"
        document = make_document(session.models.get(key), RunRequest(key, trace_or_weights))
        documents = [replace(document, model_key=f"this text, {document.title}")]
    else:
        given = trace_or_weights
        trace = given if isinstance(given, Trace) else Trace.from_weights(given, rows, cols)
        if not trace.layers:
            raise ArgumentError("the trace has no layer: there is nothing to show.")
        documents = [replace(one, model_key=f"given: {one.title}") for one in documents_of(trace, image)]
        if key is not None:
            _check_pair(trace, session.models.get(key))
    documents = [session.add(document, key) for document in documents]
    start: dict[str, Any] = {}
    if layer is not None or head is not None or view is not None:
        documents[0].layer(layer or 0, head or 0)  # refuses a place that is not there
        start = {"at": "atlas", "layer": layer or 0, "head": head or 0, "view": view or "map"}
    if embed is None:
        embed = sum(embedded_bytes(document, "float32") for document in documents) <= EMBEDDED_BYTES
    docs = [embedded(document) for document in documents] if embed else []
    return _widget_class()(session, start, docs, height, documents[0].trace._repr_html_())


def _check_pair(trace: Trace, alive: Loaded) -> None:
    """A model that did not make the trace would answer for another one."""
    names = alive.model.attention_names
    if not set(trace.names) <= set(names) or trace.layers[0].n_head != alive.model.sizes.n_head:
        ours = f"{', '.join(trace.names[:3])} ... with {trace.layers[0].n_head} heads"
        theirs = f"{', '.join(names[:3])} ... with {alive.model.sizes.n_head}"
        raise ArgumentError(f"the trace is not of {alive.facts.name}: it has {ours}, the model {theirs}.")
    if trace.names != tuple(names) or trace.ids is None or trace.text is None:
        raise ArgumentError("with its model, a trace needs all layers and its text: trace the text itself.")


@cache
def _widget_class() -> Any:
    """The class is made when it is needed: anywidget is an extra."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise UnsupportedError("regard.show needs anywidget: pip install 'regard[notebook]'") from error

    class PageWidget(anywidget.AnyWidget):
        """The page; `session` answers its messages."""

        _esm = bundle()
        live = traitlets.Bool(True).tag(sync=True)
        docs = traitlets.Unicode("[]").tag(sync=True)
        start = traitlets.Unicode("{}").tag(sync=True)
        height = traitlets.Int(720).tag(sync=True)

        def __init__(
            self, session: Session, start: dict[str, Any], docs: list[Any], height: int, fallback: str
        ) -> None:
            self.session = session
            self.answers = Answers(session, self.send)
            self._fallback = fallback
            written = json.dumps(plain(docs), allow_nan=False) if docs else "[]"
            super().__init__(docs=written, start=json.dumps(start), height=height)
            self.on_msg(self.answers.take)

        def _repr_mimebundle_(self, **more: Any) -> Any:
            found = super()._repr_mimebundle_(**more)
            data = found[0] if isinstance(found, tuple) else found
            if isinstance(data, dict):  # where no widget can be, a picture is
                data.setdefault("text/html", self._fallback)
            return found

    return PageWidget


class Answers:
    """Questions of the page as messages, answered by a few threads so that a later one can be taken back.

    A question is {id, name, params} with at most one buffer, an answer {id} with one, or {id, error}.
    {cancel: id} takes a question back.
    """

    def __init__(self, session: Session, send: Any) -> None:
        self.session, self.send = session, send
        self.pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="regard-page")
        self._waiting: dict[str, Future[None]] = {}

    def take(self, widget: object, content: Any, buffers: Sequence[Any]) -> None:
        """One message of the page. What is no question is left alone."""
        match content:
            case {"cancel": key} if str(key) in self._waiting:
                self._waiting[str(key)].cancel()
            case {"id": str(key), "name": str(name), "params": dict(params)}:
                body = bytes(buffers[0]) if buffers else b""
                # The kernel knows by its context which cell an answer belongs to.
                context = contextvars.copy_context()
                future = self.pool.submit(context.run, self._answer, key, name, params, body)
                self._waiting[key] = future
                future.add_done_callback(lambda _: self._waiting.pop(key, None))

    def _answer(self, key: str, name: str, params: dict[str, Any], body: bytes) -> None:
        try:
            answer = self.session.answer(name, params, body)
        except RegardError as error:
            self.send({"id": key, "error": str(error)})
        except Exception as error:  # the page must not wait for ever
            self.send({"id": key, "error": f"this went wrong in the kernel: {type(error).__name__}: {error}"})
        else:
            self.send({"id": key}, [answer])
