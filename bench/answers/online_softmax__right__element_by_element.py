import torch
def online_softmax_step(m, l, o, scores, values):
    for j in range(scores.shape[1]):
        s = scores[:, j]
        new = torch.maximum(m, s)
        base = new.masked_fill(new == -torch.inf, 0.0)
        scale, e = torch.exp(m - base), torch.exp(s - base)
        l = l * scale + e
        o = o * scale[:, None] + e[:, None] * values[j]
        m = new
    return m, l, o
