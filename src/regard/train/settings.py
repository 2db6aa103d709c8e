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
from typing import Any, Literal, get_args, get_origin, get_type_hints

from regard.errors import ArgumentError, LoadError, no_such

Task = Literal["dates", "translate", "lm", "reverse", "copy", "sort", "recall"]
GENERATED: tuple[Task, ...] = ("dates", "reverse", "copy", "sort", "recall")


def _said(default: Any, help_text: str, least: int | None = None, below: int | None = None) -> Any:
    return field(default=default, metadata={"help": help_text, "least": least, "below": below})


@dataclass(frozen=True, slots=True)
class Settings:
    """One training run. The field's help is what `regard train --help` says of it."""

    task: Task = _said("dates", "What is learned.")  # noqa: RUF009  # a field, as field() makes it
    out: str = _said("", "The run's folder; by default a new one under runs/.")
    seed: int = _said(0, "Of the weights, the order of the data and dropout.", 0)
    # data
    pairs: tuple[str, ...] = _said((), "translate: a TSV of pairs, or, given twice, two aligned files.")
    text: tuple[str, ...] = _said((), "lm: a text file, once or more.")
    valid: tuple[str, ...] = _said((), "Held-out data, as `pairs` or `text`; by default a part of those.")
    test: tuple[str, ...] = _said((), "What the finished model is scored on; by default the held-out data.")
    valid_fraction: float = _said(0.1, "The part held out where `valid` is not given.", 0, below=1)
    bad_lines: Literal["skip", "refuse"] = _said("skip", "What to do with lines that cannot be used.")
    max_length: int = _said(256, "A line with more tokens than this on one side counts as bad.", 1)
    tokenizer: Literal["char", "word", "bpe"] = _said("char", "What a token is; bpe is byte-level.")
    vocab: int = _said(8000, "The largest vocabulary.", 1)
    symbols: int = _said(50, "Generated tasks: how many different words.", 1)
    min_words: int = _said(1, "Generated tasks: the shortest sequence.", 1)
    max_words: int = _said(25, "Generated tasks: the longest sequence.", 1)
    test_words: int = _said(0, "Generated tasks: the longest held-out sequence; 0: as max_words.", 0)
    # model
    model: Literal["seq2seq", "t5", "gpt2", "llama", "qwen3", "gemma3", "gpt_neox", "bert"] = _said(
        "seq2seq", "The kind of model."
    )
    cell: Literal["gru", "lstm", "rnn"] = _said("gru", "seq2seq: the recurrent cell.")
    score: Literal["additive", "dot", "general", "none"] = _said("additive", "seq2seq: the attention.")
    bidirectional: bool = _said(True, "seq2seq: the encoder also reads from the end.")
    embed_dim: int = _said(64, "seq2seq: width of the embeddings.", 1)
    hidden_dim: int = _said(128, "seq2seq: width of the states.", 1)
    n_layer: int = _said(1, "Layers; of an encoder-decoder, in each stack.", 1)
    model_dim: int = _said(128, "Transformers: width.", 1)
    n_head: int = _said(4, "Transformers: attention heads.", 1)
    ff_dim: int = _said(0, "Transformers: width of the feed-forward; 0: four times model_dim.", 0)
    context: int = _said(64, "lm: tokens the model sees at once.", 2)
    # optimisation
    steps: int = _said(1000, "Updates of the weights.", 1)
    batch_tokens: int = _said(4096, "Tokens of one batch, padding included, over all processes.", 1)
    accumulate: int = _said(1, "Batches whose gradients make one update.", 1)
    lr: float = _said(1e-3, "The highest learning rate.")
    min_lr: float = _said(0.0, "cosine: the part of lr that is left at the end.")
    schedule: Literal["cosine", "inverse_sqrt", "constant"] = _said("cosine", "How lr falls after warm-up.")
    warmup: int = _said(100, "Updates in which lr rises from 0.", 0)
    beta1: float = _said(0.9, "AdamW.", 0, below=1)
    beta2: float = _said(0.98, "AdamW.", 0, below=1)
    weight_decay: float = _said(0.01, "AdamW, of matrices only.", 0)
    clip: float = _said(1.0, "The longest gradient; 0: any.", 0)
    dropout: float = _said(0.1, "The part of activations set to 0.", 0, below=1)
    label_smoothing: float = _said(0.0, "The part of the target spread over the vocabulary.", 0, below=1)
    precision: Literal["auto", "float32", "bf16"] = _said("auto", "auto: bf16 on a GPU that has it.")
    compile: bool = _said(False, "Use torch.compile.")
    # running
    eval_every: int = _said(200, "Updates between evaluations.", 1)
    eval_size: int = _said(500, "Held-out examples decoded at an evaluation.", 1)
    save_every: int = _said(200, "Updates between checkpoints.", 1)
    log_every: int = _said(10, "Updates between lines of metrics.", 1)
    patience: int = _said(0, "Evaluations without a better score before stopping; 0: never.", 0)
    keep_best: int = _said(1, "How many of the best models are kept.", 1)
    average: bool = _said(False, "The result is the mean of the kept models, not the best of them.")
    device: str = _said("cpu", "cpu, cuda, cuda:1, mps.")
    threads: int = _said(0, "CPU threads; 0: as PyTorch finds them. Bits depend on it.", 0)
    tensorboard: bool = _said(True, "Write metrics for TensorBoard too, where it is installed.")
    sharding: Literal["ddp", "fsdp"] = _said("ddp", "Under torchrun: copies of the model, or parts of it.")

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, limits = getattr(self, setting.name), setting.metadata
            least, below = limits["least"], limits["below"]
            if (least is not None and not value >= least) or (below is not None and not value < below):
                rule = f"at least {least}" if below is None else f"at least {least} and below {below}"
                raise ArgumentError(f"{setting.name} must be {rule}. Got {value}.")
        data = {"translate": "pairs", "lm": "text"}.get(self.task)
        families = [name for name in get_args(_TYPES["model"]) if name not in ("seq2seq", "t5")]
        models = families if self.task == "lm" else ["seq2seq", "t5"]
        paths = {name: ", ".join(getattr(self, name)) for name in ("pairs", "text", "valid", "test")}
        unused = [f"{name}. Got {paths[name]}" for name in ("pairs", "text") if name != data and paths[name]]
        many = [name for name in ("pairs", "valid", "test") if len(getattr(self, name)) > 2]
        rules = {
            f"lr must be above 0 and finite. Got {self.lr}.": 0 < self.lr < math.inf,
            f"min_lr is a part of lr, from 0 to 1. Got {self.min_lr}.": 0 <= self.min_lr <= 1,
            f"max_words must be at least min_words. Got {self.max_words} and {self.min_words}.": (
                self.max_words >= self.min_words
            ),
            f"task {self.task} needs a model of {', '.join(models)}. Got {self.model}.": self.model in models,
            f"model_dim must be a multiple of n_head. Got {self.model_dim} and {self.n_head}.": (
                self.model == "seq2seq" or self.model_dim % self.n_head == 0
            ),
            f"{many} must be one TSV file or two aligned ones. Got {[paths[name] for name in many]}.": (
                self.task == "lm" or not many
            ),
            f"task {self.task} needs data: give {data}, as --{data} FILE.": data is None or paths[data],
            f"task {self.task} takes no {'; no '.join(unused)}.": not unused,
            f"task {self.task} makes its own held-out data: leave out valid and test.": (
                data is not None or not (self.valid or self.test)
            ),
        }
        for rule, holds in rules.items():
            if not holds:
                raise ArgumentError(rule)

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


_WORDS = {"tokenizer": "word", "lr": 2e-3, "steps": 2000, "eval_size": 200}
DEFAULTS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("reverse", "copy", "sort", "recall"), _WORDS),
    "dates": {"lr": 2e-3, "steps": 600},
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
    from regard.attention.data import fitting  # imports torch, which a list of settings does without

    kind = _TYPES[name]
    if get_origin(kind) is tuple:
        return tuple(
            fitting(name, item, str) for item in (value if isinstance(value, list | tuple) else [value])
        )
    value = fitting(name, value, kind)
    return float(value) if kind is float else value


_TYPES: dict[str, Any] = get_type_hints(Settings)
HELP: dict[str, str] = {setting.name: setting.metadata["help"] for setting in fields(Settings)}
