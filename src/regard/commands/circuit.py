"""`regard circuit`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import click

from regard.commands.options import AsJson, ModelOption, Picture, command, json_asked
from regard.commands.printing import print_table

TASKS = ("induction", "indirect-object", "greater-than", "agreement", "capitals")


@command
def circuit(
    task: Annotated[str, click.Choice(TASKS)],
    *,
    model: ModelOption = ModelOption("smollm2"),
    examples: Annotated[int, click.IntRange(5, 1000), "Pairs of prompts."] = 16,
    out: Picture,
) -> AsJson:
    """Find the few heads that do a TASK, and score circuits of every size.

    The heads in a circuit give what they give on a clean prompt, all others what they gave on one with
    another answer. Faithfulness is how much of the behaviour is left. Heads are ranked by running each,
    by a gradient, by their weights and at random; the areas are those of the MIB benchmark.
    """
    loaded = model.load()
    from regard.experiments import circuit as scored

    found = scored(loaded, task, n_example=examples, seed=model.seed, progress=not json_asked())
    click.echo(found.verdict)
    if found.curves:
        click.echo(f"Such as: {found.texts[0]!r}")
        n_head = found.curves[0].sizes[-1]
        rows = [
            [f"{size}", *(f"{curve.faithfulness[at]:.2f}" for curve in found.curves)]
            for at, size in enumerate(found.curves[0].sizes)
        ]
        rows.append(["area under", *(f"{curve.area:.3f}" for curve in found.curves)])
        rows.append(["distance from 1", *(f"{curve.distance:.3f}" for curve in found.curves)])
        columns = [f"heads of {n_head}", *(curve.order for curve in found.curves)]
        print_table(columns, rows, title="Faithfulness, by how heads are ranked")
        several = "heads keep" if len(found.smallest) != 1 else "head keeps"
        click.echo(f"{len(found.smallest)} {several} 80 % of it: {', '.join(found.smallest_words)}.")
        if out is not None:
            from regard.drawing.figures import save_figure

            save_figure(found.figure(), out)
            click.echo(f"The picture is in {out}")
    return {
        "model": found.model,
        "task": found.task,
        "can": found.can,
        "n_right": found.n_right,
        "n_example": len(found.texts),
        "clean": found.clean,
        "corrupted": found.corrupted,
        "without": found.without,
        "curves": [asdict(curve) for curve in found.curves],
        "smallest": [list(place) for place in found.smallest],
        "effects": found.effects.tolist(),
        "png": out if found.curves else None,
    }
