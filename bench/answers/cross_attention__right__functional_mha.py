import torch
from torch import nn
from torch.nn import functional as F
class CrossAttention(nn.Module):
    def __init__(self, d_model, d_context, n_head):
        super().__init__()
        self.n_head = n_head
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_context, d_model, bias=False)
        self.W_v = nn.Linear(d_context, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
    def forward(self, x, context, lengths=None):
        padding = None
        if lengths is not None:
            padding = torch.arange(context.shape[1], device=context.device) >= lengths[:, None]
        out, _ = F.multi_head_attention_forward(
            x.transpose(0, 1), context.transpose(0, 1), context.transpose(0, 1),
            x.shape[-1], self.n_head, None, None, None, None, False, 0.0, self.W_o.weight, None,
            training=False, key_padding_mask=padding, need_weights=False,
            use_separate_proj_weight=True, q_proj_weight=self.W_q.weight, k_proj_weight=self.W_k.weight, v_proj_weight=self.W_v.weight)
        return out.transpose(0, 1)
