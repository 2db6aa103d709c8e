import torch


def greedy_search(step, start, end, max_new):
    """step(tokens) gives the logits (vocab,) of the next token. Returns the list of tokens.

    It begins with start, and ends with end if that was reached.
    """
    raise NotImplementedError
