import torch

def greedy_search(step, start, end, max_new):
    sequence, answer = [start], []
    for _ in range(max_new):
        best = step(sequence).max(dim=0).indices.item()
        if best == end:
            return answer
        sequence.append(best)
        answer.append(best)
    return answer
