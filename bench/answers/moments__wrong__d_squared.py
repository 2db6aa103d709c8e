def dot_product_moments(mu, sigma, d):
    v = d**2 * (sigma**4 + 2*mu**2*sigma**2)
    return d*mu**2, v, v**0.5
