def dot_product_moments(mu, sigma, d):
    v = d * (sigma**4 + mu**2*sigma**2)
    return d*mu**2, v, v**0.5
