import torch
import torch.nn.functional as F
def relative_bias_attention(q, k, v, table):
    n = q.size(2)
    r = table.size(1) // 2
    pos = torch.arange(n, device=q.device)
    index = (pos[:, None] - pos[None, :]).clamp(-r, r) + r
    bias = F.embedding(index, table.t()).permute(2, 0, 1).unsqueeze(0)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(q.size(0), -1, -1, -1))
