"""The models the page can open, each loaded once: trained ones, and shapes with random weights."""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

import torch

from regard.errors import LoadError, no_such
from regard.files import hub
from regard.files.loading import Loaded, described, load, random_seq2seq, untrained
from regard.files.tokenizer import byte_tokenizer
from regard.layers.block import BlockConfig
from regard.models.families import FAMILIES, initialise
from regard.models.model import Model
from regard.models.seq2seq import Seq2SeqConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.view.document import Json

RANDOM = " (random)"
UNTRAINED = " (untrained)"  # the same shape and tokenizer as a model that is here
_KEPT = 4  # models in memory
_KEPT_BYTES = 1 << 30  # of them together; the newest is kept whatever it takes

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """Values by key, of which the oldest go while there are `too_many`; the newest stays.

    A value is made once, however many threads ask for it, and making one does not hold up another.
    """

    def __init__(self, too_many: Callable[[Collection[Value]], bool]) -> None:
        self.values: OrderedDict[str, Value] = OrderedDict()
        self._too_many, self._lock = too_many, threading.Lock()
        self._making: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()

    def get(self, key: str, make: Callable[[], Value]) -> Value:
        """The value of that key; made where it is not here."""
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if key in self.values:
                    self.values.move_to_end(key)
                    return self.values[key]
            value = make()
            with self._lock:
                self.values[key] = value
                while len(self.values) > 1 and self._too_many(self.values.values()):
                    self.values.popitem(last=False)
        return value


def _too_many(models: Collection[Loaded]) -> bool:
    """Return whether models are more than are kept, in number or in bytes."""
    held = sum(weight.nbytes for loaded in models for weight in loaded.model.parameters())
    return len(models) > _KEPT or held > _KEPT_BYTES


class Models:
    """The models of one page. Loading one does not hold up another."""

    def __init__(self, device: str | torch.device = "cpu", seed: int = 0) -> None:
        self.device, self.seed = device, seed
        self._kept: Kept[Loaded] = Kept(_too_many)
        self._given: dict[str, Loaded] = {}  # never let go: they may not be had again

    def put(self, key: str, loaded: Loaded) -> None:
        """Take a model that is loaded already."""
        self._given[key] = loaded

    def get(self, key: str) -> Loaded:
        """The model of that key; loads it unless it is here."""
        return self._given.get(key) or self._kept.get(key, lambda: self._load(key))

    def _load(self, key: str) -> Loaded:
        shape = key.removesuffix(RANDOM)
        if key.endswith(RANDOM) and shape in _MADE:
            return made(shape, self.seed, self.device)
        if key.endswith(RANDOM):
            return load(shape, random=True, seed=self.seed, device=self.device)
        if key.endswith(UNTRAINED):
            trained = self.get(key.removesuffix(UNTRAINED))
            random = untrained(trained, self.seed)
            return replace(random, facts=replace(random.facts, name=f"{trained.facts.name}{UNTRAINED}"))
        if key not in hub.MODELS:
            raise LoadError(no_such("model", key, [*hub.MODELS, *self._given]))
        if hub.present(key) is None:
            raise LoadError(f"{key} is not on this machine. Get it with: regard models get {key}")
        return load(key, device=self.device)

    def choices(self) -> list[Json]:
        """What the page offers."""
        listed = hub.MODELS
        rows = [
            choice(name, name, model.what, model.kind, name in self._given or hub.present(name) is not None)
            for name, model in listed.items()
        ]
        given = [key for key in self._given if key not in listed and not key.endswith(RANDOM)]
        rows += [choice(key, Path(key).name, "given", "unknown") for key in given]
        shapes = {
            size: (size, family.name, family.config(published).kind)
            for family in FAMILIES.values()
            for size, published in family.sizes.items()
        }
        return rows + [
            choice(f"{key}{RANDOM}", f"{name}, random weights", what, kind)
            for key, (name, what, kind) in (shapes | _MADE).items()
        ]


def choice(key: str, name: str, what: str, kind: str, present: bool = True, given: bool = False) -> Json:
    """One row of what the page offers; `given` is a trace."""
    return {
        "key": key,
        "name": name,
        "what": what,
        "present": present,
        "command": None if present else f"regard models get {key}",
        "kind": kind,
        "random": key.endswith(RANDOM),
        "given": given,
    }


# What no published size is of: its name, what it is, its kind.
_MADE = {
    "seq2seq": ("seq2seq", "recurrent, additive", "encoder-decoder"),
    "linear": ("linear attention", "elu + 1", "decoder"),
}


def made(shape: str, seed: int, device: str | torch.device = "cpu") -> Loaded:
    """A small untrained model: a recurrent encoder and decoder with additive attention (Bahdanau et al.
    2015), or a decoder whose attention is linear, elu(x) + 1 (Katharopoulos et al. 2020).
    """
    tokenizer = byte_tokenizer(263)
    if shape == "linear":
        block = BlockConfig(model_dim=64, n_head=4, ff_dim=256, feature_map="elu1")
        config = TransformerConfig(vocab=263, block=block, n_decoder_layer=2, n_position=2048)
        model: Model = initialise(Transformer(config), seed)
    else:
        bos, eos, pad = tokenizer.special.bos, tokenizer.special.eos, tokenizer.special.pad
        shapes = Seq2SeqConfig(263, 263, 32, 64, bidirectional=True, bos=bos, eos=eos, pad=pad)
        model = random_seq2seq(shapes, seed)
    facts = described(model, f"{_MADE[shape][0]}{RANDOM}", f"random weights, seed {seed}", trained=False)
    return Loaded(model.eval().to(device), tokenizer, facts, model.start_token, model.stop_tokens)
