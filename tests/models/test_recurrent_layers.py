"""Recurrent layers over padding and step by step, against PyTorch's own on what they can run as they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.models.seq2seq import read, run, step

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
CELLS = {"gru": nn.GRU, "lstm": nn.LSTM, "rnn": nn.RNN}


def layers_of(cell, input_dim, n_layer, **options):
    return CELLS[cell](input_dim, 7, n_layer, batch_first=True, **options)


def gradients(recurrent, inputs, outputs):
    """Of a sum in which every output counts differently, so that none can be taken for another."""
    loss = sum((out * torch.arange(1.0, out.numel() + 1).view(out.shape).sin()).sum() for out in outputs)
    return torch.autograd.grad(loss, [*inputs, *recurrent.parameters()])


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("n_layer", [1, 3])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_padding_is_not_read(cell, n_layer, bidirectional):
    recurrent = layers_of(cell, 5, n_layer, bidirectional=bidirectional)
    lengths = torch.tensor([4, 9, 1, 6])
    x = torch.randn(4, 9, 5, requires_grad=True)
    real = (torch.arange(9) < lengths[:, None])[..., None]

    def ours():
        outputs, state = read(recurrent, x, lengths)
        return torch.where(real, outputs, 0.0), *state

    def packed():
        outputs, state = run(recurrent, pack_padded_sequence(x, lengths, True, enforce_sorted=False))
        return pad_packed_sequence(outputs, True)[0], *state

    mine, theirs = ours(), packed()
    torch.testing.assert_close(mine, theirs, **CLOSE)
    found, wanted = (gradients(recurrent, [x], each) for each in (mine, theirs))
    torch.testing.assert_close(found, wanted, **CLOSE)


def test_dropout_stands_between_layers_in_training_alone():
    recurrent = layers_of("gru", 5, 2, dropout=0.5)
    x, lengths = torch.randn(3, 4, 5), torch.tensor([4, 2, 3])
    assert not torch.equal(read(recurrent, x, lengths)[0], read(recurrent, x, lengths)[0])
    recurrent.eval()
    torch.testing.assert_close(read(recurrent, x, lengths), read(recurrent, x, lengths), rtol=0, atol=0)
    alone = layers_of("gru", 5, 1)
    torch.testing.assert_close(read(alone, x, lengths), read(alone, x, lengths), rtol=0, atol=0)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("n_layer", [1, 3])
@pytest.mark.parametrize("learns", [True, False])
def test_step_by_step_is_the_whole_sequence(cell, n_layer, learns):
    recurrent = layers_of(cell, 4 + 5, n_layer)
    contexts = torch.randn(3, 6, 4, requires_grad=True)
    words = torch.randn(3, 6, 5, requires_grad=True)
    state = tuple(torch.randn(n_layer, 3, 7, requires_grad=True) for _ in range(2 if cell == "lstm" else 1))

    def by_steps():
        layers, outputs = list(zip(*(part.unbind(0) for part in state), strict=True)), []
        for x in torch.cat([contexts, words], -1).unbind(1):
            layers = step(recurrent, x, layers)
            outputs.append(layers[-1][0])
        return torch.stack(outputs, 1), *(torch.stack(parts) for parts in zip(*layers, strict=True))

    def at_once():
        outputs, last = run(recurrent, torch.cat([contexts, words], -1), state)
        return outputs, *last

    if not learns:
        recurrent.requires_grad_(False)
        torch.testing.assert_close(by_steps(), at_once(), **CLOSE)
        return
    mine, theirs = by_steps(), at_once()
    torch.testing.assert_close(mine, theirs, **CLOSE)
    found, wanted = (gradients(recurrent, [contexts, words, *state], each) for each in (mine, theirs))
    torch.testing.assert_close(found, wanted, **CLOSE)
