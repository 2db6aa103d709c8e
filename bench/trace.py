"""What tracing costs: time over an untraced forward, memory, against eager weights, and one tile.

The untraced forward is the same model on the same tokens; neither side computes logits. Extra memory is the
peak of a fresh process that traces, less that of one that does not.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from timing import (
    Case,
    Goal,
    Options,
    PlainTable,
    RatioTable,
    Row,
    Timing,
    available_bytes,
    interleaved,
    parse_options,
    peak_memory,
    readable_bytes,
    readable_seconds,
    report,
)

from regard.files.loading import load
from regard.models.families import FAMILIES, initialise
from regard.models.transformer import Transformer
from regard.tracing.take import trace
from regard.tracing.traces import Trace

LENGTHS = (512, 1024, 2048, 4096, 8192)
QUICK_LENGTHS = (64, 128)
AT_MOST = 1.05
GROWTH_AT_MOST = 2.2
TILE_SECONDS = 0.3e-3
LONG = 4096  # from here on a forward takes many seconds, and fewer rounds do


@lru_cache(maxsize=1)
def model_of(name: str, quick: bool) -> Transformer:
    """SmolLM2 as published, or GPT-2 small with random weights and room for every length."""
    if name == "SmolLM2":
        return load("smollm2", random=quick).transformer
    config = FAMILIES["gpt2"].config(FAMILIES["gpt2"].sizes["gpt2"])
    config = replace(config, n_position=max(LENGTHS))
    return initialise(Transformer(config), seed=0).eval()


def tokens_of(model: Transformer, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, model.config.vocab, (1, length), generator=generator)


def forward(model: Transformer, ids: torch.Tensor) -> None:
    with torch.no_grad():
        model(ids, logits="none")


def time_of(name: str, options: Options) -> RatioTable:
    """Traced over untraced, length by length."""
    model = model_of(name, options.quick)
    rows = []
    for length in QUICK_LENGTHS if options.quick else options.lengths(LENGTHS):
        ids = tokens_of(model, length)
        cases: dict[str, Case] = {
            "untraced": lambda ids=ids: forward(model, ids),  # type: ignore[misc]
            "traced": lambda ids=ids: trace(model, ids),  # type: ignore[misc]
        }
        timings = measured(cases, length, options)
        rows.append(Row(f"N {length}", timings, Goal("traced", "untraced", AT_MOST)))
    return RatioTable(f"{name}: time of a traced forward", "untraced", rows)


def measured(cases: dict[str, Case], length: int, options: Options) -> dict[str, Timing]:
    long = length >= LONG
    return interleaved(
        cases, max(3, options.rounds // 2) if long else options.rounds, warmup=1 if long else 2
    )


def build_traced(name: str, length: int, quick: bool) -> Case:
    """For `peak_memory`: a traced forward."""
    model = model_of(name, quick)
    ids = tokens_of(model, length)
    trace(model, ids[:, :7])
    return lambda: trace(model, ids)


def build_untraced(name: str, length: int, quick: bool) -> Case:
    """For `peak_memory`: the same forward, untraced."""
    model = model_of(name, quick)
    ids = tokens_of(model, length)
    forward(model, ids[:, :7])
    return lambda: forward(model, ids)


def memory_of(name: str, options: Options) -> PlainTable:
    """The peak above an untraced forward's, and how it grows when the length doubles."""
    lines = [["tokens", "trace holds", "extra peak", "over half as many tokens", "all weights would be"]]
    before = 0
    for length in QUICK_LENGTHS if options.quick else options.lengths(LENGTHS)[-2:]:
        traced = peak_memory(build_traced, name, length, options.quick)
        untraced = peak_memory(build_untraced, name, length, options.quick)
        model = model_of(name, options.quick)
        block = model.config.block
        per_token = model.config.n_decoder_layer * 4
        heads = block.n_head + (block.n_kv_head or block.n_head)
        held = per_token * length * (heads * (block.qk_dim or block.model_dim // block.n_head) + block.n_head)
        extra = max(traced - untraced, 1)
        growth = "-"
        if before:
            word = "met" if extra / before <= GROWTH_AT_MOST else "missed"
            growth = f"{extra / before:.2f} × ({word}: goal {GROWTH_AT_MOST})"
        weights = per_token * block.n_head * length * length
        lines.append([str(length), *map(readable_bytes, (held, extra)), growth, readable_bytes(weights)])
        before = extra
    return PlainTable(f"{name}: memory of a traced forward", lines)


def against_eager(options: Options) -> RatioTable:
    """transformers' GPT-2: fused, traced through its own fused calls, and eager with its weights returned."""
    import transformers

    longest = max(LENGTHS)
    config = transformers.GPT2Config(n_positions=longest, n_layer=2 if options.quick else 12)
    make: Any = transformers.GPT2Model  # publishes no types for what it does
    fused, eager = make(config).eval(), make(config).eval()
    eager.load_state_dict(fused.state_dict())
    eager.set_attn_implementation("eager")
    rows = []
    for length in QUICK_LENGTHS if options.quick else options.lengths(LENGTHS[:-1]):
        given = {"input_ids": torch.randint(0, config.vocab_size, (1, length)), "use_cache": False}
        cases: dict[str, Case] = {
            "fused, untraced": lambda given=given: quiet(fused, given),  # type: ignore[misc]
            "traced": lambda given=given: trace(fused, given),  # type: ignore[misc]
        }
        # Every head's matrix, and as much again while a softmax is taken.
        if 1.3 * 4 * config.n_layer * config.n_head * length**2 < available_bytes():
            cases["eager, output_attentions"] = lambda given=given: quiet(  # type: ignore[misc]
                eager, {**given, "output_attentions": True}
            )
        timings = measured(cases, length, options)
        rows.append(Row(f"N {length}", timings, Goal("traced", "fused, untraced", AT_MOST)))
    note = "A dash: the eager weights do not fit into memory."
    return RatioTable("GPT-2 small of transformers", "fused, untraced", rows, note)


def quiet(model: Any, given: dict[str, Any]) -> None:
    with torch.no_grad():
        model(**given)


def one_tile(options: Options) -> PlainTable:
    """One 256 x 256 tile of a long trace, and what a page asks for besides."""
    model = model_of("GPT-2 small", options.quick)
    length = QUICK_LENGTHS[-1] if options.quick else 4096
    found: Trace = trace(model, tokens_of(model, length), layers=[0, 1])
    part = slice(length // 2 - min(128, length // 4), length // 2 + min(128, length // 4))
    cases: dict[str, Case] = {
        f"tile, {part.stop - part.start} x {part.stop - part.start}": lambda: found.tile(1, 3, part, part),
        "one row": lambda: found.row(1, 3, length - 1),
        "one column": lambda: found.column(1, 3, 0),
        "overview, 64 x 64 blocks": lambda: found.pooled(1, 3, 64, 64),
    }
    lines = [["what", "time", "goal"]]
    for index, (name, timing) in enumerate(interleaved(cases, options.rounds).items()):
        word = "met" if timing.median <= TILE_SECONDS else "missed"
        goal = f"{word}: at most {readable_seconds(TILE_SECONDS)}" if index == 0 else "-"
        lines.append([name, str(timing), goal])
    return PlainTable(f"Weights out of a trace of {length} tokens, GPT-2 small", lines)


def main() -> None:
    options = parse_options(__doc__)
    tables: list[RatioTable | PlainTable] = []
    for name in ("SmolLM2", "GPT-2 small"):
        tables += [time_of(name, options), memory_of(name, options)]
    tables += [against_eager(options), one_tile(options)]
    report("Tracing", tables, options)


if __name__ == "__main__":
    main()
