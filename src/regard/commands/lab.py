"""`regard cost` and `regard lab`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from regard.commands.options import AsJson, Folder, Picture, Seed, command, offer_download
from regard.commands.printing import print_table
from regard.errors import ArgumentError, LoadError, UnsupportedError

if TYPE_CHECKING:
    from regard.costs.count import Counted
    from regard.costs.model import Cost, Latent, Phase
    from regard.costs.roofline import Machine
    from regard.models.transformer import TransformerConfig

PHASES: dict[Phase, str] = {
    "train": "a step",
    "prefill": "the whole context",
    "decode": "one token at the end of the context",
}
COLUMNS = {
    "operations": "operations",
    "bytes": "bytes",
    "intensity": "ops/byte",
    "seconds_at_least": "time ≥",
}


@command
def cost(
    *,
    model: Annotated[str, "A family's or a model's name, a folder or a file."] = "smollm2",
    revision: Annotated[str | None, "Branch, tag or commit of a model of the Hugging Face Hub."],
    yes: Annotated[bool, "Download without asking."],
    context: Annotated[int, click.IntRange(1), "Tokens in all."] = 2048,
    batch: Annotated[int, click.IntRange(1), "Sequences at once."] = 1,
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32",
    fused: Annotated[bool, "Scores stay in the kernel, as flash attention has it."],
    formulas: Annotated[bool, "Print each operation's formulas."],
    out: Picture,
    seconds: Annotated[float, click.FloatRange(0.01), "For each of two measurements of this machine."] = 1.0,
    device: Annotated[str, "The device that is measured."] = "cpu",
) -> AsJson:
    """Say what a model costs: operations, bytes, cache and what each operation waits for on this machine.

    Decoding is the step that fills the context. What would other numbers of key heads cost, or
    multi-head latent attention? The last table says. A folder that only transformers knows is counted, from
    its config.json alone.
    """
    subject = _subject(model, revision, yes)
    import torch

    from regard.costs import cost as cost_of
    from regard.costs import leading, roofline, what_if
    from regard.costs.count import Counted
    from regard.drawing.figures import save_figure
    from regard.files.loading import checked_device

    if isinstance(subject, Counted) and (fused or formulas):
        raise ArgumentError(f"{model} is counted as its code runs: it goes without --fused and --formulas.")
    number = getattr(torch, dtype)
    machine = roofline.measure_machine(number, checked_device(device), seconds=seconds)

    def costed(subject: Counted | TransformerConfig, phase: Phase, latent: Latent | None = None) -> Cost:
        length = context - 1 if phase == "decode" else context
        if isinstance(subject, Counted):
            return subject.cost(phase, batch=batch, length=length, dtype=number)
        return cost_of(subject, phase, batch=batch, length=length, dtype=number, latent=latent, fused=fused)

    costs: dict[Phase, Cost] = {}
    notes = []
    for phase in PHASES:
        try:
            costs[phase] = costed(subject, phase)
        except UnsupportedError as error:  # an encoder has no decoding step
            notes.append(f"{phase}: {error}")
    if not costs:
        raise UnsupportedError("; ".join(notes))
    phases = {phase: _figures(whole, machine) for phase, whole in costs.items()}
    changed = {} if isinstance(subject, Counted) or subject.kind != "decoder" else what_if(subject)
    others = {name: _figures(costed(to, "decode", latent), machine) for name, (to, latent) in changed.items()}
    for figures in others.values():
        del figures["rows"]
    threads = f"{machine.n_thread} thread{'' if machine.n_thread == 1 else 's'}"
    if out is not None:
        drawn = [costs[phase] for phase in reversed(PHASES) if phase in costs and phase != "train"]
        title = f"{model}: batch {batch}, context {context}, {dtype}, {threads}"
        save_figure(roofline.roofline_figure(drawn, machine, title=title), out)
    first, short = next(iter(phases.values())), roofline.short_number
    size = f"{short(first['parameters'])} parameters, {short(first['weight_bytes'], 'B')}"
    click.echo(f"{model}: {size}; batch {batch}, context {context}")
    click.echo(
        f"This machine: {short(machine.peak)} operations/s, {short(machine.bandwidth, 'B/s')} read, "
        f"{threads}; below {machine.ridge:.1f} operations a byte an operation waits for memory."
    )
    for phase, figures in phases.items():
        rows = figures["rows"]
        slowest = max(rows, key=lambda row: row["seconds_at_least"])
        rows = [*rows, {**figures, "name": "all", "waits_for": f"most: {slowest['name']}"}]
        columns = {"name": "operation", **COLUMNS, "waits_for": "waits for"}
        cells = [[_shown(key, row[key]) for key in columns] for row in rows]
        print_table(columns.values(), cells, title=f"{phase}: {PHASES[phase]}", total=True)
        for row in figures["rows"] if formulas else ():
            moved = f"numbers moved {row['numbers_formula']}"
            click.echo(f"  {row['name']}: operations {row['operations_formula']}; {moved}")
    for note in notes:
        click.echo(note)
    if others:
        columns = {"cache_bytes": "cache", "parameters": "parameters", **COLUMNS}
        cells = [[name, *(_shown(key, step[key]) for key in columns)] for name, step in others.items()]
        title = "What if: one decoding step with other attention"
        print_table(("", *columns.values()), cells, title=title)
        for kind in ("multi-head", "grouped", "multi-query"):
            work, moved = leading(kind, "operations"), leading(kind, "bytes")
            click.echo(f"{kind}: O({work}) operations, O({moved}) numbers moved by an attention layer")
        click.echo("b batch, n cached tokens, d model_dim, h heads, g key heads; b n h are the scores.")
    if out is not None:
        click.echo(f"The picture is in {out}")
    about = asdict(machine)
    about["threads"] = about.pop("n_thread")
    whole = {"model": model, "machine": about, "phases": phases, "what_if": others, "notes": notes}
    return {**whole, "png": out}


def _subject(model: str, revision: str | None, yes: bool) -> TransformerConfig | Counted:
    """Return the config of a name, a folder or a file; what is not one of ours, to be counted."""
    from regard.models.families import FAMILIES

    for family in FAMILIES.values():
        if model in family.sizes and not Path(model).exists():
            return family.config(family.sizes[model])
    from regard.costs.count import Counted
    from regard.costs.model import check_alike
    from regard.files import hugging_face
    from regard.files.loading import foreign_config, load
    from regard.models.transformer import TransformerConfig

    offer_download(model, revision, yes=yes)
    if not Path(model).exists() and hugging_face.repository(model) is not None:
        model = str(hugging_face.get(model, revision))
    if foreign_config(Path(model)) is not None:
        return Counted(Path(model))
    try:
        config = load(model).model.config
        if isinstance(config, TransformerConfig):
            check_alike(config)
    except (LoadError, UnsupportedError):  # without weights, or with something that only transformers has
        if not (Path(model) / "config.json").is_file():
            raise
        return Counted(Path(model))
    if not isinstance(config, TransformerConfig):
        raise ArgumentError(f"{model} is not a Transformer: its cost is not known by formula.")
    return config


def _figures(whole: Cost, machine: Machine) -> dict[str, Any]:
    """Return what a step costs in all, and each operation of it."""
    from regard.costs.roofline import placed

    rows = [
        {
            "name": operation.row.name,
            "operations": operation.row.n_operation,
            "operations_formula": str(operation.row.operations),
            "bytes": operation.row.n_byte,
            "numbers_formula": str(operation.row.moved),
            "intensity": operation.row.intensity,
            "seconds_at_least": operation.seconds,
            "waits_for": operation.waits_for,
        }
        for operation in placed(whole, machine)
    ]
    names = ("operations", "bytes", "intensity", "cache_bytes", "weight_bytes")
    totals = {name: getattr(whole, name) for name in names}
    seconds = sum(operation.seconds for operation in placed(whole, machine))
    return {**totals, "parameters": whole.n_parameter, "seconds_at_least": seconds, "rows": rows}


def _shown(key: str, value: Any) -> str:
    """Return a number of a cost, in a unit in which it is short; words as they are."""
    from regard.costs.roofline import short_number

    if isinstance(value, str):
        return value
    if key == "intensity":
        return f"{value:.3g}"
    if key != "seconds_at_least":
        return short_number(value, "B" if key.endswith("bytes") else "")
    for factor, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value * 1e6:.3g} us"


@command
def lab(
    name: str | None,
    *,
    every: Annotated[bool, "--all", "Run every experiment, and make one report."],
    quick: Annotated[bool, "A smaller run, of seconds."],
    seed: Seed = 0,
    out: Annotated[Folder | None, "Write the page, with its figure, and the JSON into this folder."],
) -> AsJson:
    """Run the experiment NAME: prediction, measurement, figure and verdict. Without NAME, list them."""
    from regard.lab.catalogue import EXPERIMENTS, find

    if name is not None and every:
        raise ArgumentError(f"give NAME or --all, not both. Got {name!r} and --all.")
    if name is None and not every:
        rows = [(str(number), *item) for number, item in enumerate(EXPERIMENTS.items(), 1)]
        print_table(("", "experiment", "claim"), rows)
        click.echo("\nregard lab variance runs one, regard lab --all all of them; --quick takes seconds.")
        return EXPERIMENTS
    chosen = [find(id) for id in (EXPERIMENTS if name is None else [name])]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    from rich.console import Console

    from regard.lab.pages import MARKS, count_verdicts, report
    from regard.lab.spec import perform

    done = []
    for experiment in chosen:
        with Console(stderr=True).status(f"{experiment.id}: {experiment.claim}"):
            done.append(perform(experiment, quick=quick, seed=seed))
        click.echo(f"{experiment.id}. {done[-1].sentence}")
    results = [run.as_json() for run in done]
    whole = {"experiments": results} if every else results[0]
    files: dict[str, Path] = {}
    if out is not None:
        stem = "report" if every else chosen[0].id.replace(" ", "-")
        files = {kind: out / f"{stem}.{kind}" for kind in ("html", "json")}
        files["html"].write_text(report(done), encoding="utf-8")
        files["json"].write_text(json.dumps(whole, indent=2), encoding="utf-8")
    if every:
        click.echo(count_verdicts(done))
    else:
        for check in done[0].checks:
            click.echo(f"  {MARKS[check.outcome]} {check.what}: {check.measured} ({check.rule})")
    if out is None:
        click.echo("--out FOLDER writes the report, with its figures.")
    else:
        click.echo(f"The report is in {files['html']}, its numbers in {files['json']}")
    return {**whole, **files}
