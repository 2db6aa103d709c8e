import torch

def beam_search(step, start, end, beam_size, max_new):
    beams, scores = [[start]], torch.zeros(1)
    best, best_score = None, float("-inf")
    for n in range(max_new):
        logp = torch.stack([step(b) for b in beams]).log_softmax(dim=-1)
        vocab = logp.shape[1]
        flat = (scores[:, None] + logp).reshape(-1)
        top, index = flat.topk(min(2 * beam_size, flat.numel()))
        new, kept = [], []
        for value, i in zip(top.tolist(), index.tolist()):
            sequence = beams[i // vocab] + [i % vocab]
            if i % vocab == end:
                if value > best_score:
                    best, best_score = sequence, value
            elif len(new) < beam_size:
                new.append(sequence)
                kept.append(value)
        beams, scores = new, torch.tensor(kept)
        if not beams or best_score >= kept[0]:
            break
    if beams and scores[0] > best_score:
        best, best_score = beams[0], scores[0].item()
    return best, best_score
