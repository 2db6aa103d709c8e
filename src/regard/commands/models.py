"""`regard families`, `regard models` and `regard generate`."""

from __future__ import annotations

import json
import time

import click

from regard.commands.options import Group, json_option, load_model, model_options
from regard.commands.printing import make_table, print_table
from regard.errors import ArgumentError


@click.command()
@json_option
def families(as_json: bool) -> None:
    """How GPT-2, BERT, Llama and T5 differ: the same Transformer with these fields of its config."""
    from regard.models.families import differences

    rows = differences()
    if as_json:
        click.echo(json.dumps(dict(rows), indent=2))
        return
    caption = "published sizes: gpt2, bert-base, SmolLM2-135M, t5-small"
    cells = [(name, *values.values()) for name, values in rows]
    print_table(make_table(["field", *rows[0][1]], cells, title="One Transformer, four families",
                           caption=caption))  # fmt: skip


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
            "shipped": model.name in hub.SHIPPED,
            "path": None if (path := hub.present(model.name)) is None else str(path),
        }
        for model in hub.listed().values()
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    cells = []
    for row in rows:
        here = "yes" if row["path"] else f"no: regard models get {row['name']}"
        here = "shipped" if row["shipped"] else here
        cells.append([*(str(row[key]) for key in ("name", "what", "megabytes", "licence")), here])
    print_table(make_table(("name", "what", "MB", "licence", "here"), cells))
    click.echo(
        "Any folder with config.json and model.safetensors, and any GGUF file of these families, loads too."
    )


@models.command()
@click.argument("name")
def get(name: str) -> None:
    """Download the model called NAME."""
    from regard.files import hub

    click.echo(f"{name} is in {hub.get_showing(name)}")


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
    from regard.decoding.loop import generate as generate_text
    from regard.decoding.loop import stream
    from regard.decoding.sampling import Choice

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
        if not chat and loaded.start_token is None:  # an encoder-decoder answers, it does not go on
            click.echo(text, nl=False)
        pieces = []
        for piece in stream(loaded, prompt, **choice):  # type: ignore[arg-type]
            click.echo(piece, nl=False)
            pieces.append(piece)
        click.echo()
        written = "".join(pieces)
        n_token = len(loaded.tokenizer.encode(written, add_special=False))
    seconds = time.perf_counter() - began
    if as_json:
        speed = {"tokens": n_token, "seconds": seconds}
        click.echo(json.dumps({"prompt": text, "text": written, "model": loaded.facts.name, **speed}))
        return
    click.echo(f"{n_token} tokens in {seconds:.1f} s: {n_token / seconds:.0f} a second", err=True)
