import torch


def next_token_probs(logits, temperature=1.0, top_k=None, top_p=1.0):
    out = torch.zeros_like(logits)
    for row, target in zip(logits, out):
        if temperature == 0:
            target[row.argmax()] = 1.0
            continue
        order = sorted(range(len(row)), key=lambda i: -row[i].item())[:top_k]
        p = torch.softmax(row[order] / temperature, 0)
        kept, total = 0, 0.0
        for value in p.tolist():
            kept += 1
            total += value
            if total >= top_p and top_p < 1.0:
                break
        p = p[:kept]
        target[order[:kept]] = p / p.sum()
    return out
