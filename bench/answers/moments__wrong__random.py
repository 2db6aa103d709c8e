import torch
def dot_product_moments(mu, sigma, d):
    q = mu + sigma * torch.randn(200000, d)
    k = mu + sigma * torch.randn(200000, d)
    s = (q * k).sum(-1)
    return s.mean(), s.var(), s.std()
