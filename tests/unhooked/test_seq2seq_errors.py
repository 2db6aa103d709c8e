"""Messages of models/seq2seq.py, as a user meets them."""

from dataclasses import asdict

import pytest
import torch

from regard.errors import ArgumentError, LoadError, ShapeError
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig

SIZES = {"source_vocab": 11, "target_vocab": 13, "embed_dim": 5, "hidden_dim": 7}
SOURCE = torch.zeros(2, 3, dtype=torch.long)
TARGET = torch.zeros(2, 5, dtype=torch.long)


@pytest.fixture
def model():
    return Seq2Seq(Seq2SeqConfig(**SIZES, bos=1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cell": "lsmt"}, "cell must be one of gru, lstm, rnn. Got 'lsmt'"),
        ({"score": "cosine"}, "score must be one of additive, dot, general, none. Got 'cosine'"),
        ({"hidden_dim": 0}, "hidden_dim must be at least 1. Got 0"),
        ({"n_layer": 1.5}, "n_layer must be a whole number. Got 1.5"),
        ({"embed_dim": "5"}, "embed_dim must be a whole number. Got '5'"),
        ({"source_vocab": None}, "source_vocab must be a whole number. Got None"),
        ({"attention_dim": -1}, "attention_dim must be at least 1. Got -1"),
        ({"bidirectional": "false"}, "bidirectional must be True or False. Got 'false'"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1. Got 1.0"),
        ({"bos": 13}, "bos must be from 0 to 12. Got 13"),
        ({"eos": -1}, "eos must be at least 0. Got -1"),
    ],
)
def test_a_config_names_the_field_that_is_wrong(fields, message):
    """The message has the field, what it may be, and what it was."""
    with pytest.raises(ArgumentError, match=message):
        Seq2SeqConfig(**{**SIZES, **fields})


def test_a_stored_config_lists_what_it_lacks_and_what_it_should_not_have():
    """Both lists stand in one message."""
    values = asdict(Seq2SeqConfig(**SIZES))
    del values["hidden_dim"]
    with pytest.raises(LoadError, match=r"unknown fields \['heads'\], missing fields \['hidden_dim'\]"):
        Seq2SeqConfig.from_dict({**values, "heads": 3})


@pytest.mark.parametrize(
    ("source", "target", "error", "message"),
    [
        (SOURCE[:, :0], TARGET, ShapeError, r"source must be .* at least one of each. Got shape \(2, 0\)"),
        (SOURCE[:0], TARGET[:0], ShapeError, r"source must be .* at least one of each. Got shape \(0, 3\)"),
        (SOURCE[0], TARGET, ShapeError, r"source must be \(batch, position\), .* Got shape \(3,\)"),
        (SOURCE.sum(), TARGET, ShapeError, r"source must be \(batch, position\), .* Got shape \(\)"),
        (SOURCE, TARGET[:, :0], ShapeError, r"target must be \(batch, position\), .* Got shape \(2, 0\)"),
        (SOURCE, TARGET[..., None], ShapeError, r"target must be .* Got shape \(2, 5, 1\)"),
        (SOURCE, TARGET[:1], ShapeError, "source has 2 sequences and target 1"),
        (SOURCE.float(), TARGET, ShapeError, "source must be whole numbers, .* Got dtype torch.float32"),
        (SOURCE + 11, TARGET, ArgumentError, "source must lie between 0 and 10, .* from 11 to 11"),
        (SOURCE - 1, TARGET, ArgumentError, "source must lie between 0 and 10, .* from -1 to -1"),
        (SOURCE, TARGET + 13, ArgumentError, "target must lie between 0 and 12, .* from 13 to 13"),
    ],
)
def test_tokens_that_cannot_be_read_are_refused(model, source, target, error, message):
    """The message says which side is wrong, the rule, and what was given."""
    with pytest.raises(error, match=message):
        model(source, target)


@pytest.mark.parametrize(
    ("key_mask", "error", "message"),
    [
        (torch.tensor([[1, 1, 0], [0, 0, 0]]).bool(), ArgumentError, "sequence 1 has no real token"),
        (torch.ones(2, 4).bool(), ShapeError, r"must cover the source, .* = \(2, 3\). Got shape \(2, 4\)"),
        (torch.ones(2, 3), ShapeError, "key_mask must be boolean, True = a real token. Got dtype"),
    ],
)
def test_a_key_mask_that_does_not_fit_is_refused(model, key_mask, error, message):
    """Both ways into the model check it."""
    with pytest.raises(error, match=message):
        model(SOURCE, TARGET, key_mask=key_mask)
    with pytest.raises(error, match=message):
        model.begin(SOURCE, key_mask)


def test_decoding_needs_a_word_to_start_with():
    """Neither the config nor the call names one; one outside the vocabulary will not do."""
    model = Seq2Seq(Seq2SeqConfig(**SIZES))
    with pytest.raises(ArgumentError, match="give start_token, or the config a bos"):
        model.begin(SOURCE)
    with pytest.raises(ArgumentError, match=r"between 0 and 12, .* from 13 to 13"):
        model.begin(SOURCE, start_token=13)


def test_decoding_takes_one_word_a_sequence(model):
    """Other shapes and words that do not exist are refused, and decoding can go on."""
    _, decoding = model.begin(SOURCE)
    for tokens in (TARGET, TARGET[0], TARGET[0, 0]):
        with pytest.raises(ShapeError, match=r"tokens must be \(batch,\) = \(2,\)"):
            decoding.next(tokens)
    with pytest.raises(ArgumentError, match="tokens must lie between 0 and 12"):
        decoding.next(torch.tensor([0, 99]))
    assert decoding.next(torch.tensor([0, 12])).shape == (2, 13)


@pytest.mark.parametrize(
    ("sequences", "error", "message"),
    [
        (torch.tensor([0, 2]), ArgumentError, "between 0 and 1: 2 are being decoded. Got values from 0 to 2"),
        (torch.tensor([-1]), ArgumentError, "between 0 and 1: .* from -1 to -1"),
        (torch.tensor([[0]]), ShapeError, r"sequences must be \(batch,\), .* Got shape \(1, 1\)"),
        (torch.tensor([], dtype=torch.long), ShapeError, r"at least one. Got shape \(0,\)"),
        (torch.tensor([True, False]), ShapeError, "whole numbers, .* dtype torch.bool"),
    ],
)
def test_only_sequences_that_exist_can_be_kept(model, sequences, error, message):
    """The message has the range, or the shape and dtype."""
    _, decoding = model.begin(SOURCE)
    with pytest.raises(error, match=message):
        decoding.reorder(sequences)
