import torch
def greedy_search(step, start, end, max_new):
    tokens = torch.tensor([start])
    for _ in range(max_new):
        order = torch.sort(step(tokens.tolist()), descending=True)[1]
        tokens = torch.cat([tokens, order[:1]])
        if tokens[-1] == end:
            break
    return tokens.tolist()
