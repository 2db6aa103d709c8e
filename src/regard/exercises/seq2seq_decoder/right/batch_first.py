import torch
from torch import nn
from torch.nn import functional as F

def masked_softmax(scores, lens):
    if lens is not None:
        past = torch.arange(scores.shape[-1], device=scores.device).ge(lens.reshape(-1, 1, 1))
        scores = torch.where(past, torch.full_like(scores, torch.finfo(scores.dtype).min), scores)
    return F.softmax(scores, dim=-1)

class Bahdanau(nn.Module):
    def __init__(self, size, p):
        super().__init__()
        self.W_k = nn.LazyLinear(size, bias=False)
        self.W_q = nn.LazyLinear(size, bias=False)
        self.w_v = nn.LazyLinear(1, bias=False)
        self.drop = nn.Dropout(p)

    def forward(self, q, k, v, lens):
        e = self.w_v(torch.tanh(self.W_q(q).unsqueeze(2) + self.W_k(k).unsqueeze(1))).squeeze(-1)
        return self.drop(masked_softmax(e, lens)) @ v

class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.attention = Bahdanau(num_hiddens, dropout)
        self.rnn = nn.GRU(num_hiddens + embed_size, num_hiddens, num_layers, True, True, dropout)
        self.dense = nn.LazyLinear(vocab_size)

    def init_state(self, enc_all_outputs, enc_valid_lens):
        outputs, hidden = enc_all_outputs
        return (outputs.transpose(0, 1), hidden, enc_valid_lens)

    def forward(self, X, state):
        memory, h, lens = state
        logits = []
        for emb in self.embedding(X).split(1, dim=1):
            seen = self.attention(h[-1].unsqueeze(1), memory, memory, lens)
            y, h = self.rnn(torch.cat((seen, emb), dim=2), h)
            logits.append(self.dense(y))
        return torch.cat(logits, dim=1), (memory, h, lens)
