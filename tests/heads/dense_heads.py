"""Every measure worked out from the whole matrix, one row at a time: the oracle of the streamed ones."""

import math

from regard.heads.measures import OFFSETS


def dense_measures(weights, visible, tokens_special, punctuation, rare, ids, start=0, self_attention=True):
    """name -> the mean over rows that count, or NaN; for one head's (query, key) weights, in float64."""
    n_query, n_key = weights.shape
    causal = start == 0 and not any(visible[i, j] for i in range(n_query) for j in range(i + 1, n_key))
    sums, counts = {}, {}

    def add(name, value):
        sums[name] = sums.get(name, 0.0) + value
        counts[name] = counts.get(name, 0) + 1

    for i in range(n_query):
        seen = [j for j in range(n_key) if visible[i, j]]
        if len(seen) < 2:
            continue
        row = weights[i].double().tolist()
        position = start + i
        entropy = -sum(w * math.log(w) for w in row if w > 0)
        add("entropy", entropy)
        add("uniformity", entropy / math.log(len(seen)))
        add("largest", max(row))
        for name, kind in (("special", tokens_special), ("punctuation", punctuation), ("rare", rare)):
            add(name, sum(row[j] for j in range(n_key) if kind[j]))
        if 0 in seen and position > 0:
            add("first", row[0])
        if not self_attention:
            continue
        add("distance", sum(w * abs(position - j) for j, w in enumerate(row)))
        if causal and len(seen) >= 18:
            add("streaming", sum(row[:4]) + sum(row[position - 4 : position + 1]))
        for name, offset in (("previous", -1), ("same", 0), ("next", 1)):
            if position + offset in seen:
                add(name, row[position + offset])
        for offset in OFFSETS:
            if position + offset in seen:
                top = row[position + offset] == max(row) and max(row) * len(seen) > 1.001
                add(f"argmax{offset:+d}", float(top))
        if ids is None or tokens_special[i]:
            continue
        copies = [j for j in range(i) if ids[j] == ids[i] and not tokens_special[j]]
        if copies:
            add("duplicate", sum(row[j] for j in copies))
        after = [j + 1 for j in copies if j + 1 < i]
        if after:
            add("induction", sum(row[j] for j in after))
            best = max(row[j] for j in after) == max(row) and max(row) * len(seen) > 1.001
            add("retrieval", float(best))
    return {name: sums[name] / counts[name] for name in sums}
