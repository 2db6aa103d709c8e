import torch

def online_softmax_step(m, l, o, scores, values):
    every = torch.cat([m[:, None], scores], dim=1)
    top = every.max(dim=1).values
    e = torch.exp(every - top[:, None]).nan_to_num(0.0)
    l_new = e[:, 0] * l + e[:, 1:].sum(1)
    o_new = e[:, :1] * o + torch.einsum("nb,bd->nd", e[:, 1:], values)
    return top, l_new, o_new
