import math

def dot_product_moments(mu, sigma, d):
    mean, var = 0.0, 0.0
    for _ in range(d):
        mean += mu * mu
        var += sigma ** 4 + 2 * mu ** 2 * sigma ** 2
    return mean, var, math.sqrt(d)
