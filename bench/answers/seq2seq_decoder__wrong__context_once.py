import torch
from torch import nn


class AdditiveAttention(nn.Module):
    def __init__(self, num_hiddens, dropout):
        super().__init__()
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=False)
        self.W_k = nn.Linear(num_hiddens, num_hiddens, bias=False)
        self.w_v = nn.Linear(num_hiddens, 1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens):
        features = torch.tanh(self.W_q(queries).unsqueeze(2) + self.W_k(keys).unsqueeze(1))
        scores = self.w_v(features).squeeze(-1)
        if valid_lens is not None:
            pad = torch.arange(keys.shape[1], device=keys.device)[None, :] >= valid_lens[:, None]
            scores = scores.masked_fill(pad[:, None, :], -1e6)
        weights = torch.softmax(scores, dim=-1)
        return torch.bmm(self.dropout(weights), values)


class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        self.attention = AdditiveAttention(num_hiddens, dropout)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = nn.GRU(num_hiddens + embed_size, num_hiddens, num_layers, dropout=dropout, batch_first=True)
        self.dense = nn.Linear(num_hiddens, vocab_size)

    def init_state(self, enc_all_outputs, enc_valid_lens):
        outputs, hidden = enc_all_outputs
        return [outputs.transpose(0, 1), hidden, enc_valid_lens]

    def forward(self, X, state):
        enc_outputs, hidden, lens = state
        steps = X.shape[1]
        embedded = self.embedding(X)
        query = hidden[-1][:, None, :]
        context = self.attention(query, enc_outputs, enc_outputs, lens)
        context = context.expand(-1, steps, -1)
        out, hidden = self.rnn(torch.cat([context, embedded], dim=-1), hidden)
        return self.dense(out), [enc_outputs, hidden, lens]
