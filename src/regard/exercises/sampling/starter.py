import torch


def next_token_probs(logits, temperature=1.0, top_k=None, top_p=1.0):
    """logits (batch, vocab) -> probabilities (batch, vocab), 0 for tokens that are not kept."""
    raise NotImplementedError
