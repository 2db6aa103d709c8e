import heapq
import torch
import torch.nn.functional as F

def beam_search(step, start, end, beam_size, max_new):
    beam = [(0.0, [start], False)]
    for _ in range(max_new):
        if all(finished for _, _, finished in beam):
            break
        candidates = []
        for score, tokens, finished in beam:
            if finished:
                candidates.append((score, tokens, True))
                continue
            for token, value in enumerate(F.log_softmax(step(tokens), dim=0).tolist()):
                candidates.append((score + value, tokens + [token], token == end))
        beam = heapq.nlargest(beam_size, candidates, key=lambda c: c[0])
    score, tokens, _ = beam[0]
    return tokens, score
