import torch
def online_softmax_step(m, l, o, scores, values):
    new = torch.max(m, scores.amax(1))
    old = torch.exp(m - new).nan_to_num(0.0)
    p = torch.exp(scores - new.unsqueeze(1)).nan_to_num(0.0)
    return new, l * old + p.sum(1), o * old.unsqueeze(1) + torch.einsum("nb,bd->nd", p, values)
