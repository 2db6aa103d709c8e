def drive(answer, *args, **kwargs):
    table = answer(*args, **kwargs)
    return table[0] if getattr(table, "ndim", 0) == 3 and table.shape[0] == 1 else table
