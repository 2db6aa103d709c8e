import torch


def beam_search(step, start, end, beam_size, max_new):
    """step(tokens) gives the logits (vocab,) of the next token.

    Returns (tokens, score) of the best sequence.
    """
    raise NotImplementedError
