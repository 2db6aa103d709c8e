def drive(answer, q, k):
    first, second = answer(q), answer(k)
    for x, features in ((q, first), (k, second)):
        if features.dim() != x.dim() or features.shape[:-1] != x.shape[:-1]:
            raise ValueError(
                f"features of x {tuple(x.shape)} must be of shape {tuple(x.shape[:-1])} + (D,), "
                f"and yours are {tuple(features.shape)}."
            )
    if q.dim() == 1:
        return first @ second
    return first @ second.transpose(-1, -2)
