import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, size, p):
        super().__init__()
        self.W_q = nn.LazyLinear(size, bias=False)
        self.W_k = nn.LazyLinear(size, bias=False)
        self.w_v = nn.LazyLinear(1, bias=False)
        self.p = nn.Dropout(p)

    def forward(self, query, memory, lens):
        e = self.w_v(torch.tanh(self.W_q(query).unsqueeze(1) + self.W_k(memory))).squeeze(2)
        if lens is not None:
            outside = torch.arange(e.shape[1], device=e.device) >= lens.unsqueeze(1)
            e = e.masked_fill(outside, -1e9)
        return torch.bmm(self.p(e.softmax(1)).unsqueeze(1), memory).squeeze(1)


class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        self.attention = Attention(num_hiddens, dropout)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = nn.GRU(num_hiddens + embed_size, num_hiddens, num_layers, dropout=dropout)
        self.dense = nn.Linear(num_hiddens, vocab_size)

    def init_state(self, enc_outputs, enc_valid_lens):
        return [enc_outputs[0].transpose(0, 1), enc_outputs[1], enc_valid_lens]

    def forward(self, X, state):
        memory, hidden, lens = state
        outs = []
        for word in self.embedding(X).unbind(1):
            seen = self.attention(hidden[-1], memory, lens)
            out, hidden = self.rnn(torch.cat([seen, word], 1).unsqueeze(0), hidden)
            outs.append(self.dense(out.squeeze(0)))
        return torch.stack(outs, 1), [memory, hidden, None]
