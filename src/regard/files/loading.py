"""Models from files and back: `load("minilm")`, `load("folder")`, `load("file.gguf")`, `save(...)`.

Whatever the file, the model is `models.transformer.Transformer`, in evaluation mode; a folder that `save`
wrote of a recurrent model gives a `models.seq2seq.Seq2Seq`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import ArgumentError, LoadError
from regard.files import hub
from regard.files import raw as files
from regard.files.tensors import LazyTensor, write_safetensors
from regard.files.tokenizer import TextTokenizer, byte_tokenizer
from regard.models.families import FAMILIES, Family, Source, family_of
from regard.models.pruned import stated_kept_heads
from regard.models.published import published_config
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.models.transformer import Transformer, TransformerConfig, initialise

_SEQ2SEQ = "regard-seq2seq"  # the model_type of a recurrent model's config.json


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model is and where it came from."""

    name: str
    family: str
    n_layer: int
    n_head: int
    n_kv_head: int
    model_dim: int
    vocab: int
    n_position: int | None
    n_parameter: int
    source: str  # a path, or "random weights, seed 0"
    licence: str | None = None
    quantisation: str | None = None  # how the file stored the weights, if not as plain floats
    trained: bool = True
    weights: str = "float32"  # what decoding reads: int8 where asked for
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A model, its tokenizer and its facts."""

    model: Any  # a Transformer, or the recurrent Seq2Seq
    tokenizer: TextTokenizer | None  # None: a vocabulary too small even for bytes
    facts: ModelFacts
    start_token: int | None = None  # what an encoder-decoder's answer begins with
    stop_tokens: tuple[int, ...] = ()  # what ends a text

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = next(self.model.parameters()).device
        return device


def load(
    name_or_path: str | Path,
    *,
    random: bool = False,
    seed: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    weights: str = "float32",
) -> Loaded:
    """The model of that name, or in that folder or file.

    Names: `pocket-dates`, which comes with the package; `minilm` and `smollm2`, downloaded on first use; with
    `random=True`, `gpt2`, `bert`, `llama`, `t5`, `minilm`, `smollm2` in their published shapes with random
    weights and a byte-level tokenizer.

    `weights="int8"` makes decoding on the CPU read every matrix rounded to 8 bits, a quarter of the bytes for
    each token. The prompt, and `model(...)` itself, are computed in float32 as ever.
    """
    if weights not in ("float32", "int8"):
        raise ArgumentError(f"weights must be 'float32' or 'int8'. Got {weights!r}.")
    if weights == "int8" and (torch.device(device).type != "cpu" or dtype != torch.float32):
        raise ArgumentError(
            f"weights='int8' is for decoding on the CPU from float32. Got device {device}, dtype {dtype}."
        )
    if random:
        return _as_weights(_random(str(name_or_path), seed, device, dtype), weights)
    name = str(name_or_path)
    if name in hub.listed() and not Path(name).exists():
        raw = files.read(hub.SHIPPED[name].path if name in hub.SHIPPED else hub.get_showing(name))
        licence = raw.facts.licence or hub.listed()[name].licence
        raw = replace(raw, facts=replace(raw.facts, name=name, licence=licence))
    else:
        if not Path(name).exists():
            raise LoadError(_no_such_model(name))
        raw = files.read(name)
    return _as_weights(from_raw(raw, device=device, dtype=dtype), weights)


def _as_weights(loaded: Loaded, weights: str) -> Loaded:
    """The model set to decode with these weights, and facts that say so."""
    if weights == "float32":
        return loaded
    if isinstance(loaded.model, Seq2Seq):
        raise ArgumentError("weights='int8' is for Transformers: this model is recurrent.")
    loaded.model.decode_weights = "int8"
    note = "Decoding rounds every matrix, and what it multiplies, to 8 bits; the prompt is read in float32."
    facts = replace(loaded.facts, weights=weights, notes=(*loaded.facts.notes, note))
    return replace(loaded, facts=facts)


def from_raw(
    raw: files.RawModel, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> Loaded:
    """The model that read files describe."""
    source = str(raw.facts.source)
    if raw.config.get("model_type") == _SEQ2SEQ:
        return _seq2seq(raw, source, device, dtype)
    stated, kept_heads = stated_kept_heads(raw.config, source)
    if kept_heads is not None:
        files.check_sizes(stated, raw.tensors, source)
        raw = replace(raw, config=stated)
    family, config = _config(raw, source)
    if kept_heads is not None:
        config = replace(config, kept_heads=kept_heads)
    model = build(family, config, raw.tensors, source, dtype).to(device).eval()
    name = raw.facts.name or Path(source).stem
    tokenizer, notes = raw.tokenizer, list(raw.facts.notes)
    if kept_heads is not None:
        n_all = len(kept_heads) * config.block.n_head
        notes.append(f"Pruned: {sum(map(len, kept_heads))} of {n_all} heads are left.")
    if tokenizer is None and config.vocab >= 256:
        tokenizer = byte_tokenizer(config.vocab)
        notes.append("Text is fed as bytes, which this model was not trained on.")
    elif tokenizer is not None and tokenizer.vocab_size > config.vocab:
        notes.append(f"The tokenizer knows {tokenizer.vocab_size} tokens, the model {config.vocab}.")
    facts = _facts(name, config, model, source)
    return Loaded(
        model,
        tokenizer,
        replace(facts, licence=raw.facts.licence, quantisation=raw.facts.quantisation, notes=tuple(notes)),
        start_token=_token_id(raw.config, "decoder_start_token_id", 0 if family.name == "t5" else None),
        stop_tokens=_stop_tokens(raw.config, tokenizer),
    )


def assembled(
    model: Transformer | Seq2Seq,
    tokenizer: TextTokenizer | None,
    name: str,
    source: str,
    *,
    start_token: int | None = None,
    stop_tokens: tuple[int, ...] = (),
) -> Loaded:
    """A model that is in memory already, with its facts, as `load` would give it."""
    facts = _facts(name, model.config, model, source)
    return Loaded(model, tokenizer, facts, start_token, stop_tokens)


def _seq2seq(raw: files.RawModel, source: str, device: str | torch.device, dtype: torch.dtype) -> Loaded:
    """The recurrent model that `save` wrote."""
    config = Seq2SeqConfig.from_dict({key: value for key, value in raw.config.items() if key != "model_type"})
    with torch.device("meta"):
        model = Seq2Seq(config)
    wanted = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    found = {name: tuple(tensor.shape) for name, tensor in raw.tensors.items()}
    if wanted != found:
        differ = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
        listed = "\n    ".join(
            f"{name}: expected {wanted.get(name, 'none')}, found {found.get(name, 'none')}" for name in differ
        )
        raise LoadError(f"{source}: the tensors do not fit the config ({len(differ)} differ):\n    {listed}")
    # A recurrent layer keeps its weights in a list of its own too, which `assign` does not reach.
    model = Seq2Seq(config)
    model.load_state_dict({name: tensor.read() for name, tensor in raw.tensors.items()})
    model = model.to(device, dtype).eval()
    stop = () if config.eos is None else (config.eos,)
    name = raw.facts.name or Path(source).stem
    loaded = assembled(model, raw.tokenizer, name, source, start_token=config.bos, stop_tokens=stop)
    return replace(loaded, facts=replace(loaded.facts, licence=raw.facts.licence, notes=raw.facts.notes))


def build(
    family: Family,
    config: TransformerConfig,
    tensors: Mapping[str, LazyTensor],
    source: str,
    dtype: torch.dtype = torch.float32,
) -> Transformer:
    """A Transformer filled with published tensors; one error lists all that do not fit."""
    with torch.device("meta"):
        model = Transformer(config)
    names = family.names(config)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    if set(names) != set(shapes):
        raise AssertionError(f"families.py and transformer.py differ: {set(names) ^ set(shapes)}")
    published = _published_names(family, names, tensors)
    _check_tensors(family, names, shapes, published, tensors, source)
    state: dict[str, Tensor] = {}
    read: dict[str, Tensor] = {}
    for ours, where in names.items():
        tensor = read.get(where.name)
        if tensor is None:
            tensor = tensors[published[where.name]].read().to(dtype)
            if where.part is not None:  # three of ours come from it
                read[where.name] = tensor
        if where.transposed:
            tensor = tensor.T
        if where.part is not None:
            tensor = tensor.chunk(3, dim=0)[where.part]
        state[ours] = tensor.contiguous()
        if where.part == 2:
            del read[where.name]
    model.load_state_dict(state, assign=True)
    return model.to(dtype)


def save(loaded: Loaded, folder: str | Path) -> None:
    """Write a Hugging Face-format folder, which `load` and transformers read.

    A recurrent model has no such format: its folder holds our own config.json, for `load` alone.
    """
    if isinstance(loaded.model, Seq2Seq):
        state = {name: tensor.contiguous().cpu() for name, tensor in loaded.model.state_dict().items()}
        config = {"model_type": _SEQ2SEQ, **loaded.model.config.to_dict()}
        _write(Path(folder), config, state, loaded.tokenizer)
        return
    write_folder(loaded, folder, published_config(loaded.model.config))


def write_folder(loaded: Loaded, folder: str | Path, published: dict[str, Any]) -> None:
    """Write a model with the config.json `published`, its tensors under their published names."""
    config = loaded.model.config
    family = FAMILIES[config.family]
    state = loaded.model.state_dict()
    prefix = family.prefixes[0] if config.head != "none" else ""
    tensors: dict[str, Tensor] = {}
    parts: dict[str, list[Tensor]] = {}
    for ours, where in family.names(config).items():
        tensor = state[ours].T if where.transposed else state[ours]
        name = where.name if _outside_prefix(where.name) else prefix + where.name
        if where.part is None:
            tensors[name] = tensor.contiguous().cpu()
        else:
            parts.setdefault(name, []).append(tensor.cpu())
    for name, three in parts.items():
        tensors[name] = torch.cat(three, dim=-1).contiguous()
    ids = {"eos_token_id": loaded.stop_tokens[0]} if loaded.stop_tokens else {}
    if loaded.start_token is not None:
        ids["decoder_start_token_id"] = loaded.start_token
    # A pruned model's ids stand beside the rest of what its family would say.
    published.get("family_config", published).update(ids)
    _write(Path(folder), published, tensors, loaded.tokenizer)


def _write(
    folder: Path, config: Mapping[str, Any], tensors: dict[str, Tensor], tokenizer: TextTokenizer | None
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    temporary = folder / "model.safetensors.part"
    write_safetensors(tensors, temporary, {"format": "pt"})
    temporary.replace(folder / "model.safetensors")
    if tokenizer is not None:
        tokenizer.save(folder)


def _random(name: str, seed: int, device: str | torch.device, dtype: torch.dtype) -> Loaded:
    for family in FAMILIES.values():
        if name in family.sizes:
            config = family.config(family.sizes[name])
            with torch.device("meta"):  # no time spent on weights that are drawn anew
                model = Transformer(config)
            empty = {name: torch.empty(parameter.shape) for name, parameter in model.named_parameters()}
            model.load_state_dict(empty, assign=True)
            model = initialise(model, seed).to(device, dtype).eval()
            facts = _facts(f"{name} (random)", config, model, f"random weights, seed {seed}")
            first, last = {"bert": ("cls", "sep"), "t5": (None, "eos")}.get(family.name, (None, None))
            tokenizer = byte_tokenizer(config.vocab, first=first, last=last)
            start = 0 if family.name == "t5" else None
            stop = (tokenizer.special.eos,) if tokenizer.special.eos is not None else ()
            return Loaded(model, tokenizer, replace(facts, trained=False), start, stop)
    known = ", ".join(name for family in FAMILIES.values() for name in family.sizes)
    raise ArgumentError(
        f"there is no shape called {name!r} to fill with random weights: one of {known} is known."
    )


def _config(raw: files.RawModel, source: str) -> tuple[Family, TransformerConfig]:
    family = family_of(raw.config)
    try:
        config = family.config(raw.config)
    except KeyError as error:
        raise LoadError(
            f"{source}: config.json has no {error.args[0]!r}, which a {family.name} model needs."
        ) from error
    except (TypeError, AttributeError) as error:
        raise LoadError(f"{source}: config.json has a value of the wrong kind: {error}.") from error
    if config.pooler and not any(name.endswith("pooler.dense.weight") for name in raw.tensors):
        config = replace(config, pooler=False)
    return family, config


def _published_names(
    family: Family, names: Mapping[str, Source], tensors: Mapping[str, LazyTensor]
) -> dict[str, str]:
    """The name in the file for each published name: prefixed or not, spelled the old way or the new."""
    spelled = {}
    for name in tensors:
        modern = name
        for old, new in family.renamed:
            if modern.endswith(old):
                modern = modern.removesuffix(old) + new
        spelled[modern] = name
    wanted = {where.name for where in names.values()}
    prefix = max(family.prefixes, key=lambda prefix: sum(prefix + name in spelled for name in wanted))
    return {
        name: spelled.get(full, full)
        for name in wanted
        for full in [name if _outside_prefix(name) else prefix + name]
    }


def _outside_prefix(name: str) -> bool:
    return name.startswith(("lm_head.", "cls."))


def _check_tensors(
    family: Family,
    names: Mapping[str, Source],
    shapes: Mapping[str, tuple[int, ...]],
    published: Mapping[str, str],
    tensors: Mapping[str, LazyTensor],
    source: str,
) -> None:
    wrong = []
    for ours, where in names.items():
        if where.part:  # counted with part 0
            continue
        shape = shapes[ours]
        if where.part is not None:
            shape = (3 * shape[0], *shape[1:])
        shape = shape[::-1] if where.transposed else shape
        name = published[where.name]
        if name not in tensors:
            wrong.append(f"missing   {name}: expected {shape}")
        elif tuple(tensors[name].shape) != shape:
            wrong.append(f"misshapen {name}: expected {shape}, found {tuple(tensors[name].shape)}")
    extra = sorted(set(tensors) - set(published.values()))
    wrong += [
        f"extra     {name}: found {tuple(tensors[name].shape)}"
        for name in extra
        if not name.endswith(family.ignored or (" ",))
    ]
    if wrong:
        listed = "\n    ".join(wrong)
        raise LoadError(f"{source}: the tensors do not fit the config ({len(wrong)} differ):\n    {listed}")


def _facts(
    name: str, config: TransformerConfig | Seq2SeqConfig, model: Transformer | Seq2Seq, source: str
) -> ModelFacts:
    n_parameter = sum(parameter.numel() for parameter in model.parameters())
    if isinstance(config, Seq2SeqConfig):
        n_head = len(model.attention_names)
        return ModelFacts(
            name=name,
            family="seq2seq",
            n_layer=2 * config.n_layer,  # of the encoder, and of the decoder
            n_head=n_head,
            n_kv_head=n_head,
            model_dim=config.hidden_dim,
            vocab=config.target_vocab,
            n_position=None,
            n_parameter=n_parameter,
            source=source,
        )
    block = config.block
    return ModelFacts(
        name=name,
        family=config.family,
        n_layer=config.n_encoder_layer + config.n_decoder_layer,
        n_head=block.n_head,
        n_kv_head=block.n_kv_head or block.n_head,
        model_dim=block.model_dim,
        vocab=config.vocab,
        n_position=config.n_position,
        n_parameter=n_parameter,
        source=source,
    )


def _token_id(config: Mapping[str, Any], key: str, default: int | None) -> int | None:
    value = config.get(key, default)
    return value if isinstance(value, int) else default


def _stop_tokens(config: Mapping[str, Any], tokenizer: TextTokenizer | None) -> tuple[int, ...]:
    stated = config.get("eos_token_id")
    ids = stated if isinstance(stated, list) else [stated]
    found = [token for token in ids if isinstance(token, int)]
    if not found and tokenizer is not None and tokenizer.special.eos is not None:
        found = [tokenizer.special.eos]
    return tuple(found)


def _no_such_model(name: str) -> str:
    shapes = ", ".join(size for family in FAMILIES.values() for size in family.sizes)
    return (
        f"there is no model {name!r}: no such file or folder, and the models by name are "
        f"{', '.join(hub.listed())}. With random=True (--random) also {shapes}."
    )


def checked_device(name: str) -> torch.device:
    """The device of that name, shown to work by putting a number on it."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add_(1).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # which one depends on torch's build
        reason = str(error).partition("\n")[0]
        raise ArgumentError(f"cannot compute on device {name!r}: {reason}") from error
    return device
