import torch


def beam_search(step, start, end, beam_size, max_new):
    live = [([start], 0.0)]
    done = []
    for _ in range(max_new):
        if not live:
            break
        logits = torch.stack([step(tokens) for tokens, _ in live])
        logp = torch.log_softmax(logits, dim=0)
        candidates = []
        for row, (tokens, score) in zip(logp, live):
            for t, lp in enumerate(row.tolist()):
                candidates.append((tokens + [t], score + lp))
        candidates.sort(key=lambda c: c[1], reverse=True)
        live = []
        for tokens, score in candidates[:beam_size]:
            (done if tokens[-1] == end else live).append((tokens, score))
    return max(done + live, key=lambda c: c[1])
