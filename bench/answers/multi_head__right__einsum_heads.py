import torch
from torch import Tensor, nn


class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens: int, num_heads: int, dropout: float, bias: bool = False):
        super().__init__()
        self.heads = num_heads
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_k = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_v = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.forget = nn.Dropout(dropout)

    def transpose_qkv(self, X: Tensor) -> Tensor:
        batch, n, width = X.shape
        return X.reshape(batch, n, self.heads, width // self.heads).swapaxes(1, 2).flatten(0, 1)

    def transpose_output(self, X: Tensor) -> Tensor:
        joint, n, width = X.shape
        return X.reshape(joint // self.heads, self.heads, n, width).swapaxes(1, 2).flatten(2)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None) -> Tensor:
        Q, K, V = (
            layer(data).unflatten(2, (self.heads, -1))  # batch, position, head, dim
            for layer, data in [(self.W_q, queries), (self.W_k, keys), (self.W_v, values)]
        )
        energy = torch.einsum("bqhd,bkhd->bhqk", Q, K) * Q.shape[-1] ** -0.5
        if valid_lens is not None:
            limit = valid_lens.reshape(len(Q), 1, -1, 1)
            place = torch.arange(K.shape[1], device=K.device)
            energy = torch.where(place < limit, energy, torch.finfo(energy.dtype).min)
        alpha = self.forget(energy.softmax(dim=-1))
        return self.W_o(torch.einsum("bhqk,bkhd->bqhd", alpha, V).flatten(2))
