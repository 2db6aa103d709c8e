def drive(answer, queries, keys, values, valid_lens, what):
    result = answer(queries, keys, values, valid_lens)
    pair = isinstance(result, (tuple, list))
    if what == "output":
        return result[0] if pair else result
    return result[1] if pair else None
