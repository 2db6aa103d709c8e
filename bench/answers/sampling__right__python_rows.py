import torch
def next_token_probs(logits, temperature=1.0, top_k=None, top_p=1.0):
    out = torch.zeros_like(logits)
    for b, row in enumerate(logits):
        if temperature == 0:
            out[b, row.argmax()] = 1.0
            continue
        row = row / temperature
        order = row.argsort(descending=True).tolist()
        if top_k is not None:
            order = order[:top_k]
        p = torch.softmax(row[order], 0)
        total, kept = 0.0, []
        for token, prob in zip(order, p):
            kept.append(token)
            total += float(prob)
            if total >= top_p:
                break
        out[b, kept] = torch.softmax(row[kept], 0)
    return out
