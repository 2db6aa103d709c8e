import torch
from torch import nn
class CachedAttention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.h, self.d = n_head, d_model // n_head
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
    def forward(self, x, cache=None):
        B, n, D = x.shape
        K, V = cache if cache is not None else (x.new_empty(B, self.h, 0, self.d), x.new_empty(B, self.h, 0, self.d))
        ys = []
        for t in range(n):
            q, k, v = (w(x[:, t]).view(B, self.h, 1, self.d) for w in (self.W_q, self.W_k, self.W_v))
            K, V = torch.cat([K, k], 2), torch.cat([V, v], 2)
            a = torch.softmax(q @ K.mT * self.d ** -0.5, -1)
            ys.append(self.W_o((a @ V).reshape(B, D)))
        return torch.stack(ys, 1), (K, V)
