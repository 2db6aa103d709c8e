def dot_product_moments(mu, sigma, d):
    v = d * (sigma**4 + 2*mu**2*sigma**2)
    return d*mu**2, v, d**0.5
