import torch
def greedy_search(step, start, end, max_new):
    tokens, n = [start], 0
    while n < max_new:
        token = torch.argmax(step(tokens)).item()
        n += 1
        if token == end:
            return tokens
        tokens.append(token)
    return tokens
