import numpy as np
def greedy_search(step, start, end, max_new):
    seq = [start]
    for i in range(max_new):
        nxt = int(np.argmax(np.asarray(step(seq))))
        seq.append(nxt)
        if nxt == end: break
    return seq
