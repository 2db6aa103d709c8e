from dataclasses import dataclass, field
import torch
@dataclass
class Hyp:
    tokens: list
    score: float
    over: bool = False
def beam_search(step, start, end, beam_size, max_new):
    beam = [Hyp([start], 0.0)]
    n = 0
    while n < max_new and not all(h.over for h in beam):
        new = [h for h in beam if h.over]
        for h in (h for h in beam if not h.over):
            logits = step(h.tokens)
            logp = logits
            for v in range(len(logp)):
                new.append(Hyp(h.tokens + [v], h.score + logp[v].item(), v == end))
        beam = sorted(new, key=lambda h: h.score, reverse=True)[:beam_size]
        n += 1
    best = beam[0]
    return best.tokens, best.score
