import math
def dot_product_moments(mu, sigma, d):
    second = sigma ** 2 + mu ** 2
    variance_of_product = second ** 2 - (mu * mu) ** 2
    variance = d * variance_of_product
    return d * mu * mu, variance, math.sqrt(variance)
