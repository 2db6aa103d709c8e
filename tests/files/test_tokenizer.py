"""Tokenizers: text comes back, padding is hidden, settings of whoever saved a file do not leak."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from regard.errors import ArgumentError, LoadError, UnsupportedError
from regard.files import hub
from regard.files.gguf_tokenizer import gguf_tokenizer
from regard.files.tokenizer import SpecialIds, TextTokenizer, byte_tokenizer

BYTES = byte_tokenizer()


@pytest.fixture(scope="module")
def minilm() -> TextTokenizer:
    return TextTokenizer.from_folder(hub.get("minilm"))


# --- bytes


@given(st.text())
def test_bytes_give_back_any_text(text):
    """Ids are the UTF-8 bytes, and decoding them gives the text."""
    ids = BYTES.encode(text)
    assert ids == list(text.encode())
    assert BYTES.decode(ids) == text


@pytest.mark.parametrize("text", ["<pad>", "<bos><eos>", "<300>", "a<mask>b"])
def test_the_name_of_a_special_token_in_a_text_is_text(text):
    """Nobody can write a special token into a byte model's input by spelling its name."""
    tokenizer = byte_tokenizer(307)
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(None, None, [104, 105]), ("cls", "sep", [259, 104, 105, 260]), (None, "eos", [104, 105, 258])],
    ids=["decoder", "BERT", "T5"],
)
def test_special_tokens_are_put_around_a_text_as_the_family_has_them(first, last, expected):
    """The ids around the text are those asked for, and leave no trace in the decoded text."""
    tokenizer = byte_tokenizer(first=first, last=last)
    assert tokenizer.encode("hi") == expected
    assert tokenizer.encode("hi", add_special=False) == [104, 105]
    assert tokenizer.decode(expected) == "hi"


def test_whatever_a_random_model_says_can_be_shown():
    """Every id of the model's vocabulary has a name, and one outside it too."""
    tokenizer = byte_tokenizer(50257)
    assert tokenizer.vocab_size == 50257
    assert tokenizer.tokens([104, 256, 40000, 60000]) == ["h", "<pad>", "<40000>", "<60000>"]
    assert tokenizer.decode([104, 40000]) == "h<40000>"


def test_a_vocabulary_with_room_for_few_special_tokens_has_those():
    """With 258 ids there are pad and bos and no others."""
    assert byte_tokenizer(258).special == SpecialIds(pad=256, bos=257)
    with pytest.raises(ArgumentError, match="No special token 'eos'"):
        byte_tokenizer(258, last="eos")


def test_fewer_than_256_ids_cannot_hold_bytes():
    """The error says how many are needed."""
    with pytest.raises(ArgumentError, match="vocab_size is 97: a byte tokenizer needs 256"):
        byte_tokenizer(97)


def test_a_saved_tokenizer_is_the_same_when_read_again(tmp_path):
    """Ids, special ids and the text come back through tokenizer.json."""
    tokenizer = byte_tokenizer(311, first="cls", last="sep")
    tokenizer.save(tmp_path)
    again = TextTokenizer.from_folder(tmp_path)
    assert again.special == tokenizer.special
    assert again.encode("né <pad>") == tokenizer.encode("né <pad>")
    assert again.decode(again.encode("né <pad>")) == "né <pad>"


def test_half_a_character_is_no_text():
    """A lone surrogate has no bytes; the error says where it stands."""
    with pytest.raises(ArgumentError, match=r"'\\ud800' at position 2"):
        BYTES.encode("ab\ud800")


# --- MiniLM


def test_minilm_neither_cuts_nor_pads(minilm):
    """Its file says to cut and pad at 128; 300 words give 300 ids and the two around them."""
    assert len(minilm.encode("word " * 300)) == 302
    assert minilm.encode("a cat") == [101, 1037, 4937, 102]
    assert minilm.special == SpecialIds(pad=0, cls=101, sep=102, mask=103, unk=100)


def test_offsets_point_into_the_text(minilm):
    """Each id's offsets cut out of the text what the id stands for; added tokens have (0, 0)."""
    text = "Unbelievable, Zoë!"
    ids, offsets = minilm.encode(text), minilm.offsets(text)
    assert [text[start:end] for start, end in offsets] == ["", "Unbelievable", ",", "Zoë", "!", ""]
    assert minilm.tokens(ids) == ["[CLS]", "unbelievable", ",", "zoe", "!", "[SEP]"]


def test_a_model_without_a_chat_format_says_so(minilm):
    """chat() is for models taught ChatML."""
    with pytest.raises(UnsupportedError, match=r"has no <\|im_start\|>"):
        minilm.chat("hello")


# --- display


def test_tokens_are_readable():
    """Spaces alone are drawn, line ends spelled, part of a character shown as its bytes."""
    assert BYTES.tokens([32, 10, 9, 0xE2, 65]) == ["␣", "\\n", "\\t", "\\xe2", "A"]


def test_a_sentencepiece_space_is_shown_as_a_space():
    """The mark for a space at a word's start is shown as one."""
    backend = Tokenizer(models.WordLevel({"▁the": 0, "cat": 1}, unk_token="cat"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    assert TextTokenizer(backend, SpecialIds()).tokens([0, 1]) == [" the", "cat"]


# --- refusals


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "{" * 1000, '{"model": {"type": "BPE"}}', "\x00"])
def test_a_broken_tokenizer_file_is_refused(tmp_path, text):
    """Whatever the library makes of it, the error is ours and names the file."""
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(LoadError, match=r"tokenizer\.json does not describe a tokenizer"):
        TextTokenizer.from_folder(tmp_path)


def test_an_id_that_nothing_could_count_up_to_is_refused(tmp_path):
    """The library goes through all ids below the largest when it writes a file: for minutes, at 2^31."""
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 2**31}, "unk_token": "a"}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    with pytest.raises(LoadError, match=r"must be below 16,777,216\. Got 2,147,483,648"):
        TextTokenizer.from_folder(tmp_path)


def test_a_missing_or_binary_tokenizer_file_is_refused(tmp_path):
    """Neither is a traceback from inside."""
    with pytest.raises(LoadError, match="cannot be read"):
        TextTokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(LoadError, match="not UTF-8 text: byte 0 is 0xff"):
        TextTokenizer.from_folder(tmp_path)


def test_special_tokens_named_beside_the_file_win_over_their_usual_names(tmp_path):
    """A config that calls another token the end of text is believed, written either way."""
    BYTES.save(tmp_path)
    named = {
        "eos_token": {"content": "<sep>"},
        "bos_token": "<cls>",
        "pad_token": None,
        "unk_token": "not there",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    special = TextTokenizer.from_folder(tmp_path).special
    assert (special.eos, special.bos, special.pad, special.unk) == (260, 259, 256, 262)


GGUF = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>", "<tool>"],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.token_type": [1, 1, 1, 3, 4],
    "tokenizer.ggml.bos_token_id": 3,
}


def test_a_gguf_tokenizer_by_hand():
    """Merges are applied, marked tokens stay whole, and the start token is added if the file says so."""
    assert gguf_tokenizer(GGUF).encode("abba<tool><s>") == [2, 1, 0, 4, 3]
    assert gguf_tokenizer(GGUF | {"tokenizer.ggml.add_bos_token": True}).encode("ab") == [3, 2]
    assert gguf_tokenizer(GGUF).decode([3, 2, 4]) == "ab<tool>"


# SentencePiece: "ab" is better than "bc", so that "abc" is "ab c", and "a" with its space is best of all.
PIECES = {"<unk>": 0, "<s>": 0, "</s>": 0, "<0xC3>": 0, "<0xA9>": 0, "▁": -9, "a": -8, "b": -8, "c": -8}
PIECES |= {"bc": -4, "ab": -3, "▁a": -2, "<tool>": 0}
SPM = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": list(PIECES),
    "tokenizer.ggml.scores": list(PIECES.values()),
    "tokenizer.ggml.token_type": [2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1, 4],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def test_sentence_piece_merges_by_score_by_hand():
    """The best token is made first, a space is put in front, what is not a piece is spelled in bytes."""
    tokenizer, ids = gguf_tokenizer(SPM), {piece: index for index, piece in enumerate(PIECES)}
    spelled = {
        "abc": ["<s>", "▁a", "bc"],
        "cabc": ["<s>", "▁", "c", "ab", "c"],
        "a a": ["<s>", "▁a", "▁a"],
        "bé": ["<s>", "▁", "b", "<0xC3>", "<0xA9>"],
        "b<tool>": ["<s>", "▁", "b", "<tool>"],
    }
    for text, pieces in spelled.items():
        assert tokenizer.encode(text) == [ids[piece] for piece in pieces]
        assert tokenizer.decode(tokenizer.encode(text)) == text
    bare = gguf_tokenizer(
        SPM | {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    )
    assert bare.encode("abc") == [ids["ab"], ids["c"]]


def test_a_gemmas_pieces_rank_by_their_place_and_its_spaces_are_spaces():
    """Gemma's scores do not follow its merges; a run of spaces is stored as it is."""
    tokens = [*PIECES, "  "]
    gemma = SPM | {"general.architecture": "gemma3", "tokenizer.ggml.tokens": tokens}
    gemma |= {"tokenizer.ggml.scores": [0] * 14, "tokenizer.ggml.add_space_prefix": False}
    gemma |= {"tokenizer.ggml.token_type": [*SPM["tokenizer.ggml.token_type"], 1]}
    tokenizer = gguf_tokenizer(gemma)
    assert tokenizer.encode("abc", add_special=False) == [tokens.index("a"), tokens.index("bc")]
    assert tokenizer.encode("b  c", add_special=False) == [tokens.index(piece) for piece in ("b", "  ", "c")]
    assert tokenizer.decode(tokenizer.encode("b  c")) == "b  c"


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"tokenizer.ggml.model": "t5"}, UnsupportedError, "tokenizer 't5'"),
        ({"tokenizer.ggml.model": "llama"}, LoadError, "without a score and a type for each"),
        ({"tokenizer.ggml.pre": "mystery"}, UnsupportedError, "in the way 'mystery'"),
        ({"tokenizer.ggml.pre": None}, UnsupportedError, "in the way 'None'"),
        ({"tokenizer.ggml.tokens": None}, LoadError, "no list of tokens"),
        ({"tokenizer.ggml.tokens": ["a", "b", "ab", "a", "c"]}, LoadError, "1 occur twice"),
        (
            {"tokenizer.ggml.merges": ["a z"]},
            LoadError,
            "be built: .*`z` out of vocabulary",
        ),
        ({"tokenizer.ggml.merges": ["a b a"]}, LoadError, "without a list of pairs"),
        ({"tokenizer.ggml.token_type": [1, 1]}, LoadError, "5 tokens and 2 token types"),
        ({"tokenizer.ggml.token_type": 3}, LoadError, "token types"),
        ({"tokenizer.ggml.bos_token_id": 5}, LoadError, "bos token id 5: it must be in 0 to 4"),
        ({"tokenizer.ggml.eos_token_id": "x"}, LoadError, "eos token id 'x'"),
    ],
)
def test_a_gguf_tokenizer_that_cannot_be_is_refused_with_the_reason(change, error, words):
    """Contradictions are load errors; a kind we cannot rebuild is said to be unsupported."""
    with pytest.raises(error, match=words):
        gguf_tokenizer(GGUF | change)


def test_ids_and_texts_that_the_library_fails_on_are_our_errors():
    """A number beyond its ids, and a model without an unknown token: a line of ours, no panic."""
    tokenizer = byte_tokenizer()
    with pytest.raises(LoadError, match="cannot write these ids"):
        tokenizer.decode([2**40])
    assert tokenizer.tokens([2**40, -1]) == [f"<{2**40}>", "<-1>"]
    lacking = TextTokenizer(Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]")), SpecialIds())
    with pytest.raises(LoadError, match="cannot read this text"):
        lacking.encode("b")
