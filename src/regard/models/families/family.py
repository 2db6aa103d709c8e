"""What a family of published models is. Each is a subclass of `Family` in a file of its own.

A family says how its config.json is read and written, what its weights are called in Hugging Face's files and
in GGUF's, how they start before training, and which special tokens its texts have. Nothing else in the
package knows a family by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Protocol, get_args, get_type_hints, runtime_checkable

import torch
from torch import Tensor

from regard.attention.data import check_field
from regard.errors import LoadError, UnsupportedError
from regard.layers.block import BlockConfig
from regard.layers.positions import RotaryScaling
from regard.models.transformer import Transformer, TransformerConfig

Published = Mapping[str, Any]  # a Hugging Face config.json
Said = dict[str, Any]  # one that is being written

# Fields that cannot exceed the number of weights there are.
_SIZES = "vocab n_bucket n_token_type model_dim n_head n_kv_head qk_dim v_dim ff_dim".split()
# The activation's name in config.json -> ours; the first of two with one meaning is the one written.
_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True, slots=True)
class Weight:
    """Where a weight of ours is in published files; in a family's table "{}" is the layer."""

    name: str  # in Hugging Face's files
    gguf: str | None = None  # in GGUF's
    transposed: bool = False  # Hugging Face's matrix is (in, out), not (out, in)
    part: int | None = None  # query, key and value are in one matrix: 0, 1 or 2
    by_head: bool = False  # they take turns in it, head by head
    offset: float = 0.0  # ours is Hugging Face's plus this

    def taken(self, tensor: Tensor, n_head: int) -> Tensor:
        """Our weight, out of what a Hugging Face file has."""
        tensor = tensor.T if self.transposed else tensor
        if self.part is not None:
            if self.by_head:
                tensor = tensor.unflatten(0, (n_head, 3, -1))[:, self.part].flatten(0, 1)
            else:
                tensor = tensor.chunk(3)[self.part]
        return tensor + self.offset if self.offset else tensor.contiguous()

    def given(self, tensors: Sequence[Tensor], n_head: int) -> Tensor:
        """What a Hugging Face file has, of our weight, or of the three that are in one."""
        tensor = tensors[0] - self.offset if self.offset else tensors[0]
        if self.by_head:
            tensor = torch.stack([part.unflatten(0, (n_head, -1)) for part in tensors], 1).flatten(0, 2)
        elif self.part is not None:
            tensor = torch.cat(list(tensors))
        return (tensor.T if self.transposed else tensor).contiguous()


@runtime_checkable
class GGUFValues(Protocol):
    """What a GGUF file says of its model; keys are those below the name of its architecture."""

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number."""

    def real(self, key: str, default: float | None = None) -> float:
        """A positive number."""

    def text(self, key: str, default: str) -> str:
        """A string."""

    def flag(self, key: str, default: bool) -> bool:
        """True or False."""

    def has(self, tensor: str) -> bool:
        """Whether there is a tensor of that name."""


class Family:
    """One family. A subclass sets these and gives `config`; the other methods have usual answers."""

    name: str
    what: str  # one line for a person
    architectures: Mapping[str, tuple[str, str]]  # model_type -> transformers' class with a head, and without
    keys: Mapping[str, str]  # config.json's key -> our field, as "vocab" or "block.n_head"
    weights: Mapping[str, Weight]  # module of ours -> where its weight and bias are
    sizes: Mapping[str, Published]  # published sizes, for random weights
    prefixes: tuple[str, ...] = ("",)  # a file may put one of these before its names, usually the first
    ignored: tuple[str, ...] = ()  # endings of tensors that are buffers or copies
    renamed: tuple[tuple[str, str], ...] = ()  # endings that older files spell otherwise: (old, new)
    start_token: int | None = None  # what an answer begins with, where the family has a rule for it
    around: tuple[str | None, str | None] = (None, None)  # special tokens before and after a text
    gguf: str | None = None  # GGUF's general.architecture; None: its GGUF files are not read
    gguf_cut: str | None = None  # how text is cut where a GGUF file does not say

    def check(self, said: Published, n_tensor: int, n_number: int) -> None:
        """Raise unless each of `keys` has the type and range of our field, and weights enough to fill it."""
        for key, path in self.keys.items():
            kind, field = (BlockConfig, path[6:]) if path.startswith("block.") else (TransformerConfig, path)
            most = n_tensor if field.endswith("_layer") else n_number if field in _SIZES else math.inf
            if said.get(key) is not None and path != "block.activation":
                check_field(kind, field, said[key], key, most)

    def config(self, said: Published) -> TransformerConfig:
        """Our config of what a config.json says; `KeyError` where it says too little."""
        raise UnsupportedError("a model of no family has no published config.")

    def model_type(self, config: TransformerConfig) -> str:
        """The `model_type` of config.json."""
        return next(iter(self.architectures))

    def more(self, config: TransformerConfig) -> Said:
        """What config.json says beyond `keys`."""
        return {}

    def names(self, model: Transformer) -> dict[str, Weight]:
        """Where each parameter of the model is, by its name."""
        names = {}
        for parameter, _ in model.named_parameters():
            module, _, kind = parameter.rpartition(".")
            layer = re.search(r"\.(\d+)\.", module)
            where = self.weights[re.sub(r"\.\d+\.", ".{}.", module)]
            name = f"{where.name.format(layer[1]) if layer else where.name}.{kind}"
            names[parameter] = replace(where, name=name, transposed=where.transposed and kind == "weight")
        return names

    def initial_std(self, name: str, config: TransformerConfig) -> float:
        """The standard deviation of a matrix before training; biases start at 0 and norms at 1."""
        return 0.02

    def gguf_config(self, file: GGUFValues) -> Said:
        """The config.json that a GGUF file amounts to, but for vocabulary and special tokens."""
        raise UnsupportedError(
            f"GGUF files of {type(self).__name__} models are not read here: give the Hugging Face folder."
        )

    def from_gguf(self, where: Weight, tensor: Tensor, said: Published) -> Tensor:
        """A GGUF file's tensor as Hugging Face lays it out; a tensor without numbers shows the shape."""
        return tensor.T if where.transposed and tensor.dim() == 2 else tensor

    def filled(self, said: Published, values: Said) -> TransformerConfig:
        """The config of `values`, by the names in `keys`, and over them what config.json says."""
        values = {"family": self.name, **values}
        for key, path in self.keys.items():
            if said.get(key) is not None:
                values[path] = said[key]
            elif path not in values:
                raise KeyError(key)
        activation = values["block.activation"]
        if activation not in _ACTIVATIONS:
            raise UnsupportedError(
                f"the activation {activation!r} is not known: one of {', '.join(_ACTIVATIONS)} is."
            )
        values["block.activation"] = _ACTIVATIONS[activation]
        block = {path[6:]: value for path, value in values.items() if path.startswith("block.")}
        outer = {path: value for path, value in values.items() if not path.startswith("block.")}
        return TransformerConfig(block=BlockConfig(**block), **outer)

    def published(self, config: TransformerConfig) -> Said:
        """The config.json from which `config` reads the same again; an error where it cannot say it."""
        kind = self.model_type(config)
        said: Said = {
            "model_type": kind,
            "architectures": [self.architectures[kind][config.head == "none"]],
        }
        for key, path in self.keys.items():
            value = attrgetter(path)(config)
            if value is not None:  # left out, it means what None means to us
                said[key] = published_activation(value) if path == "block.activation" else value
        said |= self.more(config)
        if self.config(said) != config:
            raise UnsupportedError(f"the {self.name} format cannot say all of this config: {config}.")
        return said

    def sized(self, sizes: Mapping[str, int]) -> TransformerConfig:
        """The family's model with its head in these sizes, given by the names in `keys`."""
        kind, (with_head, _) = next(iter(self.architectures.items()))
        said = {key: sizes[path] for key, path in self.keys.items() if path in sizes}
        return self.config({"model_type": kind, "architectures": [with_head], **said})

    def prefixed(self, name: str, prefix: str | None = None) -> str:
        """A name of `weights` as a file has it: what a head has stands outside of the prefix."""
        outside = name.startswith(("lm_head", "cls.", "embed_out"))
        return name if outside else (self.prefixes[0] if prefix is None else prefix) + name


def published_activation(name: str) -> str:
    """The name in config.json of an activation of ours."""
    return next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == name)


def refuse(said: Published, **unsupported: Any) -> None:
    """Raise where a config asks for something that would give other numbers than its authors meant."""
    for key, usual in unsupported.items():
        if said.get(key, usual) not in (usual, None):
            raise UnsupportedError(f"{key}={said[key]!r} in config.json is not supported, only {usual!r}.")


def language_head(said: Published) -> str:
    """The head of a decoder's file: a bare model, as `GPT2Model` and not `GPT2LMHeadModel`, has none."""
    names = said.get("architectures") or ()
    bare = any(name.endswith("Model") and "LMHead" not in name for name in names)
    return "none" if bare else "language"


def first(*values: Any) -> Any:
    """The first that is said at all."""
    return next(value for value in values if value is not None)


def rotary_scaling(rope: Published, n_position: int) -> RotaryScaling | None:
    """How a config.json scales rotary positions."""
    kind: Any = first(rope.get("rope_type"), rope.get("type"), "default")
    if kind == "default":
        return None
    kinds = get_args(get_type_hints(RotaryScaling)["kind"])
    if kind not in kinds:
        raise UnsupportedError(f"rotary scaling {kind!r} is not supported, only {', '.join(kinds)}.")
    original = first(rope.get("original_max_position_embeddings"), n_position)
    original = n_position if kind == "dynamic" else original
    scaling = RotaryScaling(
        kind=kind,
        factor=first(rope.get("factor"), n_position / original),
        low_freq_factor=rope.get("low_freq_factor", 1.0),
        high_freq_factor=rope.get("high_freq_factor", 4.0),
        original_positions=original,
        beta_fast=rope.get("beta_fast") or 32.0,
        beta_slow=rope.get("beta_slow") or 1.0,
        attention_factor=rope.get("attention_factor"),
        truncate=rope.get("truncate", True),
    )
    mscale, of_all = rope.get("mscale"), rope.get("mscale_all_dim")
    if kind == "yarn" and scaling.attention_factor is None and mscale and of_all:
        grown = 0.1 * math.log(max(1.0, scaling.factor))  # DeepSeek's two numbers
        scaling = replace(scaling, attention_factor=(mscale * grown + 1) / (of_all * grown + 1))
    return scaling


def gguf_scaling(file: GGUFValues) -> Said | None:
    """The same of a GGUF file, as a config.json says it."""
    kind = file.text("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise LoadError(f"it scales rotary positions in the way {kind!r}: 'none' and 'linear' are supported.")
    return {"rope_type": kind, "factor": file.real("rope.scaling.factor")} if kind == "linear" else None


def published_rope(base: float, scaling: RotaryScaling | None = None) -> Said:
    """What `rotary_scaling` reads."""
    rope: Said = {"rope_theta": base, "rope_type": "default" if scaling is None else scaling.kind}
    if scaling is None:
        return rope
    rope |= {"factor": scaling.factor}
    if scaling.kind != "dynamic":
        rope |= {"original_max_position_embeddings": scaling.original_positions}
    if scaling.kind == "llama3":
        rope |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if scaling.kind == "yarn":
        rope |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow, "truncate": scaling.truncate}
        if scaling.attention_factor is not None:
            rope |= {"attention_factor": scaling.attention_factor}
    return rope


def local_layers(kinds: Sequence[str]) -> tuple[bool, ...] | None:
    """`local` of a config whose `layer_types` are these; None where every layer sees everything."""
    strange = [kind for kind in kinds if kind not in ("sliding_attention", "full_attention")]
    if strange:
        raise UnsupportedError(
            f"layer_types in config.json has {strange[0]!r}: sliding_attention and full_attention are known."
        )
    local = tuple(kind == "sliding_attention" for kind in kinds)
    return local if any(local) else None


def published_layers(config: TransformerConfig) -> list[str]:
    """`layer_types` of a config.json."""
    local = config.local or (False,) * config.n_decoder_layer
    return ["sliding_attention" if here else "full_attention" for here in local]
