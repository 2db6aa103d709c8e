import torch
from torch import nn


class DecoderBlock(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.heads, self.width = num_heads, d_model // num_heads
        for name in ("W_q", "W_k", "W_v", "W_o"):
            self.add_module(name, nn.Linear(d_model, d_model, bias=False))
        self.linear1 = nn.Linear(d_model, d_ff)
        self.linear2 = nn.Linear(d_ff, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.act = nn.GELU()
        self.dropout = nn.Dropout(dropout)

    def attend(self, z):
        B, N, _ = z.shape
        q = self.W_q(z).view(B, N, self.heads, self.width)
        k = self.W_k(z).view(B, N, self.heads, self.width)
        v = self.W_v(z).view(B, N, self.heads, self.width)
        s = torch.einsum("bihd,bjhd->bhij", q, k) * self.width ** -0.5
        s = s + torch.full((N, N), float("-inf"), device=z.device).triu(1)
        return self.W_o(torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v).reshape(B, N, -1))

    def forward(self, x):
        x = x + self.dropout(self.attend(self.norm1(x)))
        x = x + self.dropout(self.linear2(self.act(self.linear1(self.norm2(x)))))
        return x


class TinyGPT(nn.Module):
    def __init__(self, vocab, d_model, num_heads, d_ff, n_layer, context):
        super().__init__()
        self.tokens = nn.Embedding(vocab, d_model)
        self.positions = nn.Embedding(context, d_model)
        self.blocks = nn.ModuleList()
        for _ in range(n_layer):
            self.blocks.append(DecoderBlock(d_model, num_heads, d_ff, 0.0))
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab, bias=False)

    def forward(self, ids):
        where = self.positions(torch.arange(ids.shape[-1], device=ids.device))[None]
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x + where)
        return self.head(self.norm(x))
