"""What the book needs beside Sphinx: formulas as MathML, chapters as notebooks, a reference from the code."""

import ast
import importlib
import inspect
import pkgutil
import pprint
import re
from pathlib import Path
from typing import ForwardRef

import click
import nbformat
from docutils.nodes import SkipNode
from latex2mathml.converter import convert
from myst_nb.core.read import read_myst_markdown_notebook

import regard
from regard.cli import main

DOCS = Path(__file__).parent

CELL = re.compile(r"^```\{code-cell\} ipython3\n(.*?)^```", re.MULTILINE | re.DOTALL)


def setup(app):
    """What Sphinx calls."""
    app.add_html_math_renderer("mathml", (inline_formula, None), (block_formula, None))
    app.connect("builder-inited", write_reference)
    app.connect("html-page-context", link_notebook)
    app.connect("build-finished", write_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def inline_formula(translator, node):
    """A formula within a line."""
    translator.body.append(convert(node.astext()))
    raise SkipNode  # what is inside of the node is written


def block_formula(translator, node):
    """A formula that stands alone."""
    formula = convert(node.astext(), display="block")
    formula = re.sub('columnalign="(left|right)"', r'style="text-align: \1"', formula)  # what browsers read
    translator.body.append(f'<div class="math">{formula}</div>')
    raise SkipNode


def link_notebook(app, name, template, context, doctree):
    """Below the title of a chapter, itself as a notebook."""
    if name.startswith("course/") and "body" in context and not name.endswith("index"):
        link = f'<p><a href="{name.rpartition("/")[2]}.ipynb" download>This chapter as a notebook</a></p>'
        context["body"] = context["body"].replace("</h1>", f"</h1>\n{link}", 1)


def write_notebooks(app, error):
    """Every chapter as .ipynb beside its page."""
    if error is not None:
        return
    for chapter in sorted((DOCS / "course").glob("[0-9]*.md")):
        notebook = read_myst_markdown_notebook(chapter.read_text(encoding="utf-8"), app.env.myst_config)
        path = Path(app.outdir, "course", f"{chapter.stem}.ipynb")
        nbformat.write(notebook, path)


def write_reference(app):
    """The pages of the reference: public names, and commands with their options."""
    folder = DOCS / "reference"
    folder.mkdir(exist_ok=True)
    _write(folder / "names.md", _names(regard, "Names at the top"))
    for module in packages():
        _write(folder / f"{module.__name__.rpartition('.')[2]}.md", _names(module, module.__name__))
    _write(folder / "commands.md", _commands())
    _write(folder / "exercises.md", _exercises())
    _write(folder / "_chapters.md", chapters())


def packages():
    """The packages of regard that have public names."""
    names = [f"regard.{package.name}" for package in pkgutil.iter_modules(regard.__path__) if package.ispkg]
    return [module for module in map(importlib.import_module, names) if hasattr(module, "__all__")]


def examples():
    """The cells of examples.md: the one that all others follow, and of each other one what it uses of ours.

    A name counts where it is used, not where it is imported, written in a comment or given to something else.
    """
    first, *cells = CELL.findall((DOCS / "examples.md").read_text(encoding="utf-8"))
    return first, [(cell, _used(ast.parse(cell))) for cell in [first, *cells]]


def _used(tree):
    ours, values = {"regard": regard}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard"):
            module = importlib.import_module(node.module)
            ours |= {name.asname or name.name: getattr(module, name.name) for name in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in ours:
            values.append(ours[node.id])
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "regard":
            values.append(getattr(regard, node.attr, None))
    return values


def _write(path, text):
    """Only where it differs: what is written anew is built anew."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _names(module, title):
    first, cells = examples()
    parts = [f"# {title}", _text(inspect.getdoc(module))]
    parts += [
        "Examples follow these lines; [Every name in use](../examples.md) has what they print.",
        _code(first),
    ]
    for name in module.__all__:
        value = getattr(module, name)
        parts += [f"## {name}"]
        if callable(value):
            parts += [_code(_signature(name, value)), _text(inspect.getdoc(value))]
        else:
            lines = pprint.pformat(value, width=88, compact=True).splitlines()
            parts += [
                _code("\n".join([f"{name} = {lines[0]}", *lines[1:12], *(["..."] if lines[12:] else [])]))
            ]
        parts += [_code(cell) for cell, used in cells if any(value is one for one in used)][:1]
        if inspect.isclass(value):
            for method, function in vars(value).items():
                if not method.startswith("_") and inspect.isfunction(function):
                    parts += [
                        _code(_signature(f"{name}.{method}", function)),
                        _text(inspect.getdoc(function)),
                    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _code(text):
    return f"```python\n{text.strip()}\n```"


def _signature(name, value):
    """As it is written, with one argument on a line where they are long."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    arguments, kinds = [], inspect.Parameter
    for argument in signature.parameters.values():
        if argument.kind is kinds.KEYWORD_ONLY and not any(part.startswith("*") for part in arguments):
            arguments.append("*")
        star = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(argument.kind, "")
        typed = "" if argument.annotation is argument.empty else f": {_type(argument.annotation)}"
        default = "" if argument.default is argument.empty else f" = {_short(argument.default)}"
        arguments.append(f"{star}{argument.name}{typed}{default}")
    returned = signature.return_annotation
    result = "" if returned is signature.empty or inspect.isclass(value) else f" -> {_type(returned)}"
    line = f"{name}({', '.join(arguments)}){result}"
    return line if len(line) <= 88 else f"{name}(\n    " + ",\n    ".join(arguments) + f",\n){result}"


def _type(annotation):
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(?:jaxtyping|typing|collections|regard)(?:\.[a-z_]\w*)*\.(?=\w)", "", text)
    text = re.sub(r"\btorch\.nn\.modules(?:\.\w+)*\.(?=\w)", "nn.", text.replace("torch.Tensor", "Tensor"))
    return re.sub(r"^Optional\[(.*)\]$", r"\1 | None", text)


def _short(value):
    text = repr(value)
    return text if len(text) < 40 else "..."


def _text(doc):
    """A docstring as Markdown: examples and indented tables stay as they are."""
    blocks = re.split(r"\n\s*\n", doc or "")
    shown = []
    for block in blocks:
        example = block.lstrip().startswith(">>>")
        plain = block.strip() and all(line.startswith("    ") for line in block.splitlines())
        kind = "pycon" if example else "text"
        shown.append(f"```{kind}\n{inspect.cleandoc(block)}\n```" if example or plain else block)
    return "\n\n".join(shown)


def _commands():
    parts = [
        "# Commands",
        "Every command answers `--help`; one that prints a table prints JSON with `--json`.",
    ]
    context = click.Context(main, info_name="regard")
    for name in main.list_commands(context):
        parts += _command(main.get_command(context, name), f"regard {name}", context)
    return "\n\n".join(parts) + "\n"


def _command(command, name, parent):
    context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent)
    parts = [f"## {name}", f"```text\n{command.get_help(context)}\n```"]
    for below in command.list_commands(context) if isinstance(command, click.Group) else ():
        parts += _command(command.get_command(context, below), f"{name} {below}", context)
    return parts


def chapters():
    """What goes with which chapter, as a table: an exercise belongs to the first chapter that names it."""
    from regard.checking.catalogue import ours, tracks

    minutes = {stop.exercise.id: stop.minutes for track in tracks(ours()) for stop in track.stops}
    placed, total = set(), 0
    lines = [
        "```{table}\n:widths: 20 42 20 13 5",
        "| chapter | exercises, with minutes | again | experiments | questions |",
    ]
    lines += ["| --- | --- | --- | --- | ---: |"]
    for path in sorted((DOCS / "course").glob("[0-9]*.md")):
        text = path.read_text(encoding="utf-8")
        title = re.search(r"^# (.+)", text, re.MULTILINE)[1]
        shown = set(re.findall(r"^%%check ([\w-]+)", text, re.MULTILINE))
        named = dict.fromkeys(id for id in re.findall(r"(?:`|^%%check |start )([\w-]+)", text, re.MULTILINE))
        starred = {id: f"`{id}`\\*" if id in shown else f"`{id}`" for id in minutes}
        here = [id for id in minutes if id in named and id not in placed]  # in the order of the path
        again = [id for id in minutes if id in named and id in placed]
        placed |= set(here)
        spent = sum(minutes[id] for id in here)
        total += spent
        labs = dict.fromkeys(re.findall(r"^%lab ([\w -]+?)(?: --.*)?$", text, re.MULTILINE))
        cells = [
            f"[{title}](course/{path.name})",
            ", ".join(f"{starred[id]} {minutes[id]}" for id in here)
            + (f" ({spent} in all)" if spent else ""),
            ", ".join(starred[id] for id in again),
            ", ".join(f"`{name}`" for name in labs),
            str(len(re.findall(r"^%quiz ", text, re.MULTILINE))),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    hours = f"All {len(placed)} exercises together take about {round(total / 60)} hours."
    return "\n".join(lines) + f"\n```\n\n{hours}\n"


def _exercises():
    """Every exercise with its task, in the order of the path."""
    from regard.checking.catalogue import ours, tracks

    parts = ["# Exercises", "`regard start ID` writes the file to fill in, `regard check FILE` checks it."]
    for track in tracks(ours()):
        parts += [f"## {track.title}", track.about]
        for stop in track.stops:
            exercise = stop.exercise
            parts += [
                f"### {exercise.id}",
                f"{exercise.title}; {stop.minutes} minutes.",
                exercise.task.strip(),
            ]
    return "\n\n".join(parts) + "\n"
