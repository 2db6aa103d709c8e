"""`regard look`: the page where attention is looked at, or its picture, or shades on the terminal."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.commands import options
from regard.commands.options import Model, NewFile, file_text, model_was_named
from regard.drawing.tables import csv_text
from regard.errors import ArgumentError, LoadError

if TYPE_CHECKING:
    from regard.view.document import Document
    from regard.view.session import Session

SUGGEST = ["tired", "wide"]  # the word of the sentence that decides what "it" is (Levesque et al. 2012)
SENTENCE = "The animal didn't cross the street because it was too tired"
NEEDS_NOTHING = "pocket-gpt"  # what is shown where nothing can be downloaded: it is shipped
FILES = (".trace", ".txt", ".md")  # endings by which TEXT is known to be a file's name
MOST_PRINTED = 1024  # rows and columns that --json prints, and whose heads are measured before they are shown


def _head_pair(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """Layer and head from words such as 3.7."""
    if value is None:
        return None
    layer, _, head = value.partition(".")
    if not (layer.isdecimal() and head.isdecimal()):
        raise ArgumentError(f"--against is LAYER.HEAD, as in 3.7. Got {value!r}.")
    return int(layer), int(head)


def _layers(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int]:
    """Layers from words such as 0,2-4."""
    numbers: set[int] = set()
    try:
        for part in value.split(",") if value is not None else ():
            first, _, last = part.partition("-")
            numbers.update(range(int(first), min(int(last or first), 10**4) + 1))
    except ValueError as error:
        raise ArgumentError(f"--layers must be numbers and ranges, as in 0,2-4. Got {value!r}.") from error
    return sorted(numbers)


@click.command()
@click.argument("text", default=SENTENCE)
@options.model("minilm")
@click.option("--file", type=click.File(encoding="utf-8"), help="Read TEXT from a file; - is standard input.")
@click.option("--target", help="What an encoder-decoder answers; without it the model writes the answer.")
@click.option("--layer", type=click.IntRange(0), help="Which layer to show first.")
@click.option("--head", type=click.IntRange(0), help="Which head to show first.")
@click.option("--view", type=click.Choice(["map", "lines", "text", "heads"]),
              help="Which view to show first, or to draw: a head as map (the usual), lines or text, or all "
              "heads.")  # fmt: skip
@click.option("--query", type=click.IntRange(0), help="The token whose row is shown, counted from 0.")
@click.option("--against", metavar="LAYER.HEAD", callback=_head_pair,
              help="Show the difference from another head.")  # fmt: skip
@click.option("--save", type=NewFile(), help="Write the page as one file, and end.")
@click.option("--png", type=NewFile(), help="Write a PNG of the view, and end.")
@click.option("--svg", type=NewFile(), help="Write an SVG of the view, and end.")
@click.option("--layers", callback=_layers, help="Layers of the saved page, such as 0,2-4. All by default.")
@click.option("--force", is_flag=True, help="Save a page above 200 MB too.")
@click.option("--port", type=click.IntRange(0, 65535), help="Of the local server; another where it is taken.")
@click.option("--no-browser", is_flag=True, help="Print the link and open nothing.")
@click.option("--terminal", is_flag=True, help="Draw one head on the terminal, and end.")
@click.option("--out", type=NewFile(),
              help="Where a picture goes when there is no one to look; the page goes beside it.")  # fmt: skip
@click.option("--csv", type=NewFile(), help="Write the head's weights as CSV, a line a query, and end.")
@options.as_json
def look(text: str, model: Model, as_json: bool, **more: Any) -> None:
    """Open the page of what attention looks at in TEXT, or in the .trace, .txt or .md file that it names.

    The page is served on this machine alone, until Ctrl-C. Where nobody is there to look (no terminal) and no
    --port is named, one head is drawn as text, and --out names the files to write.
    """
    if more["layers"] and not more["save"]:
        raise ArgumentError("--layers chooses what --save writes: give both.")
    path = None if more["file"] is not None else _named_file(text)
    if more["file"] is not None:
        text = more["file"].read()
    elif path is not None and path.suffix != ".trace":
        text = file_text(path)
    if not text.strip():
        raise ArgumentError("TEXT has no words: give at least one, as in: regard look 'the cat sat'.")
    if path is not None and path.suffix == ".trace":
        session, document = _opened(path, more["target"])
        notices = [*document.notices]
    else:
        session, document, notices = _taken(text, model, more["target"], as_json)
    long = document.trace.layers[0].n_query > MOST_PRINTED  # measuring it takes longer than anybody waits
    scenes = [] if long else document.facts()["scenes"]
    layer, head = (scenes[0]["state"][name] for name in ("layer", "head")) if scenes else (0, 0)
    if more["layer"] is not None or more["head"] is not None:
        layer, head = more["layer"] or 0, more["head"] or 0
    _check_choices(document, [(layer, head), *filter(None, [more["against"]])], more["layers"])
    view: dict[str, Any] = {"model": document.model_key, "text": document.text}
    if document.text == SENTENCE:
        view["suggest"] = SUGGEST
    if more["target"]:
        view["target"] = more["target"]
    chosen = any(more[name] is not None for name in ("layer", "head", "view", "query", "against"))
    if chosen or not scenes:  # else the story opens, with what it ranks first
        view |= {"at": "atlas", "layer": layer, "head": head}
        view["view"] = "map" if more["view"] in (None, "heads") else more["view"]  # all heads are beside it
    if more["query"] is not None:
        view |= {"query": more["query"], "chosen": [more["query"]]}
    if more["against"] is not None:
        other = dict(zip(("layer2", "head2"), more["against"], strict=True))
        view |= {"compare": "head", "difference": True, **other}
    if not as_json:
        click.echo("".join(f"{notice}\n" for notice in notices), err=True, nl=False)
    if not (as_json or more["terminal"] or any(more[name] for name in ("save", "csv", "png", "svg"))):
        if more["port"] is not None or not _nobody_looks():
            _serve(session, view, more["port"], more["no_browser"])
            return
        more["terminal"] = True
        if more["out"] is not None:
            more["png"], more["save"] = (more["out"].with_suffix(end) for end in (".png", ".html"))
        else:
            click.echo("Nothing was written. --port serves the page, --save and --png write it.", err=True)
    if more["save"]:
        document = session.for_file(document.id, [*(scene["state"] for scene in scenes), view])
    written = _written(document, layer, head, more, view)
    if as_json:
        click.echo(json.dumps(_as_json(document, layer, head, written)))
        return
    if more["terminal"]:
        _draw(document, layer, head)
    from rich.filesize import decimal

    for what, path in written:
        click.echo(f"The {what} is in {path} ({decimal(path.stat().st_size)})")


def _named_file(text: str) -> Path | None:
    """The file that TEXT names, there or not; None where it is a text."""
    path = Path(text)
    if path.suffix not in FILES or len(text) > 250:
        return None
    return path if path.is_file() or not any(map(str.isspace, text)) else None


def _opened(path: Path, target: str | None) -> tuple[Session, Document]:
    """A trace from its file, which needs no model."""
    from regard.tracing.traces import Trace
    from regard.view.document import documents_of
    from regard.view.session import Session

    if target or model_was_named():
        raise ArgumentError(f"{path} is a trace, of a model and its text: leave out --model and --target.")
    session = Session(default="")
    return session, session.add(replace(documents_of(Trace.load(path))[0], model_key=f"file {path.name}"))


def _taken(text: str, model: Model, target: str | None, quiet: bool) -> tuple[Session, Document, list[str]]:
    """The trace of a text, and what to say of it: as where another model had to read it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from regard.files import hub
    from regard.files.loading import checked_device
    from regard.view.live import Asked, Progress
    from regard.view.models import RANDOM, Models
    from regard.view.session import Session

    models = Models(checked_device(model.device), model.seed)
    key = f"{model.name}{RANDOM}" if model.random else model.name
    notices = []
    try:
        if not model.random and (model.name in hub.MODELS or Path(model.name).exists()):
            models.put(key, model.load())
        models.get(key)
    except LoadError as error:
        if model.random or model_was_named():
            raise
        reason, key = str(error).partition("\n")[0], NEEDS_NOTHING
        notices = [f"{model.name} cannot be had here ({reason}). Shown is {key}, which comes with Regard."]
    session = Session(models, key, text)
    columns = ("reading, layer", MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task("", total=None)
        progress = Progress(lambda done, total: bar.update(task, completed=done, total=total))
        document = session.document(Asked(key, text, target), progress)
    return session, document, [*notices, *document.notices]


def _nobody_looks() -> bool:
    """Whether no person is there: output goes to no terminal, or continuous integration runs."""
    return not sys.stdout.isatty() or bool(os.environ.get("CI"))


def _check_choices(document: Document, heads: list[tuple[int, int]], kept: list[int]) -> None:
    """An error where a head or a layer that was chosen is not there."""
    layers = document.trace.layers
    for layer, head in heads:
        n_head = layers[min(layer, len(layers) - 1)].n_head
        if layer >= len(layers) or head >= n_head:
            raise ArgumentError(
                f"there is no head {head} in layer {layer}: there are {len(layers)} layers, of "
                f"{n_head} heads."
            )
    if kept and not 0 <= kept[0] <= kept[-1] < len(layers):
        raise ArgumentError(f"--layers must lie in 0 to {len(layers) - 1}. Got {kept[0]} to {kept[-1]}.")


def _written(
    document: Document, layer: int, head: int, more: dict[str, Any], view: dict[str, Any]
) -> list[tuple[str, Path]]:
    """Write what was asked for: what each file is, and where."""
    done = []
    if more["save"]:
        from regard.view.page import export

        layers = document.trace.layers
        kept = more["layers"] or list(range(len(layers)))
        trace = replace(document.trace, layers=tuple(layers[index] for index in kept))
        start = {**view, "model": "", "text": ""}
        if "layer" in view:
            start["layer"] = kept.index(layer) if layer in kept else 0
        export([replace(document, trace=trace, _facts=[])], more["save"], start=start, force=more["force"])
        done.append(("page", more["save"]))
    if more["csv"]:
        queries, keys = document.names(layer)
        weights = document.trace.weights(layer, head, document.batch).T.tolist()
        # Tokens come twice: a number makes each column's name its own.
        columns = {f"{index} {key}": weights[index] for index, key in enumerate(keys)}
        more["csv"].write_text(csv_text({"query": list(queries), **columns}), encoding="utf-8")
        done.append(("table", more["csv"]))
    for kind in ("png", "svg"):
        if more[kind]:
            from regard.drawing.figures import save_figure
            from regard.view.picture import figure_of

            figure = figure_of(document, layer, head, more["view"] or "map", more["query"], more["against"])
            save_figure(figure, more[kind], kind)
            done.append(("picture", more[kind]))
    return done


def _draw(document: Document, layer: int, head: int) -> None:
    """One head on the terminal: as many tokens as fit."""
    from rich.console import Console

    from regard.view.picture import LABEL_WIDTH, printable, terminal_heat_map

    console = Console(highlight=False)
    traced = document.trace.layers[layer]
    fits = max(1, (console.width - LABEL_WIDTH - 1) // 2)
    rows, cols = slice(0, min(traced.n_query, fits)), slice(0, min(traced.n_key, fits))
    weights = traced.tile(document.batch, head, rows, cols).float().cpu()
    visible = traced.visible(rows, cols, document.batch, head).cpu()
    title = f"{document.title}, layer {layer}, head {head}: rows look, columns are looked at."
    console.print(title, markup=False)
    console.print(f"“{printable(document.text)}”\n", markup=False, soft_wrap=True)
    row_names, col_names = document.names(layer)
    console.print(terminal_heat_map(weights, visible, row_names[rows], col_names[cols]))
    if max(traced.n_query, traced.n_key) > fits:
        console.print(f"The first {fits} of {max(traced.n_query, traced.n_key)} tokens fit here.")


def _as_json(document: Document, layer: int, head: int, written: list[tuple[str, Path]]) -> dict[str, Any]:
    traced = document.trace.layers[layer]
    if traced.n_query * traced.n_key > MOST_PRINTED**2:
        raise ArgumentError(f"--json prints at most {MOST_PRINTED} x {MOST_PRINTED} weights: shorten TEXT.")
    return {
        "model": document.title,
        "layer": layer,
        "head": head,
        **dict(zip(("rows", "cols"), document.names(layer), strict=True)),
        "weights": traced.tile(document.batch, head, slice(None), slice(None)).tolist(),
        "notices": list(document.notices),
        "files": [str(path) for _, path in written],
    }


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
    address = link(token, opened, view)
    click.echo(f"The page is at {address}\nCtrl-C ends it.")
    if not no_browser and browser_possible():
        webbrowser.open(address)
    serve(session, token, bound, view)
