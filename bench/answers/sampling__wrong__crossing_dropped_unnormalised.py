import torch


def next_token_probs(logits, temperature=1.0, top_k=None, top_p=1.0):
    rows = []
    for row in logits:
        if temperature == 0:
            p = torch.zeros_like(row)
            p[row.argmax()] = 1.0
            rows.append(p)
            continue
        row = row / temperature
        if top_k is not None:
            kept = row.topk(min(top_k, row.numel())).indices
            masked = torch.full_like(row, float("-inf"))
            masked[kept] = row[kept]
            row = masked
        p = row.softmax(0)
        if top_p < 1.0:
            order = p.argsort(descending=True)
            total = 0.0
            out = torch.zeros_like(p)
            for rank, token in enumerate(order.tolist()):
                total += p[token].item()
                if total > top_p and rank > 0:
                    break
                out[token] = p[token]
            p = out
        rows.append(p)
    return torch.stack(rows)
