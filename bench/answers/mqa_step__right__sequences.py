import torch
def mqa_step(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
    ys, Ks, Vs = [], [], []
    for xb, Kb, Vb in zip(x, prev_K, prev_V):
        Kb, Vb = torch.vstack([Kb, xb @ W_k]), torch.vstack([Vb, xb @ W_v])
        ys.append(sum(torch.softmax(Kb @ (xb @ q), 0) @ Vb @ o for q, o in zip(W_q, W_o)))
        Ks.append(Kb), Vs.append(Vb)
    return torch.stack(ys), torch.stack(Ks), torch.stack(Vs)
