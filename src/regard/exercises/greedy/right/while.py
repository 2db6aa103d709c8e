import torch

def greedy_search(step, start, end, max_new):
    out = []
    while len(out) < max_new and (not out or out[-1] != end):
        out = out + [step([start] + out).softmax(-1).topk(1).indices.item()]
    return [start] + out
