import torch

def masked_softmax(X, valid_lens=None):
    """Softmax over the first keys of each row; a large negative number hides the rest."""
    if valid_lens is None:
        return torch.softmax(X, dim=-1)
    lens = valid_lens if valid_lens.dim() == 2 else valid_lens.unsqueeze(1)
    past = torch.arange(X.shape[-1], device=X.device) >= lens.unsqueeze(-1)
    return torch.softmax(X.masked_fill(past, max(-1e6, torch.finfo(X.dtype).min)), dim=-1)
