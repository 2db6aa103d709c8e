"""`regard heads`, `regard prune` and `regard why`."""

from __future__ import annotations

import math
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from regard.commands.options import (
    AsJson,
    Folder,
    ModelOption,
    NewFile,
    Picture,
    Text,
    Texts,
    command,
    json_asked,
)
from regard.commands.printing import print_table
from regard.drawing.tables import csv_text
from regard.errors import ArgumentError, plural
from regard.lab.texts import TEXTS
from regard.registry import LABELS, MEASURES, OTHER_LABELS, UNLABELLED

if TYPE_CHECKING:
    from regard.heads import Survey

FEW_ROWS = 12  # fewer, and one token decides what a head is called
SORTING = click.Choice(["layer", "label", *MEASURES])


@command
def heads(
    text: Text | None,
    *,
    model: ModelOption = ModelOption("minilm"),
    texts: Texts,
    against: Annotated[Literal["random"] | None, "Compare with the same shape with random weights."],
    sort: Annotated[str, SORTING, "Column to sort the table by."] = "layer",
    top: Annotated[int, click.IntRange(0), "Number of rows to print; 0: all."] = 24,
    out: Picture,
    csv: Annotated[NewFile | None, "Write all heads as CSV; - prints them and nothing else."],
    state: Annotated[NewFile | None, "Save progress in this file, and resume from it."],
) -> AsJson:
    """Show what each head does on TEXT, or on every line of a file, and draw layers x heads by label.

    A head gets a label if its score reaches the threshold and stands out: from uniform attention, from the
    same weights with the keys permuted, and from all heads of the same architecture with random weights. A
    model with random weights gets no label but "like random". Without TEXT a few built-in texts are read.
    TEXT may name a .trace file of any model, which is measured as it is, without the last comparison.
    """
    piped = csv == Path("-")
    if piped and json_asked():
        raise ArgumentError("--csv - and --json both print: give one of them.")
    from regard.heads import RULES, Survey, columns_of, measure, survey
    from regard.heads.labels import share_labelled

    if text is not None and text.endswith(".trace") and Path(text).is_file():
        if texts or against or state or model.random:
            raise ArgumentError("TEXT is a trace: leave out --texts, --against, --state and --random.")
        from regard.tracing.traces import Trace

        saved = Trace.load(text)
        name = str(saved.facts.get("name", Path(text).name))
        surveys = {name: Survey(measure(saved), {}, {}, saved.n_batch, 0)}
    else:
        if text is not None and texts:
            raise ArgumentError("give TEXT or --texts, not both.")
        lines = texts or ([text] if text is not None else list(TEXTS))
        loaded = model.load()
        from regard.files.loading import untrained

        name = loaded.facts.name
        surveys = {name: survey(loaded, lines, state=state)}
        if against is not None:
            surveys["random weights"] = survey(untrained(loaded, model.seed), lines)
    missing_glyphs = out is not None and _draw_labels(surveys, out)
    columns, n_text = columns_of(surveys[name]), surveys[name].n_text
    if csv is not None:
        with click.open_file(str(csv), "w", encoding="utf-8") as file:
            file.write(csv_text(columns))
    if piped:
        return None
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    shares = {of: share_labelled(surveyed.labels()) for of, surveyed in surveys.items()}
    _print_heads(rows, sort, top, n_text)
    labels_shown = [one for one in shares[name] if any(share[one] for share in shares.values())]
    cells = ([one, *(f"{100 * share[one]:.0f} %" for share in shares.values())] for one in labels_shown)
    print_table(["label", *shares], cells, title="Share of heads")
    n_row = int(surveys[name].measures.n_query["entropy"].max())
    if n_row < FEW_ROWS:
        click.echo(f"Only {plural(n_row, 'token')} had a choice where to look: use a longer text.")
    if missing_glyphs:
        click.echo("The picture's font lacks some characters: they are drawn as boxes.")
    for what, path in (("The picture is", out), ("All numbers are", csv)):
        if path is not None:
            click.echo(f"{what} in {path}")
    return {"model": name, "n_text": n_text, "heads": rows, "shares": shares, "rules": RULES, "png": out}


def _draw_labels(surveys: dict[str, Survey], out: Path) -> bool:
    """Write layers x heads by label, a model beside the other; True where the font lacked a character."""
    from regard.drawing.figures import CELL, LARGEST_SIDE, head_grid, new_figure, save_figure
    from regard.heads.labels import grid

    grids = {name: grid(surveyed.labels(), surveyed.measures.layers) for name, surveyed in surveys.items()}
    n_layer, widest = len(next(iter(grids.values()))), max(len(row) for g in grids.values() for row in g)
    cell = min(CELL, LARGEST_SIDE / max(n_layer, widest))
    figure = new_figure(len(grids) * (cell * widest + 2.4), max(cell * n_layer, 2.4) + 1.2)
    axes = figure.subplots(1, len(grids), squeeze=False)[0]
    for ax, (name, cells) in zip(axes, grids.items(), strict=True):
        head_grid(cells, LABELS, title=name, ax=ax)
    return save_figure(figure, out)


def _print_heads(rows: list[dict[str, Any]], sort: str, top: int, n_text: int) -> None:
    """Print the table of heads, with as many measures as fit the terminal."""
    from regard.layers.layer_id import LayerId, layer_labels

    layers = list(dict.fromkeys(row["layer"] for row in rows))  # in their order, whatever the rows' is
    sorted_by = [sort] if sort not in ("layer", "label") else []
    if sort == "label":
        rows = sorted(rows, key=lambda row: (row["label"] in OTHER_LABELS, row["label"]))
    elif sorted_by:
        rows = sorted(rows, key=lambda row: -math.inf if math.isnan(row[sort]) else row[sort], reverse=True)
    shown = rows[: top or None]
    # The column is headed "layer": a number alone says enough.
    labels = layer_labels([LayerId.parse(name) for name in layers])
    names = {name: label.removeprefix("layer ") for name, label in zip(layers, labels, strict=True)}
    interval = ["95 %"] * (n_text > 1)
    room = shutil.get_terminal_size().columns - 46 - max(map(len, names.values())) - 12 * len(interval)
    columns = ["score", "chance", "null", *interval]
    for measure in dict.fromkeys([*sorted_by, *MEASURES]):
        room -= 2 + len(measure)
        columns += [measure] if room >= 0 or measure == sort else []
    cells = []
    for row in shown:
        number = {name: f"{value:.2f}".replace("nan", "-") for name, value in row.items() if name in columns}
        if interval:
            number["95 %"] = "-" if math.isnan(row["low"]) else f"{row['low']:.2f}-{row['high']:.2f}"
        cell = [names[row["layer"]], str(row["head"]), row["label"], *map(number.__getitem__, columns)]
        cells.append([click.style(text, dim=True) for text in cell] if row["label"] in UNLABELLED else cell)
    title = f"What {plural(len(rows), 'head')} do{'es' * (len(rows) == 1)}, on {plural(n_text, 'text')}"
    print_table(["layer", "head", "label", *columns], cells, title=title)
    if len(shown) < len(rows):
        click.echo(f"{plural(len(rows) - len(shown), 'more head')}: --top 0 prints all, --sort orders them.")


@command
def prune(
    *,
    model: ModelOption = ModelOption("smollm2"),
    texts: Texts,
    shares: Annotated[str, "Fractions of heads to remove."] = "0,0.1,0.2,0.3,0.4,0.5",
    out: Picture,
    save: Annotated[Folder | None, "Write a pruned model into this folder, for --model."],
    remove: Annotated[float, click.FloatRange(0, 1), "Fraction of heads removed from the saved model."] = 0.1,
) -> AsJson:
    """Remove more and more heads, the least important first, and plot the loss.

    Importance is estimated from gradients (Michel et al. 2019) on half of the texts; the loss is measured
    on the other half. A random order and the most important first are shown for comparison.
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
    from regard.experiments import importance, prune, pruning_curve, ranked_heads, save_pruned
    from regard.heads.surveys import with_bar

    importances = importance(loaded, lines[0::2])
    orders = ("least first", "random", "most first")
    curve = partial(pruning_curve, loaded, lines[1::2], importances, shares=removed, seed=model.seed)
    losses = {order: curve(order=order).metric for order in with_bar(orders, "pruning")}
    title = f"{loaded.facts.name}: heads removed"
    if out is not None:
        percent = [100 * share for share in removed]
        drawn = {order.replace("first", "important first"): (percent, loss) for order, loss in losses.items()}
        axes = {"x_label": "heads removed, %", "y_label": "loss (nats a token)"}
        save_figure(curves(drawn, title=title, **axes), out)
    if save is not None:
        ranked = ranked_heads(loaded, importances)
        save_pruned(prune(loaded, ranked[: round(remove * len(ranked))]), save)
    columns = ["heads removed", *orders]
    rows = [
        [f"{100 * share:.0f} %", *(f"{loss:.3f}" for loss in row)]
        for share, *row in zip(removed, *losses.values(), strict=True)
    ]
    print_table(columns, rows, title=title)
    click.secho("loss in nats a token; lower is better", dim=True)
    if out is not None:
        click.echo(f"The picture is in {out}")
    if save is not None:
        click.echo(f"A model without {100 * remove:.0f} % of its heads is in {save}")
    data = [{"order": order, "share_removed": removed, "loss": loss} for order, loss in losses.items()]
    return {"model": loaded.facts.name, "curves": data, "importance": importances.tolist(), "png": out}


@command
def why(
    text: Text,
    *,
    model: ModelOption = ModelOption("smollm2"),
    target: Annotated[str | None, "The token to explain, as text; the likeliest if not given."],
    against: Annotated[str | None, "Another token: then the difference of their scores is explained."],
    top: Annotated[int, click.IntRange(1, 100), "How many to show of each kind."] = 5,
    pairs: Annotated[bool, "Switch the strongest heads off in pairs, too."] = False,
    budget: Annotated[float, click.FloatRange(1), "Seconds for each kind; beyond, a part is run."] = 120.0,
    out: Picture,
) -> AsJson:
    """Say which heads, positions and edges moved the token after TEXT, by switching each of them off.

    Every number was run, all heads, positions and edges of the last row as rows of a batch. A question mark
    stands where 19 of 20 parts of the same kind, drawn at random, change as much.
    """
    loaded = model.load()
    from regard.experiments import why as explain

    answer = explain(
        loaded, text, target=target, against=against, top=top, pairs=pairs, budget=budget, seed=model.seed,
        progress=not json_asked(),
    )  # fmt: skip
    if out is not None:
        from regard.drawing.figures import save_figure

        save_figure(answer.figure(), out)
    click.echo(answer.sentence)
    rivals = ", ".join(f"{name!r} {chance:.1%}" for name, chance in answer.likeliest)
    click.echo(f"After {text!r}: {rivals}")
    number = "log-probability" if answer.against is None else f"score over {answer.against!r}"
    rows = [
        [
            finding.kind,
            finding.what,
            f"{100 * finding.probability:.1f} %",
            f"{finding.change:+.3f}{' ?' if finding.beyond_chance is False else ''}",
            "" if finding.direct is None else f"{finding.direct:+.3f}",
            "" if finding.weight is None else f"{finding.weight:.3f}",
        ]
        for finding in answer.findings
    ]
    columns = ("", "switched off", f"{answer.target!r} then", f"{number}, total", "direct", "weight")
    print_table(columns, rows)
    if answer.pairs:
        rows = [
            [" and ".join(pair.heads), f"{pair.change:+.3f}", f"{pair.sum:+.3f}"] for pair in answer.pairs
        ]
        print_table(("heads", "off together", "sum of each alone"), rows)
    for ran in (answer.heads, answer.positions, answer.edges):
        if ran is not None:
            click.secho(f"{ran.run_note} {ran.chance_note}", dim=True)
    click.secho("?: no more than that. direct: everything else kept as it was.", dim=True)
    if answer.note:
        click.echo(f"Not known: {answer.note}")
    if out is not None:
        click.echo(f"The picture is in {out}")
    shown = "model tokens target against score probability likeliest sentence findings pairs note".split()
    every = {
        ran.of: [
            {"part": part, "change": change, "probability": chance}
            for part, change, chance in zip(
                ran.parts, ran.changes.tolist(), ran.probabilities.tolist(), strict=True
            )
        ]
        for ran in (answer.heads, answer.positions, answer.edges)
        if ran is not None
    }
    chance = {ran.of: ran.chance for ran in (answer.heads, answer.positions, answer.edges) if ran is not None}
    return {**{name: getattr(answer, name) for name in shown}, "chance": chance, "all": every, "png": out}
