"""The command `regard`. Each command is in a file of `commands/`, imported when it is called.

torch takes a second to import, so it is imported inside commands only, and `regard --help` answers at once.
"""

import logging
import os
import sys
from importlib import import_module
from typing import Any

import click

from regard import __version__
from regard.allocation import keep_freed_memory
from regard.commands.options import Group
from regard.commands.printing import prepare_streams
from regard.errors import RegardError

# command -> (file of commands/, one line for the list)
COMMANDS = {
    "assignment": ("assignment", "For teachers: set assignments and mark answers."),
    "author": ("exercises", "For teachers: write and verify an exercise."),
    "check": ("exercises", "Check answers and name their mistakes."),
    "cost": ("lab", "Show what a model costs and what limits its speed."),
    "exercises": ("exercises", "List the exercises, with progress."),
    "families": ("models", "Compare the families: GPT-2, BERT, Llama, T5, ..."),
    "generate": ("models", "Continue a text with a language model."),
    "heads": ("heads", "Show what each head does, compared with chance."),
    "hint": ("exercises", "Show the next hint for an exercise."),
    "lab": ("lab", "Test claims about attention by experiment."),
    "look": ("look", "Show what attention looks at."),
    "models": ("models", "List trained models and download them."),
    "prune": ("heads", "Remove heads and plot the effect on the loss."),
    "circuit": ("circuit", "Find the few heads that do a task, and score them."),
    "why": ("heads", "Explain a prediction by switching parts off."),
    "quiz": ("exercises", "Answer written questions."),
    "start": ("exercises", "Write the starter file of an exercise."),
    "train": ("train", "Train a model and watch it learn."),
}


class CleanError(click.ClickException):
    """Print one line for the person at the terminal instead of a traceback."""

    exit_code = 2


class LazyGroup(Group):
    """A group that imports a command when it is called, and reports a `RegardError` as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        file, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"regard.commands.{file}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in sorted(COMMANDS.items())])

    def main(self, *args: Any, **options: Any) -> Any:
        prepare_streams()
        if os.path.expanduser("~") == "~":  # an unknown user without a home folder: nothing is kept
            os.environ["HOME"] = os.path.join(os.devnull, "home")
        # Suppress matplotlib's warning about a home folder that cannot be written to.
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        try:
            return super().main(*args, **options)
        finally:
            sys.stdout.flush()  # now, not when Python ends

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RegardError as error:
            raise CleanError(str(error)) from error
        except OSError as error:
            raise CleanError(f"cannot use {str(error.filename)!r}: {error.strerror}.") from error


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Completion, for bash (for zsh and fish, replace bash by that name):
  eval "$(_REGARD_COMPLETE=bash_source regard)"
""",
)
@click.version_option(__version__, prog_name="regard")
def main() -> None:
    """A workbench for attention: build it, see it, check it, measure it."""
    keep_freed_memory()
