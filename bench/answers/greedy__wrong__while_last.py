import torch
def greedy_search(step, start, end, max_new):
    sequence = (start,)
    while len(sequence) <= max_new and sequence[-1] != end:
        logits = step(list(sequence))
        sequence += (int(logits.softmax(-1).topk(1).indices),)
        if sequence[-1] == end:
            break
    return list(sequence)
