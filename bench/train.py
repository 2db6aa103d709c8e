"""Tokens per second of training, ours against PyTorch's own modules and against transformers.

    python bench/train.py [--quick] [--run NAME=FOLDER ...]

What is timed is one update: forward, loss, backward, clipping, AdamW. Every side has the same batches, made
beforehand, the same loss, the same fused AdamW and the same size; where the mathematics are the same too, the
script compares the number of weights. `--run` adds what a finished run of `regard train` has come to,
beside the published figure it was to reach: nanogpt, reverse, dates, multi30k-gru, multi30k-t5.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import Case, Goal, PlainTable, RatioTable, Row, Timing, interleaved, parse_options, report
from torch import Tensor, nn
from torch.nn import functional
from train_peers import StepLoop, TorchDecoder, TorchEncoderDecoder

from regard.files.loading import load
from regard.models.seq2seq import Seq2Seq
from regard.train.batches import IGNORED, Batch, Batches, BlockExamples, DataPosition, Example
from regard.train.build import Objective, build_model
from regard.train.corpus import open_corpus
from regard.train.distributed import World
from regard.train.loop import Training, make_optimizer
from regard.train.score import answered, translation_scores
from regard.train.settings import Settings
from regard.train.vocabulary import SPECIAL, train_tokenizer

OURS = "regard"
TORCH, TRANSFORMERS, LOOP = "nn.Transformer", "transformers", "step loop"
CPU = torch.device("cpu")
N_BATCH = 16  # different batches that are gone through again and again

NOTE = """One update each, float32, no dropout: forward, loss, backward, clipping and fused AdamW, on the same
batches. Tokens per second count what is read and what is answered, padding included.

- Decoders: `nn.TransformerEncoder` (causal) and `GPT2LMHeadModel` (SDPA), of as many weights as ours.
- Encoder-decoders: ours is T5; `T5ForConditionalGeneration` has as many weights, `nn.Transformer` some
  biases more and no relative positions.
- GRU: the step loop is the same mathematics with `nn.GRUCell`, from the same weights: its loss is compared
  with ours before the clock starts."""


class Held(Batches):
    """The first few batches, over and over: what is timed is the update, not the making of them."""

    def __init__(self, batches: Batches, count: int = N_BATCH) -> None:
        place = DataPosition()
        self.held: list[Batch] = []
        for _ in range(count):
            batch, place = batches.at(place)
            self.held.append(batch)

    def at(self, place: DataPosition) -> tuple[Batch, DataPosition]:
        """The next one."""
        return self.held[place.batch], DataPosition(0, (place.batch + 1) % len(self.held))

    @property
    def tokens(self) -> float:
        """Tokens of a batch, on average."""
        parts = [part for each in self.held for part in (each.source, each.inputs) if part is not None]
        return sum(part.numel() for part in parts) / len(self.held)


@dataclass(frozen=True, slots=True, eq=False)
class RandomPairs:
    """Pairs of random tokens of random lengths."""

    vocab: int
    shortest: int
    longest: int
    answers: tuple[int, int]
    start: int = SPECIAL.index("<bos>")

    def __len__(self) -> int:
        return 4096

    def get(self, epoch: int, index: int) -> Example:
        """The pair of that number."""
        random = np.random.default_rng((epoch, index))
        source, target = (
            random.integers(len(SPECIAL), self.vocab, random.integers(low, high + 1)).tolist()
            for low, high in ((self.shortest, self.longest), self.answers)
        )
        return Example(source, [self.start, *target[:-1]], target)


def vocabulary(size: int) -> Any:
    """A tokenizer of exactly that many tokens: the models take their sizes from it."""
    words = " ".join(f"w{index}" for index in range(size))
    return train_tokenizer("word", [words], vocab=size)


def training(settings: Settings, batches: Batches) -> Training:
    """Ours, as `regard train` has it."""
    model = build_model(settings, vocabulary(settings.vocab))
    return Training(Objective(model), batches, settings, World(), CPU)


Forward = Callable[[Batch], Tensor]  # the logits


def peer(module: nn.Module, forward: Forward, settings: Settings, batches: Held) -> Case:
    """One update of another's model in a plain loop, with the optimiser and the clipping that ours has."""
    module.train()
    optimizer = make_optimizer(module, settings, fused=True)
    at = DataPosition()

    def update() -> float:
        nonlocal at
        batch, at = batches.at(at)
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(
            forward(batch).flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED
        )
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), settings.clip)
        optimizer.step()
        return float(loss.detach())

    return update


def n_weight(module: nn.Module) -> int:
    """How many numbers are learned."""
    return sum(parameter.numel() for parameter in module.parameters())


def same_size(ours: nn.Module, other: nn.Module, what: str) -> None:
    if n_weight(ours) != n_weight(other):
        raise RuntimeError(f"{what} has {n_weight(other)} weights and ours {n_weight(ours)}: not alike.")


def decoders(settings: Settings, batches: Held) -> dict[str, Case]:
    """A GPT-2 of ours, of PyTorch's layers and of transformers'."""
    from transformers import AutoModelForCausalLM, GPT2Config

    ours = training(settings, batches)
    from_torch = TorchDecoder(settings)
    config = GPT2Config(
        vocab_size=settings.vocab,
        n_positions=settings.context,
        n_embd=settings.model_dim,
        n_layer=settings.n_layer,
        n_head=settings.n_head,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=1,
        eos_token_id=2,
    )
    make: Any = AutoModelForCausalLM.from_config  # publishes no types
    theirs = make(config, attn_implementation="sdpa")
    same_size(ours.objective, from_torch, TORCH)
    same_size(ours.objective, theirs, TRANSFORMERS)
    return {
        OURS: ours.update,
        TORCH: peer(from_torch, lambda batch: from_torch(batch.inputs), settings, batches),
        TRANSFORMERS: peer(
            theirs, lambda batch: theirs(batch.inputs, use_cache=False).logits, settings, batches
        ),
    }


def encoder_decoders(settings: Settings, batches: Held) -> dict[str, Case]:
    """A T5 of ours and of transformers', and PyTorch's own Transformer."""
    from transformers import AutoModelForSeq2SeqLM, T5Config

    ours = training(settings, batches)
    from_torch = TorchEncoderDecoder(settings)
    config = T5Config(
        vocab_size=settings.vocab,
        d_model=settings.model_dim,
        d_kv=settings.model_dim // settings.n_head,
        d_ff=4 * settings.model_dim,
        num_layers=settings.n_layer,
        num_heads=settings.n_head,
        dropout_rate=0.0,
    )
    make: Any = AutoModelForSeq2SeqLM.from_config  # publishes no types
    theirs = make(config)
    same_size(ours.objective, theirs, TRANSFORMERS)

    def forward(batch: Batch) -> Tensor:
        mask = None if batch.source_key_mask is None else batch.source_key_mask.long()
        logits: Tensor = theirs(
            batch.source, attention_mask=mask, decoder_input_ids=batch.inputs, use_cache=False
        ).logits
        return logits

    return {
        OURS: ours.update,
        TORCH: peer(from_torch, from_torch, settings, batches),
        TRANSFORMERS: peer(theirs, forward, settings, batches),
    }


def recurrent(settings: Settings, batches: Held) -> dict[str, Case]:
    """The attentional GRU of ours, and the loop of steps from the same weights."""
    ours = training(settings, batches)
    model = ours.objective.model
    assert isinstance(model, Seq2Seq)
    loop = StepLoop(model.config).take(model)
    same_size(ours.objective, loop, LOOP)
    batch, _ = batches.at(DataPosition())
    with torch.no_grad():
        theirs = functional.cross_entropy(
            loop(batch).flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        mine = ours.objective(batch.source, batch.source_key_mask, batch.inputs, batch.labels)
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=0.0)
    return {OURS: ours.update, LOOP: peer(loop, loop, settings, batches)}


def measured(
    settings: Settings,
    batches: Held,
    build: Callable[[Settings, Held], dict[str, Case]],
    rounds: int,
    words: str,
) -> tuple[list[Row], list[str]]:
    """A row for each peer's goal, and tokens per second of all."""
    timings = interleaved(build(settings, batches), rounds, round_seconds=0.3)
    peers = [name for name in timings if name != OURS]
    fastest = min(peers, key=lambda name: timings[name].median)

    def speed(timing: Timing) -> str:
        return f"{batches.tokens / timing.median:,.0f}"

    row = Row(words, timings, Goal(OURS, fastest, 1.0))
    return [row], [words, *(speed(timings[name]) if name in timings else "-" for name in SIDES)]


SIDES = (OURS, TORCH, TRANSFORMERS, LOOP)


def blocks(settings: Settings, n_batch: int) -> Held:
    """Batches of a random text."""
    tokens = np.random.default_rng(0).integers(len(SPECIAL), settings.vocab, 200_000)
    return Held(Batches(BlockExamples(tokens, settings.context, 0), settings.batch_tokens, 0, 0), n_batch)


def pairs(settings: Settings, lengths: tuple[int, int], answers: tuple[int, int], n_batch: int) -> Held:
    """Batches of random pairs."""
    examples = RandomPairs(settings.vocab, *lengths, answers)
    return Held(Batches(examples, settings.batch_tokens, 0, 0), n_batch)


def speeds(quick: bool, rounds: int) -> list[RatioTable | PlainTable]:
    """All tables of time."""
    same: dict[str, Any] = {"dropout": 0.0, "threads": 2}
    lm: dict[str, Any] = {"text": ["-"], "vocab": 71, **same}
    n_batch = 2 if quick else N_BATCH
    small = Settings.of("lm", lm)
    larger = {"model_dim": 256, "n_head": 8, "batch_tokens": 2048}
    wide = Settings.of("lm", {**lm, **larger, "vocab": 1031, "n_layer": 6, "context": 256})
    both = Settings.of("reverse", {**same, **larger, "model": "t5", "vocab": 2003, "n_layer": 3})
    dates = Settings.of("dates", {**same, "vocab": 401})
    words = Settings.of(
        "reverse", {**same, "vocab": 2003, "hidden_dim": 256, "embed_dim": 256, "batch_tokens": 2048}
    )
    cases: list[tuple[Settings, Held, Any, str]] = [
        (small, blocks(small, n_batch), decoders, "GPT-2, 4 layers, 128 wide, 12 × 64 (nanoGPT's CPU size)"),
        (words, pairs(words, (11, 29), (11, 29), n_batch), recurrent, "GRU, 256 wide, words of 11 to 29"),
        (dates, pairs(dates, (8, 31), (11, 11), n_batch), recurrent, "GRU, 128 wide, `dates`"),
    ]
    if not quick:
        cases[1:1] = [
            (wide, blocks(wide, n_batch), decoders, "GPT-2, 6 layers, 256 wide, 8 × 256"),
            (both, pairs(both, (11, 29), (11, 29), n_batch), encoder_decoders, "T5, 3 + 3 layers, 256 wide"),
        ]
    rows, lines = [], [["tokens per second", *SIDES]]
    for settings, batches, build, said in cases:
        found, line = measured(settings, batches, build, rounds, said)
        rows += found
        lines.append(line)
    return [
        RatioTable("One update", OURS, rows, "The goal is against the fastest of the others."),
        PlainTable("Tokens per second", lines),
    ]


@dataclass(frozen=True, slots=True)
class Published:
    """A figure somebody reached, which a run of ours is to reach too."""

    what: str
    score: str
    value: float
    smaller: bool = False


PUBLISHED = {
    "nanogpt": Published("nanoGPT on a CPU: tiny Shakespeare, validation loss", "loss", 1.88, smaller=True),
    "reverse": Published("JoeyNMT's reverse task: test BLEU, longer than in training", "bleu", 95.19),
    "dates": Published("dates: exact match on held-out dates", "exact", 0.99),
    "multi30k-gru": Published(
        "Multi30k de-en, test 2016, attentional GRU of tutorials, ten epochs", "bleu", 28
    ),
    "multi30k-t5": Published("Multi30k de-en, test 2016, Transformer of tutorials, ten epochs", "bleu", 36),
}


def command_of(settings: Settings) -> str:
    """The command that makes a run of these settings, files by their names alone."""
    files: dict[str, Any] = {"lm": {"text": ["-"]}, "translate": {"pairs": ["-", "-"]}}
    plain = asdict(Settings.of(settings.task, files.get(settings.task, {})))
    said = [f"regard train {settings.task}"]
    for name, value in asdict(settings).items():
        if name in ("task", "out", "tensorboard") or value == plain[name]:
            continue
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            said.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            values = [Path(each).name for each in value] if isinstance(value, tuple | list) else [value]
            said += [f"{flag} {each}" for each in values]
    return " ".join(said)


def figures(folder: Path, wanted: Published) -> tuple[float, dict[str, Any]]:
    """The figure of a finished run, and its result.json; BLEU of a generated task is taken here."""
    result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    if wanted.score in result["scores"]:
        return float(result["scores"][wanted.score]), result
    corpus = open_corpus(Settings.read(folder / "config.toml"), folder)
    answers = answered(load(folder / "best"), corpus.test.pairs)
    return float(translation_scores(answers, [target for _, target in corpus.test.pairs])["bleu"]), result


def goals(runs: Sequence[str]) -> list[PlainTable]:
    """The finished runs that were named, each beside its published figure."""
    lines = [["goal", "published", "ours", "verdict", "weights", "training", "command"]]
    for each in runs:
        name, _, folder = each.partition("=")
        if name not in PUBLISHED or not folder:
            raise SystemExit(f"--run is NAME=FOLDER, with NAME of {', '.join(PUBLISHED)}. Got {each!r}.")
        wanted = PUBLISHED[name]
        value, result = figures(Path(folder), wanted)
        met = value <= wanted.value if wanted.smaller else value >= wanted.value
        command = command_of(Settings.read(Path(folder) / "config.toml"))
        lines.append(
            [
                wanted.what,
                f"{wanted.value:g}",
                f"{value:.4g}",
                "met" if met else "missed",
                f"{result['n_parameter']:,}",
                f"{result['seconds']:.0f} s",
                f"`{command}`",
            ]
        )
    return [PlainTable("What runs have come to", lines)] if len(lines) > 1 else []


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--run", action="append", default=[])
    given, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    options = parse_options(__doc__)
    reached = goals(given.run)  # first: a wrong name ends here, before minutes of timing
    report("Training", [*speeds(options.quick, options.rounds), *reached], options, NOTE)


if __name__ == "__main__":
    main()
