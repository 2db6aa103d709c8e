import torch


def causal_visible(n_query: int, n_key: int, start: int = 0) -> torch.Tensor:
    return torch.tensor([[j <= start + i for j in range(n_key)] for i in range(n_query)], dtype=torch.bool)


def padding_visible(valid_lens: torch.Tensor, n_key: int) -> torch.Tensor:
    j = torch.arange(n_key, device=valid_lens.device)
    return j.unsqueeze(0) >= (n_key - valid_lens).unsqueeze(1)
