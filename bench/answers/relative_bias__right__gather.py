import torch

def relative_bias_attention(q, k, v, table):
    h, n, d = q.shape[1:]
    r = table.shape[1] // 2
    j = torch.arange(n, device=q.device)
    column = torch.minimum(torch.maximum(j - j.reshape(-1, 1), torch.tensor(-r, device=q.device)), torch.tensor(r, device=q.device)) + r
    bias = table.unsqueeze(1).expand(h, n, -1).gather(2, column.expand(h, n, n))
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * d ** -0.5 + bias
    e = (scores - scores.max(-1, keepdim=True).values).exp()
    return e @ v / e.sum(-1, keepdim=True)
