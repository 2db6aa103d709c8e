import torch

def dot_product_moments(mu, sigma, d):
    m = torch.full((d,), float(mu), dtype=torch.float64)
    s = torch.full((d,), float(sigma), dtype=torch.float64)
    mean = torch.dot(m, m)
    var = (s.pow(4) + 2 * m.pow(2) * s.pow(2)).sum()
    return mean, var, torch.sqrt(var)
