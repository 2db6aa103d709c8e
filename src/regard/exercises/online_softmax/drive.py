import torch


def drive(answer, state, *blocks):
    """The state after all blocks, pairs of scores and values; from None, the average and the log-sum-exp."""
    if state is not None:
        for scores, values in blocks:
            state = answer(*state, scores, values)
        return state
    scores, values = blocks[0]
    n, d = scores.shape[0], values.shape[1]
    m = torch.full((n,), float("-inf"), dtype=scores.dtype, device=scores.device)
    total, o = torch.zeros_like(m), torch.zeros(n, d, dtype=scores.dtype, device=scores.device)
    for scores, values in blocks:
        m, total, o = answer(m, total, o, scores, values)
    return o / total[:, None], m + torch.log(total)
