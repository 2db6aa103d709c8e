import heapq

import torch


def beam_search(step, start, end, beam_size, max_new):
    """Keeps (score, tokens) pairs; what took `end` waits in `finished`."""
    alive = [(0.0, (start,))]
    finished = []
    n_new = 0
    while alive and n_new < max_new:
        n_new += 1
        children = []
        for score, path in alive:
            gains = step(list(path)).log_softmax(dim=0).tolist()
            children.extend((score + gain, (*path, token)) for token, gain in enumerate(gains))
        alive = []
        for child in heapq.nlargest(beam_size, children, key=lambda c: c[0]):
            (finished if child[1][-1] == end else alive).append(child)
    score, path = max(finished + alive, key=lambda c: c[0])
    return list(path), score
