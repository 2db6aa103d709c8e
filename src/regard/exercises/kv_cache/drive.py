import torch


def drive(answer, x, sizes, other=None):
    """Read x in pieces; where another last piece is given, go back and read that instead."""
    cache, outputs, pieces = None, [], list(x.split(sizes, dim=1))
    for piece in pieces[:-1]:
        y, cache = answer(piece, cache)
        outputs.append(y)
    y, last = answer(pieces[-1], cache)
    if other is not None:
        y, last = answer(other, cache)
    keys, values = last
    return torch.cat([*outputs, y], dim=1), keys, values
