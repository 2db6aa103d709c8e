import torch

def greedy_search(step, start, end, max_new):
    tokens = torch.tensor([start])
    for i in range(max_new):
        probs = torch.nn.functional.log_softmax(step(tokens.tolist()), dim=-1)
        tokens = torch.cat([tokens, probs.argmax(dim=-1, keepdim=True)])
        if tokens[-1].item() == end:
            break
    return tokens.tolist()
