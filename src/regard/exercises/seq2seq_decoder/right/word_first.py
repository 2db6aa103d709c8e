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
        scores = torch.einsum("bqkh,h->bqk", (self.W_q(queries)[:, :, None] + self.W_k(keys)[:, None]).tanh(),
                              self.w_v.weight[0])
        if valid_lens is not None:
            for b, n in enumerate(valid_lens.tolist()):
                keep = torch.arange(keys.shape[1], device=keys.device) < n
                scores = torch.cat([scores[:b], scores[b:b + 1].masked_fill(~keep, -1e4), scores[b + 1:]])
        weights = scores.softmax(-1)
        return self.dropout(weights) @ values, weights

class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        self.attention = AdditiveAttention(num_hiddens, dropout)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = nn.GRU(embed_size + num_hiddens, num_hiddens, num_layers, dropout=dropout)
        self.dense = nn.Linear(num_hiddens, vocab_size)

    def init_state(self, enc_all_outputs, enc_valid_lens):
        outputs, hidden = enc_all_outputs
        return outputs.permute(1, 0, 2).contiguous(), hidden, enc_valid_lens

    def forward(self, X, state):
        outputs, hidden, lens = state
        steps = []
        for e in self.embedding(X.t()):
            context, _ = self.attention(hidden[-1:].transpose(0, 1), outputs, outputs, lens)
            o, hidden = self.rnn(torch.cat([e, context.squeeze(1)], dim=1).unsqueeze(0), hidden)
            steps.append(o)
        return self.dense(torch.cat(steps)).permute(1, 0, 2), [outputs, hidden, lens]
