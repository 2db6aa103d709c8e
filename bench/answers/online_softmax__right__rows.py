import torch
def online_softmax_step(m, l, o, scores, values):
    M, L, O = [], [], []
    for i in range(len(m)):
        top = torch.cat([m[i : i + 1], scores[i]]).max()
        if top == -float("inf"):
            M.append(m[i]); L.append(l[i]); O.append(o[i])
            continue
        e = torch.exp(scores[i] - top)
        c = torch.exp(m[i] - top)
        M.append(top); L.append(c * l[i] + e.sum()); O.append(c * o[i] + e @ values)
    return torch.stack(M), torch.stack(L), torch.stack(O)
