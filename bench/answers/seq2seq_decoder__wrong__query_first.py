import torch
from torch import nn
class Additive(nn.Module):
    def __init__(self, n, dropout):
        super().__init__()
        self.W_q, self.W_k, self.w_v = nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False), nn.Linear(n, 1, bias=False)
        self.drop = nn.Dropout(dropout)
    def forward(self, query, memory, lens):
        s = self.w_v(torch.tanh(self.W_q(query).unsqueeze(1) + self.W_k(memory))).squeeze(-1)
        if lens is not None:
            s = s.masked_fill(torch.arange(memory.size(1), device=s.device)[None] >= lens[:, None], -1e9)
        return torch.einsum("bs,bsh->bh", self.drop(s.softmax(-1)), memory)
class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        self.attention = Additive(num_hiddens, dropout)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = nn.GRU(embed_size + num_hiddens, num_hiddens, num_layers, dropout=dropout)
        self.dense = nn.Linear(num_hiddens, vocab_size)
    def init_state(self, enc_all_outputs, enc_valid_lens):
        outputs, hidden = enc_all_outputs
        return (outputs.permute(1, 0, 2), hidden, enc_valid_lens)
    def forward(self, X, state):
        enc, hidden, lens = state
        outs = []
        for x in self.embedding(X).permute(1, 0, 2):
            context = self.attention(hidden[0], enc, lens)
            out, hidden = self.rnn(torch.cat((x, context), dim=-1).unsqueeze(0), hidden)
            outs.append(out)
        logits = self.dense(torch.cat(outs, dim=0))
        return logits.permute(1, 0, 2), [enc, hidden, lens]
