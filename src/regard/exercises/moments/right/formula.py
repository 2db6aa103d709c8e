import math

def dot_product_moments(mu, sigma, d):
    variance = d * sigma ** 2 * (sigma ** 2 + 2 * mu ** 2)
    return d * mu ** 2, variance, math.sqrt(variance)
