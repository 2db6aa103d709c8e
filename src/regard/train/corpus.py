"""What a run learns from and is judged by: its tokenizer, its examples, its held-out data."""

import csv
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from regard.errors import ArgumentError, LoadError
from regard.files.tokenizer import TextTokenizer
from regard.train.batches import BlockExamples, Examples, PairExamples, Row
from regard.train.build import start_token, transformer_config
from regard.train.data import BadLines, TokenFile, read_lines, read_pairs, write_tokens
from regard.train.settings import GENERATED, Settings
from regard.train.tasks import Pair, generated_task
from regard.train.vocabulary import SPECIAL, train_tokenizer

FINAL_SIZE = 2000  # held-out examples of a generated task on which the finished model is scored, at most
_EPOCH = 2**20  # examples of a generated task, which has no end
_CHUNK = 1000  # lines tokenised together


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Data that training does not see."""

    examples: Examples
    pairs: Sequence[Pair] = ()  # the same as text, for tasks with an answer
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
    paths = {"train": settings.pairs or settings.text, "valid": settings.valid, "test": settings.test}
    for name, files in paths.items():
        if files and not TokenFile.exists(folder / "data" / name):
            _write(settings, tokenizer, files, folder / "data", name)


def open_corpus(settings: Settings, folder: Path) -> Corpus:
    """Return what `prepare` wrote."""
    tokenizer, data = TextTokenizer.from_folder(folder), folder / "data"
    if settings.task == "lm":
        return _open_text(settings, tokenizer, data)
    start = start_token(settings, tokenizer)

    def encoded(pair: Pair) -> tuple[Row, Row]:
        return tokenizer.encode(pair[0]), tokenizer.encode(pair[1])

    def held_out(pairs: Sequence[Pair]) -> HeldOut:
        return HeldOut(PairExamples(lambda index: encoded(pairs[index]), len(pairs), start), pairs)

    if settings.task in GENERATED:
        task = generated_task(settings)
        train = PairExamples(
            lambda index: encoded(task.example(settings.seed, index)), _EPOCH, start, endless=True
        )
        # Their own seed, so that runs of every seed are judged alike.
        valid = [task.example(0, index, held_out=True) for index in range(settings.eval_size)]
        final = [task.example(0, 10**6 + index, held_out=True) for index in range(FINAL_SIZE)]
        # A task may be too small to have others than those that chose the best model.
        test = [pair for pair in final if pair not in valid] or final
        return Corpus(tokenizer, train, held_out(valid), held_out(test))

    rows = TokenFile(data / "train")
    train = PairExamples(lambda index: (rows[2 * index], rows[2 * index + 1]), len(rows) // 2, start)

    def read(name: str) -> HeldOut:
        with (data / f"{name}.tsv").open(encoding="utf-8", newline="") as file:
            pairs = [(source, target) for source, target in csv.reader(file, delimiter="\t")]
        if not pairs:
            raise ArgumentError(
                f"there are no held-out pairs ({name}): give more data, or a valid_fraction above "
                f"{settings.valid_fraction}, or a file of them."
            )
        return held_out(pairs)

    judged = read("valid")
    return Corpus(tokenizer, train, judged, read("test") if settings.test else judged, rows.crc, _notes(rows))


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


def _read(settings: Settings, paths: Sequence[str], bad: BadLines) -> Iterator[tuple[Any, ...]]:
    """Return the number of each line, and the texts in it: two of a pair, or one."""
    return read_pairs(paths, bad) if settings.task == "translate" else read_lines(paths, bad)


def _write(settings: Settings, tokenizer: TextTokenizer, paths: Sequence[str], data: Path, name: str) -> None:
    """Write texts as a token file, and held-out pairs as a TSV: `valid` and `test`, or a part of `train`."""
    bad, is_pairs = BadLines(), settings.task == "translate"
    part = 1.0 if name != "train" else 0.0 if settings.valid else settings.valid_fraction
    held_out = []

    def rows() -> Iterator[tuple[list[int], int]]:
        lines = _read(settings, paths, bad)
        while chunk := list(islice(lines, _CHUNK)):
            encoded = iter(tokenizer.backend.encode_batch([t for _, *texts in chunk for t in texts]))
            for line, *texts in chunk:
                encodings = [next(encoded).ids for _ in texts]
                # A test set is scored whole.
                if is_pairs and name != "test" and max(map(len, encodings)) > settings.max_length:
                    bad.add(f"longer than {settings.max_length} tokens", paths[0], line)
                # By its source, so that a repeated line is on one side of the split only.
                elif is_pairs and zlib.crc32(texts[0].encode()) < part * 2**32:
                    held_out.append(texts)
                else:
                    yield from ((row, len(text.encode())) for text, row in zip(texts, encodings, strict=True))
        if settings.bad_lines == "refuse" and bad.counts:
            raise LoadError(f"{', '.join(paths)}: {bad}. bad_lines = skip would leave them out.")
        if is_pairs and not (name == "train" and settings.valid):
            table = data / f"{'valid' if name == 'train' else name}.tsv"
            with table.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file, delimiter="\t").writerows(held_out)

    vocab, unknown = tokenizer.vocab_size, SPECIAL.index("<unk>")
    write_tokens(data / name, rows(), bad, vocab=vocab, unknown=unknown)


def _open_text(settings: Settings, tokenizer: TextTokenizer, data: Path) -> Corpus:
    masked = transformer_config(settings, tokenizer).lm_head == "masked"
    mask, vocab = tokenizer.special.mask if masked else None, tokenizer.vocab_size

    def held_out(file: TokenFile, first: int = 0) -> HeldOut:
        tokens = file.between(first, len(file))
        examples = BlockExamples(tokens, settings.context, 0, mask, vocab, moving=False)
        return HeldOut(examples, bytes_per_token=file.n_byte(first, len(file)) / len(tokens))

    rows = TokenFile(data / "train")
    last = len(rows)
    if settings.valid:
        valid = held_out(TokenFile(data / "valid"))
    else:
        # The end of the text, in whole lines: what comes after is not known from what came before.
        last = int((rows.ends <= (1 - settings.valid_fraction) * len(rows.tokens)).sum())
        valid = held_out(rows, last)
    test = held_out(TokenFile(data / "test")) if settings.test else valid
    train = BlockExamples(rows.between(0, last), settings.context, settings.seed, mask, vocab)
    return Corpus(tokenizer, train, valid, test, rows.crc, _notes(rows))


def _notes(rows: TokenFile) -> tuple[str, ...]:
    """Return what a person should know of the data."""
    notes = [f"skipped {rows.bad}"] if rows.bad else []
    if rows.unknown:
        part = rows.unknown / len(rows.tokens)
        notes.append(f"{part:.2%} of the training tokens are unknown words: a larger vocab knows more.")
    return tuple(notes)
