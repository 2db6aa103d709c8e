import torch


def drive(answer, what, words, outputs, hidden, lens):
    state = answer.init_state((outputs, hidden), lens)
    if what == "init_state":
        return list(state)
    if what == "word by word":
        logits = []
        for t in range(words.shape[1]):
            step, state = answer(words[:, t : t + 1], state)
            logits.append(step)
        return torch.cat(logits, dim=1), state[1]
    logits, after = answer(words, state)
    if what == "state":
        return list(after)
    if what == "twice":
        return logits, answer(words, answer.init_state((outputs, hidden), lens))[0]
    return logits, after[1]
