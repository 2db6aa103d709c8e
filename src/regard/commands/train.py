"""`regard train`."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from regard.commands import options
from regard.errors import ArgumentError
from regard.train.settings import HELP, Settings, Task


def _setting_options(command: Any) -> Any:
    """An option for each setting but the task, absent unless it is given."""
    for name, kind in reversed(get_type_hints(Settings).items()):
        if name != "task":
            flag = f"--{name.replace('_', '-')}"
            flag += f"/--no-{flag[2:]}" if kind is bool else ""
            several = get_origin(kind) is tuple
            one = click.Choice(get_args(kind)) if get_origin(kind) is Literal else str if several else kind
            command = click.option(flag, name, type=one, multiple=several, default=None, help=HELP[name])(
                command
            )
    return command


@click.command()
@click.argument("task", type=click.Choice(get_args(Task)), required=False)
@click.option("--config", type=click.Path(), help="A TOML file of settings; options have the last word.")
@click.option("--resume", type=click.Path(), metavar="RUN", help="Go on with the run in that folder.")
@click.option("--quiet", is_flag=True, help="Say nothing while training.")
@options.as_json
@_setting_options
def train(
    task: str | None, config: str | None, resume: str | None, quiet: bool, as_json: bool, **settings: Any
) -> None:
    """Train a model, `dates` by default: dates as people write them, to ISO 8601.

    A setting has the task's own default unless it is given. The run's folder holds config, metrics,
    checkpoints, pictures and best/, which every command takes as --model.
    """
    changed = {name: value for name, value in settings.items() if value is not None and value != ()}
    if task is not None:
        changed["task"] = task
    if resume is not None and (changed or config):
        named = [*changed, *(["config"] if config else [])]
        raise ArgumentError(f"a run is resumed with its own settings: leave out {', '.join(named)}.")
    if config is not None:
        chosen = Settings.read(config, changed)
    elif resume is None:
        chosen = Settings.of(changed.pop("task", "dates"), changed)
    from regard.train import run as runs
    from regard.train.distributed import here

    run = runs.train(chosen, quiet=quiet) if resume is None else runs.resume(resume, quiet=quiet)
    if not run.finished:
        raise SystemExit(130)  # stopped by a signal; the folder says how to go on
    if not here().first:  # one of all tells the user
        return
    if as_json:
        where = {"run": str(run.folder), "step": run.step, "best": str(run.best)}
        click.echo(json.dumps({**where, "scores": dict(run.scores)}))
        return
    click.echo(f"The model is in {run.best}. Look at it with: regard look --model {run.best}")
