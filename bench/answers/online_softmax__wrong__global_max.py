import torch
def online_softmax_step(m, l, o, scores, values):
    m_new = torch.maximum(m, scores.max())
    safe = torch.where(torch.isinf(m_new), torch.zeros_like(m_new), m_new)
    a = torch.exp(m - safe)
    p = torch.exp(scores - safe[:, None])
    return m_new, a * l + p.sum(-1), a[:, None] * o + p @ values
