def greedy_search(step, start, end, max_new):
    out = [start]
    done = False
    while not done and len(out) - 1 < max_new:
        scores = step(out).tolist()
        best = max(range(len(scores)), key=scores.__getitem__)
        out = out + [best]
        done = best == end
    return out
