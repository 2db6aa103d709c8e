import torch


def beam_search(step, start, end, beam_size, max_new):
    scores, paths = [0.0], [[start]]
    for _ in range(max_new):
        table = torch.stack([torch.log_softmax(step(p), 0) + s for p, s in zip(paths, scores)])
        best, where = table.flatten().topk(min(beam_size, table.numel()))
        vocab = table.shape[1]
        paths = [[*paths[int(w) // vocab], int(w) % vocab] for w in where]
        scores = best.tolist()
        for path, score in zip(paths, scores):
            if path[-1] == end:
                return path, score
    return paths[0], scores[0]
