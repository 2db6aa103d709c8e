import torch

def greedy_search(step, start, end, max_new):
    def rest(tokens, left):
        if left == 0:
            return tokens
        values = step(tokens).tolist()
        best = max(range(len(values)), key=lambda i: values[i])
        grown = [*tokens, best]
        return grown if best == end else rest(grown, left - 1)
    return rest([start], max_new)
