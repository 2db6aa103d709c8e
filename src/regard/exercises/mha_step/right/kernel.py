import torch
import torch.nn.functional as F

def mha_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    b, h, n, _ = prev_K.shape
    K = prev_K.new_zeros(b, h, n + 1, W_k.size(2))
    V = prev_V.new_zeros(b, h, n + 1, W_v.size(2))
    K[:, :, :n], V[:, :, :n] = prev_K, prev_V
    K[:, :, n] = torch.tensordot(x, W_k, dims=([1], [1]))
    V[:, :, n] = torch.tensordot(x, W_v, dims=([1], [1]))
    q = torch.tensordot(x, W_q, dims=([1], [1])).unsqueeze(2)
    out = F.scaled_dot_product_attention(q, K, V, scale=1.0).squeeze(2)
    return out.flatten(1) @ W_o.flatten(0, 1), K, V
