"""What a family of published models is. Each is a subclass of `Family` in a file of its own.

A family is tables: how its config.json is read and written, what its weights are called in Hugging Face's
files, which special tokens its texts have. It overrides a method where no table can say it. What GGUF files
call things is the same for all, and stands here. Nothing else in the package knows a family by name.
"""

import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from regard.attention.data import check_field
from regard.errors import LoadError, UnsupportedError
from regard.layers.block import BlockConfig
from regard.layers.positions import RotaryScaling
from regard.models.transformer import Transformer, TransformerConfig

Published = Mapping[str, Any]  # a Hugging Face config.json
HFConfig = dict[str, Any]  # one that is being written

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
# Keys that all families but the oldest have in common.
COMMON_KEYS = {
    "vocab_size": "vocab",
    "max_position_embeddings": "n_position",
    "hidden_size": "block.model_dim",
    "num_attention_heads": "block.n_head",
    "intermediate_size": "block.ff_dim",
    "hidden_act": "block.activation",
    "tie_word_embeddings": "tied",
}
# Our field -> GGUF's key below the name of the architecture; it must be there unless it is marked with "?".
_GGUF_KEYS = {
    "n_decoder_layer": "block_count",
    "n_position": "context_length",
    "block.model_dim": "embedding_length",
    "block.ff_dim": "feed_forward_length",
    "block.n_head": "attention.head_count",
    "block.n_kv_head": "attention.head_count_kv?",
    "block.qk_dim": "attention.key_length?",
}
# GGUF's name of a module -> ours, or of a module of a block.
_GGUF_NAMES = {
    "token_embd": "token",
    "position_embd": "position",
    "output_norm": "decoder.norm",
    "output": "unembed",
    "attn_norm": "attention_norm",
    "attn_q": "attention.query",
    "attn_k": "attention.key",
    "attn_v": "attention.value",
    "attn_q_norm": "attention.query_norm",
    "attn_k_norm": "attention.key_norm",
    "attn_output": "attention.out",
    "post_attention_norm": "attention_norm_after",
    "ffn_norm": "ff_norm",
    "ffn_gate": "ff.gate",
    "ffn_up": "ff.up",
    "ffn_down": "ff.down",
    "post_ffw_norm": "ff_norm_after",
}
_PARTS = ("query", "key", "value")


@dataclass(frozen=True, slots=True)
class Weight:
    """Where a weight of ours is in Hugging Face's files."""

    name: str
    transposed: bool = False  # their matrix is (in, out), not (out, in)
    part: int | None = None  # query, key and value are in one matrix: 0, 1 or 2
    by_head: bool = False  # they take turns in it, head by head
    offset: float = 0.0  # ours is theirs plus this

    def from_hf(self, tensor: Tensor, n_head: int) -> Tensor:
        """Our weight, out of what a file has."""
        tensor = tensor.T if self.transposed else tensor
        if self.part is not None:
            if self.by_head:
                tensor = tensor.unflatten(0, (n_head, 3, -1))[:, self.part].flatten(0, 1)
            else:
                tensor = tensor.chunk(3)[self.part]
        return tensor + self.offset if self.offset else tensor.contiguous()

    def to_hf(self, tensors: Sequence[Tensor], n_head: int) -> Tensor:
        """What a file has, of our weight, or of the three that are in one."""
        tensor = tensors[0] - self.offset if self.offset else tensors[0]
        if self.by_head:
            tensor = torch.stack([part.unflatten(0, (n_head, -1)) for part in tensors], 1).flatten(0, 2)
        elif self.part is not None:
            tensor = torch.cat(list(tensors))
        return (tensor.T if self.transposed else tensor).contiguous()


class Family:
    """One family: the tables of a subclass, and what is done with them."""

    name: str
    what: str = "decoder: predicts the next token"  # one line for a person
    architectures: Mapping[str, tuple[str, str]]  # model_type -> transformers' class with a head, and without
    keys: Mapping[str, str]  # config.json's key -> our field, as "vocab" or "block.n_head"
    usual: Published = {}  # what a key means that is left out; one in `keys` and not here must be said
    fields: Mapping[str, Any] = {}  # our fields that no key says
    refused: Published = {}  # what would give other numbers than its authors meant, but for this value
    rotary_base: float | None = None  # where nothing is said; None: positions are not rotary
    weights: Mapping[str, str]  # module of ours -> its name in Hugging Face's files
    block: Mapping[str, str]  # the same inside of a block
    layer: str = "layers.{layer}"  # what stands before these
    transposed: bool = False  # the matrices of blocks are (in, out)
    joined: bool = False  # query, key and value are one matrix
    by_head: bool = False  # in which they take turns
    offset: float = 0.0  # a norm's gain is what the file has plus this; GGUF's have the gain
    sizes: Mapping[str, Published]  # published sizes, for random weights
    prefixes: tuple[str, ...] = ("",)  # a file may put one of these before its names, usually the first
    ignored: tuple[str, ...] = ()  # endings of tensors that are buffers or copies
    renamed: tuple[tuple[str, str], ...] = ()  # endings that older files spell otherwise: (old, new)
    start_token: int | None = None  # what an answer begins with, where the family has a rule for it
    around: tuple[str | None, str | None] = (None, None)  # special tokens before and after a text
    gguf: str | None = None  # GGUF's general.architecture; None: its GGUF files are not read
    gguf_cut: str | None = None  # how text is cut where a GGUF file does not say
    gguf_pairs: bool = False  # rotary pairs are rows 2i and 2i + 1 in a GGUF file, i and i + d/2 in theirs

    def check(self, said: Published, n_tensor: int, n_number: int) -> None:
        """Raise unless each of `keys` has the type and range of our field, and weights enough to fill it."""
        for key, path in self.keys.items():
            kind, field = (BlockConfig, path[6:]) if path.startswith("block.") else (TransformerConfig, path)
            most = n_tensor if field.endswith("_layer") else n_number if field in _SIZES else math.inf
            if said.get(key) is not None and path != "block.activation":
                check_field(kind, field, said[key], key, most)

    def config(self, said: Published) -> TransformerConfig:
        """Our config of what a config.json says; `KeyError` where it says too little."""
        refuse(said, self.refused)
        names = said.get("architectures") or ()
        bare = any(name.endswith("Model") and "LMHead" not in name for name in names)
        values = {"family": self.name, "lm_head": "none" if bare else "language", **self.fields}
        stated = {**self.usual, **{key: value for key, value in said.items() if value is not None}}
        values |= {path: stated[key] for key, path in self.keys.items()}
        values["block.v_dim"] = values.get("block.qk_dim")
        if self.rotary_base is not None:
            rope = self.rope(said)
            values |= {
                "positions": "rotary",
                "rotary_base": first(rope.get("rope_theta"), said.get("rope_theta"), self.rotary_base),
                "rotary_scaling": rotary_scaling(rope, values["n_position"]),
            }
        values |= self.derived(said)
        activation = values["block.activation"]
        if activation not in _ACTIVATIONS:
            raise UnsupportedError(
                f"the activation {activation!r} is not known: one of {', '.join(_ACTIVATIONS)} is."
            )
        values["block.activation"] = _ACTIVATIONS[activation]
        block = {path[6:]: value for path, value in values.items() if path.startswith("block.")}
        outer = {path: value for path, value in values.items() if not path.startswith("block.")}
        return TransformerConfig(block=BlockConfig(**block), **outer)

    def derived(self, said: Published) -> HFConfig:
        """Our fields that no single key says, by the names in `keys`."""
        return {}

    def rope(self, said: Published) -> Published:
        """What a config.json says of rotary positions."""
        return said.get("rope_parameters") or said.get("rope_scaling") or {}

    def published(self, config: TransformerConfig) -> HFConfig:
        """The config.json from which `config` reads the same again; an error where it cannot say it."""
        kind = self.model_type(config)
        said: HFConfig = {
            "model_type": kind,
            "architectures": [self.architectures[kind][config.lm_head == "none"]],
        }
        for key, path in self.keys.items():
            value = attrgetter(path)(config)
            if value is not None:  # left out, it means what None means to us
                said[key] = published_activation(value) if path == "block.activation" else value
        if self.rotary_base is not None:
            said["rope_theta"] = config.rotary_base
            said["rope_parameters"] = published_rope(config.rotary_base, config.rotary_scaling)
        said |= self.extra_hf_fields(config)
        if self.config(said) != config:
            raise UnsupportedError(f"the {self.name} format cannot say all of this config: {config}.")
        return said

    def model_type(self, config: TransformerConfig) -> str:
        """The `model_type` of config.json."""
        return next(iter(self.architectures))

    def extra_hf_fields(self, config: TransformerConfig) -> HFConfig:
        """What config.json says beyond `keys`, and beyond one rotary base."""
        return {}

    def sized(self, sizes: Mapping[str, int]) -> TransformerConfig:
        """The family's model with its head in these sizes, given by the names in `keys`."""
        kind, (with_head, _) = next(iter(self.architectures.items()))
        said = {key: sizes[path] for key, path in self.keys.items() if path in sizes}
        return self.config({"model_type": kind, "architectures": [with_head], **said})

    def hf_name(self, module: str) -> str:
        """Hugging Face's name of a module of ours, without prefix."""
        inside = re.fullmatch(r"(\w+)\.blocks\.(\d+)\.(.+)", module)
        if inside is None:
            return self.weights[module]
        stack, layer, inner = inside.groups()
        return f"{self.layer.format(stack=stack, layer=layer)}.{self.block[inner]}"

    def names(self, model: Transformer) -> dict[str, Weight]:
        """Where each parameter of the model is, by its name."""
        names = {}
        for parameter, _ in model.named_parameters():
            module, _, kind = parameter.rpartition(".")
            norm, last = "norm" in module, module.rpartition(".")[2]
            names[parameter] = Weight(
                f"{self.hf_name(module)}.{kind}",
                self.transposed and ".blocks." in module and not norm and kind == "weight",
                _PARTS.index(last) if self.joined and last in _PARTS else None,
                self.by_head and last in _PARTS,
                self.offset if norm else 0.0,
            )
        return names

    def prefixed(self, name: str, prefix: str | None = None) -> str:
        """A name of `weights` as a file has it: what a head has stands outside of the prefix."""
        outside = name.startswith(("lm_head", "cls.", "embed_out"))
        return name if outside else (self.prefixes[0] if prefix is None else prefix) + name

    def gguf_config(self, values: Mapping[str, Any], tensors: Container[str]) -> HFConfig:
        """The config.json that a GGUF file amounts to, but for vocabulary and special tokens.

        `values` are those below the name of its architecture, `tensors` the names of its tensors.
        """
        said: HFConfig = {}
        rms = "rms_" if self.fields.get("block.norm") == "rms" else ""
        for key, path in self.keys.items():
            theirs = _GGUF_KEYS.get(path, "")
            if theirs and (theirs[-1] != "?" or theirs[:-1] in values):
                said[key] = gguf_number(values, theirs.removesuffix("?"), int)
            elif path == "block.norm_eps":
                said[key] = gguf_number(values, f"attention.layer_norm_{rms}epsilon", float)
            elif path == "block.attention_bias":
                said[key] = "blk.0.attn_q.bias" in tensors or "blk.0.attn_qkv.bias" in tensors
            elif path == "block.ff_bias":
                said[key] = "blk.0.ffn_up.bias" in tensors
        if self.rotary_base is not None:
            said["rope_theta"] = gguf_number(values, "rope.freq_base", float, self.rotary_base)
            kind = str(values.get("rope.scaling.type", "none"))[:40]
            if kind == "linear":
                factor = gguf_number(values, "rope.scaling.factor", float)
                said["rope_scaling"] = {"rope_type": kind, "factor": factor}
            elif kind != "none":
                raise LoadError(
                    f"it scales rotary positions in the way {kind!r}: 'none' and 'linear' are supported."
                )
        return said

    def from_gguf_name(self, name: str) -> str | None:
        """The parameter of ours that a GGUF file's tensor is, or the first of three; None: there is none."""
        inside = re.fullmatch(r"(?:blk\.(\d{1,6})\.)?(\w+)\.(weight|bias)", name)
        if inside is None:
            return None
        layer, theirs, kind = inside.groups()
        if self.joined and theirs in ("attn_q", "attn_k", "attn_v", "attn_qkv"):
            ours = "attention.query" if theirs == "attn_qkv" else None
        else:
            ours = _GGUF_NAMES.get(theirs)
        if ours not in (self.weights if layer is None else self.block):
            return None
        return f"{ours}.{kind}" if layer is None else f"decoder.blocks.{layer}.{ours}.{kind}"

    def from_gguf(self, parameter: str, tensor: Tensor, said: Published) -> Tensor:
        """A GGUF file's tensor as Hugging Face lays it out; a tensor without numbers shows the shape."""
        n_row, last = tensor.shape[0], parameter.split(".")[-2]
        if self.transposed and ".blocks." in parameter and tensor.dim() == 2:
            return tensor.T
        if self.offset and "norm" in parameter:
            return tensor - self.offset
        if self.by_head and last == "query":  # all queries, then all keys, then all values
            parts: Tensor = tensor.unflatten(0, (3, said["num_attention_heads"], -1))
            return parts.transpose(0, 1).flatten(0, 2)
        if not self.gguf_pairs or last not in ("query", "key"):
            return tensor
        n_head = said["num_attention_heads"]
        n_head = said.get("num_key_value_heads", n_head) if last == "key" else n_head
        if n_row % (2 * n_head):
            raise LoadError(f"{parameter} has {n_row} rows, which do not split into pairs in {n_head} heads.")
        pairs = tensor.view(n_head, n_row // n_head // 2, 2, *tensor.shape[1:])
        return pairs.transpose(1, 2).reshape(tensor.shape)


def gguf_number(values: Mapping[str, Any], key: str, kind: Any, default: Any = None) -> Any:
    """A positive number of that kind, which a GGUF file says under that key."""
    value = values.get(key, default)
    if type(value) is not kind or not 0 < value < math.inf:
        whole = "whole " if kind is int else ""
        raise LoadError(f"it has {key} {str(value)[:40]}: it must be a positive {whole}number.")
    return value


def published_activation(name: str) -> str:
    """The name in config.json of an activation of ours."""
    return next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == name)


def refuse(said: Published, supported: Published) -> None:
    """Raise where a config asks for something else than what is supported, or left out."""
    for key, usual in supported.items():
        if said.get(key, usual) not in (usual, None):
            raise UnsupportedError(f"{key}={said[key]!r} in config.json is not supported, only {usual!r}.")


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
    factor, attention_factor = first(rope.get("factor"), n_position / original), rope.get("attention_factor")
    mscale, of_all = rope.get("mscale"), rope.get("mscale_all_dim")
    if kind == "yarn" and attention_factor is None and mscale and of_all:
        grown = 0.1 * math.log(max(1.0, factor))  # DeepSeek's two numbers
        attention_factor = (mscale * grown + 1) / (of_all * grown + 1)
    stated = {key: rope[key] for key in _ROPE_KEYS if rope.get(key) is not None}
    return RotaryScaling(
        kind, factor, original_positions=original, attention_factor=attention_factor, **stated
    )


# Keys of config.json that are fields of `RotaryScaling` too, and who has them.
_ROPE_KEYS = {
    "low_freq_factor": "llama3",
    "high_freq_factor": "llama3",
    "beta_fast": "yarn",
    "beta_slow": "yarn",
    "truncate": "yarn",
}


def published_rope(base: float, scaling: RotaryScaling | None = None) -> HFConfig:
    """What `rotary_scaling` reads."""
    rope: HFConfig = {"rope_theta": base, "rope_type": "default" if scaling is None else scaling.kind}
    if scaling is None:
        return rope
    rope |= {"factor": scaling.factor}
    if scaling.kind != "dynamic":
        rope |= {"original_max_position_embeddings": scaling.original_positions}
    rope |= {key: getattr(scaling, key) for key, kind in _ROPE_KEYS.items() if kind == scaling.kind}
    if scaling.kind == "yarn" and scaling.attention_factor is not None:
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
