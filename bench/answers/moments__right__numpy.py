import numpy as np
def dot_product_moments(mu, sigma, d):
    var = d * (sigma**4 + 2 * mu**2 * sigma**2)
    return np.float64(d * mu**2), np.float64(var), np.sqrt(var)
