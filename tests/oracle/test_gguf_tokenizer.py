"""SmolLM2's tokenizer, rebuilt from its GGUF file, against transformers' conversion and a slow plain BPE.

The file says that text is cut in the way "smollm": each numeral apart, then as GPT-2 cuts. transformers'
conversion ignores that key and only cuts as GPT-2. The two give the same ids except where a numeral follows
several spaces, or a numeral outside ASCII follows anything: there we follow the file, and a test says so.
"""

import re
from functools import cache
from itertools import pairwise
from random import Random

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer
from transformers.integrations.gguf import convert_gguf_tokenizer

from regard.files import hub
from regard.files import raw as files
from regard.files.gguf import read_header
from regard.files.gguf_tokenizer import gguf_tokenizer

TEXTS = {
    "prose": "The quick brown fox doesn't jump; it's asleep. They've said we'll see.",
    "unicode": "Grüße, señor! Привет мир. こんにちは世界 مرحبا नमस्ते ﷽ ǆ ﬁ e\u0301",
    "emoji": "🙂🙃 👩‍👩‍👧‍👦 🇳🇱 👍🏽 #️⃣",
    "code": "def f(x: int) -> str:\n    return f'{x!r}'  # comment\n\n\tif (a && b || !c) { ++i; }\r\n",
    "numbers": "3.14159 1,234,567 0x1F 2024-12-31 1e-9 100% $5 v2 a1b2",
    "whitespace": " leading  two   three\t\ttabs\n\n\nlines \u00a0nbsp \u3000wide trailing   ",
    "special": "<|im_start|>user\nHi<|im_end|>\n<|endoftext|><file_sep> <|im_start |> <|not_special|>",
    "empty": "",
    "space": " ",
    "control": "\x00\x01\x7f\x80\u200b\ufeff\ufffd",
    "long": "antidisestablishmentarianism" * 7 + "!" * 31 + "=" * 53,
}


@pytest.fixture(scope="module")
def ours():
    return files.read(hub.get("smollm2")).tokenizer


@pytest.fixture(scope="module")
def theirs():
    path = hub.get("smollm2")
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.fixture(scope="module")
def plain():
    """Byte-level BPE as its papers have it: cut, then merge the best-ranked pair until none is left."""
    metadata = read_header(hub.get("smollm2"))[0]
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    ids = {token: index for index, token in enumerate(tokens)}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(metadata["tokenizer.ggml.merges"])}
    whole = "|".join(regex.escape(token) for token, kind in zip(tokens, types, strict=True) if kind == 3)
    kept = [b for b in range(256) if chr(b).isprintable() and chr(b) != " " and b != 0xAD]
    moved = [b for b in range(256) if b not in kept]
    spelled = {b: chr(b) for b in kept} | {b: chr(256 + i) for i, b in enumerate(moved)}
    word = regex.compile(r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")

    @cache
    def merged(piece: str) -> tuple[int, ...]:
        # The vocabulary lacks some bytes that its training text had not: those are left out.
        parts = [spelled[byte] for byte in piece.encode() if spelled[byte] in ids]
        while len(parts) > 1:
            rank, at = min((ranks.get((a, b), 10**9), i) for i, (a, b) in enumerate(pairwise(parts)))
            if rank == 10**9:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return tuple(ids[part] for part in parts)

    def encode(text: str) -> list[int]:
        out: list[int] = []
        for stretch in regex.split(f"({whole})", text):
            if stretch in ids and regex.fullmatch(whole, stretch):
                out.append(ids[stretch])
                continue
            for run in regex.split(r"(\p{N})", stretch):
                out += [index for piece in word.findall(run) for index in merged(piece)]
        return out

    return encode


@pytest.mark.parametrize("name", TEXTS)
def test_ids_equal_those_of_transformers_and_of_a_plain_bpe(ours, theirs, plain, name):
    """On prose, scripts, emoji, code, numbers, spaces and special tokens all three give the same ids."""
    assert ours.encode(TEXTS[name]) == plain(TEXTS[name])
    assert ours.encode(TEXTS[name]) == theirs(TEXTS[name]).input_ids


@given(st.text(max_size=60))
def test_ids_of_any_text_equal_those_of_a_plain_bpe(ours, plain, text):
    """Whatever the text, the ids are those of cutting and merging by hand."""
    assert ours.encode(text) == plain(text)


@given(
    st.lists(st.sampled_from([" ", "  ", "\n", "\t", "0", "17", "a", "the", "'s", "é", "(", "<|im_end|>"]))
)
def test_ids_of_any_mix_equal_those_of_transformers_except_after_runs_of_spaces(ours, theirs, plain, pieces):
    """Spaces, digits, letters and special tokens in any order; runs of spaces before a number excepted."""
    text = "".join(pieces)
    assert ours.encode(text) == plain(text)
    apart = re.sub(r"\s+(?=\d)", " ", text)
    assert ours.encode(apart) == theirs(apart).input_ids


@pytest.mark.parametrize(
    ("text", "tokens", "theirs_tokens"),
    [
        ("x =    42", ["x", " =", "␣␣␣␣", "4", "2"], ["x", "Ġ=", "ĠĠĠ", "Ġ", "4", "2"]),
        ("a ½", ["a", "␣", "½"], ["a", "ĠÂ", "½"]),
    ],
)
def test_numerals_are_cut_apart_first_as_the_file_says(ours, theirs, plain, text, tokens, theirs_tokens):
    """Spaces before a numeral are a piece of their own; in transformers' conversion the last one is not."""
    assert ours.encode(text) == plain(text)
    assert ours.tokens(ours.encode(text)) == tokens
    assert theirs.convert_ids_to_tokens(theirs(text).input_ids) == theirs_tokens


def test_bytes_that_the_vocabulary_lacks_are_left_out_by_all_three(ours, theirs, plain):
    """No token stands for byte F1: a character that needs it loses that byte, here as in transformers."""
    text = "a\U00040000b"
    assert ours.encode(text) == plain(text) == theirs(text).input_ids
    assert ours.decode(ours.encode(text)) != text


@pytest.mark.parametrize("name", TEXTS)
def test_text_comes_back_as_it_went_in(ours, theirs, name):
    """Decoding every id gives the text, and leaving special ones out gives what transformers gives."""
    ids = ours.encode(TEXTS[name])
    assert ours.decode(ids, skip_special=False) == TEXTS[name]
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_special_ids_and_size_equal_those_of_transformers(ours, theirs):
    """Start, end, padding and unknown are the same ids; the vocabularies are of one size."""
    special = ours.special
    stated = (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id, theirs.unk_token_id)
    assert (special.bos, special.eos, special.pad, special.unk) == stated
    assert ours.vocab_size == len(theirs)


@pytest.mark.parametrize("system", [None, "Answer in rhyme."])
def test_chat_writes_what_the_model_s_own_template_writes(ours, theirs, system):
    """The prompt as a turn of conversation equals the template's rendering."""
    turns = [] if system is None else [{"role": "system", "content": system}]
    turns.append({"role": "user", "content": "What is a tide?"})
    expected = theirs.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert ours.chat("What is a tide?", system=system) == expected


def test_sentence_piece_is_what_transformers_makes_of_it():
    """On a vocabulary of some hundred pieces with distinct scores: the same ids for texts of its letters."""
    random = Random(5)
    letters = "abcde"
    words = sorted({"".join(random.choices("▁" + letters, k=random.randint(2, 6))) for _ in range(300)})
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *letters, *words]
    n_fixed = 3 + 256
    scores = [0.0] * n_fixed + [-float(rank) for rank in random.sample(range(1000), len(tokens) - n_fixed)]
    types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - n_fixed)
    stated = {"tokenizer_type": "llama", "tokens": tokens, "scores": scores, "token_type": types}
    theirs, _ = convert_gguf_tokenizer("llama", stated)
    names = {"model": "llama", "tokens": tokens, "scores": scores, "token_type": types}
    ours = gguf_tokenizer({f"tokenizer.ggml.{name}": value for name, value in names.items()})
    for _ in range(200):
        text = "".join(random.choices(letters + "  é", k=random.randint(1, 30))).lstrip()
        assert ours.encode(text, add_special=False) == theirs.encode(text, add_special_tokens=False).ids
