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
from typing import Any, Literal, get_origin, get_type_hints

from regard.errors import ArgumentError, LoadError, no_such
from regard.files.families import families_with

Task = Literal["dates", "translate", "lm", "reverse", "copy", "sort", "recall"]
GENERATED: tuple[Task, ...] = ("dates", "reverse", "copy", "sort", "recall")
RECURRENT = "seq2seq"
# Language models see one text; every other task reads a source and writes an answer.
LANGUAGE_MODELS = tuple(families_with("decoder", "encoder"))
ANSWERING_MODELS = (RECURRENT, *families_with("encoder-decoder"))


def _setting(
    default: Any,
    help_text: str,
    least: int | None = None,
    below: int | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Return a dataclass field with its help, its limits and, where they are computed, its choices."""
    limits = {"least": least, "below": below, "choices": choices}
    return field(default=default, metadata={"help": help_text, **limits})


@dataclass(frozen=True, slots=True)
class Settings:
    """Hold every option of a training run; each field's help is shown by `regard train --help`."""

    task: Task = _setting("dates", "What the model learns.")  # noqa: RUF009  # a field, as field() makes it
    out: str = _setting("", "Folder for the run. By default a new one under runs/.")
    seed: int = _setting(0, "Random seed of the weights, the order of the data and dropout.", 0)
    # data
    pairs: tuple[str, ...] = _setting(
        (), "translate: TSV file of pairs, or two aligned files (give it twice)."
    )
    text: tuple[str, ...] = _setting((), "lm: a text file; may be given several times.")
    valid: tuple[str, ...] = _setting((), "Validation data, like `pairs` or `text`; default: part of those.")
    test: tuple[str, ...] = _setting((), "Test data for the finished model. By default the validation data.")
    valid_fraction: float = _setting(0.1, "Fraction held out for validation without `valid`.", 0, below=1)
    bad_lines: Literal["skip", "refuse"] = _setting("skip", "What to do with unusable lines.")
    max_length: int = _setting(256, "Lines with more tokens than this on one side are unusable.", 1)
    tokenizer: Literal["char", "word", "bpe"] = _setting("char", "Kind of tokens; bpe is byte-level.")
    vocab: int = _setting(8000, "Maximum vocabulary size.", 1)
    symbols: int = _setting(50, "Generated tasks: number of different words.", 1)
    min_words: int = _setting(1, "Generated tasks: minimum sequence length.", 1)
    max_words: int = _setting(25, "Generated tasks: maximum sequence length.", 1)
    test_words: int = _setting(0, "Generated tasks: maximum length of held-out sequences; 0: max_words.", 0)
    # model
    model: str = _setting(RECURRENT, "The architecture.", choices=(*ANSWERING_MODELS, *LANGUAGE_MODELS))
    cell: Literal["gru", "lstm", "rnn"] = _setting("gru", "seq2seq: recurrent cell.")
    score: Literal["additive", "dot", "general", "none"] = _setting("additive", "seq2seq: attention score.")
    bidirectional: bool = _setting(True, "seq2seq: the encoder reads in both directions.")
    embed_dim: int = _setting(64, "seq2seq: embedding size.", 1)
    hidden_dim: int = _setting(128, "seq2seq: hidden size.", 1)
    n_layer: int = _setting(1, "Number of layers; in each stack of an encoder-decoder.", 1)
    model_dim: int = _setting(128, "Transformers: model dimension.", 1)
    n_head: int = _setting(4, "Transformers: number of attention heads.", 1)
    ff_dim: int = _setting(0, "Transformers: feed-forward dimension; 0: four times model_dim.", 0)
    context: int = _setting(64, "lm: context length in tokens.", 2)
    # optimisation
    steps: int = _setting(1000, "Number of updates.", 1)
    batch_tokens: int = _setting(4096, "Tokens in a batch, including padding, over all processes.", 1)
    accumulate: int = _setting(1, "Batches accumulated for one update.", 1)
    lr: float = _setting(1e-3, "Peak learning rate.")
    min_lr: float = _setting(0.0, "cosine: final learning rate as a fraction of lr.")
    schedule: Literal["cosine", "inverse_sqrt", "constant"] = _setting("cosine", "Schedule after warm-up.")
    warmup: int = _setting(100, "Warm-up updates, in which the learning rate rises from 0.", 0)
    beta1: float = _setting(0.9, "AdamW: decay of the mean of gradients.", 0, below=1)
    beta2: float = _setting(0.98, "AdamW: decay of the mean of squared gradients.", 0, below=1)
    weight_decay: float = _setting(0.01, "AdamW: weight decay, applied to matrices only.", 0)
    clip: float = _setting(1.0, "Maximum gradient norm; 0 disables clipping.", 0)
    dropout: float = _setting(0.1, "Dropout probability.", 0, below=1)
    label_smoothing: float = _setting(0.0, "Probability spread over the vocabulary.", 0, below=1)
    precision: Literal["auto", "float32", "bf16"] = _setting("auto", "auto: bf16 on a GPU that supports it.")
    compile: bool = _setting(False, "Use torch.compile.")
    # running
    eval_every: int = _setting(200, "Updates between evaluations.", 1)
    eval_size: int = _setting(500, "Examples decoded at each evaluation.", 1)
    save_every: int = _setting(200, "Updates between checkpoints.", 1)
    log_every: int = _setting(10, "Updates between logged metrics.", 1)
    patience: int = _setting(0, "Stop after this many evaluations without improvement; 0: never.", 0)
    keep_best: int = _setting(1, "Number of best models to keep.", 1)
    average: bool = _setting(False, "Average the kept models instead of taking the best.")
    device: str = _setting("cpu", "Device: cpu, cuda, cuda:1, mps.")
    threads: int = _setting(0, "CPU threads; 0: PyTorch's default. Results depend on it in the last bits.", 0)
    tensorboard: bool = _setting(True, "Log to TensorBoard too, if it is installed.")
    sharding: Literal["ddp", "fsdp"] = _setting("ddp", "Under torchrun: replicas (ddp) or shards (fsdp).")

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, limits = getattr(self, setting.name), setting.metadata
            least, below = limits["least"], limits["below"]
            if (least is not None and not value >= least) or (below is not None and not value < below):
                rule = f"at least {least}" if below is None else f"at least {least} and below {below}"
                raise ArgumentError(f"{setting.name} must be {rule}. Got {value}.")
        data = {"translate": "pairs", "lm": "text"}.get(self.task)
        models = LANGUAGE_MODELS if self.task == "lm" else ANSWERING_MODELS
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
                self.model == RECURRENT or self.model_dim % self.n_head == 0
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
        """Return the settings of a task: its own defaults, overridden by what is given.

        Args:
            task: Name of the task, such as "dates".
            given: Settings by name, which override the defaults.

        Returns:
            The settings, checked.

        >>> Settings.of("dates", {"steps": 7}).steps
        7
        """
        values = {**DEFAULTS.get(task, {}), **(given or {}), "task": task}
        return cls(**{name: checked(name, value) for name, value in values.items()})

    @classmethod
    def read(cls, path: str | Path, given: Mapping[str, Any] | None = None) -> Settings:
        """Read settings from a TOML file; `given` overrides them."""
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
        """Return every setting as TOML, which `read` reads.

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
    """Return a setting's value in its type; raise an error that names the setting if it does not fit."""
    if name not in _TYPES:
        raise ArgumentError(no_such("setting", name, _TYPES))
    from regard.attention.data import fitting  # imports torch, which a list of settings does without

    kind = _TYPES[name]
    if get_origin(kind) is tuple:
        return tuple(
            fitting(name, item, str) for item in (value if isinstance(value, list | tuple) else [value])
        )
    value = fitting(name, value, kind)
    if (choices := CHOICES.get(name)) and value not in choices:
        raise ArgumentError(no_such(name, value, choices))
    return float(value) if kind is float else value


_TYPES: dict[str, Any] = get_type_hints(Settings)
CHOICES: dict[str, tuple[str, ...]] = {
    setting.name: setting.metadata["choices"] for setting in fields(Settings) if setting.metadata["choices"]
}
HELP: dict[str, str] = {setting.name: setting.metadata["help"] for setting in fields(Settings)}
# The reference describes each setting as `regard train --help` does.
Settings.__doc__ = "\n".join(
    [
        f"{Settings.__doc__}",
        "",
        "    Attributes:",
        *(f"        {name}: {text}" for name, text in HELP.items()),
    ]
)
