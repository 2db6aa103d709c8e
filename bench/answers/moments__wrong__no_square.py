def dot_product_moments(mu, sigma, d):
    v = d * (sigma**2 + mu**2)**2
    return d * mu**2, v, v**0.5
