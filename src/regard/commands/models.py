"""`regard families`, `regard models` and `regard generate`."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import click

from regard.commands import options
from regard.commands.options import Group, Model
from regard.commands.printing import WIDE_ENOUGH, print_table
from regard.errors import ArgumentError

FAMILIES_SAID = Path(__file__).with_name("families.json")


@click.command()
@options.as_json
def families(as_json: bool) -> None:
    """How the families differ: one Transformer, of which each is a choice of answers to these questions."""
    fields: dict[str, dict[str, str]] = json.loads(FAMILIES_SAID.read_text(encoding="utf-8"))
    if as_json:
        click.echo(json.dumps(fields, indent=2))
        return
    names = list(fields["stacks"])
    columns = {name: _in_words({field: values[name] for field, values in fields.items()}) for name in names}
    click.echo(f"One Transformer, {len(columns)} families, in published sizes:")
    for group in _beside(columns):
        click.echo()
        rows = [(question, *(columns[name][question] for name in group)) for question in columns[names[0]]]
        print_table(["", *group], rows)


def say_families() -> str:
    """What `regard families` shows, as JSON; kept in a file, for it takes torch to say it."""
    from regard.models.families import differences

    return json.dumps(dict(differences()), indent=1, ensure_ascii=False) + "\n"


def _in_words(field: dict[str, str]) -> dict[str, str]:
    """A family's answers to the questions that tell Transformers apart, then its other fields."""
    take = field.pop
    sees = {"decoder": "what came before", "encoder": "every token", "encoder-decoder": "all; answer: before"}
    says = {"language": "the next token", "masked": "hidden tokens", "none": "nothing"}
    positions = {
        "learned": f"learned, for {take('n_position')}",
        "rotary": f"rotary, base {take('rotary_base')}",
        "relative": "a bias by distance",
    }
    norm = {"layer": "LayerNorm", "rms": "RMSNorm"}[take("norm")]
    biased = {"attention": take("attention_bias") == "yes", "feed-forward": take("ff_bias") == "yes"}
    layers = [n_layer for n_layer in (take("n_encoder_layer"), take("n_decoder_layer")) if n_layer != "0"]
    shown = {
        "a token sees": sees[take("stacks")],
        "learns to say": says[take("head")],
        "positions": positions[take("positions")],
        "scores": {"1/sqrt(qk_dim)": "q·k / sqrt(d)", "1": "q·k"}[take("scale")],
        "heads": f"{take('n_head')}, of keys {take('key/value heads').partition(' ')[0]}",
        "norm": f"{norm}, {'before' if take('norm_first') == 'yes' else 'after'}",
        "feed-forward": take("ff_dim") + f", {take('activation')}" + ", gated" * (take("gated") == "yes"),
        "biases": "all" if all(biased.values()) else next((part for part in biased if biased[part]), "none"),
        "layers": " + ".join(layers),
        "width": take("model_dim"),
        "vocabulary": take("vocab"),
    }
    others = {name: value for name, value in field.items() if name not in ("what", "norm_eps")}
    return shown | {name.removeprefix("n_").replace("_", " "): value for name, value in others.items()}


def _beside(columns: dict[str, dict[str, str]]) -> list[list[str]]:
    """The names in groups, as many of them beside each other as the terminal has room for."""
    room = shutil.get_terminal_size().columns - max(map(len, next(iter(columns.values()))))
    groups: list[list[str]] = []
    left = 0
    for name, answers in columns.items():
        width = 2 + min(WIDE_ENOUGH, max(map(len, (name, *answers.values()))))
        if width > left:
            groups.append([])
            left = room
        groups[-1].append(name)
        left -= width
    return groups


@click.group(cls=Group, invoke_without_command=True)
@options.as_json
@click.pass_context
def models(ctx: click.Context, as_json: bool) -> None:
    """List the trained models a fresh machine can have, and get them."""
    if ctx.invoked_subcommand is not None:
        return
    from regard.files import hub

    rows = [
        {
            "name": model.name,
            "what": model.what,
            "megabytes": model.n_bytes // 10**6,
            "licence": model.licence,
            "shipped": model.shipped,
            "path": None if (path := hub.present(model.name)) is None else str(path),
        }
        for model in hub.MODELS.values()
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    cells = []
    for row in rows:
        here = "yes" if row["path"] else f"no: regard models get {row['name']}"
        here = "shipped" if row["shipped"] else here
        cells.append([*(str(row[key]) for key in ("name", "what", "megabytes", "licence")), here])
    print_table(("name", "what", "MB", "licence", "here"), cells, right=("MB",))
    click.echo(
        "Any folder with config.json and model.safetensors, and any GGUF file of these families, loads too."
    )


@models.command()
@click.argument("name")
def get(name: str) -> None:
    """Download the model called NAME."""
    from regard.files import hub

    click.echo(f"{name} is in {hub.get(name)}")


@click.command()
@options.text()
@options.model("smollm2")
@click.option("--max-new", type=click.IntRange(1), default=100, show_default=True, help="Tokens at the most.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0: the likeliest token.")
@click.option("--top-k", type=int, help="Choose among the k likeliest tokens.")
@click.option("--top-p", type=float, help="Choose among the likeliest that together reach p.")
@click.option("--repetition-penalty", type=float, default=1.0, show_default=True,
              help="Above 1: repeat less.")  # fmt: skip
@click.option("--beams", type=click.IntRange(1), default=1, show_default=True, help="Beam search.")
@click.option("--chat", is_flag=True, help="TEXT is a question to an instructed model.")
@click.option("--sample-seed", type=int, help="Makes sampling repeat itself.")
@options.as_json
def generate(
    text: str,
    model: Model,
    max_new: int,
    beams: int,
    chat: bool,
    sample_seed: int | None,
    as_json: bool,
    **choice: Any,
) -> None:
    """Continue TEXT, token by token as they come, with the speed at the end."""
    from regard.decoding.loop import Choice, stream
    from regard.decoding.loop import generate as generate_text

    Choice(**choice)  # checked before anything is loaded
    choice |= {"max_new": max_new, "seed": sample_seed}
    loaded = model.load()
    if loaded.tokenizer is None:
        raise ArgumentError(f"{loaded.facts.name} has no tokenizer: it takes ids, not text.")
    prompt = loaded.tokenizer.chat(text) if chat else text
    began = time.perf_counter()
    if beams > 1 or as_json:
        done = generate_text(loaded, prompt, n_beam=beams, **choice)
        written, n_token = (done.texts or ("",))[0], len(done.tokens[0])
        if not as_json:
            click.echo(written)
    else:
        # With the first piece, for a model may refuse; an encoder-decoder answers, it does not go on.
        lead = "" if chat or loaded.start_token is not None else text
        pieces = []
        for piece in stream(loaded, prompt, **choice):
            click.echo(lead + piece, nl=False)
            pieces.append(piece)
            lead = ""
        click.echo(lead)
        n_token = len(loaded.tokenizer.encode("".join(pieces), add_special=False))
    seconds = time.perf_counter() - began
    if as_json:
        speed = {"tokens": n_token, "seconds": seconds}
        click.echo(json.dumps({"prompt": text, "text": written, "model": loaded.facts.name, **speed}))
        return
    click.echo(f"{n_token} tokens in {seconds:.1f} s: {n_token / seconds:.0f} a second", err=True)
