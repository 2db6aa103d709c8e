import torch


def beam_search(step, start, end, beam_size, max_new):
    live, done = [([start], 0.0)], []
    for _ in range(max_new):
        pool = []
        for seq, s in live:
            logp = torch.log_softmax(step(seq), -1)
            for t in range(logp.shape[0]):
                pool.append((s + logp[t].item(), seq, t, s))
        pool.sort(key=lambda p: -p[0])
        live = []
        for total, seq, t, before in pool[:beam_size]:
            if t == end:
                done.append((seq + [t], before))
            else:
                live.append((seq + [t], total))
        if not live:
            break
    return max(done + live, key=lambda b: b[1])
