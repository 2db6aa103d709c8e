"""What a run learns from and is judged by: its tokenizer, its examples, its held-out data."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from regard.errors import ArgumentError, LoadError
from regard.files.tokenizer import TextTokenizer
from regard.train.batches import BlockExamples, Examples, GeneratedExamples, PairExamples
from regard.train.build import start_token, transformer_config
from regard.train.data import BadLines, TokenFile, TokenWriter, read_lines, read_pairs
from regard.train.settings import GENERATED, Settings
from regard.train.tasks import generated_task
from regard.train.vocabulary import SPECIAL, train_tokenizer

Pairs = tuple[tuple[str, str], ...]
FINAL_SIZE = 2000  # held-out examples of a generated task on which the finished model is scored
_CHUNK = 1000  # lines tokenised together


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Data that training does not see."""

    examples: Examples
    pairs: Pairs = ()  # the same as text, for tasks with an answer
    bytes_per_token: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Everything a run reads."""

    tokenizer: TextTokenizer
    train: Examples
    valid: HeldOut
    test: HeldOut
    crc: int = 0  # of the training tokens: a run is resumed with the data it began with
    notes: tuple[str, ...] = ()


def prepare(settings: Settings, folder: Path) -> None:
    """Write tokenizer.json and the token files into a run's folder, unless they are there."""
    tokenizer = _tokenizer(settings, folder)
    if settings.task in GENERATED:
        return
    data = folder / "data"
    paths = {"train": settings.pairs or settings.text, "valid": settings.valid, "test": settings.test}
    for name, files in paths.items():
        if files and not TokenFile.exists(data / name):
            _write(settings, tokenizer, files, data, name)


def open_corpus(settings: Settings, folder: Path) -> Corpus:
    """What `prepare` wrote."""
    tokenizer = TextTokenizer.from_folder(folder)
    if settings.task in GENERATED:
        return _generated(settings, tokenizer)
    open_ = _open_pairs if settings.task == "translate" else _open_text
    return open_(settings, tokenizer, folder / "data")


def _tokenizer(settings: Settings, folder: Path) -> TextTokenizer:
    if (folder / "special_tokens_map.json").is_file():  # written last
        return TextTokenizer.from_folder(folder)
    if settings.task in GENERATED:
        texts: Iterable[str] = generated_task(settings).alphabet()
    else:
        lines = _read(settings, settings.pairs or settings.text, BadLines())
        texts = (text for _, *in_line in lines for text in in_line)
    tokenizer = train_tokenizer(settings.tokenizer, texts, vocab=settings.vocab, end=settings.task != "lm")
    tokenizer.save(folder)
    return tokenizer


def _generated(settings: Settings, tokenizer: TextTokenizer) -> Corpus:
    task = generated_task(settings)
    start = start_token(settings, tokenizer)

    def held_out(first: int, size: int) -> HeldOut:
        # Its own seed, so that runs of every seed are judged alike.
        pairs = tuple(task.example(0, index, held_out=True) for index in range(first, first + size))
        return HeldOut(GeneratedExamples(task, tokenizer, 0, start, size, held_out=True), pairs)

    train = GeneratedExamples(task, tokenizer, settings.seed, start)
    valid, test = held_out(0, settings.eval_size), held_out(10**6, FINAL_SIZE)
    return Corpus(tokenizer, train, valid, test)


def _read(settings: Settings, paths: Sequence[str], bad: BadLines) -> Iterator[tuple[Any, ...]]:
    """The number of each line, and the texts in it: two of a pair, or one."""
    return read_pairs(paths, bad) if settings.task == "translate" else read_lines(paths, bad)


def _write(settings: Settings, tokenizer: TextTokenizer, paths: Sequence[str], data: Path, name: str) -> None:
    """Token file of texts; of training pairs without `valid`, a part goes into a token file of its own."""
    bad, pairs = BadLines(), settings.task == "translate"
    split = pairs and name == "train" and not settings.valid
    parts = ("train", "valid") if split else (name,)
    vocab, unknown = tokenizer.vocab_size, SPECIAL.index("<unk>")
    with ExitStack() as stack:
        writers = {
            part: stack.enter_context(TokenWriter(data / part, vocab=vocab, unknown=unknown))
            for part in parts
        }
        tables = {
            part: csv.writer(
                stack.enter_context((data / f"{part}.tsv").open("w", encoding="utf-8", newline="")),
                delimiter="\t",
            )
            for part in parts
            if pairs and part != "train"  # held-out pairs are needed as text too
        }
        lines = _read(settings, paths, bad)
        while chunk := list(islice(lines, _CHUNK)):
            encoded = iter(tokenizer.backend.encode_batch([t for _, *texts in chunk for t in texts]))
            for line, *texts in chunk:
                rows = [next(encoded).ids for _ in texts]
                # A test set is scored whole.
                if pairs and name != "test" and max(map(len, rows)) > settings.max_length:
                    bad.add(f"longer than {settings.max_length} tokens", paths[0], line)
                    continue
                # By its source, so that a repeated line is on one side of the split only.
                held_out = split and zlib.crc32(texts[0].encode()) < settings.valid_fraction * 2**32
                part = "valid" if held_out else name
                if part in tables:
                    tables[part].writerow(texts)
                for text, row in zip(texts, rows, strict=True):
                    writers[part].add(row, len(text.encode()))
        if settings.bad_lines == "refuse" and bad.counts:
            raise LoadError(f"{', '.join(paths)}: {bad}. bad_lines = skip would leave them out.")
        for writer in reversed(writers.values()):  # the training data last: they say that all is there
            writer.finish(bad)


def _open_pairs(settings: Settings, tokenizer: TextTokenizer, data: Path) -> Corpus:
    start = start_token(settings, tokenizer)
    rows = TokenFile(data / "train")

    def held_out(name: str) -> HeldOut:
        with (data / f"{name}.tsv").open(encoding="utf-8", newline="") as file:
            pairs = tuple((source, target) for source, target in csv.reader(file, delimiter="\t"))
        if not pairs:
            raise ArgumentError(
                f"there are no held-out pairs ({name}): give more data, or a valid_fraction above "
                f"{settings.valid_fraction}, or a file of them."
            )
        return HeldOut(PairExamples(TokenFile(data / name), start), pairs)

    valid = held_out("valid")
    test = held_out("test") if settings.test else valid
    return Corpus(tokenizer, PairExamples(rows, start), valid, test, rows.crc, _notes(rows))


def _open_text(settings: Settings, tokenizer: TextTokenizer, data: Path) -> Corpus:
    rows = TokenFile(data / "train")
    masked = transformer_config(settings, tokenizer).head == "masked"
    mask = tokenizer.special.mask if masked else None

    def blocks(file: TokenFile, first: int, last: int, *, moving: bool) -> BlockExamples:
        """The rows from `first` up to `last`."""
        begin = 0 if first == 0 else int(file.ends[first - 1])
        end = 0 if last == 0 else int(file.ends[last - 1])
        return BlockExamples(
            file.tokens[begin:end],
            settings.context,
            settings.seed if moving else 0,
            mask=mask,
            vocab=tokenizer.vocab_size,
            n_special=len(SPECIAL),
            moving=moving,
        )

    def held_out(file: TokenFile, first: int) -> HeldOut:
        examples = blocks(file, first, len(file), moving=False)
        return HeldOut(examples, bytes_per_token=file.n_byte(first, len(file)) / len(examples.tokens))

    last = len(rows)
    if settings.valid:
        valid = held_out(TokenFile(data / "valid"), 0)
    else:
        # The end of the text, in whole lines: what comes after is not known from what came before.
        limit = (1 - settings.valid_fraction) * len(rows.tokens)
        last = int((rows.ends <= limit).sum())
        valid = held_out(rows, last)
    test = held_out(TokenFile(data / "test"), 0) if settings.test else valid
    return Corpus(tokenizer, blocks(rows, 0, last, moving=True), valid, test, rows.crc, _notes(rows))


def _notes(rows: TokenFile) -> tuple[str, ...]:
    """What a person should know of the data."""
    notes = [f"skipped {rows.bad}"] if rows.bad else []
    if rows.unknown:
        part = rows.unknown / len(rows.tokens)
        notes.append(f"{part:.2%} of the training tokens are unknown words: a larger vocab knows more.")
    return tuple(notes)
