import torch
from torch import nn


class Bahdanau(nn.Module):
    def __init__(self, n, p):
        super().__init__()
        self.W_q = nn.LazyLinear(n, bias=False)
        self.W_k = nn.LazyLinear(n, bias=False)
        self.w_v = nn.LazyLinear(1, bias=False)
        self.drop = nn.Dropout(p)

    def forward(self, state, memory, lens):
        """state (batch, n), memory (batch, source, n)"""
        score = self.w_v((self.W_q(state)[:, None] + self.W_k(memory)).tanh())[..., 0]
        if lens is not None:
            pos = torch.arange(memory.shape[1], device=memory.device)
            score = score.masked_fill(pos[None] >= lens[:, None], -1e9)
        return torch.einsum("bs,bsn->bn", self.drop(score.softmax(-1)), memory)


class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        self.attention = Bahdanau(num_hiddens, dropout)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = nn.GRU(num_hiddens + embed_size, num_hiddens, num_layers, dropout=dropout)
        self.dense = nn.Linear(num_hiddens, vocab_size)

    def init_state(self, enc_outputs, enc_valid_lens):
        memory, hidden = enc_outputs
        return [memory.transpose(0, 1), hidden, enc_valid_lens]

    def one_step(self, words, memory, hidden, lens):
        context = self.attention(hidden[-1], memory, lens)
        fed = torch.cat([context, self.embedding(words)], dim=1)
        out, hidden = self.rnn(fed[None], hidden)
        return self.dense(out[0]), hidden

    def forward(self, X, state):
        memory, hidden, lens = state
        logits = []
        for t in range(X.shape[1]):
            now, hidden = self.one_step(X[:, t], memory, hidden, lens)
            logits.append(now)
        return torch.stack(logits, dim=1), [memory, hidden, lens]
