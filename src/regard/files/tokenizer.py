"""Text to token ids and back, on top of the `tokenizers` library.

    tokenizer = TextTokenizer.from_folder("folder")
    tokenizer.decode(tokenizer.encode("hello"))      # "hello"

Three sources: a `tokenizer.json`, the metadata of a GGUF file (`gguf_tokenizer.py`), and `byte_tokenizer`,
which has one token for each byte and so can feed any text to a model that was never trained.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import tokenizers
from jaxtyping import Int
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor

from regard.errors import ArgumentError, LoadError, UnsupportedError

MAX_JSON_BYTES = 2**28  # the largest published tokenizer.json files have some 35 MB

MOST_IDS = 1 << 24


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """The ids that stand for something other than text; None where a vocabulary has no such token."""

    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    unk: int | None = None

    def all(self) -> frozenset[int]:
        """Return the ids that are set."""
        return frozenset(astuple(self)) - {None}


ROLES = tuple(SpecialIds.__dataclass_fields__)
_USUAL_NAMES = {
    "bos": ("<s>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("</s>", "<|end_of_text|>", "<|endoftext|>"),
    "unk": ("<|endoftext|>",),
}  # beside <pad> and [PAD], and likewise for every role


@dataclass(frozen=True, slots=True, eq=False)
class TextTokenizer:
    """Text to ids and back, with truncation and padding off unless asked for."""

    backend: Tokenizer = field(repr=False)  # its repr has the whole vocabulary
    special: SpecialIds
    system_prompt: str | None = None  # what the model's own chat format starts with

    @classmethod
    def from_folder(cls, folder: str | Path) -> TextTokenizer:
        """Return the tokenizer of a model folder: tokenizer.json, and special tokens of the files beside it.

        Truncation and padding stored in it are cleared: they are settings of whoever saved the file.
        """
        folder = Path(folder)
        path = folder / "tokenizer.json"
        text = read_text(path)
        with library_errors(f"{path} does not describe a tokenizer that can be built"):
            backend = Tokenizer.from_str(text)
            backend.no_truncation()
            backend.no_padding()
        largest = max(backend.get_vocab().values(), default=0)
        if largest >= MOST_IDS:  # the library counts up to it when it writes a file
            raise LoadError(f"{path}: ids of tokens must be below {MOST_IDS:,}. Got {largest:,}.")
        named: dict[str, int] = {}
        for file_name in ("special_tokens_map.json", "tokenizer_config.json"):
            if (folder / file_name).is_file():
                stated = read_json(folder / file_name)
                for role in ROLES:
                    token = stated.get(f"{role}_token")
                    token = token.get("content") if isinstance(token, dict) else token
                    with library_errors(f"{folder / file_name} names a token that cannot be"):
                        index = backend.token_to_id(token) if isinstance(token, str) else None
                    if index is not None:
                        named[role] = index
        return cls(backend, replace(usual_special_ids(backend), **named))

    @classmethod
    def of(cls, tokenizer: Any) -> TextTokenizer:
        """Convert a tokenizer of the `tokenizers` library, or a fast one of transformers', to ours."""
        if isinstance(tokenizer, cls):
            return tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if not isinstance(backend, Tokenizer):
            raise ArgumentError(
                "tokenizer must be ours, one of the tokenizers library or a fast one of transformers. "
                f"Got {type(tokenizer).__name__}."
            )
        known = {role: getattr(tokenizer, f"{role}_token_id", None) for role in ROLES}
        return cls(backend, SpecialIds(**known) if any(known.values()) else usual_special_ids(backend))

    @property
    def vocab_size(self) -> int:
        """How many ids there are, special ones included."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the ids of `text`, with special tokens around it unless `add_special` is False."""
        return list(self._encode(text, add_special).ids)

    def offsets(self, text: str, *, add_special: bool = True) -> list[tuple[int, int]]:
        """Return where each id of `encode(text)` came from: `text[start:end]`; (0, 0) for an added token."""
        return [(int(start), int(end)) for start, end in self._encode(text, add_special).offsets]

    def decode(self, ids: Sequence[int] | Int[Tensor, "position"], *, skip_special: bool = True) -> str:
        """Return the text of `ids`; special tokens are left out unless `skip_special` is False."""
        hidden = self.special.all() if skip_special else ()
        wanted = [int(index) for index in ids if int(index) not in hidden]
        with library_errors("the tokenizer cannot write these ids"):
            return str(self.backend.decode(wanted, skip_special_tokens=skip_special))

    def tokens(self, ids: Sequence[int] | Int[Tensor, "position"]) -> list[str]:
        """Return one readable string per id: spaces kept, line ends and stray bytes spelled out."""
        byte_level = "ByteLevel" in repr(self.backend.decoder)
        known = [self.backend.id_to_token(int(index)) if 0 <= index < 1 << 32 else None for index in ids]
        return [
            f"<{int(index)}>" if token is None else readable(token, byte_level)
            for index, token in zip(ids, known, strict=True)
        ]

    def chat(self, prompt: str, *, system: str | None = None) -> str:
        """Return `prompt` as the user's turn of a conversation whose next words are the model's (ChatML)."""
        if self.backend.token_to_id("<|im_start|>") is None or self.backend.token_to_id("<|im_end|>") is None:
            raise UnsupportedError(
                "This tokenizer has no <|im_start|> and <|im_end|>: its model does not know the format. "
                "Give the text itself."
            )
        system = self.system_prompt if system is None else system
        first = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
        return f"{first}<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and special_tokens_map.json into `folder`, for `from_folder`."""
        folder = Path(folder)
        ids = asdict(self.special).items()
        names = {f"{role}_token": self.backend.id_to_token(index) for role, index in ids if index is not None}
        (folder / "tokenizer.json").write_text(self.backend.to_str(), encoding="utf-8")
        (folder / "special_tokens_map.json").write_text(json.dumps(names, indent=2), encoding="utf-8")

    def _encode(self, text: str, add_special: bool) -> tokenizers.Encoding:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ArgumentError(
                f"The text has a lone surrogate, {text[error.start]!r} at position {error.start}: "
                "it is not Unicode text, so it has no bytes to encode."
            ) from error
        with library_errors("the tokenizer cannot read this text"):
            return self.backend.encode(text, add_special_tokens=add_special)


def readable(token: str, byte_level: bool) -> str:
    """Return a token of a vocabulary as a label: spaces kept, line ends and stray bytes spelled out.

    >>> readable("ĠcafÃ©", byte_level=True)
    ' café'
    """
    if byte_level and all(character in _BYTE_OF for character in token):
        # A token may hold part of a character: those bytes are shown as \xe2 and the like.
        token = bytes(_BYTE_OF[character] for character in token).decode("utf-8", "backslashreplace")
    elif not byte_level:
        token = token.replace("▁", " ")
    if token.isspace():
        token = token.replace(" ", "␣")
    return token.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def usual_special_ids(backend: Tokenizer) -> SpecialIds:
    """Return the special ids a vocabulary has under their usual names."""
    ids: dict[str, int | None] = {}
    for role in ROLES:
        names = (f"<{role}>", f"[{role.upper()}]", *_USUAL_NAMES.get(role, ()))
        ids[role] = next((index for index in map(backend.token_to_id, names) if index is not None), None)
    return SpecialIds(**ids)


def byte_tokenizer(vocab_size: int = 263, first: str | None = None, last: str | None = None) -> TextTokenizer:
    """Return a tokenizer with one token per byte, for untrained models: any text goes in and comes back.

    Ids 0 to 255 are the bytes; then, as far as `vocab_size` allows, pad, bos, eos, cls, sep, mask, unk; the
    rest are fillers that no text gives, so that whatever a random model says can be shown. `first` and `last`
    name the special tokens put around a text: ("cls", "sep") for BERT, (None, "eos") for T5.

    >>> byte_tokenizer().encode("hé")
    [104, 195, 169]
    """
    if vocab_size < 256:
        raise ArgumentError(
            f"vocab_size is {vocab_size}: a byte tokenizer needs 256, one for each byte. "
            "Give the model a larger vocabulary, or give it ids instead of text."
        )
    roles = ("pad", "bos", "eos", "cls", "sep", "mask", "unk")
    special = {role: 256 + index for index, role in enumerate(roles) if 256 + index < vocab_size}
    around = [role for role in (first, last) if role is not None]
    if lacking := [role for role in around if role not in special]:
        raise ArgumentError(f"No special token {lacking[0]!r} among {vocab_size} ids: there are {special}.")
    vocab = _BYTE_OF | {f"<{role}>": index for role, index in special.items()}
    vocab |= {f"<{index}>": index for index in range(256 + len(special), vocab_size)}
    # With no merges, text never gives a token longer than a byte: "<pad>" in a text is five bytes.
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    if around:
        backend.post_processor = processors.TemplateProcessing(
            single=[f"<{word}>" if word in special else "$A" for word in (first, "$A", last) if word],
            pair=None,
            special_tokens=[(f"<{role}>", special[role]) for role in set(around)],
        )
    return TextTokenizer(backend, SpecialIds(**special))


# The byte of each character of byte-level BPE: a printable one's own, the others from 256 on in order.
_PRINTABLE, _SPARE = pre_tokenizers.ByteLevel.alphabet(), map(chr, range(256, 512))
_BYTE_OF = {chr(byte) if chr(byte) in _PRINTABLE else next(_SPARE): byte for byte in range(256)}


def byte_characters() -> dict[int, str]:
    """Return the character that stands for each byte in byte-level BPE."""
    return {byte: character for character, byte in _BYTE_OF.items()}


@contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Turn whatever the tokenizers library raises into a `LoadError`; a Rust panic is a BaseException."""
    try:
        yield
    except (LoadError, UnsupportedError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        raise LoadError(f"{what}: {str(error)[:300]}.") from error


def read_text(path: Path) -> str:
    """Return the text of a small file beside a model; `LoadError` if it is missing, huge or not UTF-8."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise LoadError(f"{path} has {path.stat().st_size} bytes; it may have {MAX_JSON_BYTES}.")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise LoadError(
            f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}."
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in the file at `path`; `LoadError` if it is anything else."""
    text = read_text(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path} is not JSON: {str(error)[:200]}.") from error
    if not isinstance(value, dict):
        raise LoadError(f"{path} holds a JSON {type(value).__name__}: it must hold an object.")
    return value
