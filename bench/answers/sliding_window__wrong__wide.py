import torch
def sliding_window_attention(q, k, v, window):
    n = q.shape[-2]
    ones = torch.ones(n, n, dtype=torch.bool, device=q.device)
    band = ones.tril() & ones.triu(-window)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=band)
