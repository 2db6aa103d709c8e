import torch


def greedy_search(step, start, end, max_new):
    tokens = [start]
    while len(tokens) - 1 < max_new:
        best = int(torch.topk(step(tokens), k=1).indices)
        if best in tokens:
            break  # it would loop for ever
        tokens.append(best)
        if best == end:
            break
    return tokens
