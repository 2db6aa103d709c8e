import torch
from torch import nn
import torch.nn.functional as F
class AdditiveAttention(nn.Module):
    def __init__(self, num_hiddens, dropout):
        super().__init__()
        self.W_q = nn.LazyLinear(num_hiddens, bias=False)
        self.W_k = nn.LazyLinear(num_hiddens, bias=False)
        self.w_v = nn.LazyLinear(1, bias=False)
        self.p = dropout
    def forward(self, queries, keys, values, valid_lens):
        e = torch.tanh(self.W_q(queries)[:, :, None] + self.W_k(keys)[:, None])
        s = self.w_v(e)[..., 0]
        if valid_lens is not None:
            keep = torch.arange(keys.shape[1], device=keys.device)[None, None] < valid_lens[:, None, None]
            s = torch.where(keep, s, torch.full_like(s, -torch.inf))
        return F.dropout(F.softmax(s, -1), self.p, self.training) @ values
class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        self.attention = AdditiveAttention(num_hiddens, dropout)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = nn.GRU(num_hiddens + embed_size, num_hiddens, num_layers, batch_first=True, dropout=dropout)
        self.dense = nn.Linear(num_hiddens, vocab_size)
    def init_state(self, enc_all_outputs, enc_valid_lens):
        return [enc_all_outputs[0].reshape(enc_all_outputs[0].shape[1], enc_all_outputs[0].shape[0], -1), enc_all_outputs[1], enc_valid_lens]
    def forward(self, X, state):
        memory, h, lens = state
        E = self.embedding(X)
        logits = []
        for t in range(X.shape[1]):
            c = self.attention(h[-1][:, None], memory, memory, lens)
            o, h = self.rnn(torch.cat([c, E[:, t : t + 1]], 2), h)
            logits.append(self.dense(o[:, 0]))
        return torch.stack(logits, 1), [memory, h, lens]
