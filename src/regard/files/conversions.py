"""Weights in formats of their own, written as folders that `load` reads: safetensors, config, tokenizer.

Each function is given the folder of files that were taken from a model's archives and an empty folder to
write. Pickles are read with `weights_only`, which holds tensors and numbers and runs nothing. Names of
tensors are those of the transformers library, which runs these models.
"""

import base64
import io
import json
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from regard.errors import LoadError
from regard.files.safetensors import write_safetensors
from regard.files.tokenizer import byte_characters


def _write(
    folder: Path,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    tokenizer: Tokenizer,
    **special: str,
) -> None:
    """Write a Hugging Face folder; `special` names the special tokens by their roles."""
    kept = {
        name: tensor.float().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {f"{role}_token": token for role, token in special.items()}
    (folder / "special_tokens_map.json").write_text(json.dumps(named, indent=2), encoding="utf-8")
    write_safetensors(kept, folder / "model.safetensors", {"format": "pt"})


# --- Whisper (Radford et al. 2022), as OpenAI publishes it

_WHISPER_NAMES = (
    (r"\.blocks\.", ".layers."),
    (r"\.mlp\.0\.", ".fc1."),
    (r"\.mlp\.2\.", ".fc2."),
    (r"\.mlp_ln\.", ".final_layer_norm."),
    (r"\.cross_attn_ln\.", ".encoder_attn_layer_norm."),
    (r"\.attn_ln\.", ".self_attn_layer_norm."),
    (r"\.cross_attn\.", ".encoder_attn."),
    (r"\.attn\.", ".self_attn."),
    (r"\.query\.", ".q_proj."),
    (r"\.key\.", ".k_proj."),
    (r"\.value\.", ".v_proj."),
    (r"\.out\.", ".out_proj."),
    (r"\.(ln_post|ln)\.", ".layer_norm."),
    (r"\.token_embedding\.", ".embed_tokens."),
    (r"\.positional_embedding$", ".embed_positions.weight"),
)
# The special tokens of Whisper, in the order of their ids (openai-whisper, tokenizer.py).
_LANGUAGES = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr "
    "bg lt la mi ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn "
    "yo so af oc ka be tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw "
    "su"
).split()
_TASKS = "translate transcribe startoflm startofprev nospeech notimestamps".split()


def whisper(source: Path, target: Path) -> None:
    """Write OpenAI's Whisper as transformers has it: tiny.en.pt and gpt2.tiktoken.

    Args:
        source: The folder with these two files.
        target: The folder to write.
    """
    stored = torch.load(source / "tiny.en.pt", map_location="cpu", weights_only=True)
    sizes, state = stored["dims"], stored["model_state_dict"]
    tensors = {}
    for name, tensor in state.items():
        for pattern, replacement in _WHISPER_NAMES:
            name = re.sub(pattern, replacement, name)
        tensors[f"model.{name}"] = tensor
    tokenizer = _tiktoken((source / "gpt2.tiktoken").read_text(encoding="ascii"))
    ids = tokenizer.get_vocab(with_added_tokens=True)
    if len(ids) != sizes["n_vocab"]:
        raise LoadError(f"Whisper's vocabulary has {len(ids)} tokens, its weights {sizes['n_vocab']}.")
    start, end = ids["<|startoftranscript|>"], ids["<|endoftext|>"]
    config = {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "vocab_size": sizes["n_vocab"],
        "num_mel_bins": sizes["n_mels"],
        "d_model": sizes["n_audio_state"],
        "encoder_layers": sizes["n_audio_layer"],
        "encoder_attention_heads": sizes["n_audio_head"],
        "encoder_ffn_dim": 4 * sizes["n_audio_state"],
        "max_source_positions": sizes["n_audio_ctx"],
        "decoder_layers": sizes["n_text_layer"],
        "decoder_attention_heads": sizes["n_text_head"],
        "decoder_ffn_dim": 4 * sizes["n_text_state"],
        "max_target_positions": sizes["n_text_ctx"],
        "decoder_start_token_id": start,
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
        "tie_word_embeddings": True,
    }
    # 16 kHz, 25 ms windows every 10 ms, 30 s: what Whisper was trained with (Radford et al. 2022, 2.2).
    sound = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": sizes["n_mels"]}
    sound |= {"sampling_rate": 16_000, "n_fft": 400, "hop_length": 160, "chunk_length": 30}
    (target / "preprocessor_config.json").write_text(json.dumps(sound, indent=2), encoding="utf-8")
    _write(target, tensors, config, tokenizer, bos="<|endoftext|>", eos="<|endoftext|>", pad="<|endoftext|>")


def _tiktoken(text: str) -> Tokenizer:
    """Return GPT-2's byte-level BPE from tiktoken's list of tokens by rank, with Whisper's special tokens."""
    ranks: dict[bytes, int] = {}
    for line in text.splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    letters = byte_characters()
    vocab = {"".join(letters[byte] for byte in piece): place for piece, place in ranks.items()}
    merges: list[tuple[str, str]] = []
    for piece, place in sorted(ranks.items(), key=lambda item: item[1]):
        if len(piece) > 1:
            left, right = _last_merge(piece, ranks, place)
            merges.append(("".join(letters[byte] for byte in left), "".join(letters[byte] for byte in right)))
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    times = [f"<|{step * 0.02:.2f}|>" for step in range(1501)]
    around = ["endoftext", "startoftranscript", *_LANGUAGES, *_TASKS]
    backend.add_special_tokens([*(f"<|{name}|>" for name in around), *times])
    return backend


def _last_merge(token: bytes, ranks: Mapping[bytes, int], rank: int) -> tuple[bytes, bytes]:
    """Return the two tokens whose merge made this one: what is left when only earlier merges are made."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
        best = min(pairs)
        if best >= rank:
            break
        at = pairs.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    if len(parts) != 2:
        raise LoadError(f"the token {token!r} is not made of two earlier ones.")
    return parts[0], parts[1]


# --- OPUS-MT (Tiedemann & Thottingal 2020) in the format of CTranslate2


def marian(source: Path, target: Path) -> None:
    """Write an Argos package, a zip with CTranslate2's model.bin and a SentencePiece model, as MarianMT.

    Args:
        source: The folder with model_data.argosmodel.
        target: The folder to write.
    """
    with zipfile.ZipFile(source / "model_data.argosmodel") as archive:
        inside = {Path(name).name: name for name in archive.namelist()}
        variables = read_ctranslate2(archive.read(inside["model.bin"]))
        words: list[str] = json.loads(archive.read(inside["shared_vocabulary.json"]))
        pieces, charsmap = _sentence_pieces(archive.read(inside["sentencepiece.model"]))
        (target / "README.md").write_bytes(archive.read(inside["README.md"]))
    expected = {"pre_norm": 0, "activation": 2, "scale_embeddings": 1}
    for name, value in expected.items():
        if int(variables[f"decoder/{name}"]) != value:
            raise LoadError(f"decoder/{name} is {int(variables[f'decoder/{name}'])}: Marian has {value}.")
    n_word, model_dim = variables["decoder/embeddings/weight"].shape
    n_head, n_layer = (
        int(variables["decoder/num_heads"]),
        1 + max(int(number) for name in variables for number in re.findall(r"^decoder/layer_(\d+)/", name)),
    )
    pad = n_word  # Marian starts from a zero vector, which transformers keeps as a token of its own
    shared = torch.cat([variables["decoder/embeddings/weight"], torch.zeros(1, model_dim)])
    bias = torch.cat([variables["decoder/projection/bias"], torch.tensor([-torch.inf])])
    tensors = {"model.shared.weight": shared, "final_logits_bias": bias[None]}
    for stack, layer in ((stack, layer) for stack in ("encoder", "decoder") for layer in range(n_layer)):
        tensors |= _marian_layer(variables, stack, layer)
    config = {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "vocab_size": n_word + 1,
        "d_model": model_dim,
        **{f"{stack}_layers": n_layer for stack in ("encoder", "decoder")},
        **{f"{stack}_attention_heads": n_head for stack in ("encoder", "decoder")},
        **{
            f"{stack}_ffn_dim": len(tensors[f"model.{stack}.layers.0.fc1.bias"])
            for stack in ("encoder", "decoder")
        },
        "activation_function": "swish",
        "scale_embedding": True,
        "static_position_embeddings": True,
        "max_position_embeddings": 512,
        "decoder_start_token_id": pad,
        "pad_token_id": pad,
        "eos_token_id": words.index("</s>"),
        "bos_token_id": None,
        "forced_eos_token_id": None,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "is_encoder_decoder": True,
    }
    tokenizer = _unigram([*words, "<pad>"], pieces, charsmap)
    _write(target, tensors, config, tokenizer, eos="</s>", unk="<unk>", pad="<pad>")


def _marian_layer(variables: Mapping[str, Tensor], stack: str, layer: int) -> dict[str, Tensor]:
    """Return the tensors of one layer under transformers' names: fused projections are split."""
    below, target = f"{stack}/layer_{layer}", f"model.{stack}.layers.{layer}"
    tensors: dict[str, Tensor] = {}

    def put(theirs: str, *ours: str) -> None:
        """Give each of `ours` its part of a fused linear layer."""
        for kind in ("weight", "bias"):
            parts = variables[f"{below}/{theirs}/{kind}"].chunk(len(ours))
            tensors.update({f"{target}.{name}.{kind}": part for name, part in zip(ours, parts, strict=True)})

    def norm(theirs: str, ours: str) -> None:
        for kind, name in (("weight", "gamma"), ("bias", "beta")):
            tensors[f"{target}.{ours}.{kind}"] = variables[f"{below}/{theirs}/layer_norm/{name}"]

    put("self_attention/linear_0", *(f"self_attn.{part}_proj" for part in "qkv"))
    put("self_attention/linear_1", "self_attn.out_proj")
    norm("self_attention", "self_attn_layer_norm")
    if stack == "decoder":
        put("attention/linear_0", "encoder_attn.q_proj")
        put("attention/linear_1", "encoder_attn.k_proj", "encoder_attn.v_proj")
        put("attention/linear_2", "encoder_attn.out_proj")
        norm("attention", "encoder_attn_layer_norm")
    put("ffn/linear_0", "fc1")
    put("ffn/linear_1", "fc2")
    norm("ffn", "final_layer_norm")
    return tensors


_CT2_TYPES = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}
_CT2_VERSION = 6


def read_ctranslate2(data: bytes) -> dict[str, Tensor]:
    """Return the variables of CTranslate2's model.bin, 8-bit ones multiplied out to float32.

    Args:
        data: The bytes of the file: a version, a name, a revision, variables (name, shape, type, bytes) and
            aliases.

    Returns:
        Tensors by their names in the file. An 8-bit matrix is stored with a factor for each row, by which its
        numbers were multiplied before they were rounded.
    """
    file = io.BytesIO(data)

    def number(code: str) -> int:
        return int(struct.unpack(f"<{code}", file.read(struct.calcsize(code)))[0])

    def text() -> str:
        word = file.read(number("H"))
        if not word.endswith(b"\0"):
            raise ValueError("a name does not end")
        return word[:-1].decode("utf-8")

    try:
        version, kind, _ = number("I"), text(), number("I")
        if version != _CT2_VERSION or kind != "TransformerSpec":
            raise LoadError(f"model.bin is a {kind} of version {version}: a TransformerSpec of 6 is read.")
        stored: dict[str, Tensor] = {}
        for _ in range(number("I")):
            name = text()
            shape = [number("I") for _ in range(number("B"))]
            kind_of, n_bytes = _CT2_TYPES[number("B")], number("I")
            values = np.frombuffer(file.read(n_bytes), kind_of).reshape(shape)
            stored[name] = torch.from_numpy(values.copy())
        aliases = [(text(), text()) for _ in range(number("I"))]
    except (struct.error, KeyError, ValueError, UnicodeDecodeError) as error:
        if isinstance(error, LoadError):
            raise
        raise LoadError(f"model.bin is damaged: {error}") from error
    variables = {}
    for name, tensor in stored.items():
        scale = stored.get(f"{name}_scale")
        if not name.endswith("_scale"):
            variables[name] = tensor.float() / scale[:, None] if scale is not None else tensor.float()
    return variables | {alias: variables[name] for alias, name in aliases if name in variables}


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Return the fields of a protocol buffer: (number, value), bytes for what has a length."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            yield key >> 3, data[at : at + size]
            at += size


def _sentence_pieces(data: bytes) -> tuple[dict[str, float], bytes]:
    """Return the pieces of a SentencePiece unigram model with their scores, and its table of characters."""
    pieces, charsmap = {}, b""
    for field, value in _fields(data):
        if field == 1:
            inside = dict(_fields(value))
            if inside.get(3, 1) == 1:  # a normal piece: not <unk>, <s> and their like
                pieces[inside[1].decode("utf-8")] = struct.unpack("<f", inside[2])[0]
        elif field == 3:
            charsmap = dict(_fields(value)).get(2, b"")
    return pieces, charsmap


def _unigram(words: list[str], pieces: Mapping[str, float], charsmap: bytes) -> Tokenizer:
    """Return a SentencePiece tokenizer whose ids are those of a translation model's own vocabulary.

    Args:
        words: The model's vocabulary: pieces of both languages.
        pieces: The source language's pieces with their scores, by which a text is cut.
        charsmap: How SentencePiece normalizes characters.
    """
    # A piece of the other language is never the best cut: a text with it would be cut into unknown pieces.
    never = min(pieces.values()) - 1000.0
    vocab = [(word, pieces.get(word, never)) for word in words]
    backend = Tokenizer(models.Unigram(vocab, unk_id=words.index("<unk>"), byte_fallback=False))
    spaces = [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    backend.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap), *spaces])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    backend.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    backend.add_special_tokens(["</s>", "<unk>", "<pad>"])
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair=None, special_tokens=[("</s>", words.index("</s>"))]
    )
    return backend


# --- RXNMapper (Schwaller et al. 2021)

# A token of SMILES, the notation of molecules: an atom, a bond, a ring's number, a bracket, an arrow
# (Schwaller et al. 2018, "Found in Translation").
_SMILES = (
    r"\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%\([0-9]{3}\)"
    r"|%[0-9]{2}|[0-9]"
)


def rxnmapper(source: Path, target: Path) -> None:
    """Write RXNMapper's ALBERT, with a tokenizer of SMILES.

    Args:
        source: The folder with config.json, pytorch_model.bin and vocab.txt.
        target: The folder to write.
    """
    state: dict[str, Tensor] = torch.load(source / "pytorch_model.bin", map_location="cpu", weights_only=True)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    words = (source / "vocab.txt").read_text(encoding="utf-8").split()
    backend = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_SMILES), behavior="removed", invert=True)
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    ends = [(token, words.index(token)) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=None, special_tokens=ends
    )
    kept = {name: tensor for name, tensor in state.items() if not name.endswith("position_ids")}
    special = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    _write(target, kept, config, backend, **special)
