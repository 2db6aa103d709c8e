import torch
from torch import nn


class GroupedQueryAttention(nn.Module):
    """Layers W_q, W_k, W_v, W_o, without bias."""

    def __init__(self, d_model, n_head, n_kv_head):
        super().__init__()
        raise NotImplementedError

    def forward(self, x):
        """(batch, n, d_model) -> (batch, n, d_model), causal."""
        raise NotImplementedError
