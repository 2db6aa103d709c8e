import torch
from torch import nn


class CrossAttention(nn.Module):
    """Layers W_q, W_k, W_v, W_o, without bias."""

    def __init__(self, d_model, d_context, n_head):
        super().__init__()
        raise NotImplementedError

    def forward(self, x, context, lengths=None):
        """x (batch, n, d_model), context (batch, m, d_context), lengths (batch,) -> (batch, n, d_model)."""
        raise NotImplementedError
