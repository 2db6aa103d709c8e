import torch
from torch import nn
import torch.nn.functional as F
def repeat_kv(x, n_rep):
    bs, slen, n_kv_heads, head_dim = x.shape
    if n_rep == 1:
        return x
    return x[:, :, :, None, :].expand(bs, slen, n_kv_heads, n_rep, head_dim).reshape(bs, slen, n_kv_heads * n_rep, head_dim)
class GroupedQueryAttention(nn.Module):
    def __init__(self, d_model, n_head, n_kv_head):
        super().__init__()
        self.n_local_heads, self.n_local_kv_heads = n_head, n_kv_head
        self.n_rep = n_head // n_kv_head
        self.head_dim = d_model // n_head
        self.W_q = nn.Linear(d_model, n_head * self.head_dim, bias=False)
        self.W_k = nn.Linear(d_model, n_kv_head * self.head_dim, bias=False)
        self.W_v = nn.Linear(d_model, n_kv_head * self.head_dim, bias=False)
        self.W_o = nn.Linear(n_head * self.head_dim, d_model, bias=False)
    def forward(self, x):
        bsz, seqlen, _ = x.shape
        xq = self.W_q(x).view(bsz, seqlen, self.n_local_heads, self.head_dim)
        keys = repeat_kv(self.W_k(x).view(bsz, seqlen, self.n_local_kv_heads, self.head_dim), self.n_rep)
        values = repeat_kv(self.W_v(x).view(bsz, seqlen, self.n_local_kv_heads, self.head_dim), self.n_rep)
        xq, keys, values = xq.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        mask = torch.full((seqlen, seqlen), float("-inf"), device=x.device)
        mask = torch.triu(mask, diagonal=1).type_as(x)
        scores = torch.matmul(xq, keys.transpose(2, 3)) / self.head_dim ** 0.5 + mask
        scores = F.softmax(scores.float(), dim=-1).type_as(xq)
        output = torch.matmul(scores, values).transpose(1, 2).contiguous().view(bsz, seqlen, -1)
        return self.W_o(output)
