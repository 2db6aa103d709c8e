import torch
import torch.nn as tnn
from torch import Tensor


class AdditiveAttention(tnn.Module):
    """score(q, k) = w_v . tanh(W_q q + W_k k), one sequence of the batch after the other."""

    def __init__(self, num_hiddens: int, dropout: float) -> None:
        super().__init__()
        self.W_q = tnn.LazyLinear(num_hiddens, bias=False)
        self.W_k = tnn.LazyLinear(num_hiddens, bias=False)
        self.w_v = tnn.LazyLinear(1, bias=False)
        self.drop = tnn.Dropout(dropout)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None) -> Tensor:
        asked, offered = self.W_q(queries), self.W_k(keys)
        n_batch, n_query, n_key = len(queries), queries.shape[1], keys.shape[1]
        results = []
        for b in range(n_batch):
            energy = torch.stack([self.w_v(torch.tanh(a + offered[b]))[:, 0] for a in asked[b]])
            alpha_rows = []
            for i in range(n_query):
                if valid_lens is None:
                    seen = n_key
                else:
                    seen = int(valid_lens[b] if valid_lens.ndim == 1 else valid_lens[b, i])
                alpha = energy.new_zeros(n_key)
                if seen > 0:
                    alpha = torch.cat([energy[i, :seen].softmax(0), alpha[seen:]])
                alpha_rows.append(alpha)
            results.append(torch.einsum("qk,kv->qv", self.drop(torch.stack(alpha_rows)), values[b]))
        return torch.stack(results)
