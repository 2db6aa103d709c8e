"""`regard look`: the page where attention is looked at, or its picture, or shades on the terminal."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import click

from regard.commands.options import (
    AsJson,
    ModelOption,
    NewFile,
    command,
    file_text,
    json_asked,
    model_was_named,
)
from regard.drawing.tables import csv_text
from regard.errors import ArgumentError, LoadError

if TYPE_CHECKING:
    from regard.view.document import Document
    from regard.view.session import Session

SUGGEST = ["tired", "wide"]  # the word of the sentence that decides what "it" is (Levesque et al. 2012)
SENTENCE = "The animal didn't cross the street because it was too tired"
LISTENS = "whisper-tiny"  # what hears a sound where no model is named
CLIP = Path(__file__).parents[1] / "files" / "pocket" / "speech.wav"  # made with espeak-ng
NEEDS_NOTHING = "pocket-gpt"  # what is shown where nothing can be downloaded: it is shipped
FILES = (".trace", ".txt", ".md", ".wav", ".WAV")  # endings by which TEXT is known to be a file's name
MOST_PRINTED = 1024  # rows and columns that --json prints, and whose heads are measured before they are shown


def _head_pair(value: str) -> tuple[int, int]:
    """Return layer and head from words such as 3.7."""
    layer, _, head = value.partition(".")
    if not (layer.isdecimal() and head.isdecimal()):
        raise ArgumentError(f"--against is LAYER.HEAD, as in 3.7. Got {value!r}.")
    return int(layer), int(head)


def _layers(value: str) -> list[int]:
    """Return layers from words such as 0,2-4."""
    numbers: set[int] = set()
    try:
        for part in value.split(","):
            first, _, last = part.partition("-")
            numbers.update(range(int(first), min(int(last or first), 10**4) + 1))
    except ValueError as error:
        raise ArgumentError(f"--layers must be numbers and ranges, as in 0,2-4. Got {value!r}.") from error
    return sorted(numbers)


def _span(value: str) -> slice:
    """Positions from words such as 3:17: from the first to before the second."""
    first, _, last = value.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise ArgumentError(f"a part of the map is FIRST:END, as in 3:17. Got {value!r}.")
    return slice(int(first), int(last))


Span = Annotated[slice, click.STRING, _span, "FIRST:END"]
HeadPair = Annotated[tuple[int, int], click.STRING, _head_pair, "LAYER.HEAD"]
Number = Annotated[int | None, click.IntRange(0)]


@dataclass(frozen=True)
class LookOptions:
    """What is to be shown, and where to."""

    layer: Annotated[Number, "Which layer to show first."]
    head: Annotated[Number, "Which head to show first."]
    view: Annotated[
        Literal["map", "lines", "text", "heads"] | None,
        "Which view to show first or to draw: one head as a map (default), lines or text, or all heads.",
    ]
    query: Annotated[Number, "The token whose row is shown, counted from 0."]
    against: Annotated[HeadPair | None, "Show the difference from another head."]
    rows: Annotated[Span | None, "Draw only these queries of the map."]
    cols: Annotated[Span | None, "Draw only these keys of the map."]
    scale: Annotated[
        Literal["linear", "sqrt", "log"] | None,
        "How colours of a drawn map follow the weights. Default: linear.",
    ]
    save: Annotated[NewFile | None, "Write the page as one file, and exit."]
    png: Annotated[NewFile | None, "Write a picture of the view as PNG, and exit."]
    svg: Annotated[NewFile | None, "Write an SVG of the view, and exit."]
    pdf: Annotated[NewFile | None, "Write a PDF of the view, and exit."]
    layers: Annotated[
        list[int] | None, click.STRING, _layers, "Layers of the saved page, such as 0,2-4. All by default."
    ]
    force: Annotated[bool, "Save the page even if it is larger than 200 MB."]
    port: Annotated[
        int | None, click.IntRange(0, 65535), "Port of the local server; another one if it is taken."
    ]
    no_browser: Annotated[bool, "Print the link instead of opening a browser."]
    terminal: Annotated[bool, "Draw one head in the terminal, and exit."]
    out: Annotated[NewFile | None, "Without a terminal: write the picture there, and the page beside it."]
    csv: Annotated[NewFile | None, "Write the head's weights as CSV, one line per query, and exit."]


@command
def look(
    text: str = SENTENCE,
    *,
    model: ModelOption = ModelOption("minilm"),
    file: Annotated[TextIO | None, click.File(encoding="utf-8"), "Read TEXT from a file; -: standard input."],
    target: Annotated[str | None, "The answer of an encoder-decoder; by default the model writes it."],
    asked: LookOptions,
) -> AsJson:
    """Open the page of what attention looks at in TEXT, or in the .trace, .txt, .md or .wav file it names.

    A .wav file of speech is heard by whisper-tiny, or another Whisper: the map shows when in the sound each
    written word looks, in the head that follows the sound best.

    The page is served on this machine only, until Ctrl-C. Without a terminal and without --port, one head is
    drawn as text, and --out names the files to write.
    """
    if asked.layers and not asked.save:
        raise ArgumentError("--layers chooses what --save writes: give both.")
    if model.name == LISTENS and text == SENTENCE and file is None:
        text = str(CLIP)
    path = Path(text)
    is_file = file is None and path.suffix in FILES and len(text) <= 250
    is_file = is_file and (path.is_file() or not any(map(str.isspace, text)))
    saved = is_file and path.suffix == ".trace"
    is_sound = is_file and path.suffix.lower() == ".wav"
    if file is not None:
        text = file.read()
    elif is_file and not saved and not is_sound:
        text = file_text(path)
    if not text.strip():
        raise ArgumentError("TEXT has no words: give at least one, as in: regard look 'the cat sat'.")
    as_json = json_asked()
    if is_sound:
        session, document, best = _heard(path, model, target)
    else:
        session, document = _opened(text, target) if saved else _taken(text, model, target)
    long = document.trace.layers[0].n_query > MOST_PRINTED  # measuring it takes longer than anybody waits
    scenes = [] if long else document.facts()["scenes"]
    layer, head = (scenes[0]["state"][name] for name in ("layer", "head")) if scenes else (0, 0)
    if is_sound:
        layer, head = best
    if asked.layer is not None or asked.head is not None:
        layer, head = asked.layer or 0, asked.head or 0
    for choice in filter(None, [(layer, head), asked.against]):
        document.layer(*choice)  # which says that it is not there
    kept, n_layer = asked.layers or [0], len(document.trace.layers)
    if not 0 <= kept[0] <= kept[-1] < n_layer:
        raise ArgumentError(f"--layers must lie in 0 to {n_layer - 1}. Got {kept[0]} to {kept[-1]}.")
    view: dict[str, Any] = {"model": document.model_key, "text": document.text}
    view |= {"suggest": SUGGEST} if document.text == SENTENCE else {}
    view |= {"target": target} if target else {}
    choices = (asked.layer, asked.head, asked.view, asked.query, asked.against)
    if any(choice is not None for choice in choices) or not scenes:  # else the story opens, with its first
        view |= {"at": "atlas", "layer": layer, "head": head}
        view["view"] = "map" if asked.view in (None, "heads") else asked.view  # all heads are beside it
    if asked.query is not None:
        view |= {"query": asked.query, "chosen": [asked.query]}
    if asked.against is not None:
        view |= {"compare": "head", "difference": True, "layer2": asked.against[0], "head2": asked.against[1]}
    click.echo("".join(f"{notice}\n" for notice in document.notices), err=True, nl=False)
    if not (as_json or asked.terminal or asked.save or asked.csv or asked.png or asked.svg or asked.pdf):
        # Nobody looks where output goes to no terminal, or continuous integration runs.
        if asked.port is not None or (sys.stdout.isatty() and not os.environ.get("CI")):
            _serve(session, view, asked.port, asked.no_browser)
            return None
        asked = replace(asked, terminal=not is_sound)  # a sound has more positions than a line has places
        if asked.out is not None:
            asked = replace(asked, png=asked.out.with_suffix(".png"), save=asked.out.with_suffix(".html"))
        else:
            click.echo("Nothing was written. --port serves the page, --save and --png write it.", err=True)
    if asked.save:
        document = session.for_file(document.id, [*(scene["state"] for scene in scenes), view])
    written = _written(document, layer, head, asked, view)
    if as_json:
        traced = document.trace.layers[layer]
        if traced.n_query * traced.n_key > MOST_PRINTED**2:
            raise ArgumentError(f"--json prints at most {MOST_PRINTED**2} weights: shorten TEXT.")
        rows, cols = document.names(layer)
        weights = traced.tile(head, slice(None), slice(None), batch=document.batch).tolist()
        shown = {"model": document.title, "layer": layer, "head": head, "rows": rows, "cols": cols}
        return {**shown, "weights": weights, "notices": document.notices, "files": [at for _, at in written]}
    if asked.terminal:
        _draw(document, layer, head)
    from rich.filesize import decimal

    for what, at in written:
        click.echo(f"The {what} is in {at} ({decimal(at.stat().st_size)})")
    return None


def _opened(path: str, target: str | None) -> tuple[Session, Document]:
    """Open a trace from its file, which needs no model."""
    from regard.tracing.traces import Trace
    from regard.view.document import documents_of
    from regard.view.session import Session

    if target or model_was_named():
        raise ArgumentError(f"{path} is a trace, of a model and its text: leave out --model and --target.")
    document, session = documents_of(Trace.load(path))[0], Session(default="")
    return session, session.add(replace(document, model_key=f"file {Path(path).name}"))


def _heard(path: Path, model: ModelOption, target: str | None) -> tuple[Session, Document, tuple[int, int]]:
    """Trace a sound; print what is heard, and when, by the head that follows it best."""
    chosen = model if model_was_named() else replace(model, name=LISTENS)
    loaded = chosen.load()
    from regard.heads.alignment import aligned_heads, monotonic_path
    from regard.tracing.sounds import takes_sound
    from regard.tracing.take import trace
    from regard.view.document import documents_of
    from regard.view.session import Session

    if not takes_sound(getattr(loaded.model, "inner", loaded.model)):
        raise ArgumentError(f"{chosen.name} does not listen: a .wav file needs a Whisper, such as {LISTENS}.")
    heard = trace(loaded, path, target=target)
    assert heard.timeline is not None
    tokens, n_sound = heard.tokens[0], heard.timeline.n_sound
    first = next(at for at, token in enumerate(tokens) if not token.startswith("<|"))
    best = aligned_heads(heard, first_query=first - 1, n_key=n_sound)[0]
    if best.score > best.chance:
        number = f"{best.score:.2f}, {best.chance:.2f} by chance"
        click.echo(f"Layer {best.layer}, head {best.head} follows the sound best (mean weight {number}):")
        weights = heard.weights(best.layer, best.head).float()[first - 1 :, :n_sound]
        times = monotonic_path(weights)[: len(tokens) - first] * heard.timeline.seconds
        words = zip(times.tolist(), tokens[first:], strict=True)
        click.echo(" | ".join(f"{time:.2f} {word.strip()}" for time, word in words))
    else:
        click.echo("No head follows the sound better than chance.")
    document, session = documents_of(heard)[0], Session(default="")
    return session, session.add(replace(document, model_key=f"sound {path.name}")), (best.layer, best.head)


def _taken(text: str, model: ModelOption, target: str | None) -> tuple[Session, Document]:
    """Trace a text; if the model is not available, use another one and say so."""
    from rich import progress as bars
    from rich.console import Console

    from regard.files.loading import checked_device
    from regard.view.models import RANDOM, Models
    from regard.view.run import RunProgress, RunRequest
    from regard.view.session import Session

    models = Models(checked_device(model.device), model.seed)
    key = f"{model.name}{RANDOM}" if model.random else model.name
    try:
        if not model.random:
            models.put(key, model.load())
        models.get(key)
    except LoadError as error:
        if model.random or model_was_named():
            raise
        reason, key = str(error).partition("\n")[0], NEEDS_NOTHING
        notice = f"{model.name} is not available here ({reason}). Showing {key}, which comes with Regard."
        click.echo(notice, err=True)
    session = Session(models, key, text)
    columns = ("reading, layer", bars.MofNCompleteColumn(), bars.BarColumn(), bars.TimeElapsedColumn())
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        progress = RunProgress(lambda done, total: bar.update(task, completed=done, total=total))
        return session, session.document(RunRequest(key, text, target), progress)


def _written(
    document: Document, layer: int, head: int, asked: LookOptions, view: dict[str, Any]
) -> list[tuple[str, Path]]:
    """Write what was asked for: what each file is, and where."""
    done = []
    if asked.save:
        from regard.view.page import export

        layers = document.trace.layers
        kept = asked.layers or list(range(len(layers)))
        trace = replace(document.trace, layers=tuple(layers[index] for index in kept))
        start = {**view, "model": "", "text": ""}
        if "layer" in view:
            start["layer"] = kept.index(layer) if layer in kept else 0
        export([replace(document, trace=trace, _facts=[])], asked.save, start=start, force=asked.force)
        done.append(("page", asked.save))
    if asked.csv:
        queries, keys = document.names(layer)
        weights = document.trace.weights(layer, head, document.batch).T.tolist()
        # Tokens come twice: a number makes each column's name its own.
        columns = {f"{index} {key}": weights[index] for index, key in enumerate(keys)}
        asked.csv.write_text(csv_text({"query": list(queries), **columns}), encoding="utf-8")
        done.append(("table", asked.csv))
    for kind, path in (("png", asked.png), ("svg", asked.svg), ("pdf", asked.pdf)):
        if path is not None:
            from regard.drawing.figures import save_figure
            from regard.view.picture import figure_of

            view_name, scale = asked.view or "map", asked.scale or "linear"
            figure = figure_of(
                document,
                layer,
                head,
                view_name,
                asked.query,
                asked.against,
                rows=asked.rows,
                cols=asked.cols,
                scale=scale,
            )
            if save_figure(figure, path, kind):
                click.echo("The picture's font lacks some characters: they are drawn as boxes.", err=True)
            done.append(("picture", path))
    return done


def _draw(document: Document, layer: int, head: int) -> None:
    """Draw one head on the terminal: as many tokens as fit."""
    from rich.console import Console

    from regard.view.picture import LABEL_WIDTH, printable, terminal_heat_map

    console = Console(highlight=False)
    traced = document.trace.layers[layer]
    fits = max(1, (console.width - LABEL_WIDTH - 1) // 2)
    rows, cols = slice(0, min(traced.n_query, fits)), slice(0, min(traced.n_key, fits))
    weights = traced.tile(head, rows, cols, batch=document.batch).float().cpu()
    visible = traced.visible(head, rows, cols, batch=document.batch).cpu()
    title = f"{document.title}, layer {layer}, head {head}: rows look, columns are looked at."
    console.print(title, markup=False)
    console.print(f"“{printable(document.text)}”\n", markup=False, soft_wrap=True)
    row_names, col_names = document.names(layer)
    console.print(terminal_heat_map(weights, visible, row_names[rows], col_names[cols]))
    if (most := max(traced.n_query, traced.n_key)) > fits:
        console.print(f"The first {fits} of {most} tokens fit here.")


def _serve(session: Session, view: dict[str, Any], port: int | None, no_browser: bool) -> None:
    """Serve the page until Ctrl-C, and open it where there is a display."""
    import webbrowser

    from regard.view.server import PORT, browser_possible, link, listen, make_token, serve

    wanted = PORT if port is None else port
    bound = listen(wanted)
    opened = int(bound.getsockname()[1])
    if wanted not in (0, opened):
        click.echo(f"Port {wanted} is taken: the page is at port {opened}.", err=True)
    token = make_token()
    view = session.address(view)  # in which a long text is named, not spelled out
    address = link(token, opened, view)
    click.echo(f"The page is at {address}\nCtrl-C ends it.")
    if not no_browser and browser_possible():
        webbrowser.open(address)
    serve(session, token, bound, view)
