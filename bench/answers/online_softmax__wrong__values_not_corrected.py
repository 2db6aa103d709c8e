import torch

def online_softmax_step(m, l, o, scores, values):
    m_new = torch.maximum(m, scores.amax(dim=-1))
    safe = torch.where(m_new == float("-inf"), torch.zeros_like(m_new), m_new)
    old = torch.exp(m - safe)
    e = torch.exp(scores - safe[:, None])
    return m_new, l * old + e.sum(dim=-1), o + e @ values
