import torch
from torch import nn
from torch.nn import functional as F


def train_lm(model, optimizer, batches, accumulate, max_norm, pad_id):
    """One optimizer step for every `accumulate` batches of tokens (batch, n) -> the list of their losses."""
    raise NotImplementedError


def evaluate_lm(model, batches, pad_id):
    """The mean loss over all real targets, in eval mode; the model's mode is as before."""
    raise NotImplementedError
