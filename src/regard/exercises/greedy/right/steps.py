import torch

def greedy_search(step, start, end, max_new):
    tokens = [start]
    for _ in range(max_new):
        logits = step(tokens)
        token = int(torch.argmax(logits))
        tokens.append(token)
        if token == end:
            break
    return tokens
