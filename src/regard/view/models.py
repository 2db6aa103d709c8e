"""The models the page can open, each loaded once: trained ones, and shapes with random weights."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from regard.errors import ArgumentError, LoadError, no_such
from regard.files import hub
from regard.files.loading import Loaded, described, load, random_seq2seq, untrained
from regard.files.tokenizer import TextTokenizer, byte_tokenizer
from regard.heads.model import layers_of
from regard.layers.block import BlockConfig
from regard.models.families import FAMILIES, initialise
from regard.models.model import Model
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.tracing.interventions import intervene
from regard.view.document import ModelKind, Predicts

RANDOM = " (random)"
UNTRAINED = " (untrained)"  # the same shape and tokenizer as a model that is here
_KINDS: dict[str, ModelKind] = {
    "minilm": "encoder",
    "smollm2": "decoder",
    "pocket-gpt": "decoder",
    "pocket-dates": "encoder-decoder",
}
_KEPT = 4  # models in memory

Off = tuple[tuple[int, int], ...]  # heads that are switched off, (layer, head) as a trace counts them


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A model that is loaded, by what the page calls it."""

    key: str
    loaded: Loaded
    tokenizer: TextTokenizer

    @property
    def title(self) -> str:
        return self.loaded.facts.name

    @property
    def model(self) -> Model:
        return self.loaded.model

    @property
    def kind(self) -> ModelKind:
        return self.model.kind

    @property
    def predicts(self) -> Predicts:
        kinds: dict[str, Predicts] = {"language": "next", "masked": "masked", "none": "vector"}
        return kinds[self.model.head]

    @property
    def limit(self) -> int | None:
        """The longest text, in tokens."""
        return self.model.sizes.n_position

    @property
    def n_head(self) -> int:
        return self.model.sizes.n_head

    @property
    def layers(self) -> dict[str, int]:
        """The attention layers that a trace has, and the number of heads of each."""
        if isinstance(self.model, Seq2Seq):
            return dict.fromkeys(self.model.attention_names, self.n_head)
        return {name: len(heads) for name, heads in layers_of(self.loaded).items() if heads}

    @contextmanager
    def without(self, off: Off) -> Iterator[None]:
        """A block in which these heads give nothing in what this thread asks of the model."""
        if not off:
            yield
            return
        layers = list(self.layers.items())
        with intervene(self.loaded, this_thread=True) as run:
            for layer, head in off:
                if not (0 <= layer < len(layers) and 0 <= head < layers[layer][1]):
                    raise ArgumentError(
                        f"there is no head {head} in layer {layer}: {self.title} has {len(layers)} layers of "
                        f"{self.n_head} heads."
                    )
                run.gate(layer=layers[layer][0], head=head, by=0.0)
            yield


def opened(loaded: Loaded, key: str) -> Opened:
    """A loaded model for the page."""
    if loaded.tokenizer is None:
        raise ArgumentError(f"{loaded.facts.name} has no tokenizer: the page could not read a text.")
    return Opened(key, loaded, loaded.tokenizer)


class Models:
    """The models of one page. Loading one does not hold up another."""

    def __init__(self, device: str | torch.device = "cpu", seed: int = 0) -> None:
        self.device, self.seed = device, seed
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._kept: OrderedDict[str, Opened] = OrderedDict()
        self._given: dict[str, Opened] = {}  # never let go: they may not be had again
        self.extra: list[str] = []  # folders and files named on the command line

    def put(self, model: Opened) -> None:
        """Take a model that is loaded already."""
        with self._lock:
            self._given[model.key] = model
            if model.key not in (*hub.listed(), *self.extra) and not model.key.endswith(RANDOM):
                self.extra.append(model.key)

    def get(self, key: str) -> Opened:
        """The model of that key; loads it unless it is here."""
        with self._lock:
            if key in self._given:
                return self._given[key]
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            lock = self._locks.setdefault(key, threading.Lock())
        try:
            with lock:
                with self._lock:
                    if key in self._kept:
                        return self._kept[key]
                made = self._load(key)
                with self._lock:
                    self._kept[key] = made
                    while len(self._kept) > _KEPT:
                        self._kept.popitem(last=False)
                return made
        finally:
            with self._lock:
                self._locks.pop(key, None)

    def _load(self, key: str) -> Opened:
        if key == f"seq2seq{RANDOM}":
            return opened(_seq2seq(self.seed, self.device), key)
        if key == f"linear{RANDOM}":
            return opened(_linear(self.seed, self.device), key)
        if key.endswith(RANDOM):
            shape = key.removesuffix(RANDOM)
            return opened(load(shape, random=True, seed=self.seed, device=self.device), key)
        if key.endswith(UNTRAINED):
            return opened(self._untrained(key.removesuffix(UNTRAINED)), key)
        if key in hub.listed() and hub.present(key) is None:
            raise LoadError(f"{key} is not on this machine. Get it with: regard models get {key}")
        if key not in hub.listed() and key not in self.extra:
            raise LoadError(no_such("model", key, [*hub.listed(), *self.extra]))
        return opened(load(key, device=self.device), key)

    def _untrained(self, key: str) -> Loaded:
        """A model of the same config and tokenizer with random weights."""
        trained = self.get(key).loaded
        if isinstance(trained.model, Seq2Seq):
            raise LoadError(f"{key} has no random counterpart.")
        random = untrained(trained, self.seed)
        return replace(random, facts=replace(random.facts, name=f"{trained.facts.name}{UNTRAINED}"))

    def _present(self, name: str) -> bool:
        return name in self._given or hub.present(name) is not None

    def choices(self) -> list[dict[str, Any]]:
        """What the page offers."""
        rows = [
            _choice(name, name, model.what, _KINDS.get(name, "unknown"), self._present(name))
            for name, model in hub.listed().items()
        ]
        rows += [_choice(key, Path(key).name, "given", "unknown") for key in self.extra]
        for family in FAMILIES.values():
            for size in family.sizes:
                config = family.config(family.sizes[size])
                rows.append(_choice(f"{size}{RANDOM}", f"{size}, random weights", family.name, config.kind))
        rows.append(
            _choice(f"seq2seq{RANDOM}", "seq2seq, random weights", "recurrent, additive", "encoder-decoder")
        )
        rows.append(_choice(f"linear{RANDOM}", "linear attention, random weights", "elu + 1", "decoder"))
        return rows


def _choice(key: str, name: str, what: str, kind: ModelKind, present: bool = True) -> dict[str, Any]:
    return {
        "key": key,
        "name": name,
        "what": what,
        "present": present,
        "command": None if present else f"regard models get {key}",
        "kind": kind,
        "random": key.endswith(RANDOM),
        "given": False,
    }


def _linear(seed: int, device: str | torch.device) -> Loaded:
    """A small decoder whose attention is linear: elu(x) + 1 (Katharopoulos et al. 2020)."""
    block = BlockConfig(model_dim=64, n_head=4, ff_dim=256, kernel="elu1")
    config = TransformerConfig(vocab=263, block=block, n_decoder_layer=2, n_position=2048)
    model = initialise(Transformer(config).eval(), seed).to(device)
    facts = described(model, f"linear attention{RANDOM}", f"random weights, seed {seed}")
    return Loaded(model, byte_tokenizer(263), replace(facts, trained=False))


def _seq2seq(seed: int, device: str | torch.device) -> Loaded:
    """A recurrent encoder and decoder with additive attention (Bahdanau et al. 2015), untrained."""
    tokenizer = byte_tokenizer(263)
    bos, eos, pad = tokenizer.special.bos, tokenizer.special.eos, tokenizer.special.pad
    config = Seq2SeqConfig(263, 263, 32, 64, bidirectional=True, bos=bos, eos=eos, pad=pad)
    model = random_seq2seq(config, seed).eval().to(device)
    facts = described(model, f"seq2seq{RANDOM}", f"random weights, seed {seed}")
    stop = () if eos is None else (eos,)
    return Loaded(model, tokenizer, replace(facts, trained=False), bos, stop)
