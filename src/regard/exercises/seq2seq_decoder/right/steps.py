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
        both = self.W_q(queries)[:, :, None] + self.W_k(keys)[:, None]
        scores = self.w_v(torch.tanh(both))[..., 0]
        if valid_lens is not None:
            position = torch.arange(keys.shape[1], device=keys.device)
            hidden = position >= valid_lens[:, None, None]
            scores = scores.masked_fill(hidden, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        return torch.bmm(self.dropout(weights), values)

class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        self.attention = AdditiveAttention(num_hiddens, dropout)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = nn.GRU(embed_size + num_hiddens, num_hiddens, num_layers, dropout=dropout)
        self.dense = nn.Linear(num_hiddens, vocab_size)

    def init_state(self, enc_all_outputs, enc_valid_lens):
        outputs, hidden_state = enc_all_outputs
        outputs = outputs.permute(1, 0, 2)
        return [outputs, hidden_state, enc_valid_lens]

    def forward(self, X, state):
        enc_outputs, hidden_state, enc_valid_lens = state
        words = self.embedding(X).permute(1, 0, 2)
        outputs = []
        for word in words:
            query = hidden_state[-1][:, None, :]
            context = self.attention(query, enc_outputs, enc_outputs, enc_valid_lens)[:, 0, :]
            x = torch.cat([context, word], dim=-1)
            out, hidden_state = self.rnn(x[None], hidden_state)
            outputs.append(out[0])
        steps = torch.stack(outputs, dim=1)
        logits = self.dense(steps)
        return logits, [enc_outputs, hidden_state, enc_valid_lens]
