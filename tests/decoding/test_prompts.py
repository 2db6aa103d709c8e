"""The one padding: every row is its text, wherever the padding stands."""

import pytest
import torch

from regard.decoding.prompts import encoded, rectangle
from regard.errors import ArgumentError
from regard.files import hub
from regard.files.tokenizer import SpecialIds, TextTokenizer, byte_tokenizer

BYTES = byte_tokenizer()


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_batch_hides_exactly_its_padding(side):
    """Where key_mask is True, each row is its text's ids; elsewhere it is padding, on the side asked for."""
    texts = ["hello", "hi", "épée"]
    batch = encoded(texts, BYTES, side=side)
    assert batch.ids.shape == batch.key_mask.shape == (3, 6)
    assert batch.ids.dtype == torch.long
    assert batch.texts == tuple(texts)
    for row, key_mask, text in zip(batch.ids, batch.key_mask, texts, strict=True):
        assert row[key_mask].tolist() == list(text.encode())
        assert (row[~key_mask] == BYTES.special.pad).all()
        n = int(key_mask.sum())
        assert (key_mask[-n:] if side == "left" else key_mask[:n]).all()


def test_padding_needs_no_id_of_its_own():
    """A vocabulary without a padding token pads with 0, and with the id that is asked for."""
    tokenizer = TextTokenizer(BYTES.backend, SpecialIds(eos=5))
    assert encoded(["abc", "a"], tokenizer).ids.tolist() == [[97, 98, 99], [97, 0, 0]]
    assert encoded(["abc", "a"], BYTES, filler=7).ids.tolist() == [[97, 98, 99], [97, 7, 7]]


def test_a_padded_batch_of_minilm_has_its_pad_id():
    """[PAD] is id 0 and hidden."""
    batch = encoded(["a cat", "cat"], TextTokenizer.from_folder(hub.get("minilm")))
    assert batch.ids.tolist() == [[101, 1037, 4937, 102], [101, 4937, 102, 0]]
    assert batch.key_mask.tolist() == [[True] * 4, [True, True, True, False]]


@pytest.mark.parametrize("given", [[3, 5], [[3, 5]], torch.tensor([3, 5]), torch.tensor([[3, 5]])])
def test_ids_come_as_lists_or_tensors_of_one_row_or_several(given):
    """One row may be given as itself; nothing is hidden, and there are no texts."""
    batch = encoded(given, None)
    assert (batch.ids.tolist(), batch.key_mask, batch.texts) == ([[3, 5]], None, None)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "empty"),
        ("", "empty"),
        (["a", ""], "empty"),
        (torch.zeros(2), "whole numbers"),
        (torch.zeros(1, 2, 3).long(), "shape"),
        (torch.zeros(1, 0).long(), "at least one"),
    ],
)
def test_what_holds_no_tokens_is_refused(given, words):
    """Each with what was wrong."""
    with pytest.raises(ArgumentError, match=words):
        encoded(given, BYTES)


def test_rows_of_any_kind_fill_a_rectangle():
    """Lists and arrays alike, filled up on the side asked for."""
    rows = [[1, 2, 3], torch.tensor([4]).numpy()]
    assert rectangle(rows, -1).tolist() == [[1, 2, 3], [4, -1, -1]]
    assert rectangle(rows, -1, side="left").tolist() == [[1, 2, 3], [-1, -1, 4]]
