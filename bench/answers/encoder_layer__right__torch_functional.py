import torch
from torch import nn
from torch.nn import functional as F
class EncoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.num_heads, self.p, self.d = num_heads, dropout, d_model
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        self.linear1 = nn.Linear(d_model, d_ff)
        self.linear2 = nn.Linear(d_ff, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
    def forward(self, x, valid_lens=None):
        pad = None if valid_lens is None else torch.arange(x.shape[1], device=x.device) >= valid_lens[:, None]
        t = x.transpose(0, 1)
        a = F.multi_head_attention_forward(t, t, t, self.d, self.num_heads, torch.cat([self.W_q.weight, self.W_k.weight, self.W_v.weight]), None, None, None, False, self.p, self.W_o.weight, None, training=self.training, key_padding_mask=pad, need_weights=False)[0].transpose(0, 1)
        x = F.layer_norm(x + F.dropout(a, self.p, self.training), (self.d,), self.norm1.weight, self.norm1.bias)
        f = self.linear2(F.relu(self.linear1(x)))
        return F.layer_norm(x + F.dropout(f, self.p, self.training), (self.d,), self.norm2.weight, self.norm2.bias)
