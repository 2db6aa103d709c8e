"""`regard train`."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from regard.commands import options as shared
from regard.errors import ArgumentError
from regard.train.settings import HELP, Settings, Task

_KINDS: dict[Any, Any] = {int: int, float: float, str: str}


def _setting_options(command: Any) -> Any:
    """An option for each setting but the task, absent unless it is given."""
    for name, kind in reversed(get_type_hints(Settings).items()):
        if name == "task":
            continue
        flag = f"--{name.replace('_', '-')}"
        said: dict[str, Any] = {"help": HELP[name]}
        if get_origin(kind) is Literal:
            said["type"] = click.Choice(get_args(kind))
        elif get_origin(kind) is tuple:
            said |= {"multiple": True, "type": str}
        elif kind is bool:
            flag = f"{flag}/--no-{name.replace('_', '-')}"
        else:
            said["type"] = _KINDS[kind]
        said["default"] = () if get_origin(kind) is tuple else None
        command = click.option(flag, name, **said)(command)
    return command


@click.command()
@click.argument("task", type=click.Choice(get_args(Task)), required=False)
@click.option("--config", type=click.Path(), help="A TOML file of settings; options have the last word.")
@click.option("--resume", type=click.Path(), metavar="RUN", help="Go on with the run in that folder.")
@click.option("--quiet", is_flag=True, help="Say nothing while training.")
@shared.as_json
@_setting_options
def train(
    task: str | None, config: str | None, resume: str | None, quiet: bool, as_json: bool, **options: Any
) -> None:
    """Train a model, `dates` by default: dates as people write them, to ISO 8601.

    A setting has the task's own default unless it is given. The run's folder holds config, metrics,
    checkpoints, pictures and best/, which every command takes as --model.
    """
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    if resume is not None:
        if given or task or config:
            said = [*given, *(["task"] if task else []), *(["config"] if config else [])]
            raise ArgumentError(f"a run is resumed with its own settings: leave out {', '.join(said)}.")
        from regard.train.run import resume as go_on

        run = go_on(resume, quiet=quiet)
    else:
        if config is not None:
            settings = Settings.read(config, {**given, **({"task": task} if task else {})})
        else:
            settings = Settings.of(task or "dates", given)
        from regard.train.run import train as begin

        run = begin(settings, quiet=quiet)
    if not run.finished:
        raise SystemExit(130)  # stopped by a signal; the folder says how to go on
    from regard.train.distributed import here

    if not here().first:  # one of all tells the user
        return
    if as_json:
        said_of = {
            "run": str(run.folder),
            "step": run.step,
            "best": str(run.best),
            "scores": dict(run.scores),
        }
        click.echo(json.dumps(said_of))
        return
    click.echo(f"The model is in {run.best}. Look at it with: regard look --model {run.best}")
