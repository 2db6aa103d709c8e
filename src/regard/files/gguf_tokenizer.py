"""Tokenizers rebuilt from the metadata of a GGUF file: byte-level BPE and SentencePiece BPE.

A GGUF file holds the vocabulary, and of the rules only names: `tokenizer.ggml.model` says how tokens are
merged, `tokenizer.ggml.pre` how text is cut before that. What is not known here is refused: another cut would
give other ids than those that the model was trained on, silently.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from regard.errors import LoadError, UnsupportedError
from regard.files.tokenizer import SpecialIds, TextTokenizer, library_errors


@dataclass(frozen=True, slots=True)
class Cut:
    """How text is cut into words before byte pairs are merged.

    Attributes:
        patterns: Regular expressions; each cuts what the ones before it left.
        then_gpt2: Whether GPT-2's own pattern is applied afterwards.
        whole_words: Whether a word that is a token is taken whole, whatever the merges say.
    """

    patterns: tuple[str, ...] = ()
    then_gpt2: bool = False
    whole_words: bool = False


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_LOWER, _UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+END|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*END"
_SLASHED = _REST.replace(r"[\r\n]*|", r"[\r\n/]*|", 1)
_TEKKEN = _CASED.replace("END", "") + r"|\p{N}" + _SLASHED
_GPT4O = _CASED.replace("END", _CONTRACTIONS + "?") + r"|\p{N}{1,3}" + _SLASHED

# By GGUF's tokenizer.ggml.pre, as llama.cpp's list has them.
CUTS: dict[str, Cut] = {
    **dict.fromkeys("gpt-2 mpt olmo phi-2 jais roberta-bpe".split(), Cut(then_gpt2=True)),
    **dict.fromkeys(
        "smollm starcoder refact command-r codeshell exaone".split(), Cut((r"\p{N}",), then_gpt2=True)
    ),
    **dict.fromkeys("llama-bpe llama3 llama-v3 falcon3 pixtral".split(), Cut((_LLAMA3,), whole_words=True)),
    **dict.fromkeys("dbrx smaug-bpe".split(), Cut((_LLAMA3,))),
    **dict.fromkeys("qwen2 stablelm2 deepseek-r1-qwen megrez".split(), Cut((_QWEN2,))),
    "falcon": Cut((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "deepseek-coder": Cut((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    "tekken": Cut((_TEKKEN,), whole_words=True),
    **dict.fromkeys("gpt-4o llama4".split(), Cut((_GPT4O,))),
}
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6  # values of tokenizer.ggml.token_type
# Our roles -> the words in GGUF's keys, spelled as they are there.
_ROLES = {"bos": "bos", "eos": "eos", "pad": "padding",
          "sep": "seperator", "mask": "mask", "unk": "unknown"}  # fmt: skip
_SPACE = "▁"  # what SentencePiece writes for a space


def gguf_tokenizer(
    metadata: Mapping[str, Any], source: str = "the GGUF file", *, usual_cut: str | None = None
) -> TextTokenizer:
    """Rebuild the tokenizer that a GGUF file's metadata describe.

    Args:
        metadata: What the file states, by its keys.
        source: What errors call the file.
        usual_cut: How text is cut where the file does not say.

    Returns:
        The tokenizer, equal to the one that the model was trained with.

    Raises:
        UnsupportedError: For a kind of tokenizer or a cut that is not known here.
        LoadError: For metadata that contradict themselves.
    """
    stated: dict[str, Any] = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    kind, cut = stated.get("model"), str(stated.get("pre", usual_cut))
    if kind not in ("gpt2", "llama"):
        raise UnsupportedError(
            f"{source} has tokenizer {kind!r}: byte-level BPE ('gpt2') and SentencePiece BPE ('llama') can "
            "be rebuilt."
        )
    if kind == "gpt2" and cut not in CUTS:
        raise UnsupportedError(f"{source} cuts text in the way {cut!r}: known are {', '.join(CUTS)}.")
    tokens, types = _tokens(stated, source)
    ids = _special_ids(stated, tokens, source)
    with library_errors(f"{source} does not describe a tokenizer that can be built"):
        if kind == "gpt2":
            backend = _byte_level(stated, tokens, CUTS[cut], source)
        else:
            by_position = str(metadata.get("general.architecture", "")).startswith("gemma")
            backend = _sentence_piece(stated, tokens, types, by_position, source)
        for of, add in ((_CONTROL, backend.add_special_tokens), (_USER_DEFINED, backend.add_tokens)):
            add([AddedToken(t, normalized=False) for t, is_ in zip(tokens, types, strict=False) if is_ == of])
        around = [
            tokens[ids[role]] if role in ids and stated.get(f"add_{role}_token", usual) else None
            for role, usual in (("bos", kind == "llama"), ("eos", False))
        ]
        if any(around):
            backend.post_processor = processors.TemplateProcessing(
                single=[token for token in (around[0], "$A", around[1]) if token],
                pair=None,
                special_tokens=[(token, tokens.index(token)) for token in around if token],
            )
    template = str(metadata.get("tokenizer.chat_template"))
    system = re.search(r"<\|im_start\|>system\n(.{1,2000}?)<\|im_end\|>", template)
    return TextTokenizer(backend, SpecialIds(**ids), system[1] if system else None)


def _tokens(stated: Mapping[str, Any], source: str) -> tuple[list[str], list[int]]:
    """Return the vocabulary and the kind of each token, checked against one another."""
    tokens, types = (stated.get(key, ()) for key in ("tokens", "token_type"))
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise LoadError(f"{source} has no list of tokens.")
    if len(set(tokens)) != len(tokens):
        raise LoadError(f"{source} has {len(tokens)} tokens: {len(tokens) - len(set(tokens))} occur twice.")
    n_type = len(types) if hasattr(types, "__len__") else 1
    if n_type not in (0, len(tokens)):
        raise LoadError(f"{source} has {len(tokens)} tokens and {n_type} token types: one each is needed.")
    return tokens, [int(of) for of in types] if n_type else []


def _special_ids(stated: Mapping[str, Any], tokens: Sequence[str], source: str) -> dict[str, int]:
    """Return the ids of special tokens by role, which must be ids of the vocabulary."""
    found = {role: stated.get(f"{word}_token_id") for role, word in _ROLES.items()}
    ids = {role: index for role, index in found.items() if index is not None}
    for role, index in ids.items():
        if type(index) is not int or not 0 <= index < len(tokens):
            rule = f"it must be in 0 to {len(tokens) - 1}"
            raise LoadError(f"{source} gives {_ROLES[role]} token id {index!r}: {rule}.")
    return ids


def _byte_level(stated: Mapping[str, Any], tokens: Sequence[str], cut: Cut, source: str) -> Tokenizer:
    """Return byte-level BPE, with the merges that the file lists."""
    merges = stated.get("merges", ())
    right = isinstance(merges, list) and all(isinstance(m, str) and m.count(" ") == 1 for m in merges)
    if not right:
        raise LoadError(f"{source} has byte-level BPE without a list of pairs of tokens to merge.")
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=cut.whole_words))
    to_bytes = pre_tokenizers.ByteLevel(bool(stated.get("add_space_prefix")), use_regex=cut.then_gpt2)
    cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in cut.patterns]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentence_piece(
    stated: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int], by_position: bool, source: str
) -> Tokenizer:
    """Return SentencePiece's BPE, whose merges follow from the scores: the best token is made first.

    Args:
        stated: The file's metadata.
        tokens: The vocabulary.
        types: The kind of each token.
        by_position: Whether tokens rank by their place in the file: Gemma's scores do not follow its merges.
        source: What errors call the file.
    """
    scores = stated.get("scores", ())
    if len(scores) != len(tokens) or len(types) != len(tokens):
        raise LoadError(f"{source} has SentencePiece tokens without a score and a type for each.")
    # Gemma's files spell runs of spaces as they are; every other token has the mark in their place.
    spelled = [_SPACE * len(token) if token and not token.strip(" ") else token for token in tokens]
    vocab = {token: index for index, token in enumerate(spelled)}
    if len(vocab) != len(tokens):
        raise LoadError(f"{source} has tokens that differ in how a space is spelled alone.")
    pieces = {token: i for token, i in vocab.items() if types[i] in (_NORMAL, _USER_DEFINED)}
    ranked = []
    for token, index in pieces.items():
        score = -index if by_position else float(scores[index])
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in pieces and right in pieces:
                ranked.append((-score, -len(left), -len(right), pieces[left], pieces[right], left, right))
    merges = [(left, right) for *_, left, right in sorted(ranked)]
    unknown = next((token for token, of in zip(spelled, types, strict=True) if of == _UNKNOWN), None)
    by_bytes = any(of == _BYTE for of in types)
    model = models.BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=by_bytes)
    backend = Tokenizer(model)
    prefix = bool(stated.get("add_space_prefix", True))
    first = [normalizers.Prepend(_SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", _SPACE)])
    to_text = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*to_text, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return backend
