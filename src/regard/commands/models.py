"""`regard families`, `regard models` and `regard generate`."""

import shutil
import time
from dataclasses import asdict
from typing import Annotated

import click

from regard.commands.options import AsJson, Group, ModelOption, Text, command, json_asked, print_json
from regard.commands.printing import WIDE_ENOUGH, print_table
from regard.errors import ArgumentError, plural
from regard.files.families import family_table


@command
def families() -> AsJson:
    """Compare the families of models that Regard implements: one Transformer, each family a config of it."""
    fields = family_table()
    names = list(fields["stacks"])
    columns = {name: _in_words({field: values[name] for field, values in fields.items()}) for name in names}
    questions = list(columns[names[0]])
    widest = max(len(answer) for answers in columns.values() for answer in answers.values())
    room = shutil.get_terminal_size().columns - max(map(len, questions))
    n_beside = max(1, room // (2 + min(WIDE_ENOUGH, widest)))
    click.echo(f"One Transformer, {len(columns)} families, in published sizes:")
    for first in range(0, len(names), n_beside):
        click.echo()
        group = names[first : first + n_beside]
        print_table(["", *group], [(asked, *(columns[name][asked] for name in group)) for asked in questions])
    return fields


def _in_words(field: dict[str, str]) -> dict[str, str]:
    """Return what tells a family apart from the others, in words, then its other fields."""
    take = field.pop
    sees = {"decoder": "what came before", "encoder": "every token", "encoder-decoder": "all; answer: before"}
    says = {"language": "the next token", "masked": "masked tokens", "none": "nothing"}
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
        "predicts": says[take("lm_head")],
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


@click.group(cls=Group, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def models(ctx: click.Context, as_json: bool) -> None:
    """List the trained models that have a name, and download them."""
    if ctx.invoked_subcommand is not None:
        return
    from regard.files import hub

    rows, cells = [], []
    for model in hub.MODELS.values():
        path, megabytes = hub.present(model.name), model.n_bytes // 10**6
        row = {"name": model.name, "what": model.what, "megabytes": megabytes, "licence": model.licence}
        rows.append({**row, "shipped": model.shipped, "path": path})
        here = "shipped" if model.shipped else "yes" if path else f"no: regard models get {model.name}"
        cells.append([*map(str, row.values()), here])
    if as_json:
        print_json(rows)
        return
    print_table(("name", "what", "MB", "licence", "here"), cells)
    click.echo(
        "--model also takes names of the Hugging Face Hub (gpt2, Qwen/Qwen3-0.6B), folders and GGUF files."
    )


@models.add
def get(name: str) -> None:
    """Download the model called NAME."""
    from regard.files import hub

    click.echo(f"{name} is in {hub.get(name)}")


@command
def generate(
    text: Text,
    *,
    model: ModelOption = ModelOption("smollm2"),
    max_new: Annotated[int, click.IntRange(1), "Maximum number of new tokens."] = 100,
    temperature: Annotated[float, "Sampling temperature; 0 takes the likeliest token."] = 0.0,
    top_k: Annotated[int | None, "Sample among the k likeliest tokens."],
    top_p: Annotated[float | None, "Sample among the likeliest tokens that together reach probability p."],
    repetition_penalty: Annotated[float, "Above 1: repeat tokens less."] = 1.0,
    beams: Annotated[int, click.IntRange(1), "Number of beams of beam search."] = 1,
    chat: Annotated[bool, "Put TEXT in the chat format of an instruction-tuned model."],
    sample_seed: Annotated[int | None, "Seed that makes sampling reproducible."],
) -> AsJson:
    """Continue TEXT, printing tokens as they come and the speed at the end."""
    from regard.decoding import loop

    choice = asdict(loop.Choice(temperature, top_k, top_p, repetition_penalty))  # checked before loading
    loaded = model.load()
    if loaded.tokenizer is None:
        raise ArgumentError(" ".join((f"{loaded.facts.name} cannot read text.", *loaded.facts.notes)))
    prompt = loaded.tokenizer.chat(text) if chat else text
    began = time.perf_counter()
    if beams > 1 or json_asked():
        done = loop.generate(loaded, prompt, n_beam=beams, max_new=max_new, seed=sample_seed, **choice)
        written, n_token = (done.texts or ("",))[0], len(done.tokens[0])
        click.echo(written)
    else:
        # With the first piece, for a model may refuse; an encoder-decoder answers, it does not go on.
        lead = "" if chat or loaded.start_token is not None else text
        written = ""
        for piece in loop.stream(loaded, prompt, max_new=max_new, seed=sample_seed, **choice):
            click.echo(lead + piece, nl=False)
            written += piece
            lead = ""
        click.echo(lead)
        n_token = len(loaded.tokenizer.encode(written, add_special=False))
    seconds = time.perf_counter() - began
    click.echo(f"{plural(n_token, 'token')} in {seconds:.1f} s: {n_token / seconds:.0f} per second", err=True)
    about = {"prompt": text, "text": written, "model": loaded.facts.name}
    return {**about, "tokens": n_token, "seconds": seconds}
