import torch
def dot_product_moments(mu, sigma, d):
    m = torch.tensor(float(mu))
    s = torch.tensor(float(sigma))
    v = d * (s**4 + 2 * m**2 * s**2)
    return d * m**2, v, torch.sqrt(v)
