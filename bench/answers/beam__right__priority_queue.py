import heapq
import torch
import torch.nn.functional as F
def beam_search(step, start, end, beam_size, max_new):
    beams = [(0.0, [start])]
    finished = []
    for _ in range(max_new):
        candidates = []
        for score, tokens in beams:
            logp = F.log_softmax(step(tokens), dim=-1)
            for token, value in enumerate(logp.tolist()):
                candidates.append((score + value, tokens + [token]))
        beams = []
        for score, tokens in heapq.nlargest(beam_size, candidates, key=lambda c: c[0]):
            (finished if tokens[-1] == end else beams).append((score, tokens))
        if not beams:
            break
    score, tokens = max(finished + beams, key=lambda c: c[0])
    return tokens, score
