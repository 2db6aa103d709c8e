import torch
def online_softmax_step(m, l, o, scores, values):
    mb = scores.amax(-1)
    p = torch.exp(scores - torch.where(mb == -torch.inf, 0.0, mb)[:, None])
    m_new = torch.maximum(m, mb)
    safe = torch.where(m_new == -torch.inf, 0.0, m_new)
    a = torch.exp(m - safe)
    return m_new, a * l + p.sum(-1), a[:, None] * o + p @ values
