"""`regard heads`, `regard prune` and `regard why`."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.commands import options
from regard.commands.options import FOLDER, Model, NewFile
from regard.commands.printing import print_table
from regard.drawing.tables import csv_text
from regard.errors import ArgumentError
from regard.lab.texts import TEXTS

if TYPE_CHECKING:
    from regard.heads import HeadLabel, Measures

FEW_ROWS = 12  # fewer, and one token decides what a head is called
SHOWN = {  # measures of the table and their headings, the first as far as the terminal is wide
    "previous": "prev",
    "first": "first",
    "special": "spec",
    "induction": "induct",
    "duplicate": "dupl",
    "retrieval": "retr",
    "streaming": "stream",
    "uniformity": "unif",
    "next": "next",
    "punctuation": "punct",
    "rare": "rare",
}
SORTING = ("layer", "label", "positional", "entropy", "largest", "same", "distance", *SHOWN)


@click.command()
@options.text(required=False)
@options.model("minilm")
@options.texts
@click.option("--against", type=click.Choice(["random"]), help="Beside the same shape with random weights.")
@click.option("--sort", type=click.Choice(SORTING), default="layer", show_default=True,
              help="What the table is sorted by.")  # fmt: skip
@click.option("--top", type=click.IntRange(0), default=24, show_default=True, help="Rows printed; 0: all.")
@options.picture
@click.option("--csv", "csv_path", type=NewFile(allow_dash=True),
              help="Write all heads there; - prints them, and nothing else.")  # fmt: skip
@click.option("--state", type=NewFile(), help="Keep what is done in this file, and go on from it.")
@options.as_json
def heads(
    text: str | None,
    model: Model,
    texts: list[str],
    against: str | None,
    sort: str,
    top: int,
    out: Path | None,
    csv_path: Path | None,
    state: Path | None,
    as_json: bool,
) -> None:
    """Say what each head does on TEXT, or on every line of a file, and draw layers x heads by label.

    A label needs a score that reaches its threshold and lies above what looking everywhere alike
    would give on the same text. Most heads get none. Without TEXT a few built-in ones are read. TEXT may
    name a .trace file, of any model, which is measured as it is.
    """
    piped = csv_path == Path("-")
    if piped and as_json:
        raise ArgumentError("--csv - and --json both print: give one of them.")
    from regard.heads import RULES, columns_of, label, measure, survey
    from regard.heads.labels import share_labelled

    if text is not None and text.endswith(".trace") and Path(text).is_file():
        if texts or against or state or model.random:
            raise ArgumentError(
                "a trace holds its text and what its model saw: it goes without --texts, --against, --state "
                "and --random."
            )
        from regard.tracing.traces import Trace

        saved = Trace.load(text)
        name, n_text = str(saved.facts.get("name", Path(text).name)), saved.n_batch
        measures = {name: measure(saved)}
        labels = {name: label(measures[name])}
    else:
        if text is not None and texts:
            raise ArgumentError("give TEXT or --texts, not both.")
        lines = texts or ([text] if text is not None else list(TEXTS))
        loaded = model.load()
        from regard.files.loading import untrained

        name, n_text = loaded.facts.name, len(lines)
        surveys = {name: survey(loaded, lines, state=state, progress=not as_json)}
        if against is not None:
            surveys["random weights"] = survey(untrained(loaded, model.seed), lines, progress=not as_json)
        measures = {of: surveyed.measures for of, surveyed in surveys.items()}
        labels = {of: surveyed.labels() for of, surveyed in surveys.items()}
    missing_glyphs = out is not None and _draw_labels(measures, labels, out)
    columns = {**columns_of(labels[name]), **columns_of(measures[name])}
    if csv_path is not None:
        with click.open_file(str(csv_path), "w", encoding="utf-8") as file:
            file.write(csv_text(columns))
    if piped:
        return
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    shares = {of: share_labelled(of_model) for of, of_model in labels.items()}
    if as_json:
        rules = [
            {"label": r.label, "measure": r.measure, "threshold": str(r.threshold), "source": r.source}
            for r in RULES
        ]
        numbers = [{key: _json_number(value) for key, value in row.items()} for row in rows]
        whole = {"model": name, "n_text": n_text, "heads": numbers, "shares": shares, "rules": rules}
        click.echo(json.dumps({**whole, "png": out and str(out)}))
        return
    _print_heads(rows, sort, top, n_text)
    labels_shown = [one for one in shares[name] if any(share[one] for share in shares.values())]
    cells = ([one, *(f"{100 * share[one]:.0f} %" for share in shares.values())] for one in labels_shown)
    print_table(["label", *shares], cells, right=shares, title="Share of heads")
    n_row = int(measures[name].n_query["entropy"].max())
    if n_row < FEW_ROWS:
        click.echo(f"Only {n_row} tokens had a choice where to look: a longer text says more.")
    if missing_glyphs:
        click.echo("The picture's font lacks some characters: they are drawn as boxes.")
    for what, path in (("The picture is", out), ("All numbers are", csv_path)):
        if path is not None:
            click.echo(f"{what} in {path}")


@click.command()
@options.model("smollm2")
@options.texts
@click.option("--shares", default="0,0.1,0.2,0.3,0.4,0.5", show_default=True,
              help="Shares of heads to remove.")  # fmt: skip
@options.picture
@click.option("--save", "folder", type=FOLDER, help="Write a pruned model into this folder, for --model.")
@click.option("--remove", type=click.FloatRange(0, 1), default=0.1, show_default=True,
              help="The share of heads that the saved model lacks.")  # fmt: skip
@options.as_json
def prune(
    model: Model,
    texts: list[str],
    shares: str,
    out: Path | None,
    folder: Path | None,
    remove: float,
    as_json: bool,
) -> None:
    """Remove more and more heads, those that matter least first, and draw what that does to the loss.

    Importance is the gradient's (Michel et al. 2019), from half of the texts; the loss is that of
    the other half. Beside it stand a random order and the most important first.
    """
    lines = texts or list(TEXTS)
    if len(lines) < 2:
        raise ArgumentError("two texts at least: one half finds importance, the other the loss.")
    try:
        removed = [float(share) for share in shares.split(",")]
    except ValueError as error:
        raise ArgumentError(f"--shares must be numbers with commas between. Got {shares!r}.") from error
    loaded = model.load()
    from regard.drawing.figures import curves, save_figure
    from regard.heads import importance, prune, pruning_curve, ranked_heads, save_pruned
    from regard.heads.surveys import with_bar

    importances = importance(loaded, lines[0::2])
    orders = ("least first", "random", "most first")
    drawn = [
        pruning_curve(loaded, lines[1::2], importances, order=order, shares=removed, seed=model.seed)
        for order in (orders if as_json else with_bar(orders, "pruning"))
    ]
    title = f"{loaded.facts.name}: heads removed"
    if out is not None:
        percent = [100 * share for share in removed]
        named = {c.order.replace("first", "important first"): (percent, c.metric) for c in drawn}
        labels = {"x_label": "heads removed, %", "y_label": "loss (nats a token)"}
        save_figure(curves(named, title=title, **labels), out)
    if folder is not None:
        ranked = ranked_heads(loaded, importances)
        save_pruned(prune(loaded, ranked[: round(remove * len(ranked))]), folder)
    if as_json:
        as_data = [{"order": c.order, "share_removed": c.share_removed, "loss": c.metric} for c in drawn]
        whole = {"model": loaded.facts.name, "curves": as_data, "importance": importances.tolist()}
        click.echo(json.dumps({**whole, "png": out and str(out)}))
        return
    columns = ["heads removed", *orders]
    losses = zip(*(curve.metric for curve in drawn), strict=True)
    rows = [
        [f"{100 * share:.0f} %", *(f"{loss:.3f}" for loss in row)]
        for share, row in zip(removed, losses, strict=True)
    ]
    print_table(columns, rows, right=columns, title=title)
    click.secho("loss in nats a token; lower is better", dim=True)
    if out is not None:
        click.echo(f"The picture is in {out}")
    if folder is not None:
        click.echo(f"A model without {100 * remove:.0f} % of its heads is in {folder}")


def _json_number(value: Any) -> Any:
    """NaN, which JSON has not, as null."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _draw_labels(measures: dict[str, Measures], labels: dict[str, list[HeadLabel]], out: Path) -> bool:
    """Write layers x heads by label, a model beside the other; True where the font lacked a character."""
    from regard.drawing.figures import CELL, LARGEST_SIDE, head_grid, new_figure, save_figure
    from regard.heads.labels import LABELS, grid

    grids = {name: grid(labels[name], measures[name].layers) for name in measures}
    n_layer, widest = len(next(iter(grids.values()))), max(len(row) for g in grids.values() for row in g)
    cell = min(CELL, LARGEST_SIDE / max(n_layer, widest))
    figure = new_figure(len(grids) * (cell * widest + 2.4), max(cell * n_layer, 2.4) + 1.2)
    axes = figure.subplots(1, len(grids), squeeze=False)[0]
    for ax, (name, cells) in zip(axes, grids.items(), strict=True):
        head_grid(cells, LABELS, title=name, ax=ax)
    return save_figure(figure, out)


def _print_heads(rows: list[dict[str, Any]], sort: str, top: int, n_text: int) -> None:
    """The table of heads, with as many measures as the terminal has room for."""
    measure = [] if sort in ("layer", "label") else [sort]
    if sort == "label":
        rows = sorted(rows, key=lambda row: (row["label"] in ("none", "mixed"), row["label"]))
    elif measure:
        rows = sorted(rows, key=lambda row: -math.inf if math.isnan(row[sort]) else row[sort], reverse=True)
    shown = rows[: top or None]
    names = _layer_names({row["layer"] for row in rows})
    interval = ["95 %"] * (n_text > 1)
    room = shutil.get_terminal_size().columns - 40 - max(map(len, names.values())) - 12 * len(interval)
    columns = list(dict.fromkeys([*measure, *SHOWN]))[: max(1, room // 9)]
    cells = []
    for row in shown:
        number = {name: "-" if value != value else f"{value:.2f}" for name, value in row.items()
                  if isinstance(value, float)}  # fmt: skip
        number["95 %"] = f"{number['low']}-{number['high']}" if number["low"] != "-" else "-"
        cell = [names[row["layer"]], str(row["head"]), row["label"]]
        cell += [number[column] for column in ("score", "chance", *interval, *columns)]
        cells.append([click.style(text, dim=True) for text in cell] if row["label"] == "none" else cell)
    numbers = ["score", "chance", *interval, *(SHOWN.get(name, name) for name in columns)]
    title = f"What {len(rows)} heads do, on {n_text} text{'s' if n_text > 1 else ''}"
    print_table(["layer", "head", "label", *numbers], cells, right=["head", *numbers], title=title)
    if len(shown) < len(rows):
        click.echo(f"{len(rows) - len(shown)} more heads: --top 0 prints all, --sort chooses the first.")


def _layer_names(layers: set[str]) -> dict[str, str]:
    """Layers by their numbers where all are of one kind and side, else by their names."""
    numbers = {name: [part for part in name.split(".") if part.isdigit()] for name in layers}
    kinds = {tuple(part for part in name.split(".") if not part.isdigit()) for name in layers}
    one_kind = len(kinds) == 1
    return {name: parts[0] if one_kind and len(parts) == 1 else name for name, parts in numbers.items()}


@click.command()
@options.text()
@options.model("smollm2")
@click.option("--target", help="The token to explain, as text; the likeliest if not said.")
@click.option("--against", help="Another token: then the difference of their scores is explained.")
@click.option("--top", type=click.IntRange(1, 100), default=5, show_default=True, help="Of each kind.")
@options.picture
@options.as_json
def why(
    text: str,
    model: Model,
    target: str | None,
    against: str | None,
    top: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Say which heads, edges and positions moved the token after TEXT, by switching them off.

    Candidates come from one backward pass and from what heads write toward the token. Each is then
    switched off, and so are some at random: what changes the answer no more than those means
    nothing.
    """
    loaded = model.load()
    from regard.experiments import why as explain

    answer = explain(loaded, text, target=target, against=against, top=top, seed=model.seed)
    if out is not None:
        from regard.drawing.figures import save_figure

        save_figure(answer.figure(), out)
    if as_json:
        whole = {part.name: _json_number(getattr(answer, part.name)) for part in fields(answer)}
        del whole["heads"], whole["layers"]  # the picture's
        whole |= {"findings": [asdict(finding) for finding in answer.findings], "png": out and str(out)}
        click.echo(json.dumps(whole))
        return
    rivals = ", ".join(f"{name!r} {chance:.1%}" for name, chance in answer.likeliest)
    click.echo(f"After {text!r}: {rivals}")
    number = "log-probability" if answer.against is None else f"score over {answer.against!r}"
    click.echo(
        f"Explained: {answer.target!r}, {number} {answer.score:.3f}. What changes it when switched off:"
    )
    rows = [
        [
            finding.kind,
            finding.what,
            "" if finding.weight is None else f"{finding.weight:.3f}",
            "" if finding.written is None else f"{finding.written:+.3f}",
            f"{finding.estimated:+.3f}",
            f"{finding.ran:+.3f}{'' if finding.beyond_chance else ' ?'}",
        ]
        for finding in answer.findings
    ]
    numbers = ("weight", "written", "estimated", "ran")
    print_table(("", "switched off", *numbers), rows, right=numbers)
    levels = ", ".join(f"{kind} {value:.3f}" for kind, value in answer.chance.items())
    click.echo(f"?: no more than parts drawn at random change it (19 of 20 change less than: {levels}).")
    click.echo(f"Estimates and runs agree by rank: {answer.agreement:.2f}. Estimates are of first order.")
    if answer.note:
        click.echo(f"Not known: {answer.note}")
    if out is not None:
        click.echo(f"The picture is in {out}")
