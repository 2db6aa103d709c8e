import torch
def linear_attention(Q, K, V, phi, causal=False, chunk=4):
    q, k = phi(Q), phi(K)
    if not causal:
        num, den = q @ (k.mT @ V), q @ k.sum(0)
        return num / den[:, None]
    state = q.new_zeros(k.shape[1], V.shape[1])
    norm = q.new_zeros(k.shape[1])
    parts = []
    for qc, kc, vc in zip(q.split(chunk), k.split(chunk), V.split(chunk)):
        inside = (qc @ kc.mT).tril()
        parts.append((inside @ vc + qc @ state) / (inside.sum(-1) + qc @ norm)[:, None])
        state = state + kc.mT @ vc
        norm = norm + kc.sum(0)
    return torch.cat(parts)
