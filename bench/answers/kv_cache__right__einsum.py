import torch
from torch import nn
class CachedAttention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head, self.dh = n_head, d_model // n_head
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
    def forward(self, x, cache=None):
        b, n, m = x.shape
        wq, wk, wv = (w.weight.view(self.n_head, self.dh, m) for w in (self.W_q, self.W_k, self.W_v))
        q, k, v = (torch.einsum("bnm,hdm->bhnd", x, w) for w in (wq, wk, wv))
        past = 0
        if cache is not None:
            past = cache[0].shape[2]
            k = torch.cat([cache[0], k], dim=2)
            v = torch.cat([cache[1], v], dim=2)
        logits = torch.einsum("bhnd,bhtd->bhnt", q, k) / (self.dh ** 0.5)
        t = torch.arange(past + n, device=x.device)
        logits = logits.masked_fill(t[None, :] > (past + torch.arange(n, device=x.device))[:, None], float("-inf"))
        o = torch.einsum("bhnt,bhtd->bnhd", torch.softmax(logits, -1), v)
        y = torch.einsum("bnhd,mhd->bnm", o, self.W_o.weight.view(m, self.n_head, self.dh))
        return y, (k, v)
