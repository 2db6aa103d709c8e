import torch


def sinusoidal_positions(n_position: int, model_dim: int) -> torch.Tensor:
    """exp(i p w) has cos as its real part and sin as its imaginary part."""
    exponent = torch.arange(model_dim // 2, dtype=torch.float64) * 2 / model_dim
    angle = torch.outer(torch.arange(n_position, dtype=torch.float64), 10000.0 ** (-exponent))
    wave = torch.polar(torch.ones_like(angle), angle)
    return torch.stack([wave.imag, wave.real], dim=2).reshape(n_position, model_dim).float()
