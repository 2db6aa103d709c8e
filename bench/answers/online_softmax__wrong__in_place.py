import torch


def online_softmax_step(m, l, o, scores, values):
    m_new = torch.maximum(m, scores.amax(-1))
    safe = torch.where(m_new == -torch.inf, 0.0, m_new)
    c = torch.exp(m - safe)
    p = torch.exp(scores - safe[:, None])
    o *= c[:, None]
    o += p @ values
    l.mul_(c).add_(p.sum(-1))
    return m_new, l, o
