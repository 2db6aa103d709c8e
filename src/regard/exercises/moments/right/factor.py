import numpy as np

def dot_product_moments(mu, sigma, d):
    E = mu * mu
    Var = np.square(sigma * sigma) + 2 * E * sigma * sigma
    return d * E, d * Var, 1 / np.sqrt(d * Var)
