import torch
def dot_product_moments(mu, sigma, d):
    mu, sigma, d = (torch.as_tensor(float(x), dtype=torch.float64) for x in (mu, sigma, d))
    var = d * sigma.square() * (sigma.square() + 2 * mu.square())
    return d * mu.square(), var, var.sqrt()
