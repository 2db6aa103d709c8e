"""`regard cost` and `regard lab`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.commands.options import json_option
from regard.errors import ArgumentError

if TYPE_CHECKING:
    from regard.costs.model import Cost
    from regard.costs.roofline import Machine
    from regard.lab.pages import Done
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
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("cost.png"),
              show_default=True, help="Where to write the roofline.")  # fmt: skip
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
    out: Path,
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
    if not out.parent.is_dir():
        raise ArgumentError(f"cannot write the picture {str(out)!r}: there is no folder {str(out.parent)!r}.")
    from regard.files.loading import checked_device

    machine = roofline.measure_machine(number, checked_device(device), seconds=seconds)
    phases = ["train", "prefill"] + (["decode"] if config.n_decoder_layer else [])
    costs = {
        phase: cost_of(
            config,
            phase,  # type: ignore[arg-type]
            batch=batch,
            length=context - 1 if phase == "decode" else context,
            dtype=number,
            fused=fused,
        )
        for phase in phases
    }
    others = {}
    if config.kind == "decoder":
        for name, (changed, latent) in what_if(config).items():
            length = context - 1
            others[name] = cost_of(
                changed, "decode", batch=batch, length=length, dtype=number, latent=latent, fused=fused
            )
    drawn = [costs[phase] for phase in ("decode", "prefill") if phase in costs]
    title = f"{model}: batch {batch}, context {context}, {dtype}, {_threads(machine)}"
    figure = roofline.roofline_figure(drawn, machine, title=title)
    try:
        figure.savefig(out, format="png")
    except OSError as error:
        raise ArgumentError(f"cannot write the picture {str(out)!r}: {error.strerror}.") from error
    if as_json:
        click.echo(json.dumps(_cost_json(model, costs, others, machine, out)))
        return
    _print_costs(model, batch, context, costs, others, machine, formulas)
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
    model: str, costs: dict[str, Cost], others: dict[str, Cost], machine: Machine, out: Path
) -> dict[str, Any]:
    from regard.costs.roofline import placed

    def totals(found: Cost) -> dict[str, Any]:
        return {
            "operations": found.operations,
            "bytes": found.bytes,
            "intensity": found.intensity,
            "cache_bytes": found.cache_bytes,
            "weight_bytes": found.weight_bytes,
            "parameters": found.n_parameter,
            "seconds_at_least": sum(each.seconds for each in placed(found, machine)),
        }

    return {
        "model": model,
        "machine": {
            "peak": machine.peak,
            "bandwidth": machine.bandwidth,
            "threads": machine.n_thread,
            "dtype": machine.dtype,
            "device": machine.device,
        },
        "phases": {
            phase: {
                **totals(found),
                "rows": [
                    {
                        "name": each.row.name,
                        "operations": each.row.n_operation,
                        "operations_formula": str(each.row.operations),
                        "bytes": each.row.n_byte,
                        "numbers_formula": str(each.row.moved),
                        "intensity": each.row.intensity,
                        "seconds_at_least": each.seconds,
                        "waits_for": each.waits_for,
                    }
                    for each in placed(found, machine)
                ],
            }
            for phase, found in costs.items()
        },
        "what_if": {name: totals(found) for name, found in others.items()},
        "png": str(out),
    }


def _print_costs(
    model: str,
    batch: int,
    context: int,
    costs: dict[str, Cost],
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
    for phase, found in costs.items():
        at = {
            "decode": "one token at the end of the context",
            "prefill": "the whole context",
            "train": "a step",
        }
        table = Table(title=f"{phase}: {at[phase]}", title_justify="left")
        for column in ("operation", "operations", "bytes", "ops/byte", "time ≥", "waits for"):
            table.add_column(column, justify="left" if column in ("operation", "waits for") else "right")
        rows = placed(found, machine)
        whole = sum(each.seconds for each in rows)
        for each in rows:
            table.add_row(
                each.row.name,
                short_number(each.row.n_operation),
                short_number(each.row.n_byte),
                f"{each.row.intensity:.3g}",
                _time(each.seconds),
                each.waits_for,
            )
        table.add_section()
        slowest = max(rows, key=lambda each: each.seconds)
        table.add_row(
            "all",
            short_number(found.operations),
            short_number(found.bytes),
            f"{found.intensity:.3g}",
            _time(whole),
            f"most: {slowest.row.name}",
        )
        console.print(table)
        if formulas:
            for row in found.rows:
                console.print(
                    f"  [bold]{row.name}[/bold]: operations {row.operations}; numbers moved {row.moved}"
                )
    if others:
        table = Table(title="What if: one decoding step with other attention", title_justify="left")
        table.add_column("")
        for name in others:
            table.add_column(name, justify="right")
        table.add_row("cache", *(short_number(each.cache_bytes, "B") for each in others.values()))
        table.add_row("bytes of a step", *(short_number(each.bytes, "B") for each in others.values()))
        table.add_row("operations", *(short_number(each.operations) for each in others.values()))
        table.add_row("ops/byte", *(f"{each.intensity:.3g}" for each in others.values()))
        table.add_row("parameters", *(short_number(each.n_parameter) for each in others.values()))
        table.add_row(
            "time ≥", *(_time(sum(p.seconds for p in placed(each, machine))) for each in others.values())
        )
        console.print(table)
        for kind in ("multi-head", "grouped", "multi-query"):
            operations, moved = leading(kind, "operations"), leading(kind, "bytes")
            console.print(
                f"{kind}: O({operations}) operations, O({moved}) numbers moved by an attention layer"
            )
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
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("lab"),
              show_default=True, help="The folder for the page and the JSON.")  # fmt: skip
@json_option
def lab(name: str | None, every: bool, quick: bool, seed: int, out: Path, as_json: bool) -> None:
    """Run the experiment NAME: prediction, measurement, figure and verdict. Without NAME, list them."""
    from regard.lab.catalogue import EXPERIMENTS, find

    if name is not None and every:
        raise ArgumentError(f"give NAME or --all, not both. Got {name!r} and --all.")
    if name is None and not every:
        _list(EXPERIMENTS, as_json)
        return
    chosen = list(EXPERIMENTS) if name is None else [find(name).id]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"cannot make the folder {str(out)!r}: {error.strerror}.") from error
    done = [_done(each, quick, seed, progress=not as_json) for each in chosen]
    _write(done, out, "report" if every else chosen[0].replace(" ", "-"), as_json)


def _list(experiments: dict[str, str], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(experiments))
        return
    width = max(map(len, experiments))
    for number, (name, claim) in enumerate(experiments.items(), 1):
        click.echo(f"{number:3}  {name:<{width}}  {claim}")
    click.echo("\nregard lab variance runs one, regard lab --all all of them; --quick takes seconds.")


def _done(name: str, quick: bool, seed: int, *, progress: bool) -> Done:
    from regard.lab.catalogue import find
    from regard.lab.pages import Done
    from regard.lab.spec import perform

    began = time.perf_counter()
    experiment = find(name)
    if progress:
        from rich.console import Console

        with Console(stderr=True).status(f"{name}: {experiment.claim}"):
            result = perform(experiment, quick=quick, seed=seed)
    else:
        result = perform(experiment, quick=quick, seed=seed)
    finished = Done(experiment, result, time.perf_counter() - began, quick, seed)
    if progress:
        click.echo(f"{name}. {result.sentence}")
    return finished


def _write(done: list[Done], out: Path, name: str, as_json: bool) -> None:
    from regard.lab.pages import report
    from regard.lab.spec import as_json as plain

    found = [
        plain(each.experiment, each.result, quick=each.quick, seed=each.seed, seconds=each.seconds)
        for each in done
    ]
    page, numbers = out / f"{name}.html", out / f"{name}.json"
    whole: Any = found[0] if len(found) == 1 else {"experiments": found}
    try:
        page.write_text(report(done), encoding="utf-8")
        numbers.write_text(json.dumps(whole, indent=2), encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"cannot write into {str(out)!r}: {error.strerror}.") from error
    if as_json:
        click.echo(json.dumps({**whole, "html": str(page), "json": str(numbers)}))
        return
    if len(done) > 1:
        n_confirmed = sum(each.result.verdict == "confirmed" for each in done)
        click.echo(f"{n_confirmed} of {len(done)} claims confirmed.")
    else:
        for check in done[0].result.checks:
            click.echo(f"  {'✓' if check.holds else '✗'} {check.what}: {check.measured} ({check.rule})")
    click.echo(f"The report is in {page}, its numbers in {numbers}")
