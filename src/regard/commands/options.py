"""What several commands share: their options, and the checks of what a person typed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from regard.files.loading import Loaded

Command = TypeVar("Command", bound=Callable[..., Any])


def device_option(command: Command) -> Command:
    """`--device`."""
    return click.option(
        "--device", default="cpu", show_default=True, help="Where to compute: cpu, cuda, cuda:1, mps."
    )(command)


def picture_option(command: Command) -> Command:
    """`--out`, without which no picture is written."""
    return click.option(
        "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the picture there, as PNG."
    )(command)


def json_option(command: Command) -> Command:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(command)


def model_options(default: str) -> Callable[[Command], Command]:
    """`--model`, `--random`, `--seed` and `--device`."""

    def decorate(command: Command) -> Command:
        for option in (
            device_option,
            click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True,
                         help="Of the random weights."),
            click.option("--random", is_flag=True,
                         help="The model's shape with random weights: no download."),
            click.option("--model", default=default, show_default=True,
                         help="A name that `regard models` lists, a folder or a file."),
        ):  # fmt: skip
            command = option(command)
        return command

    return decorate


def load_model(model: str, random: bool, seed: int, device: str) -> Loaded:
    """The model that `model_options` name."""
    from regard.files.loading import checked_device, load

    return load(model, random=random, seed=seed, device=checked_device(device))
