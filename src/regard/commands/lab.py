"""`regard cost` and `regard lab`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.commands.options import json_option, picture_option
from regard.commands.printing import print_table
from regard.errors import ArgumentError

if TYPE_CHECKING:
    from regard.costs.model import Cost, Latent, Phase
    from regard.costs.roofline import Machine
    from regard.lab.spec import Done
    from regard.models.transformer import TransformerConfig

DTYPES = ("float32", "bfloat16", "float16", "float64")


@click.command()
@click.option(
    "--model", default="smollm2", show_default=True, help="A family's name, or a folder or file of a model."
)
@click.option("--context", type=click.IntRange(1), default=2048, show_default=True, help="Tokens in all.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Sequences at once.")
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@click.option("--fused", is_flag=True, help="Scores stay in the kernel, as flash attention has it.")
@click.option("--formulas", is_flag=True, help="Print each operation's formulas.")
@picture_option
@click.option("--seconds", type=click.FloatRange(0.01), default=1.0, show_default=True,
              help="For each of the two measurements of this machine.")  # fmt: skip
@click.option("--device", default="cpu", show_default=True, help="The device that is measured.")
@json_option
def cost(
    model: str,
    context: int,
    batch: int,
    dtype: str,
    fused: bool,
    formulas: bool,
    out: Path | None,
    seconds: float,
    device: str,
    as_json: bool,
) -> None:
    """Say what a model costs: operations, bytes, cache and what each operation waits for on this machine.

    Decoding is the step that fills the context. What would other numbers of key heads cost, or
    multi-head latent attention? The last table says.
    """
    config = _config(model)
    import torch

    from regard.costs import roofline
    from regard.costs.model import cost as cost_of
    from regard.costs.model import what_if

    number = getattr(torch, dtype)
    from regard.files.loading import checked_device

    machine = roofline.measure_machine(number, checked_device(device), seconds=seconds)
    phases: list[Phase] = ["train", "prefill"]
    if config.n_decoder_layer:
        phases.append("decode")

    def costed(config: TransformerConfig, phase: Phase, *, latent: Latent | None = None) -> Cost:
        length = context - 1 if phase == "decode" else context
        return cost_of(config, phase, batch=batch, length=length, dtype=number, latent=latent, fused=fused)

    costs = {phase: costed(config, phase) for phase in phases}
    others = {}
    if config.kind == "decoder":
        for name, (changed, latent) in what_if(config).items():
            others[name] = costed(changed, "decode", latent=latent)
    if out is not None:
        drawn = [costs[phase] for phase in ("decode", "prefill") if phase in costs]
        title = f"{model}: batch {batch}, context {context}, {dtype}, {_threads(machine)}"
        figure = roofline.roofline_figure(drawn, machine, title=title)
        figure.savefig(out, format="png")
    if as_json:
        click.echo(json.dumps(_cost_json(model, costs, others, machine, out)))
        return
    _print_costs(model, batch, context, costs, others, machine, formulas)
    if out is not None:
        click.echo(f"The picture is in {out}")


def _config(model: str) -> TransformerConfig:
    """The config of a name, without weights where its shape is known, or of a folder or file."""
    from regard.models.families import FAMILIES

    for family in FAMILIES.values():
        if model in family.sizes and not Path(model).exists():
            return family.config(family.sizes[model])
    from regard.files.loading import load
    from regard.models.transformer import TransformerConfig

    config = load(model).model.config
    if not isinstance(config, TransformerConfig):
        raise ArgumentError(f"{model} is not a Transformer: its cost is not known by formula.")
    return config


def _cost_json(
    model: str, costs: dict[Phase, Cost], others: dict[str, Cost], machine: Machine, out: Path | None
) -> dict[str, Any]:
    from regard.costs.roofline import placed

    def totals(whole: Cost) -> dict[str, Any]:
        return {
            "operations": whole.operations,
            "bytes": whole.bytes,
            "intensity": whole.intensity,
            "cache_bytes": whole.cache_bytes,
            "weight_bytes": whole.weight_bytes,
            "parameters": whole.n_parameter,
            "seconds_at_least": sum(operation.seconds for operation in placed(whole, machine)),
        }

    def rows(whole: Cost) -> list[dict[str, Any]]:
        return [
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

    return {
        "model": model,
        "machine": {
            "peak": machine.peak,
            "bandwidth": machine.bandwidth,
            "threads": machine.n_thread,
            "dtype": machine.dtype,
            "device": machine.device,
        },
        "phases": {phase: {**totals(whole), "rows": rows(whole)} for phase, whole in costs.items()},
        "what_if": {name: totals(whole) for name, whole in others.items()},
        "png": None if out is None else str(out),
    }


def _print_costs(
    model: str,
    batch: int,
    context: int,
    costs: dict[Phase, Cost],
    others: dict[str, Cost],
    machine: Machine,
    formulas: bool,
) -> None:
    from rich.console import Console
    from rich.table import Table

    from regard.costs.model import leading
    from regard.costs.roofline import placed, short_number

    console = Console()
    first = next(iter(costs.values()))
    console.print(
        f"{model}: {short_number(first.n_parameter)} parameters, {short_number(first.weight_bytes, 'B')}; "
        f"batch {batch}, context {context}"
    )
    console.print(
        f"This machine: {short_number(machine.peak)} operations/s, {short_number(machine.bandwidth, 'B/s')} "
        f"read, {_threads(machine)}; below {machine.ridge:.1f} operations a byte an operation waits "
        "for memory."
    )
    at = {
        "decode": "one token at the end of the context",
        "prefill": "the whole context",
        "train": "a step",
    }
    for phase, whole in costs.items():
        table = Table(title=f"{phase}: {at[phase]}", title_justify="left")
        for column in ("operation", "operations", "bytes", "ops/byte", "time ≥", "waits for"):
            table.add_column(column, justify="left" if column in ("operation", "waits for") else "right")
        operations = placed(whole, machine)
        for part in operations:
            row = part.row
            table.add_row(row.name, short_number(row.n_operation), short_number(row.n_byte),
                          f"{row.intensity:.3g}", _time(part.seconds), part.waits_for)  # fmt: skip
        table.add_section()
        slowest = max(operations, key=lambda part: part.seconds)
        table.add_row("all", short_number(whole.operations), short_number(whole.bytes),
                      f"{whole.intensity:.3g}", _time(sum(part.seconds for part in operations)),
                      f"most: {slowest.row.name}")  # fmt: skip
        print_table(table, console)
        for row in whole.rows if formulas else ():
            console.print(
                f"  [bold]{row.name}[/bold]: operations {row.operations}; numbers moved {row.moved}"
            )
    if others:
        table = Table(title="What if: one decoding step with other attention", title_justify="left")
        table.add_column("")
        for name in others:
            table.add_column(name, justify="right")
        lines: dict[str, Callable[[Cost], str]] = {
            "cache": lambda step: short_number(step.cache_bytes, "B"),
            "bytes of a step": lambda step: short_number(step.bytes, "B"),
            "operations": lambda step: short_number(step.operations),
            "ops/byte": lambda step: f"{step.intensity:.3g}",
            "parameters": lambda step: short_number(step.n_parameter),
            "time ≥": lambda step: _time(sum(part.seconds for part in placed(step, machine))),
        }
        for what, shown in lines.items():
            table.add_row(what, *map(shown, others.values()))
        print_table(table, console)
        for kind in ("multi-head", "grouped", "multi-query"):
            work, moved = leading(kind, "operations"), leading(kind, "bytes")
            console.print(f"{kind}: O({work}) operations, O({moved}) numbers moved by an attention layer")
        console.print("b batch, n cached tokens, d model_dim, h heads, g key heads; b n h are the scores.")


def _threads(machine: Machine) -> str:
    return f"{machine.n_thread} thread{'' if machine.n_thread == 1 else 's'}"


def _time(seconds: float) -> str:
    for factor, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


@click.command()
@click.argument("name", required=False)
@click.option("--all", "every", is_flag=True, help="Run every experiment, and make one report.")
@click.option("--quick", is_flag=True, help="A smaller run, of seconds.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path),
              help="Write the page, with its figure, and the JSON into this folder.")  # fmt: skip
@json_option
def lab(name: str | None, every: bool, quick: bool, seed: int, out: Path | None, as_json: bool) -> None:
    """Run the experiment NAME: prediction, measurement, figure and verdict. Without NAME, list them."""
    from regard.lab.catalogue import EXPERIMENTS, find

    if name is not None and every:
        raise ArgumentError(f"give NAME or --all, not both. Got {name!r} and --all.")
    if name is None and not every:
        _list(EXPERIMENTS, as_json)
        return
    chosen = list(EXPERIMENTS) if name is None else [find(name).id]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    done = [_done(one, quick, seed, progress=not as_json) for one in chosen]
    _tell(done, out, "report" if every else chosen[0].replace(" ", "-"), as_json)


def _list(experiments: dict[str, str], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(experiments))
        return
    from rich.table import Table

    table = Table(box=None)
    for column in ("", "experiment", "claim"):
        table.add_column(column, no_wrap=column != "claim")
    for number, (name, claim) in enumerate(experiments.items(), 1):
        table.add_row(str(number), name, claim)
    print_table(table)
    click.echo("\nregard lab variance runs one, regard lab --all all of them; --quick takes seconds.")


def _done(name: str, quick: bool, seed: int, *, progress: bool) -> Done:
    from regard.lab.catalogue import find
    from regard.lab.spec import perform

    experiment = find(name)
    if not progress:
        return perform(experiment, quick=quick, seed=seed)
    from rich.console import Console

    with Console(stderr=True).status(f"{name}: {experiment.claim}"):
        done = perform(experiment, quick=quick, seed=seed)
    click.echo(f"{name}. {done.result.sentence}")
    return done


def _tell(done: list[Done], out: Path | None, name: str, as_json: bool) -> None:
    """Print what came out, and write it into the folder where there is one."""
    from regard.lab.pages import report

    results = [run.as_json() for run in done]
    whole = results[0] if len(results) == 1 else {"experiments": results}
    files = {} if out is None else {kind: out / f"{name}.{kind}" for kind in ("html", "json")}
    if out is not None:
        files["html"].write_text(report(done), encoding="utf-8")
        files["json"].write_text(json.dumps(whole, indent=2), encoding="utf-8")
    if as_json:
        click.echo(json.dumps({**whole, **{kind: str(path) for kind, path in files.items()}}))
        return
    if len(done) > 1:
        n_confirmed = sum(run.result.verdict == "confirmed" for run in done)
        click.echo(f"{n_confirmed} of {len(done)} claims confirmed.")
    else:
        for check in done[0].result.checks:
            click.echo(f"  {'✓' if check.holds else '✗'} {check.what}: {check.measured} ({check.rule})")
    if out is None:
        click.echo("--out FOLDER writes the report, with its figures.")
    else:
        click.echo(f"The report is in {files['html']}, its numbers in {files['json']}")
