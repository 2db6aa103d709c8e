import torch
def beam_search(step, start, end, beam_size, max_new):
    beams, done = [([start], 0.0)], []
    for t in range(max_new):
        pool = []
        for seq, sc in beams:
            lp = torch.log_softmax(step(list(seq)).float(), -1)
            vals, idx = lp.topk(min(2 * beam_size, lp.numel()))
            pool += [(seq + [int(i)], sc + float(v)) for v, i in zip(vals, idx)]
        pool.sort(key=lambda x: -x[1])
        beams = []
        for rank, (seq, sc) in enumerate(pool[: 2 * beam_size]):
            if seq[-1] == end:
                if rank < beam_size:
                    done.append((seq, sc))
            elif len(beams) < beam_size:
                beams.append((seq, sc))
        if not beams:
            break
    return max(done + beams, key=lambda x: x[1])
