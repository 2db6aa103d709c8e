def beam_search(step, start, end, beam_size, max_new):
    beam = [(1.0, [start])]
    done = []
    for _ in range(max_new):
        grown = []
        for p, tokens in beam:
            for token, q in enumerate(step(tokens).softmax(-1).tolist()):
                grown.append((p * q, [*tokens, token]))
        grown.sort(key=lambda item: item[0], reverse=True)
        done += [item for item in grown[:beam_size] if item[1][-1] == end]
        beam = [item for item in grown[:beam_size] if item[1][-1] != end]
        if not beam:
            break
    p, tokens = max(done + beam, key=lambda item: item[0])
    return tokens, p
