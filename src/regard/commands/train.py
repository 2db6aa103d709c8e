"""`regard train`."""

from typing import Annotated, Any, get_type_hints

import click

from regard.commands.options import AsJson, click_parameter, command
from regard.errors import ArgumentError
from regard.train.settings import CHOICES, HELP, Settings, Task


@command
def train(
    task: Task | None,
    *,
    config: Annotated[str | None, click.Path(), "TOML file of settings; options override it."],
    resume: Annotated[str | None, click.Path(), "RUN", "Resume the run in that folder."],
    quiet: Annotated[bool, "Print nothing while training."],
    **settings: Any,
) -> AsJson:
    """Train a model. The default task, `dates`, translates dates as people write them to ISO 8601.

    Settings that are not given take the task's defaults. The run's folder holds the config, metrics,
    checkpoints, pictures and best/, which every command accepts as --model.
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
        raise SystemExit(130)  # stopped by a signal; the folder says how to resume
    if not here().first:  # only one process talks to the user
        return None
    click.echo(f"The model is in {run.best}. Look at it with: regard look --model {run.best}")
    return {"run": run.folder, "step": run.step, "best": run.best, "scores": dict(run.scores)}


# An option for each setting but the task, absent unless it is given.
for name, kind in get_type_hints(Settings).items():
    if name != "task":
        flag = f"--{name.replace('_', '-')}"
        flags = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
        about: list[Any] = [flags, HELP[name]]
        if name in CHOICES:
            about.append(click.Choice(CHOICES[name]))
        train.params.append(click_parameter(name, Annotated[kind | None, *about], None))
