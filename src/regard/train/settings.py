"""Every option of a training run, in one frozen dataclass: from a TOML file, the command line or Python.

Settings.of("dates", {"steps": 500})       the task's own defaults, then what is given
Settings.read("config.toml")               what `write` wrote, or a person did
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from regard.errors import ArgumentError, LoadError, no_such

Task = Literal["dates", "translate", "lm", "reverse", "copy", "sort", "recall"]
GENERATED: tuple[Task, ...] = ("dates", "reverse", "copy", "sort", "recall")


def _said(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, slots=True)
class Settings:
    """One training run. The field's help is what `regard train --help` says of it."""

    task: Task = _said("dates", "What is learned.")  # noqa: RUF009  # a field, as field() makes it
    out: str = _said("", "The run's folder; by default a new one under runs/.")
    seed: int = _said(0, "Of the weights, the order of the data and dropout.")
    # data
    pairs: tuple[str, ...] = _said((), "translate: a TSV of pairs, or, given twice, two aligned files.")
    text: tuple[str, ...] = _said((), "lm: a text file, once or more.")
    valid: tuple[str, ...] = _said((), "Held-out data, as `pairs` or `text`; by default a part of those.")
    test: tuple[str, ...] = _said((), "What the finished model is scored on; by default the held-out data.")
    valid_fraction: float = _said(0.1, "The part held out where `valid` is not given.")
    bad_lines: Literal["skip", "refuse"] = _said("skip", "What to do with lines that cannot be used.")
    max_length: int = _said(256, "A line with more tokens than this on one side counts as bad.")
    tokenizer: Literal["char", "word", "bpe"] = _said("char", "What a token is; bpe is byte-level.")
    vocab: int = _said(8000, "The largest vocabulary.")
    symbols: int = _said(50, "Generated tasks: how many different words.")
    min_words: int = _said(1, "Generated tasks: the shortest sequence.")
    max_words: int = _said(25, "Generated tasks: the longest sequence.")
    test_words: int = _said(0, "Generated tasks: the longest held-out sequence; 0: as max_words.")
    # model
    model: Literal["seq2seq", "t5", "gpt2", "llama", "qwen3", "gemma3", "gpt_neox", "bert"] = _said(
        "seq2seq", "The kind of model."
    )
    cell: Literal["gru", "lstm", "rnn"] = _said("gru", "seq2seq: the recurrent cell.")
    score: Literal["additive", "dot", "general", "none"] = _said("additive", "seq2seq: the attention.")
    bidirectional: bool = _said(True, "seq2seq: the encoder also reads from the end.")
    embed_dim: int = _said(64, "seq2seq: width of the embeddings.")
    hidden_dim: int = _said(128, "seq2seq: width of the states.")
    n_layer: int = _said(1, "Layers; of an encoder-decoder, in each stack.")
    model_dim: int = _said(128, "Transformers: width.")
    n_head: int = _said(4, "Transformers: attention heads.")
    ff_dim: int = _said(0, "Transformers: width of the feed-forward; 0: four times model_dim.")
    context: int = _said(64, "lm: tokens the model sees at once.")
    # optimisation
    steps: int = _said(1000, "Updates of the weights.")
    batch_tokens: int = _said(4096, "Tokens of one batch, padding included, over all processes.")
    accumulate: int = _said(1, "Batches whose gradients make one update.")
    lr: float = _said(1e-3, "The highest learning rate.")
    min_lr: float = _said(0.0, "cosine: the part of lr that is left at the end.")
    schedule: Literal["cosine", "inverse_sqrt", "constant"] = _said("cosine", "How lr falls after warm-up.")
    warmup: int = _said(100, "Updates in which lr rises from 0.")
    beta1: float = _said(0.9, "AdamW.")
    beta2: float = _said(0.98, "AdamW.")
    weight_decay: float = _said(0.01, "AdamW, of matrices only.")
    clip: float = _said(1.0, "The longest gradient; 0: any.")
    dropout: float = _said(0.1, "The part of activations set to 0.")
    label_smoothing: float = _said(0.0, "The part of the target spread over the vocabulary.")
    precision: Literal["auto", "float32", "bf16"] = _said("auto", "auto: bf16 on a GPU that has it.")
    compile: bool = _said(False, "Use torch.compile.")
    # running
    eval_every: int = _said(200, "Updates between evaluations.")
    eval_size: int = _said(500, "Held-out examples decoded at an evaluation.")
    save_every: int = _said(200, "Updates between checkpoints.")
    log_every: int = _said(10, "Updates between lines of metrics.")
    patience: int = _said(0, "Evaluations without a better score before stopping; 0: never.")
    keep_best: int = _said(1, "How many of the best models are kept.")
    average: bool = _said(False, "The result is the mean of the kept models, not the best of them.")
    device: str = _said("cpu", "cpu, cuda, cuda:1, mps.")
    threads: int = _said(0, "CPU threads; 0: as PyTorch finds them. Bits depend on it.")
    tensorboard: bool = _said(True, "Write metrics for TensorBoard too, where it is installed.")
    sharding: Literal["ddp", "fsdp"] = _said("ddp", "Under torchrun: copies of the model, or parts of it.")

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not value >= least:  # NaN is not
                raise ArgumentError(f"{name} must be at least {least}. Got {value}.")
        for name in ("valid_fraction", "dropout", "label_smoothing", "beta1", "beta2"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ArgumentError(f"{name} must be at least 0 and below 1. Got {value}.")
        if not 0 < self.lr < math.inf:
            raise ArgumentError(f"lr must be above 0 and finite. Got {self.lr}.")
        if not 0 <= self.min_lr <= 1:
            raise ArgumentError(f"min_lr is a part of lr, from 0 to 1. Got {self.min_lr}.")
        if self.max_words < self.min_words:
            raise ArgumentError(
                f"max_words must be at least min_words. Got {self.max_words} and {self.min_words}."
            )
        wanted = (
            ("gpt2", "llama", "qwen3", "gemma3", "gpt_neox", "bert")
            if self.task == "lm"
            else ("seq2seq", "t5")
        )
        if self.model not in wanted:
            raise ArgumentError(f"task {self.task} needs a model of {', '.join(wanted)}. Got {self.model}.")
        if self.model != "seq2seq" and self.model_dim % self.n_head:
            raise ArgumentError(
                f"model_dim must be a multiple of n_head. Got {self.model_dim} and {self.n_head}."
            )
        for name in ("pairs", "valid", "test"):
            given = getattr(self, name)
            if self.task != "lm" and len(given) > 2:
                raise ArgumentError(f"{name} is one TSV file or two aligned ones. Got {', '.join(given)}.")
        needed = {"translate": "pairs", "lm": "text"}.get(self.task)
        if needed and not getattr(self, needed):
            raise ArgumentError(f"task {self.task} needs data: give {needed}, as --{needed} FILE.")
        for name in ("pairs", "text") if needed is None else ({"pairs", "text"} - {needed}):
            if getattr(self, name):
                raise ArgumentError(
                    f"task {self.task} takes no {name}. Got {', '.join(getattr(self, name))}."
                )
        if needed is None and (self.valid or self.test):
            raise ArgumentError(f"task {self.task} makes its own held-out data: leave out valid and test.")

    @classmethod
    def of(cls, task: str, given: Mapping[str, Any] | None = None) -> Settings:
        """The settings of a task: its own defaults, then what is given.

        >>> Settings.of("dates", {"steps": 7}).steps
        7
        """
        values = {**DEFAULTS.get(task, {}), **(given or {}), "task": task}
        return cls(**{name: checked(name, value) for name, value in values.items()})

    @classmethod
    def read(cls, path: str | Path, given: Mapping[str, Any] | None = None) -> Settings:
        """The settings in a TOML file; `given` has the last word."""
        path = Path(path)
        try:
            values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise LoadError(f"{path} cannot be read: {error.strerror or error}.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise LoadError(f"{path} is not TOML: {error}.") from error
        values |= given or {}
        try:
            return cls.of(checked("task", values.pop("task", "dates")), values)
        except ArgumentError as error:
            raise ArgumentError(f"{path}: {error}") from error

    def to_toml(self) -> str:
        """Every setting as TOML, which `read` reads.

        >>> Settings().to_toml().splitlines()[0]
        'task = "dates"'
        """
        # JSON's strings, numbers, booleans and lists of strings are TOML's too.
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in asdict(self).items())


_POSITIVE = """
    max_length vocab symbols min_words max_words embed_dim hidden_dim n_layer model_dim n_head steps
    batch_tokens accumulate eval_every eval_size save_every log_every keep_best
""".split()
_LEAST = (
    dict.fromkeys(_POSITIVE, 1)
    | {"context": 2}
    | dict.fromkeys("seed test_words ff_dim warmup weight_decay clip patience threads".split(), 0)
)

_WORDS = {"tokenizer": "word", "lr": 2e-3, "steps": 2000, "eval_size": 200}
DEFAULTS: dict[str, dict[str, Any]] = {
    "dates": {"lr": 2e-3, "steps": 600},
    "reverse": _WORDS,
    "copy": _WORDS,
    "sort": _WORDS,
    "recall": _WORDS,
    "translate": {
        "tokenizer": "bpe",
        "hidden_dim": 256,
        "embed_dim": 256,
        "dropout": 0.2,
        "label_smoothing": 0.1,
        "max_length": 100,
        "steps": 5000,
        "valid_fraction": 0.02,
        "eval_every": 500,
        "eval_size": 200,
    },
    "lm": {
        "model": "gpt2",
        "n_layer": 4,
        "batch_tokens": 768,
        "steps": 2000,
        "lr": 2e-3,
        "dropout": 0.0,
        "beta2": 0.99,
        "weight_decay": 0.1,
        "min_lr": 0.1,
    },
}


def checked(name: str, value: Any) -> Any:
    """A setting's value in its type; an error that names the setting where it is of another."""
    if name not in _TYPES:
        raise ArgumentError(no_such("setting", name, _TYPES))
    kind = _TYPES[name]
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ArgumentError(f"{name} must be one of {', '.join(get_args(kind))}. Got {value!r}.")
    elif get_origin(kind) is tuple:
        value = (value,) if isinstance(value, str) else value
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise ArgumentError(f"{name} must be a string or a list of strings. Got {value!r}.")
        value = tuple(value)
    elif kind is float and type(value) is int:
        value = float(value)
    elif type(value) is not kind:
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
        raise ArgumentError(f"{name} must be {words[kind]}. Got {value!r}.")
    return value


_TYPES: dict[str, Any] = get_type_hints(Settings)
assert not any(get_origin(kind) in (Union, UnionType) for kind in _TYPES.values())
HELP: dict[str, str] = {setting.name: setting.metadata["help"] for setting in fields(Settings)}
