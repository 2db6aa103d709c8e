import torch
def greedy_search(step, start, end, max_new):
    tokens, n = [start], 0
    while n < max_new:
        token = torch.multinomial(step(tokens).softmax(0), 1).item()
        tokens.append(token)
        n += 1
        if token == end:
            return tokens
    return tokens
