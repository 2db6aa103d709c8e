import torch


def beam_search(step, start, end, beam_size, max_new):
    logp = torch.log_softmax(step([start]), -1)
    v, i = logp.topk(beam_size)
    beams = [([start, int(t)], float(s)) for s, t in zip(v, i)]
    for _ in range(max_new - 1):
        nxt = []
        for seq, s in beams:
            if seq[-1] == end:
                nxt.append((seq, s))
                continue
            logp = torch.log_softmax(step(seq), -1)
            t = int(logp.argmax())
            nxt.append((seq + [t], s + float(logp[t])))
        beams = nxt
        if all(seq[-1] == end for seq, _ in beams):
            break
    return max(beams, key=lambda b: b[1])
