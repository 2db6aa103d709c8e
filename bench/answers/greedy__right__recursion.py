def greedy_search(step, start, end, max_new):
    def longer(tokens, left):
        if left == 0:
            return tokens
        logits = step(list(tokens)).tolist()
        best = max(range(len(logits)), key=logits.__getitem__)
        tokens = [*tokens, best]
        return tokens if best == end else longer(tokens, left - 1)

    return longer([start], max_new)
