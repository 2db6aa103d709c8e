import torch


def online_softmax_step(m, l, o, scores, values):
    """One block of the running softmax."""
    m_new = torch.maximum(m, scores.amax(dim=1))
    m_new = torch.where(m_new == -torch.inf, 0.0, m_new)

    ratio = (m - m_new).exp()
    p = (scores - m_new[:, None]).exp()

    l = ratio * l + p.sum(1)
    o = o + torch.einsum("nb,bd->nd", p, values)
    return m_new, l, o
