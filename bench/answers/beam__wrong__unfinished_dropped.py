import torch


def beam_search(step, start, end, beam_size, max_new):
    live, done = [([start], 0.0)], []
    for _ in range(max_new):
        if not live:
            break
        pool = [
            (seq + [t], s + lp) for seq, s in live for t, lp in enumerate(torch.log_softmax(step(seq), 0).tolist())
        ]
        pool = sorted(pool, key=lambda p: p[1])[-beam_size:]
        done = done + [p for p in pool if p[0][-1] == end]
        live = [p for p in pool if p[0][-1] != end]
    if done:
        return max(done, key=lambda p: p[1])
    return [start], 0.0
