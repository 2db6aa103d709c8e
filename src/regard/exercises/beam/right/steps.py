import torch

def beam_search(step, start, end, beam_size, max_new):
    live = [([start], 0.0)]
    done = []
    for _ in range(max_new):
        grown = []
        for tokens, score in live:
            log_p = torch.log_softmax(step(tokens), dim=-1)
            for token in range(len(log_p)):
                grown.append((tokens + [token], score + float(log_p[token])))
        grown.sort(key=lambda pair: pair[1], reverse=True)
        kept = grown[:beam_size]
        live = []
        for tokens, score in kept:
            if tokens[-1] == end:
                done.append((tokens, score))
            else:
                live.append((tokens, score))
        if not live:
            break
    best = max(done + live, key=lambda pair: pair[1])
    return best
