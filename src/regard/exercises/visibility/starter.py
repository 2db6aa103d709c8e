import torch


def causal_visible(n_query, n_key, start=0):
    """-> (n_query, n_key) booleans, True where query i, at position start + i, may look at key j."""
    raise NotImplementedError


def padding_visible(valid_lens, n_key):
    """Lengths (batch,) -> (batch, n_key) booleans, True where key j is within the length."""
    raise NotImplementedError
