"""Weight files, read safely: safetensors folders and GGUF files, never pickle.

    raw = read("folder-or-file")
    raw.config["hidden_size"]
    raw.tensors["model.norm.weight"].shape      # known without reading the weights
    raw.tensors["model.norm.weight"].read()     # one tensor, when asked for

Whatever the format, the config has the keys of a Hugging Face config.json and the tensors have the names
and the layout of a Hugging Face checkpoint. A file that is cut short, damaged or absurd is a `LoadError`
before anything of its claimed size is allocated.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import LoadError, UnsupportedError
from regard.files.gguf import Metadata, read_header
from regard.files.gguf_tokenizer import gguf_tokenizer
from regard.files.safetensors import LazyTensor, open_safetensors
from regard.files.tokenizer import TextTokenizer, read_json, read_text
from regard.models.families import FAMILIES, Family, HFConfig, Published

INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass(frozen=True, slots=True, eq=False)
class RawModel:
    """A model as its files have it: config, tensors by name, tokenizer, and what they say of themselves."""

    source: Path
    config: Published
    tensors: Mapping[str, LazyTensor] = field(repr=False)
    tokenizer: TextTokenizer | None
    name: str | None = None
    licence: str | None = None  # as the file states it
    quantisation: str | None = None  # such as "Q4_1 (4-bit)", None if weights are plain floats
    notes: tuple[str, ...] = ()  # what a user should be told, such as why there is no tokenizer
    vocabulary_refused: bool = False  # the file has a vocabulary that cannot be rebuilt


def read(path: str | Path) -> RawModel:
    """Return the model at `path`: a folder, a .safetensors file beside its config.json, or a .gguf file."""
    path = Path(path)
    if not path.exists():
        raise LoadError(f"{path} does not exist.")
    if path.is_dir():
        return read_folder(path)
    refuse_pickle(path)
    if path.suffix == ".safetensors":
        return read_folder(path.parent, weights=path)
    return read_gguf(path)


def refuse_pickle(path: Path) -> None:
    """Raise if `path` is a pickle by its name or by how it starts, saying how to convert it."""
    suffix, start = path.suffix.lower(), b""
    if suffix not in (*PICKLES, ".safetensors", ".gguf"):
        try:
            with path.open("rb") as file:
                start = file.read(4)
        except OSError as error:
            raise LoadError(f"{path} cannot be read: {error.strerror or error}.") from error
    # torch.save writes a zip archive; before PyTorch 1.6 it wrote pickle protocol 2.
    if suffix in PICKLES or start.startswith((b"PK\x03\x04", b"\x80\x02")):
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


def read_folder(folder: Path, *, weights: Path | None = None) -> RawModel:
    """Return the model in a Hugging Face-format folder: config.json, safetensors, maybe tokenizer.json."""
    files, promised = _weight_files(folder) if weights is None else ([weights], set[str]())
    config = read_json(folder / "config.json")
    stored = [open_safetensors(file) for file in files]
    tensors = {name: tensor for part in stored for name, tensor in part.items()}
    if sum(map(len, stored)) > len(tensors):
        twice = [name for name in tensors if sum(name in part for part in stored) > 1]
        raise LoadError(f"{folder}: these tensors are stored in more than one file: {_few(twice)}.")
    if missing := promised - set(tensors):
        raise LoadError(f"{folder / INDEX} names tensors that its files do not have: {_few(missing)}.")
    tokenizer = TextTokenizer.from_folder(folder) if (folder / "tokenizer.json").is_file() else None
    lacking = f"No tokenizer: {folder} has no tokenizer.json. The model takes ids, not text."
    notes = (lacking,) if tokenizer is None else ()
    name, licence = config.get("_name_or_path"), _card_licence(folder)
    name = name if isinstance(name, str) and name else None
    return RawModel(weights or folder, config, tensors, tokenizer, name, licence, notes=notes)


def read_gguf(path: Path) -> RawModel:
    """Return the model in a GGUF file: weights dequantised when read, names and layout as in Hugging Face."""
    metadata, stored = read_header(path)
    families = {family.gguf: family for family in FAMILIES.values() if family.gguf is not None}
    architecture = str(metadata.get("general.architecture"))[:40]
    if architecture not in families:
        known = " and ".join(sorted(families))
        raise LoadError(f"{path} holds a model of architecture {architecture!r}: {known} can be read.")
    family = families[architecture]
    try:
        config = _gguf_config(metadata, stored, family)
        tensors = _translated(stored, family, config)
    except LoadError as error:
        raise LoadError(f"{path}: {error}") from error
    tokenizer, notes = None, tuple[str, ...]()
    try:
        tokenizer = gguf_tokenizer(metadata, str(path), usual_cut=family.gguf_cut)
    except UnsupportedError as error:
        notes = (f"No tokenizer: {error} The model takes ids, not text.",)
    said = (metadata.get(key) for key in ("general.name", "general.license"))
    name, licence = (words if isinstance(words, str) else None for words in said)
    stored_as = _quantisation(tensors)
    return RawModel(path, config, tensors, tokenizer, name, licence, stored_as, notes, tokenizer is None)


def _weight_files(folder: Path) -> tuple[list[Path], set[str]]:
    """Return the files with a folder's weights, and the tensors that an index says are in them."""
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"], set()
    if not (folder / INDEX).exists():
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
        for name in names:
            if Path(name).suffix in PICKLES and name != "training_args.bin":
                refuse_pickle(folder / name)
        ggufs = [name for name in names if name.endswith(".gguf")]
        there = f"{_few(ggufs)}: give the path of that file" if ggufs else _few(names) or "no files"
        raise LoadError(
            f"{folder} has no weights: model.safetensors, or {INDEX} and its files, must be in it. "
            f"It has {there}."
        )
    named = read_json(folder / INDEX).get("weight_map")
    if not isinstance(named, dict) or not named or not all(isinstance(file, str) for file in named.values()):
        raise LoadError(f"{folder / INDEX} has no weight_map: it must map each tensor's name to a file's.")
    shards = sorted(set(named.values()))
    if outside := [name for name in shards if re.search(r"[/\\:\0]", name) or name in ("", ".", "..")]:
        raise LoadError(f"{folder / INDEX} names {_few(outside)}: weights must be files in the same folder.")
    if missing := [name for name in shards if not (folder / name).is_file()]:
        raise LoadError(f"{folder / INDEX} names files of which these are missing: {_few(missing)}.")
    for name in shards:
        refuse_pickle(folder / name)
    return [folder / name for name in shards], set(named)


def _card_licence(folder: Path) -> str | None:
    """Return the licence that the front matter of a folder's README.md states."""
    try:
        text = read_text(folder / "README.md")
    except LoadError:
        return None
    front = re.match(r"---\s*\n(.*?)\n---", text[:20_000], re.DOTALL)
    stated = re.search(r"^license:\s*[\"']?([\w.+-]+)", front[1], re.MULTILINE) if front else None
    return stated[1] if stated else None


def _few(names: Iterable[str]) -> str:
    names = sorted(names)
    shown = ", ".join(repr(name[:80]) for name in names[:8])
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{shown}{more}"


def _gguf_config(metadata: Metadata, tensors: Mapping[str, LazyTensor], family: Family) -> HFConfig:
    """Return what a config.json would say."""
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise LoadError("there is no token_embd.weight of two dimensions: every model needs one.")
    kind, (with_head, _) = next(iter(family.architectures.items()))
    below = f"{family.gguf}."
    values = {key.removeprefix(below): value for key, value in metadata.items() if key.startswith(below)}
    return {
        "model_type": kind,
        "architectures": [with_head],
        **family.gguf_config(values, tensors),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in tensors,
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
    }


def _translated(stored: Mapping[str, LazyTensor], family: Family, config: Published) -> dict[str, LazyTensor]:
    """Return the file's tensors under Hugging Face's names, in Hugging Face's layout."""
    ours = {name: family.from_gguf_name(name) for name in stored}
    if strange := [name for name, parameter in ours.items() if parameter is None]:
        hint = " Scaled rotary frequencies are not supported." if "rope_freqs.weight" in strange else ""
        raise LoadError(f"there are tensors that {family.name} models do not have: {_few(strange)}.{hint}")
    tensors = {}
    for name, tensor in stored.items():
        parameter = str(ours[name])
        shape = family.from_gguf(parameter, torch.empty(tensor.shape, device="meta"), config).shape
        module, _, kind = parameter.rpartition(".")
        theirs = f"{family.prefixed(family.hf_name(module))}.{kind}"
        read = partial(_as_published, tensor, family, parameter, config)
        tensors[theirs] = LazyTensor(theirs, tuple(shape), tensor.stored_as, read)
    return tensors


def _as_published(stored: LazyTensor, family: Family, parameter: str, config: Published) -> Tensor:
    return family.from_gguf(parameter, stored.read(), config)


def _quantisation(tensors: Mapping[str, LazyTensor]) -> str | None:
    """Return the way most weights are stored, with its bits; None for plain floats."""
    counts: Counter[str] = Counter()
    for tensor in tensors.values():
        counts[tensor.stored_as] += tensor.n_element
    bits = re.fullmatch(r"I?Q(\d)_\w+|(T)Q\d_0|(?:MX|NV)FP(\d)", counts.most_common(1)[0][0])
    return bits and f"{bits[0]} ({'ternary' if bits[2] else f'{bits[1] or bits[3]}-bit'})"
