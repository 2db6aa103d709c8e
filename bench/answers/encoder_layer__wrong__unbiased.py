import torch
from torch import nn
class EncoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.h = num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.drop1, self.drop2 = nn.Dropout(dropout), nn.Dropout(dropout)
    @staticmethod
    def ln(x, norm):
        mu = x.mean(dim=-1, keepdim=True)
        sd = torch.sqrt(x.var(dim=-1, unbiased=True, keepdim=True) + 1e-5)
        return norm.weight * ((x - mu) / sd) + norm.bias
    def attend(self, x, valid_lens):
        B, N, D = x.shape
        dk = D // self.h
        out = []
        for q, k, v in zip(self.W_q(x).split(dk, -1), self.W_k(x).split(dk, -1), self.W_v(x).split(dk, -1)):
            e = torch.baddbmm(torch.zeros(B, N, N, dtype=x.dtype, device=x.device), q, k.transpose(1, 2), alpha=1 / dk ** 0.5)
            if valid_lens is not None:
                cols = torch.arange(N, device=x.device).repeat(B, N, 1)
                e = torch.where(cols < valid_lens.view(-1, 1, 1), e, torch.tensor(-1e20, dtype=x.dtype, device=x.device))
            out.append(torch.softmax(e, 2) @ v)
        return self.W_o(torch.cat(out, 2))
    def forward(self, x, valid_lens=None):
        x = self.ln(x + self.drop1(self.attend(x, valid_lens)), self.norm1)
        ff = self.linear2(torch.clamp(self.linear1(x), min=0))
        return self.ln(x + self.drop2(ff), self.norm2)
