import math
import torch

def beam_search(step, start, end, beam_size, max_new):
    active, complete = {(start,): 0.0}, {}
    for length in range(1, max_new + 1):
        nxt = {}
        for seq, total in active.items():
            logits = step(list(seq)).double()
            z = math.log(logits.exp().sum())
            values, tokens = torch.topk(logits, min(beam_size, len(logits)))
            for v, t in zip(values, tokens):
                nxt[seq + (int(t),)] = total + float(v) - z
        best = sorted(nxt, key=nxt.get)[-beam_size:]
        complete.update({s: nxt[s] for s in best if s[-1] == end})
        active = {s: nxt[s] for s in best if s[-1] != end}
        if not active:
            break
    complete.update(active)
    winner = max(complete, key=complete.get)
    return list(winner), complete[winner]
