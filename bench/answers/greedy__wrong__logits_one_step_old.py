import torch


def greedy_search(step, start, end, max_new):
    tokens = [start]
    logits = step(list(tokens))
    for _ in range(max_new):
        token = torch.argmax(logits).item()
        logits = step(list(tokens))
        tokens.append(token)
        if token == end:
            break
    return tokens
