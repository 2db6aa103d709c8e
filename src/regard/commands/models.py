"""`regard families`, `regard models` and `regard generate`."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from regard.commands.options import Group, json_option, load_model, model_options
from regard.commands.printing import WIDE_ENOUGH, print_table
from regard.errors import ArgumentError

if TYPE_CHECKING:
    from regard.models.transformer import TransformerConfig

FAMILIES_SAID = Path(__file__).with_name("families.json")
# Fields of a config that `_in_words` speaks of; any other in which families differ is shown as it is.
TOLD = """
    what stacks vocab n_encoder_layer n_decoder_layer positions n_position rotary_base head model_dim n_head
    ff_dim norm norm_first norm_eps activation gated attention_bias ff_bias scale key/value
""".split()


@click.command()
@json_option
def families(as_json: bool) -> None:
    """How the families differ: one Transformer, of which each is a choice of answers to these questions."""
    said = json.loads(FAMILIES_SAID.read_text(encoding="utf-8"))
    if as_json:
        click.echo(json.dumps(said["fields"], indent=2))
        return
    columns: dict[str, dict[str, str]] = said["in words"]
    click.echo(f"One Transformer, {len(columns)} families, in published sizes:")
    for group in _beside(columns):
        click.echo()
        rows = [(question, *(columns[name][question] for name in group)) for question in columns[group[0]]]
        print_table(["", *group], rows)


def say_families() -> str:
    """What `regard families` shows, as JSON; kept in a file, for it takes torch to say it."""
    from regard.models.families import FAMILIES, differences

    fields = dict(differences())
    columns = {
        name: _in_words(family.config(next(iter(family.sizes.values())))) for name, family in FAMILIES.items()
    }
    for field, values in fields.items():
        if field.split()[0] not in TOLD:
            for name, value in values.items():
                columns[name][field.removeprefix("n_").replace("_", " ")] = value
    return json.dumps({"fields": fields, "in words": columns}, indent=1, ensure_ascii=False) + "\n"


def _in_words(config: TransformerConfig) -> dict[str, str]:
    """A config's answers to the questions that tell Transformers apart."""
    block = config.block
    sees = {"decoder": "what came before", "encoder": "every token", "encoder-decoder": "all; answer: before"}
    says = {"language": "the next token", "masked": "hidden tokens", "none": "nothing"}
    positions = {
        "learned": f"learned, for {config.n_position}",
        "rotary": f"rotary, base {config.rotary_base:g}",
        "relative": "a bias by distance",
    }
    norm = {"layer": "LayerNorm", "rms": "RMSNorm"}.get(block.norm, block.norm)
    biases = {(True, True): "all", (True, False): "attention", (False, True): "feed-forward"}
    layers = [n_layer for n_layer in (config.n_encoder_layer, config.n_decoder_layer) if n_layer]
    return {
        "a token sees": sees[config.kind],
        "learns to say": says[config.head],
        "positions": positions.get(config.positions, config.positions),
        "scores": {None: "q·k / sqrt(d)", 1.0: "q·k"}.get(block.scale, f"q·k × {block.scale}"),
        "heads": f"{block.n_head}, of keys {block.n_kv_head or block.n_head}",
        "norm": f"{norm}, {'before' if block.norm_first else 'after'}",
        "feed-forward": f"{block.ff_dim}, {block.activation}{', gated' if block.gated else ''}",
        "biases": biases.get((block.attention_bias, block.ff_bias), "none"),
        "layers": " + ".join(map(str, layers)),
        "width": str(block.model_dim),
        "vocabulary": str(config.vocab),
    }


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
@json_option
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
@click.argument("text")
@model_options("smollm2")
@click.option("--max-new", type=click.IntRange(1), default=100, show_default=True, help="Tokens at the most.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0: the likeliest token.")
@click.option("--top-k", type=int, help="Choose among the k likeliest tokens.")
@click.option("--top-p", type=float, help="Choose among the likeliest that together reach p.")
@click.option("--repetition-penalty", type=float, default=1.0, show_default=True,
              help="Above 1: repeat less.")  # fmt: skip
@click.option("--beams", type=click.IntRange(1), default=1, show_default=True, help="Beam search.")
@click.option("--chat", is_flag=True, help="TEXT is a question to an instructed model.")
@click.option("--sample-seed", type=int, help="Makes sampling repeat itself.")
@json_option
def generate(
    text: str,
    model: str,
    random: bool,
    seed: int,
    device: str,
    max_new: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    repetition_penalty: float,
    beams: int,
    chat: bool,
    sample_seed: int | None,
    as_json: bool,
) -> None:
    """Continue TEXT, token by token as they come, with the speed at the end."""
    if not text.strip():
        raise ArgumentError("TEXT is empty: give at least one word to start from.")
    from regard.decoding.loop import Choice, stream
    from regard.decoding.loop import generate as generate_text

    Choice(temperature, top_k, top_p, repetition_penalty)  # checked before anything is loaded
    loaded = load_model(model, random, seed, device)
    if loaded.tokenizer is None:
        raise ArgumentError(f"{loaded.facts.name} has no tokenizer: it takes ids, not text.")
    prompt = loaded.tokenizer.chat(text) if chat else text
    choice = {
        "max_new": max_new,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "repetition_penalty": repetition_penalty,
        "seed": sample_seed,
    }
    began = time.perf_counter()
    if beams > 1 or as_json:
        done = generate_text(loaded, prompt, n_beam=beams, **choice)  # type: ignore[arg-type]
        written, n_token = (done.texts or ("",))[0], len(done.tokens[0])
        if not as_json:
            click.echo(written)
    else:
        # With the first piece, for a model may refuse; an encoder-decoder answers, it does not go on.
        lead = "" if chat or loaded.start_token is not None else text
        pieces = []
        for piece in stream(loaded, prompt, **choice):  # type: ignore[arg-type]
            click.echo(lead + piece, nl=False)
            pieces.append(piece)
            lead = ""
        click.echo(lead)
        written = "".join(pieces)
        n_token = len(loaded.tokenizer.encode(written, add_special=False))
    seconds = time.perf_counter() - began
    if as_json:
        speed = {"tokens": n_token, "seconds": seconds}
        click.echo(json.dumps({"prompt": text, "text": written, "model": loaded.facts.name, **speed}))
        return
    click.echo(f"{n_token} tokens in {seconds:.1f} s: {n_token / seconds:.0f} a second", err=True)
