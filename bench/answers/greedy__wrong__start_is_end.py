import torch
def greedy_search(step, start, end, max_new):
    tokens, n = [start], 0
    if start == end:
        return tokens
    while n < max_new:
        token = torch.argmax(step(tokens)).item()
        tokens.append(token)
        n += 1
        if token == end:
            return tokens
    return tokens
