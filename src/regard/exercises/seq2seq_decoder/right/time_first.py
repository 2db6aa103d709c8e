import torch
import torch.nn as nn

class Attention(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.W_q, self.W_k = nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False)
        self.w_v = nn.Linear(n, 1, bias=False)

class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        self.attention = Attention(num_hiddens)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = nn.GRU(embed_size + num_hiddens, num_hiddens, num_layers, dropout=dropout)
        self.dense = nn.Linear(num_hiddens, vocab_size)
        self.dropout = nn.Dropout(dropout)

    def init_state(self, enc_all_outputs, enc_valid_lens):
        return [enc_all_outputs[0], enc_all_outputs[1], enc_valid_lens]

    def look(self, h, enc, projected, lens):
        e = self.attention.w_v(torch.tanh(projected + self.attention.W_q(h)[None]))[..., 0]
        if lens is not None:
            e = e.masked_fill(torch.arange(len(enc), device=enc.device)[:, None] >= lens[None], float("-inf"))
        return (self.dropout(e.softmax(0))[..., None] * enc).sum(0)

    def forward(self, X, state):
        enc, h, lens = state
        projected = self.attention.W_k(enc)
        out = []
        for t in range(X.shape[1]):
            word = self.embedding(X[:, t])
            step = torch.hstack([self.look(h[-1], enc, projected, lens), word])
            _, h = self.rnn(step.unsqueeze(0), h)
            out.append(h[-1])
        return self.dense(torch.stack(out)).transpose(0, 1), [enc, h, lens]
