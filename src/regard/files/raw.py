"""Weight files, read safely: safetensors folders and GGUF files, never pickle.

    raw = read("folder-or-file")
    raw.config["hidden_size"]
    raw.tensors["model.norm.weight"].shape      # known without reading the weights
    raw.tensors["model.norm.weight"].read()     # one tensor, when asked for

Whatever the format, the config has the keys of a Hugging Face config.json and the tensors have the names
and the layout of a Hugging Face checkpoint. A file that is cut short, damaged or absurd is a `LoadError`
before anything of its claimed size is allocated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from regard.errors import LoadError, UnsupportedError
from regard.files.gguf import GGUFHeader, read_header
from regard.files.tensors import LazyTensor, can_dequantise, gguf_tensor, open_safetensors
from regard.files.tokenizer import TextTokenizer, gguf_tokenizer, read_json, read_text

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# Sizes in a config that a model is built from: none can exceed the number of weights there are.
_SIZE_KEYS = re.compile(
    r"(hidden|intermediate|vocab|type_vocab)_size|num_(hidden_|decoder_)?layers|n_(layer|head|embd|inner)"
    r"|num_(attention_|key_value_)?heads|head_dim|d_(model|ff|kv)"
)
# Positions may have no weights (rotary, relative), but tables are made of this many rows.
_POSITION_KEYS = ("max_position_embeddings", "n_positions", "n_ctx")
MAX_POSITIONS = 2**24
_LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers")


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Where weights came from and how they are stored."""

    format: str  # "safetensors" or "GGUF v3"
    source: Path
    n_bytes: int  # of weight files on disk
    n_weight: Mapping[str, int]  # how many numbers are stored in each way
    quantisation: str | None = None  # such as "Q4_1 (4-bit)", None if weights are plain floats
    licence: str | None = None  # as the file states it
    name: str | None = None
    notes: tuple[str, ...] = ()  # what a user should be told, such as why there is no tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class RawModel:
    """A model as its files have it: config, tensors by name, tokenizer, facts."""

    config: Mapping[str, Any]
    tensors: Mapping[str, LazyTensor]
    tokenizer: TextTokenizer | None
    facts: FileFacts


def read(path: str | Path) -> RawModel:
    """The model at `path`: a folder, a .safetensors file beside its config.json, or a .gguf file."""
    path = Path(path)
    if not path.exists():
        raise LoadError(f"{path} does not exist.")
    if path.is_dir():
        return read_folder(path)
    refuse_pickle(path)
    if path.suffix == ".safetensors":
        return read_folder(path.parent, weights=[path])
    return read_gguf(path)


def refuse_pickle(path: Path) -> None:
    """Raise if `path` is a pickle by its name or by how it starts, saying how to convert it."""
    pickled = path.suffix.lower() in PICKLES
    if not pickled and path.suffix.lower() not in (".safetensors", ".gguf"):
        try:
            with path.open("rb") as file:
                start = file.read(4)
        except OSError as error:
            raise LoadError(f"{path} cannot be read: {error.strerror or error}.") from error
        # torch.save writes a zip archive; before PyTorch 1.6 it wrote pickle protocol 2.
        pickled = start[:4] == b"PK\x03\x04" or start[:2] == b"\x80\x02"
    if pickled:
        target = path.with_name("model.safetensors")
        raise LoadError(
            f"{path} is a pickle: reading one can run any program its author put in it, so it is not read. "
            "Convert it to safetensors, which holds numbers only:\n\n"
            "    import torch\n"
            "    from safetensors.torch import save_file\n"
            f"    weights = torch.load({str(path)!r}, map_location='cpu', weights_only=True)\n"
            "    weights = weights.get('state_dict', weights)\n"
            "    save_file({name: tensor.clone().contiguous() for name, tensor in weights.items()}, "
            f"{str(target)!r})\n"
        )


def read_folder(folder: str | Path, *, weights: list[Path] | None = None) -> RawModel:
    """The model in a Hugging Face-format folder: config.json, safetensors, tokenizer.json if there is one."""
    folder = Path(folder)
    files = weights if weights is not None else _weight_files(folder)
    config = read_json(folder / "config.json")
    tensors: dict[str, LazyTensor] = {}
    twice = []
    for file in files:
        for name, tensor in open_safetensors(file).items():
            if name in tensors:
                twice.append(name)
            tensors[name] = tensor
    if twice:
        raise LoadError(f"{folder}: these tensors are stored in more than one file: {_few(twice)}.")
    if weights is None and not (folder / "model.safetensors").exists():
        _check_index(folder, tensors)
    check_sizes(config, tensors, str(folder / "config.json"))
    notes: list[str] = []
    tokenizer = None
    if (folder / "tokenizer.json").is_file():
        tokenizer = TextTokenizer.from_folder(folder)
    else:
        notes.append(f"No tokenizer: {folder} has no tokenizer.json. The model takes ids, not text.")
    facts = FileFacts(
        format="safetensors",
        source=folder if weights is None else weights[0],
        n_bytes=sum(file.stat().st_size for file in files),
        n_weight=count_weights(tensors),
        licence=_card_licence(folder),
        name=stated if isinstance(stated := config.get("_name_or_path"), str) and stated else None,
        notes=tuple(notes),
    )
    return RawModel(MappingProxyType(config), MappingProxyType(tensors), tokenizer, facts)


def read_gguf(path: str | Path) -> RawModel:
    """The model in a GGUF file: weights dequantised when read, names and layout as in Hugging Face."""
    path = Path(path)
    if path.exists():
        refuse_pickle(path)
    header = read_header(path)
    architecture = header.metadata.get("general.architecture")
    if architecture not in _GGUF_FAMILIES:
        raise LoadError(
            f"{path} holds a model of architecture {str(architecture)[:40]!r}: of GGUF files, "
            f"{' and '.join(_GGUF_FAMILIES)} can be read."
        )
    unknown = sorted({info.kind_name for info in header.tensors.values() if not can_dequantise(info.kind)})
    if unknown:
        raise LoadError(
            f"{path} stores weights as {', '.join(unknown)}, which the gguf package cannot turn into numbers."
        )
    config = (_llama_config if architecture == "llama" else _gpt2_config)(header, path)
    tensors = _translated(path, header, architecture, config)
    check_sizes(config, tensors, str(path))
    notes: list[str] = []
    tokenizer = None
    try:
        tokenizer = gguf_tokenizer(header.metadata, str(path))
    except UnsupportedError as error:
        notes.append(f"No tokenizer: {error} The model takes ids, not text.")
    counts = count_weights(tensors)
    facts = FileFacts(
        format=f"GGUF v{header.version}",
        source=path,
        n_bytes=header.n_bytes,
        n_weight=counts,
        quantisation=_quantisation(next(iter(counts))),
        licence=_text(header, "general.license"),
        name=_text(header, "general.name"),
        notes=tuple(notes),
    )
    return RawModel(MappingProxyType(config), MappingProxyType(tensors), tokenizer, facts)


def count_weights(tensors: Mapping[str, LazyTensor]) -> dict[str, int]:
    """How many numbers are stored in each way, most first."""
    counts: dict[str, int] = {}
    for tensor in tensors.values():
        counts[tensor.stored_as] = counts.get(tensor.stored_as, 0) + tensor.n_element
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def check_sizes(config: Mapping[str, Any], tensors: Mapping[str, LazyTensor], source: str) -> None:
    """Raise if the config asks for more than the weights can fill, before a model of that size is built."""
    in_all = sum(tensor.n_element for tensor in tensors.values())
    wrong = []
    for key, value in config.items():
        if key in _POSITION_KEYS:
            most, of = MAX_POSITIONS, f"it may be {MAX_POSITIONS}"
        elif key in _LAYER_KEYS:
            most, of = len(tensors), f"there are {len(tensors)} tensors"
        elif _SIZE_KEYS.fullmatch(key):
            most, of = in_all, f"there are {in_all} numbers in all the weights"
        else:
            continue
        if value is not None and (type(value) is not int or not 0 <= value <= most):
            wrong.append(f"{key} is {str(value)[:40]} and {of}")
    if wrong:
        raise LoadError(f"{source} does not fit its weights: {'; '.join(wrong)}.")


def _weight_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise LoadError(f"{folder} is not a folder.")
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if index.exists():
        return _shards(index)
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    for name in names:
        if Path(name).suffix in PICKLES and name != "training_args.bin":
            refuse_pickle(folder / name)
    ggufs = [name for name in names if name.endswith(".gguf")]
    if ggufs:
        raise LoadError(
            f"{folder} has no model.safetensors. It has {_few(ggufs)}: give the path of that file."
        )
    raise LoadError(
        f"{folder} has no weights: model.safetensors, or model.safetensors.index.json and its files, "
        f"must be in it. It has {_few(names) if names else 'no files'}."
    )


def _shards(index: Path) -> list[Path]:
    """The files an index names, all of them plain names of files in its folder."""
    shards = sorted(set(_weight_map(index).values()))
    outside = [name for name in shards if re.search(r"[/\\:\0]", name) or name in ("", ".", "..")]
    if outside:
        raise LoadError(f"{index} names {_few(outside)}: weights must be files in the same folder.")
    missing = [name for name in shards if not (index.parent / name).is_file()]
    if missing:
        raise LoadError(f"{index} names {len(shards)} files, of which these are missing: {_few(missing)}.")
    for name in shards:
        refuse_pickle(index.parent / name)
    return [index.parent / name for name in shards]


def _weight_map(index: Path) -> dict[str, str]:
    found = read_json(index).get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(file, str) for file in found.values()):
        raise LoadError(f"{index} has no weight_map: it must map each tensor's name to a file's.")
    return found


def _check_index(folder: Path, tensors: Mapping[str, LazyTensor]) -> None:
    index = folder / "model.safetensors.index.json"
    missing = [name for name in _weight_map(index) if name not in tensors]
    if missing:
        raise LoadError(f"{index} names tensors that its files do not have: {_few(missing)}.")


def _card_licence(folder: Path) -> str | None:
    """The licence that the front matter of a folder's README.md states."""
    try:
        text = read_text(folder / "README.md")
    except LoadError:
        return None
    front = re.match(r"---\s*\n(.*?)\n---", text[:20_000], re.DOTALL)
    stated = re.search(r"^license:\s*[\"']?([\w.+-]+)", front[1], re.MULTILINE) if front else None
    return stated[1] if stated else None


def _few(names: list[str]) -> str:
    shown = ", ".join(repr(name[:80]) for name in names[:8])
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{shown}{more}"


# GGUF names to those of Hugging Face. "{}" is the layer.
_LLAMA_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}
_GPT2_NAMES = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.h.{}.ln_1",
    "blk.{}.attn_qkv": "transformer.h.{}.attn.c_attn",
    "blk.{}.attn_output": "transformer.h.{}.attn.c_proj",
    "blk.{}.ffn_norm": "transformer.h.{}.ln_2",
    "blk.{}.ffn_up": "transformer.h.{}.mlp.c_fc",
    "blk.{}.ffn_down": "transformer.h.{}.mlp.c_proj",
}
_GGUF_FAMILIES = {"llama": _LLAMA_NAMES, "gpt2": _GPT2_NAMES}
# GPT-2's checkpoints hold these as (in, out); GGUF, like nn.Linear, as (out, in).
_GPT2_TRANSPOSED = re.compile(r"blk\.\d+\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight")


def _translated(
    path: Path, header: GGUFHeader, architecture: str, config: Mapping[str, Any]
) -> dict[str, LazyTensor]:
    """The file's tensors under Hugging Face's names, in Hugging Face's layout."""
    names = _GGUF_FAMILIES[architecture]
    tensors: dict[str, LazyTensor] = {}
    strange = []
    for name, info in header.tensors.items():
        stem, _, suffix = name.rpartition(".")
        layer = re.match(r"blk\.(\d{1,6})\.", stem)
        known = names.get(re.sub(r"^blk\.\d+\.", "blk.{}.", stem))
        if known is None or suffix not in ("weight", "bias"):
            strange.append(name)
            continue
        stored = gguf_tensor(path, info)
        shape, read_tensor = stored.shape, stored.read
        if architecture == "llama" and stem.endswith((".attn_q", ".attn_k")):
            n_head = config["num_attention_heads" if stem.endswith("_q") else "num_key_value_heads"]
            if shape[0] % (2 * n_head):
                raise LoadError(
                    f"{path}: {name} has {shape[0]} rows, which do not split into pairs in {n_head} heads."
                )
            read_tensor = _half_split(stored, n_head)
        elif architecture == "gpt2" and _GPT2_TRANSPOSED.fullmatch(name):
            shape, read_tensor = shape[::-1], _transposed(stored)
        full_name = f"{known.format(layer[1]) if layer else known}.{suffix}"
        tensors[full_name] = LazyTensor(full_name, shape, stored.stored_as, read_tensor)
    if strange:
        hint = " Scaled rotary frequencies are not supported." if "rope_freqs.weight" in strange else ""
        raise LoadError(f"{path} has tensors that {architecture} models do not have: {_few(strange)}.{hint}")
    return tensors


def _half_split(stored: LazyTensor, n_head: int) -> Callable[[], Tensor]:
    """Rows of q or k in Hugging Face's order.

    A rotary pair is rows 2i and 2i + 1 of a head in a GGUF file, and rows i and i + d/2 in Hugging Face.
    """

    def read_tensor() -> Tensor:
        rows = stored.read()
        pairs = rows.view(n_head, rows.shape[0] // n_head // 2, 2, *rows.shape[1:])
        return pairs.transpose(1, 2).reshape(rows.shape)

    return read_tensor


def _transposed(stored: LazyTensor) -> Callable[[], Tensor]:
    return lambda: stored.read().T.contiguous()


def _llama_config(header: GGUFHeader, path: Path) -> dict[str, Any]:
    n_head = _count(header, path, "llama.attention.head_count")
    model_dim = _count(header, path, "llama.embedding_length")
    head_dim = _count(header, path, "llama.attention.key_length", model_dim // n_head)
    rotary_dim = _count(header, path, "llama.rope.dimension_count", head_dim)
    if rotary_dim != head_dim:
        raise LoadError(
            f"{path} rotates {rotary_dim} of {head_dim} numbers of a head: Llama-type models rotate all."
        )
    scaling = header.metadata.get("llama.rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise LoadError(
            f"{path} scales rotary positions in the way {scaling!r}: 'none' and 'linear' are supported."
        )
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": model_dim,
        "intermediate_size": _count(header, path, "llama.feed_forward_length"),
        "num_hidden_layers": _count(header, path, "llama.block_count"),
        "num_attention_heads": n_head,
        "num_key_value_heads": _count(header, path, "llama.attention.head_count_kv", n_head),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": _count(header, path, "llama.context_length"),
        "rms_norm_eps": _real(header, path, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": _real(header, path, "llama.rope.freq_base", 10000.0),
        "rope_scaling": None,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
    }
    if scaling == "linear":
        config["rope_scaling"] = {
            "rope_type": "linear",
            "factor": _real(header, path, "llama.rope.scaling.factor"),
        }
    return config | _shared_config(header, path)


def _gpt2_config(header: GGUFHeader, path: Path) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": _count(header, path, "gpt2.embedding_length"),
        "n_inner": _count(header, path, "gpt2.feed_forward_length"),
        "n_layer": _count(header, path, "gpt2.block_count"),
        "n_head": _count(header, path, "gpt2.attention.head_count"),
        "n_positions": _count(header, path, "gpt2.context_length"),
        "layer_norm_epsilon": _real(header, path, "gpt2.attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
    } | _shared_config(header, path)


def _shared_config(header: GGUFHeader, path: Path) -> dict[str, Any]:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise LoadError(f"{path} has no token_embd.weight of two dimensions: every model needs one.")
    ids = {"bos": "bos", "eos": "eos", "pad": "padding"}
    return {
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **{f"{role}_token_id": _id(header, word) for role, word in ids.items()},
    }


def _id(header: GGUFHeader, word: str) -> int | None:
    value = header.metadata.get(f"tokenizer.ggml.{word}_token_id")
    return value if type(value) is int else None


def _count(header: GGUFHeader, path: Path, key: str, default: int | None = None) -> int:
    value = header.metadata.get(key, default)
    if type(value) is not int or value < 1:
        raise LoadError(f"{path} has {key} {str(value)[:40]}: it must be a positive whole number.")
    return value


def _real(header: GGUFHeader, path: Path, key: str, default: float | None = None) -> float:
    value = header.metadata.get(key, default)
    if type(value) is not float or not 0 < value < float("inf"):
        raise LoadError(f"{path} has {key} {str(value)[:40]}: it must be a positive number.")
    return value


def _text(header: GGUFHeader, key: str) -> str | None:
    value = header.metadata.get(key)
    return value if isinstance(value, str) else None


def _quantisation(stored_as: str) -> str | None:
    """The way most weights are stored, with its bits; None for plain floats."""
    bits = re.fullmatch(r"I?Q(\d)_\w+|T(Q)\d_0|(?:MX|NV)FP(\d)", stored_as)
    if bits is None:
        return None
    return f"{stored_as} ({'ternary' if bits[2] else f'{bits[1] or bits[3]}-bit'})"
