import torch
from torch import nn


class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        raise NotImplementedError

    def init_state(self, enc_all_outputs, enc_valid_lens):
        """(outputs (source, batch, hiddens), hidden (layers, batch, hiddens)), lengths -> the state."""
        raise NotImplementedError

    def forward(self, X, state):
        """X (batch, steps) -> logits (batch, steps, vocab), [enc_outputs, hidden_state, enc_valid_lens]."""
        raise NotImplementedError
