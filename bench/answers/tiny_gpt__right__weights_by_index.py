import torch
from torch import nn
import torch.nn.functional as F
class DecoderBlock(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.n = num_heads
        for c in "qkvo":
            setattr(self, "W_" + c, nn.Linear(d_model, d_model, bias=False))
        self.linear1 = nn.Linear(d_model, d_ff)
        self.linear2 = nn.Linear(d_ff, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
    def attend(self, x):
        q, k, v = (torch.stack(getattr(self, "W_" + c)(x).chunk(self.n, -1), 1) for c in "qkv")
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.W_o(torch.cat(y.unbind(1), -1))
    def forward(self, x):
        x = x + self.dropout(self.attend(self.norm1(x)))
        return x + self.dropout(self.linear2(F.gelu(self.linear1(self.norm2(x)), approximate="tanh")))
class TinyGPT(nn.Module):
    def __init__(self, vocab, d_model, num_heads, d_ff, n_layer, context):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, d_model), nn.Embedding(context, d_model)
        self.blocks = nn.ModuleList(DecoderBlock(d_model, num_heads, d_ff, 0.0) for _ in range(n_layer))
        self.norm, self.head = nn.LayerNorm(d_model), nn.Linear(d_model, vocab, bias=False)
    def forward(self, ids):
        x = self.tokens.weight[ids] + self.positions.weight[: ids.shape[1]].unsqueeze(0)
        for block in self.blocks:
            x = block(x)
        x = F.layer_norm(x, x.shape[-1:], self.norm.weight, self.norm.bias)
        return F.linear(x, self.head.weight)
